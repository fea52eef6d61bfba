#!/usr/bin/env python3
"""The replication part of make demo-cluster over RDMA: three nodes copy a checkpoint, one is lost, and each
says which transport carried how many bytes.

`hack/demo/cluster.py --rdma` runs it in the guest, where all nodes are on one host and share a device. Exit
status 0 when every byte came, and by RDMA alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "cluster"))

from members import Member, binary, ring_options

NODES = 3
STEP_BYTES = 48 << 20
BUDGET = "256MiB"
LIMIT_S = 120


class Loopback:
    """The network of nodes that are all on this host: each has a loopback address."""

    addresses = [f"127.0.0.{rank + 1}" for rank in range(NODES)]

    def enter(self, host: int) -> list[str]:
        return []


def start(folder: Path, rank: int, life: int) -> Member:
    options = [
        *ring_options(Loopback.addresses, rank, cluster="demo"),
        f"--memory.budget={BUDGET}",
        "--journal.bytes=16MiB",
        "--ring.lost_after_seconds=5",
        "--transport=rdma",
    ]
    return Member(Loopback(), rank, folder / f"{rank}-{life}", options).start()


def kill(member: Member) -> None:
    """Keeper and daemon at once: what was in the node's memory is gone."""
    assert member.process is not None
    keeper = member.process.pid
    daemons = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    for pid in (keeper, *map(int, daemons)):
        os.kill(pid, signal.SIGKILL)
    member.process.wait()


def cairn(member: Member, *words: str) -> str:
    command = [binary("cairn"), f"--socket={member.socket}", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    if done.returncode != 0:
        raise RuntimeError(f"cairn {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def carried(member: Member) -> dict[str, int]:
    counters = json.loads(cairn(member, "status", "-o", "json"))["counters"]
    return {way: int(counters[f"bytes_read_over_{way}"]) for way in ("rdma", "tcp")}


def tell(what: str, members: list[Member]) -> dict[str, int]:
    """Prints what each node has read so far; the sums."""
    print(f"\n{what}\n\n  {'node':6s} {'read over RDMA':>18s} {'over TCP':>14s}")
    total = {"rdma": 0, "tcp": 0}
    for member in members:
        read = carried(member)
        print(f"  {member.rank:<6d} {read['rdma']:18,d} {read['tcp']:14,d}")
        for way, count in read.items():
            total[way] += count
    sys.stdout.flush()
    return total


def play(folder: Path, members: list[Member]) -> None:
    for rank in range(NODES):
        members.append(start(folder, rank, 1))
    for member in members:
        member.wait_until_it_answers()
    data = folder / "model.bin"
    data.write_bytes(os.urandom(STEP_BYTES))
    cairn(members[0], "put", str(data), "run/1/model.bin")
    begin = time.monotonic()
    cairn(members[0], "wait", "run/1", "--level=replicated", f"--timeout={LIMIT_S}")
    took = time.monotonic() - begin
    rate = STEP_BYTES / took / (1 << 20)
    print(f"{STEP_BYTES:,} bytes saved on node 0 were copied in {took:.1f} s, {rate:.0f} MiB/s")
    first = tell("A copy is in another node's memory", members)

    kill(members[0])
    members[0] = start(folder, 0, 2)
    members[0].wait_until_it_answers()
    back = folder / "back.bin"
    cairn(members[0], f"--timeout={LIMIT_S}", "get", "run/1/model.bin", str(back))
    second = tell("Node 0 lost its memory, and loaded the step from its neighbour", members)

    same = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (data, back)]
    if same[0] != same[1]:
        raise RuntimeError("what was loaded differs from what was saved")
    if second["tcp"] or first["rdma"] < STEP_BYTES or second["rdma"] < 2 * STEP_BYTES:
        raise RuntimeError(f"not all came by RDMA: first {first}, then {second}")
    print(f"\n  → the same bytes, all by RDMA: {second['rdma']:,}", flush=True)


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="cairn-demo-", dir="/tmp"))
    members: list[Member] = []
    try:
        play(folder, members)
        return 0
    except (RuntimeError, FileNotFoundError, subprocess.SubprocessError) as error:
        print(f"FAILED: {error}")
        for member in members:
            print(f"--- node {member.rank}\n{member.tail()}")
        return 1
    finally:
        for member in members:
            if member.process is not None and member.process.poll() is None:
                kill(member)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
