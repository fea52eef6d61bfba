#!/usr/bin/env python3
"""The row `rdma_read`: our transport against perftest's ib_read_bw, with the same chunk, queue pairs, reads
under way and MTU, one after the other in one guest (hack/guest). An emulated processor's figures say nothing
about a network; the ratio does."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import bench_row

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
PROGRAM = ROOT / "build" / "main" / "tests" / "bench" / "rdma_bench"
DEVICE = "rxe0"
SECONDS, PAIRS = 3, 7
CHUNK, PAIRS_OF_QUEUES, UNDER_WAY = (
    1 << 20,
    2,
    16,
)  # as RdmaReaderOptions; 16 reads of each queue pair


def ours(*checked: str) -> float:
    command = [str(PROGRAM), DEVICE, str(SECONDS), *checked]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def theirs() -> float:
    options = [
        "-d",
        DEVICE,
        "-F",
        "-s",
        str(CHUNK),
        "-q",
        str(PAIRS_OF_QUEUES),
        "-o",
        str(UNDER_WAY),
    ]
    options += [
        "-t",
        str(UNDER_WAY),
        "-D",
        str(SECONDS),
        "-x",
        "1",
        "-m",
        "4096",
        "--output=bandwidth",
    ]
    quiet = subprocess.DEVNULL
    owner = subprocess.Popen(["ib_read_bw", *options], stdout=quiet, stderr=quiet)
    try:
        time.sleep(1)
        reader = ["ib_read_bw", *options, "localhost"]
        text = subprocess.run(reader, check=True, capture_output=True, text=True).stdout
    finally:
        owner.wait(30)
    return float(text.split()[-1]) * (1 << 20) / 1e6  # it says MiB/s


def measure() -> None:
    samples = [(ours(), theirs()) for _ in range(PAIRS)]
    checked = [ours("checked") for _ in range(3)]
    made = bench_row.row(
        "rdma_read",
        "MB/s",
        0.85,
        samples,
        "ib_read_bw, the same chunk, queue pairs, reads under way and MTU",
        higher_is_better=True,
        note=f"with the checksum of what arrived {sorted(checked)[1]:.0f} MB/s",
    )
    print(json.dumps(made), flush=True)


def main() -> int:
    if "--inside" in sys.argv:
        measure()
        return 0
    return subprocess.run(
        [str(ROOT / "hack" / "guest"), "--limit", "280", sys.executable, str(HERE), "--inside"],
        cwd=ROOT,
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
