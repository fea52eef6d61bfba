"""Streams of weights while memory is short, of another user, and a thousand of them: nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cairn
import pytest
import torch
from cairn.weights import publish, stream
from node import MIB, Node, binary
from patience import patient, until


@pytest.fixture(scope="module")
def small() -> Iterator[Node]:
    node = Node(budget=96 * MIB).start()
    yield node
    node.remove()


def model(mib: int) -> dict[str, torch.Tensor]:
    return {f"layers.{i}.w": torch.randint(-9, 9, (MIB,), dtype=torch.int8) for i in range(mib)}


@pytest.mark.filterwarnings("ignore::cairn.CairnWarning")
def test_a_step_that_memory_wants_back_in_mid_stream_streams_to_its_end(small: Node) -> None:
    """What is being read is not given up; the next version has its room once the stream has ended."""
    with cairn.connect(job="pressed", rank=0, world_size=1, socket=small.socket) as c:
        state = model(30)
        publish(c, 1, state)
        with cairn.connect(job="others", rank=0, world_size=1, socket=small.socket) as other:
            tensors = stream(c, 1, "cpu", bucket_bytes=MIB, ahead=0)
            came = dict([next(iter(tensors))])
            for step in range(2, 5):
                publish(c, step, {"w": torch.zeros(30 * MIB, dtype=torch.int8)}, timeout=1)
                with other.step(step, timeout=1) as s:
                    s.save(bytes(20 * MIB), "x")
            came |= dict(tensors)
            assert all(torch.equal(came[name], tensor) for name, tensor in state.items())
            assert came.keys() == state.keys()
            assert publish(
                c, 9, {"w": torch.zeros(30 * MIB, dtype=torch.int8)}, timeout=patient(20)
            ).ok


PUBLISHER = """
import os, sys, torch, cairn
os.setgroups([]); os.setgid(65534); os.setuid(65534)
c = cairn.connect(job="nobodys", rank=0, world_size=1, socket=sys.argv[1])
s = cairn.weights.publish(c, 1, {"w": torch.arange(3 << 20)})
print(s.complete, flush=True)
sys.stdin.read()
"""


@pytest.mark.root
def test_another_users_weights_are_streamed_without_a_standing_mapping(small: Node) -> None:
    os.chmod(small.folder, 0o755)
    publisher = subprocess.Popen(
        [sys.executable, "-c", PUBLISHER, small.socket],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert publisher.stdout is not None
    try:
        assert publisher.stdout.readline() == "True\n"
        with cairn.connect(job="nobodys", rank=-1, socket=small.socket) as reader:

            def streamed() -> dict[str, Any]:
                with stream(reader, 1, "cpu") as s:
                    came = dict(s)
                    assert torch.equal(came["w"], torch.arange(3 << 20))
                assert s.stats["standing"] == 0 and s.stats["way"] == "direct"
                return s.stats

            until("it says why", lambda: "another user" in streamed()["standing_because"])
            for _ in range(3):
                streamed()
    finally:
        publisher.communicate("")


THOUSAND = textwrap.dedent(
    """
    import gc, os, sys, time, torch, cairn
    from patience import until
    c = cairn.connect(job="thousand", rank=0, world_size=1, socket=sys.argv[1])
    state = {f"layers.{i}.w": torch.full((1 << 18,), float(i)) for i in range(8)}
    def held():
        gc.collect()
        with open("/proc/self/statm") as f:
            pages = int(f.read().split()[1])
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), pages
    def streams(first, last):
        for i in range(first, last):
            if i % 100 == 0:
                cairn.weights.publish(c, i, state)
            with cairn.weights.stream(c, None, "cpu") as s:
                if i % 7 == 0:
                    next(iter(s))  # and no more
                else:
                    assert dict(s)["layers.7.w"][5] == 7.0
    streams(0, 200)
    before = held()
    streams(200, 1200)
    def are_few():
        after = held()
        print(before, after, file=sys.stderr)
        few = after[0] <= before[0] + 2 and after[1] <= before[1]
        return few and (after[2] - before[2]) * 4096 < 16 << 20
    until("descriptors, threads and memory are as few as before", are_few)
    print(c.status()["sessions"] is not None)
    """
)


@pytest.mark.full
def test_a_thousand_streams_leave_nothing(small: Node) -> None:
    done = subprocess.run(
        [sys.executable, "-c", THOUSAND, small.socket],
        capture_output=True,
        text=True,
        timeout=patient(300),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    with cairn.connect(job="thousand", rank=0, world_size=1, socket=small.socket) as c:

        def leases_have_ended() -> bool:
            return all(q["why"] != "leases" for q in c.status().get("quarantined", []))

        until("its leases have ended", leases_have_ended)
        assert Path(f"/proc/{small.daemon_pid()}/fd").exists()
        assert len(os.listdir(f"/proc/{small.daemon_pid()}/fd")) < 200


def test_what_runs_on_a_gpu_runs_on_the_host_device(small: Node) -> None:
    """`make gpu` runs this script on a GPU; here it must not rot."""
    script = Path(__file__).resolve().parents[1] / "gpu" / "python_on_gpu.py"
    done = subprocess.run(
        [sys.executable, str(script), "cpu"],
        capture_output=True,
        text=True,
        timeout=patient(300),
        env={**os.environ, "CAIRN_BIN": str(binary("cairnd").parent)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 of 7 as they must be" in done.stdout
