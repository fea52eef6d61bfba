#!/usr/bin/env python3
"""The rows of weight streams into the host device without a daemon; gpu_streams, pipeline_bench measure."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import bench_row
from bench_row import sized

BUILD = Path(__file__).resolve().parents[2] / "build" / "main"
STREAMS = [str(BUILD / "client" / "gpu" / "gpu_streams"), "host", str(sized(1024, 64))]
PIPELINE = [str(BUILD / "tests" / "bench" / "pipeline_bench")]
PAIRS = sized(9, 1)
MEMCPY = "memcpy, one thread, faulted"
SLOWEST = "the slowest stage alone: 64 buckets of 20 ms"
# Name → program, bar, reference, and what a reference takes at most on a machine fit for this.
ROWS = {
    "stream_host": (STREAMS, 1.10, MEMCPY, 250),
    "stream_ring": (STREAMS, 1.5, MEMCPY, 250),
    "stream_many": (STREAMS, 1.25, "one tensor of the same bytes", 0),
    "stream_slices/dim0": (STREAMS, 1.3, f"{MEMCPY}, as many bytes", 63),
    "stream_slices/dim1": (STREAMS, 3, f"{MEMCPY}, as many bytes", 63),
    "pipeline/read": (PIPELINE, 1.10, SLOWEST, 0),
    "pipeline/copy": (PIPELINE, 1.10, SLOWEST, 0),
    "pipeline/caller": (PIPELINE, 1.10, SLOWEST, 0),
}


def measure(name: str) -> None:
    program, bar, reference, most = ROWS[name]
    done = subprocess.run(
        [*program, str(PAIRS), name], check=True, stdout=subprocess.PIPE, text=True
    )
    words = [line.split() for line in done.stdout.splitlines()]
    samples = [(float(w[2]), float(w[3])) for w in words if w[:2] == ["sample", name]]
    took = statistics.median(other for _, other in samples)
    invalid = f"the reference took {took:.0f} ms" if 0 < most < took else ""
    print(
        json.dumps(bench_row.row(name, "ms", bar, samples, reference, invalid=invalid)), flush=True
    )


def main() -> None:
    for name in sys.argv[1:] or list(ROWS):
        measure(name)


if __name__ == "__main__":
    main()
