#!/usr/bin/env python3
"""How long a ring takes until a replaced node is made good: measured, and what the simulator says.

    recovery_time.py [--nodes 3,5,8] [--replicas 1] [--mib 256] [--mbit 400] [--samples 3]

Every node has a writer with one part; each link carries --mbit each way. One node is killed with all that
is in its memory, and an empty one started in its place: the seconds from its start until it says that the
step has all its replicas again. What it then has is compared with what was saved. The simulator of rings
(`build/main/tests/ring/large_ring`) is asked for the same ring. Exits with 1 where a median is more than a
fifth away from that. PYTHONPATH names build/main/python and tests.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import cairn
from ring_measure import (
    JOB,
    MIB,
    NAME,
    PATIENCE_S,
    ROOT,
    Ring,
    Source,
    attempt_number,
    read_back,
    ring,
    unavailable,
    until,
)

SIMULATOR = ROOT / "build" / "main" / "tests" / "ring" / "large_ring"
STEP = 0
MOST_APART = 0.2


def simulated(nodes: int, options: argparse.Namespace) -> float:
    words = [f"--nodes={nodes}", f"--replicas={options.replicas}", f"--mib={options.mib}"]
    result = subprocess.run(
        [SIMULATOR, *words, f"--mbit={options.mbit}", "--json"],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    return float(json.loads(result.stdout)["seconds"])


def save_everywhere(stack: ExitStack, r: Ring, source: Source) -> None:
    """A part on each node, with all its replicas. The trainers stay."""
    attempt = attempt_number()
    for member in r:
        trainer = stack.enter_context(
            cairn.connect(
                JOB,
                rank=member.rank,
                world_size=len(r.members),
                attempt=attempt,
                socket=member.socket,
                timeout=PATIENCE_S,
            )
        )
        source.fill(member.rank)
        with trainer.step(STEP, strict=True) as s:
            s.save(source.bytes, f"{NAME}{member.rank}")
    r[0].wait_replicated(JOB, STEP, PATIENCE_S)


def time_to_make_good(r: Ring, rank: int) -> float:
    r[rank].kill()
    begin = time.perf_counter()
    r[rank].replace()
    until("all replicas are there", lambda: r[rank].replicated(JOB, STEP), PATIENCE_S)
    return time.perf_counter() - begin


def measured(nodes: int, options: argparse.Namespace) -> list[float]:
    samples = []
    length = options.mib * MIB
    # Two steps of each that a node keeps copies of are set aside, and what is saved.
    budget = length * (2 + 2 * options.replicas) + 256 * MIB
    with ExitStack() as stack:
        r = stack.enter_context(
            ring(
                nodes,
                replicas=options.replicas,
                budget=budget,
                options=(f"--memory.replicas={2 * options.replicas * length + 64 * MIB}",),
                lost_after_s=30,
            )
        )
        source = Source(length)
        save_everywhere(stack, r, source)
        for member in r:
            r.rate(member.rank, options.mbit)
        for sample in range(options.samples):
            # The trainer of a node that was replaced is gone: each node once.
            rank = (nodes // 2 + sample) % nodes
            samples.append(time_to_make_good(r, rank))
            for owner in (rank, (rank - 1) % nodes):  # its own part, and one that it keeps
                read_back(r, rank, STEP, source, owner, owner)
    return samples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", default="3,5,8", help="rings to measure [3,5,8]")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--mib", type=int, default=256, help="of each node's part [256]")
    parser.add_argument("--mbit", type=float, default=400, help="of each link, each way [400]")
    parser.add_argument("--samples", type=int, default=3, help="of each ring [3]")
    options = parser.parse_args()
    cannot = unavailable()
    if cannot:
        raise SystemExit(cannot)
    if not Path(SIMULATOR).exists():
        raise SystemExit(f"{SIMULATOR} is not there: hack/build large_ring")
    logging.getLogger("thrift").setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # leaves no daemon
    print(f"{options.mib} MiB a node, {options.mbit:g} Mbit/s, {options.replicas} replica(s)")
    print("nodes  simulated  measured  ratio  samples", flush=True)
    apart = False
    for nodes in map(int, options.nodes.split(",")):
        model, samples = simulated(nodes, options), measured(nodes, options)
        ratio = statistics.median(samples) / model
        apart |= abs(ratio - 1) > MOST_APART
        shown = " ".join(f"{sample:.1f}" for sample in samples)
        print(
            f"{nodes:5}  {model:7.1f} s  {statistics.median(samples):6.1f} s  {ratio:5.2f}  {shown}",
            flush=True,
        )
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main())
