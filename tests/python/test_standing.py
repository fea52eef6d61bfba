"""Standing mappings (docs/weights.md): a consumer in a process of its own streams version after version out
of slabs that it keeps mapped, while the trainer goes on saving into them."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import cairn
import pytest
import torch
from cairn.weights import publish
from node import MIB, Node
from patience import patient, until
from stopped import go_on, stop

MODEL = 16 * MIB
LAST = 100  # the version after which the consumer says goodbye


def model(step: int) -> dict[str, torch.Tensor]:
    return {
        f"layers.{i}.w": torch.full((MODEL // 8 // 4,), float(step * 100 + i)) for i in range(8)
    }


# Says "STEP WAY" of each version, once all its bytes are those of that step and its slab is mapped for good.
CONSUMER = """
    import sys, torch, cairn
    from cairn import weights
    from patience import patient, until

    job, last = "policy", int(sys.argv[1])
    c = cairn.connect(job=job, rank=-1, timeout=patient(20))
    for version in weights.follow(c, "cpu", timeout=patient(60)):
        tensors = dict(version)
        for i in range(8):
            expected = float(version.step * 100 + i)
            assert torch.equal(tensors[f"layers.{i}.w"],
                               torch.full_like(tensors[f"layers.{i}.w"], expected)), version.step
        stats = version.stats
        def is_mapped():  # in the background
            with weights.stream(c, version.step, "cpu") as again:
                dict(again)
            return again.stats["way"] == "standing"
        until("its slab is mapped for good", is_mapped)
        print(version.step, stats["way"].replace(", ", "+"), stats["read_again"], flush=True)
        if version.step == last:
            break
    sys.stdin.readline()
    c.close()
    print("closed", flush=True)
"""


class Consumer:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(CONSUMER), str(LAST)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> list[str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().split()
        assert line, f"the consumer ended: {self.process.wait()}"
        return line

    def slabs(self) -> int:
        """How many it has mapped."""
        maps = Path(f"/proc/{self.process.pid}/maps").read_text(encoding="utf-8")
        return len(set(re.findall(r"memfd:cairn-slab-\d+", maps)))

    def end(self, c: cairn.Connection) -> None:
        follow_to(c, self, range(LAST, LAST + 1))
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.line() == ["closed"]
        assert self.process.wait(patient(20)) == 0


@pytest.fixture
def own_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    node = Node(budget=80 * MIB).start()
    monkeypatch.setenv("CAIRN_SOCKET", node.socket)
    yield node
    node.remove()


def counters(c: cairn.Connection) -> dict[str, int]:
    found: dict[str, int] = c.status()["counters"]
    return found


def follow_to(c: cairn.Connection, consumer: Consumer, steps: range) -> list[str]:
    """Publishes one version after the other, each once the one before was taken; the ways they came."""
    ways = []
    for step in steps:
        assert publish(c, step, model(step)).ok
        version, way, read_again = consumer.line()
        assert (int(version), read_again) == (step, "0")
        ways.append(way)
    return ways


def follow_until_standing(c: cairn.Connection, consumer: Consumer, first: int) -> int:
    """Publishes versions from `first` on until one comes out of a standing mapping, and returns the next one.
    How many that takes depends on how soon the node lets old steps go: until then it makes new slabs."""
    for step in range(first, first + 20):
        if follow_to(c, consumer, range(step, step + 1)) == ["standing"]:
            return step + 1
    raise AssertionError(f"none of the versions {first} to {step} came from a standing mapping")


def follow_until_recycled(c: cairn.Connection, consumer: Consumer, first: int) -> int:
    """The same until four versions in a row came from standing mappings and no slab was made or destroyed."""

    def changes() -> list[int]:
        now = counters(c)
        return [now["slabs_made"], now["slabs_destroyed"]]

    for step in range(first, first + 40, 4):
        before = changes()
        ways = follow_to(c, consumer, range(step, step + 4))
        if ways == ["standing"] * 4 and changes() == before:
            return step + 4
    raise AssertionError(f"up to version {step + 3} slabs are not used again: {ways}")


def test_versions_come_from_standing_mappings_and_a_killed_consumers_slabs_are_destroyed(
    own_node: Node,
) -> None:
    with contextlib.closing(cairn.connect(job="policy", timeout=patient(20))) as c:
        consumer = Consumer()
        assert publish(c, 1, model(1)).ok
        assert consumer.line()[:2] == ["1", "direct"]
        step = follow_until_recycled(c, consumer, 2)
        assert counters(c)["standing_lends"] >= 2
        assert counters(c).get("slabs_condemned", 0) == 0

        consumer.process.send_signal(signal.SIGKILL)
        consumer.process.wait()
        until("its slabs are condemned", lambda: counters(c).get("slabs_condemned", 0) >= 2)
        for later in range(step, step + 5):
            assert publish(c, later, model(later)).ok

        def all_are_destroyed() -> bool:
            now = counters(c)
            condemned = now["slabs_condemned"]
            ordered = now.get("slabs_condemned_destroyed", 0)
            return ordered == condemned and now["slabs_destroyed"] >= condemned

        until("all condemned slabs are destroyed", all_are_destroyed)
        tensors = dict(cairn.weights.stream(c, later, "cpu"))
        assert torch.equal(tensors["layers.3.w"], model(later)["layers.3.w"])


def test_a_consumer_that_says_goodbye_costs_no_slab(own_node: Node) -> None:
    with contextlib.closing(cairn.connect(job="policy", timeout=patient(20))) as c:
        consumer = Consumer()
        assert publish(c, 1, model(1)).ok
        assert consumer.line()[0] == "1"
        follow_until_standing(c, consumer, 2)
        destroyed = counters(c)["slabs_destroyed"]
        consumer.end(c)
        for step in range(LAST + 1, LAST + 5):
            assert publish(c, step, model(step)).ok
        assert counters(c).get("slabs_condemned", 0) == 0
        assert counters(c)["slabs_destroyed"] == destroyed


def test_it_goes_on_when_the_daemon_is_killed(own_node: Node) -> None:
    with contextlib.closing(cairn.connect(job="policy", timeout=patient(20))) as c:
        consumer = Consumer()
        assert publish(c, 1, model(1)).ok
        assert consumer.line()[0] == "1"
        step = follow_until_recycled(c, consumer, 2)
        own_node.kill_daemon()
        assert set(follow_to(c, consumer, range(step, step + 4))) == {"standing"}
        assert counters(c).get("slabs_condemned", 0) == 0
        consumer.end(c)


def test_a_new_trainer_gets_the_slabs_that_the_consumer_gives_up(own_node: Node) -> None:
    consumer = Consumer()
    with contextlib.closing(cairn.connect(job="policy", timeout=patient(20))) as c:
        assert publish(c, 1, model(1)).ok
        assert consumer.line()[0] == "1"
        step = follow_until_standing(c, consumer, 2)
    with contextlib.closing(cairn.connect(job="policy", timeout=patient(20))) as c:
        destroyed = counters(c).get("slabs_condemned", 0)
        began = time.monotonic()
        follow_to(c, consumer, range(step, step + 6))
        follow_until_standing(c, consumer, step + 6)
        assert time.monotonic() - began < patient(30)
        assert counters(c).get("slabs_condemned", 0) == destroyed == 0
        consumer.end(c)


def test_a_stopped_consumer_holds_a_new_trainer_up_for_ten_seconds_and_is_named(
    own_node: Node,
) -> None:
    consumer = Consumer()
    with contextlib.closing(cairn.connect(job="policy", timeout=patient(20))) as c:
        assert publish(c, 1, model(1)).ok
        assert consumer.line()[0] == "1"
        step = follow_until_standing(c, consumer, 2)
        while consumer.slabs() < 4:  # as many as the budget has room for
            follow_to(c, consumer, range(step, step + 1))
            step += 1
            assert step < 40
        stop(consumer.process.pid)
    with contextlib.closing(cairn.connect(job="policy", timeout=patient(60))) as c:
        began = time.monotonic()
        refused = None
        for step in range(40, 45):
            s = publish(c, step, model(step))
            if not s.ok:
                refused = s
                break
        assert refused is not None, "all slabs are mapped by the stopped consumer"
        assert time.monotonic() - began < patient(30)
        assert f"pid {consumer.process.pid}" in str(refused.error), refused.error
        go_on(consumer.process.pid)
        until("there is room again", lambda: publish(c, 50, model(50)).ok)
    consumer.process.kill()
    consumer.process.wait()
