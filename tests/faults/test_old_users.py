"""R14 and R29: a slab's old user is still there. It is never reused while it can be seen or scribbled on.

Old users are processes of their own (`actor`), so that they can be stopped, killed and forked for real.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import stopped
from cairn_daemon import MIB, Node, exit_status, node
from cairn_raw import (
    FILE,
    MAP,
    RESOURCE_EXHAUSTED,
    CairnError,
    Raw,
    attempt_number,
    crc32c,
    pattern,
    refuses,
)
from patience import until

ACTOR = f"""
import sys, os, json
sys.path.insert(0, {str(Path(__file__).parent)!r})
from cairn_raw import *
import mmap
def say(**words): print(json.dumps(words), flush=True)
def go(): sys.stdin.readline()
socket_path, job, attempt = sys.argv[1], sys.argv[2], int(sys.argv[3])
"""


class Actor:
    def __init__(self, node: Node, job: str, attempt: int, script: str) -> None:
        self.process = subprocess.Popen(
            ["/usr/bin/python3", "-c", ACTOR + script, node.socket, job, str(attempt)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the actor died"
        return json.loads(line)

    def go(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        return self.hear()

    def stop(self) -> None:
        stopped.stop(self.process.pid)

    def go_on(self) -> None:
        stopped.go_on(self.process.pid)

    def die(self) -> None:
        self.process.kill()
        exit_status(self.process)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def actor(node: Node, job: str, attempt: int, script: str) -> Iterator[Actor]:
    instance = Actor(node, job, attempt, script)
    try:
        yield instance
    finally:
        instance.die()


def press(writer: Raw | Life, steps: range, size: int = 12 * MIB) -> int:
    """Saves until memory has gone around more than once; every step is read back. How many were refused."""
    refused = 0
    for step in steps:
        data = pattern(f"press{step}", size)
        try:
            writer.save(step, {"p": data}, timeout_ms=300)
        except CairnError as error:
            assert error.code == RESOURCE_EXHAUSTED, error
            refused += 1
            continue
        assert writer.load(step, "p") == data
    return refused


class Life:
    """A newer life of the job, of two ranks."""

    def __init__(self, node: Node, job: str) -> None:
        attempt = attempt_number()
        self.first = node.writer(job, attempt, 0, 2)
        self.second = node.writer(job, attempt, 1, 2)

    def save(self, step: int, objects: dict[str, bytes], **options: Any) -> None:
        self.first.save(step, objects, **options)
        self.second.commit(step)

    def load(self, step: int, name: str) -> bytes:
        return self.first.load(step, name)

    def __enter__(self) -> Life:
        return self

    def __exit__(self, *_: object) -> None:
        self.first.vanish()
        self.second.vanish()


READER = """
r = Raw(socket_path, job)
held = r.open(1, "a", MODE)
view = mmap.mmap(r.leases[held.lease], held.slab_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
look = lambda: crc32c(view[held.offset:held.offset + held.object.length])
say(crc=look(), pid=os.getpid())
"""


@pytest.mark.parametrize("mode", [MAP, FILE], ids=["map", "file"])
def test_pages_of_a_stopped_reader_are_never_reused(daemon: Node, mode: int) -> None:
    """R14."""
    attempt = attempt_number()
    with daemon.writer("stopped", attempt) as writer:
        data = pattern("stopped", 12 * MIB)
        writer.save(1, {"a": data})
        with actor(
            daemon, "stopped", 0, READER.replace("MODE", str(mode)) + "\ngo()\nsay(crc=look())\n"
        ) as reader:
            assert reader.hear()["crc"] == crc32c(data)
            reader.stop()
            assert press(writer, range(2, 12)) == 0, (
                "what fits twice beside the lease can always be saved"
            )
            reader.go_on()
            assert reader.go()["crc"] == crc32c(data)


def test_a_refusal_under_pressure_names_who_holds_the_memory(daemon: Node) -> None:
    """R14, R30: pid, bytes and age stand in the error."""
    with daemon.writer("holder", attempt_number()) as writer:
        writer.save(1, {"a": pattern("holder", 40 * MIB)})
        with actor(daemon, "holder", 0, READER.replace("MODE", "1") + "\ngo()\n") as reader:
            pid = reader.hear()["pid"]
            reader.stop()
            message = refuses(RESOURCE_EXHAUSTED, writer.create, 2, {"a": 40 * MIB}, timeout_ms=300)
            assert str(pid) in message, message
            reader.go_on()


@pytest.mark.parametrize("restart", [False, True], ids=["", "across a restart"])
def test_a_reader_that_said_released_but_kept_its_mapping_still_sees_its_bytes(
    daemon: Node, restart: bool
) -> None:
    """R29: the RPC is a promise, the lock on the description is the truth."""
    script = (
        READER.replace("MODE", "1")
        + 'r.change("release", [held.lease]); say(ok=1)\ngo()\nsay(crc=look())\n'
    )
    with daemon.writer("liar", attempt_number()) as writer:
        data = pattern("liar", 12 * MIB)
        writer.save(1, {"a": data})
        with actor(daemon, "liar", 0, script) as reader:
            assert reader.hear()["crc"] == crc32c(data)
            reader.hear()
            if restart:
                daemon.kill_daemon()
                writer.reconnect()
            press(writer, range(2, 10))
            assert reader.go()["crc"] == crc32c(data)
        until("the quarantined memory is back", lambda: daemon.status().quarantined_bytes == 0)


@pytest.mark.parametrize("restart", [False, True], ids=["", "across a restart"])
def test_a_forked_child_of_a_dead_reader_still_sees_its_bytes(daemon: Node, restart: bool) -> None:
    script = READER.replace("MODE", "1") + (
        "child = os.fork()\n"
        "if child: say(child=child); os._exit(0)\n"
        "r.channel.close(); r.transport.close(); go(); say(crc=look()); go()\n"
    )
    with daemon.writer("forked", attempt_number()) as writer:
        data = pattern("forked", 12 * MIB)
        writer.save(1, {"a": data})
        with actor(daemon, "forked", 0, script) as reader:
            reader.hear()
            child = reader.hear()["child"]
            exit_status(reader.process)
            if restart:
                daemon.kill_daemon()
                writer.reconnect()
            press(writer, range(2, 10))
            assert reader.go()["crc"] == crc32c(data)
            os.kill(child, signal.SIGKILL)
        until("the quarantined memory is back", lambda: daemon.status().quarantined_bytes == 0)


WRITER = """
w = Raw(socket_path, job, attempt, 0, 1)
reply = w.create(1, {"a": 12 << 20})
m = w.map(reply.extents[0])
w.fill(reply.extents[0], pattern("old", 12 << 20))
"""


@pytest.mark.parametrize("restart", [False, True], ids=["", "across a restart"])
def test_a_forked_child_of_a_dead_writer_scribbles_on_nobody(daemon: Node, restart: bool) -> None:
    """R29: the old process is dead by its pidfd, but its child has the slab mapped for writing."""
    script = WRITER + (
        "child = os.fork()\n"
        "if child: say(child=child); os._exit(0)\n"
        "w.channel.close(); w.transport.close()\n"
        "go(); m[:] = b'\\xee' * len(m); say(scribbled=1)\n"
        "go(); m[:] = b'\\xdd' * len(m); say(scribbled=2)\ngo()\n"
    )
    with actor(daemon, "child", attempt_number(), script) as old:
        child = old.hear()["child"]
        exit_status(old.process)
        until(
            "the dead session is gone",
            lambda: all(s.pid != old.process.pid for s in daemon.status().sessions),
        )
        if restart:
            daemon.kill_daemon()
        with daemon.writer("child", attempt_number()) as writer:
            kept = {}
            for step in (1, 2, 3):
                kept[step] = pattern(f"new{step}", 12 * MIB)
                writer.save(step, {"a": kept[step]})
            old.go()
            status = daemon.status()
            assert status.quarantined_bytes >= 12 * MIB
            assert any(child in q.pids for q in status.quarantined), status.quarantined
            press(writer, range(4, 10))
            old.go()
            newest = writer.latest().step
            assert newest >= 3
            writer.load(newest, "p" if newest > 3 else "a")
            os.kill(child, signal.SIGKILL)
            until("the quarantined memory is back", lambda: daemon.status().quarantined_bytes == 0)
            press(writer, range(10, 12))


def test_a_stopped_writers_slab_is_not_lent_to_another(daemon: Node) -> None:
    script = (
        WRITER + "say(pid=os.getpid())\ngo()\nm[:] = b'\\xee' * len(m)\nsay(scribbled=1)\ngo()\n"
    )
    old_attempt = attempt_number()
    with actor(daemon, "asleep", old_attempt, script) as old:
        old.hear()
        old.stop()
        with Life(daemon, "asleep") as writer:
            assert press(writer, range(2, 8)) == 0
            last = pattern("last", 12 * MIB)
            writer.save(20, {"a": last})
            old.go_on()
            old.go()
            assert writer.load(20, "a") == last


def test_a_writer_that_said_unmapped_but_was_not_scribbles_on_nobody(daemon: Node) -> None:
    """The word of one process is enough for its own slabs only; another process gets them after a probe."""
    script = WRITER + (
        'w.commit(1, [w.sealed("a", pattern("old", 12 << 20))])\n'
        "w.unmapped = list(w.slabs)\n"
        'w.create(2, {"x": 5})\n'  # tells the lie
        "say(lied=1)\ngo()\nm[:] = b'\\xee' * len(m)\nsay(scribbled=1)\ngo()\n"
    )
    with actor(daemon, "lying", attempt_number(), script) as old:
        old.hear()
        with Life(daemon, "lying") as writer:
            press(writer, range(3, 8))
            last = pattern("last", 12 * MIB)
            writer.save(20, {"a": last})
            old.go()
            assert writer.load(20, "a") == last


def test_a_file_opened_by_path_keeps_its_slab_after_the_lease_is_gone(daemon: Node) -> None:
    """FILE mode: a loader opens /proc/self/fd/N anew; that description carries no lock of ours."""
    script = """
r = Raw(socket_path, job)
held = r.open(1, "a", FILE)
again = os.open(f"/proc/self/fd/{r.leases[held.lease]}", os.O_RDONLY)
view = mmap.mmap(again, held.slab_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
look = lambda: crc32c(view[held.offset:held.offset + held.object.length])
r.release(held)
r.vanish()
say(crc=look())
go()
say(crc=look())
go()
"""
    with daemon.writer("bypath", attempt_number()) as writer:
        data = pattern("bypath", 12 * MIB)
        writer.save(1, {"a": data})
        with actor(daemon, "bypath", 0, script) as reader:
            assert reader.hear()["crc"] == crc32c(data)
            press(writer, range(2, 10))
            assert reader.go()["crc"] == crc32c(data)


def test_what_only_the_dead_held_comes_back_whole() -> None:
    """No byte of the budget is lost to old users, however often they come and go."""
    with node(budget=48 * MIB) as instance:
        for _ in range(6):
            with actor(instance, "rounds", attempt_number(), WRITER + "say(ok=1)\ngo()\n") as old:
                old.hear()
                old.stop()
        until(
            "all memory is back",
            lambda: (lambda s: s.writing_bytes == 0 and s.quarantined_bytes == 0)(
                instance.status()
            ),
        )
        with instance.writer("rounds", attempt_number()) as writer:
            writer.save(1, {"a": pattern("all", 40 * MIB)})
