#!/usr/bin/env python3
"""The rows of the catalog in a database: `catalog_bench` measures, one row in a server of its own each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import bench_row
from bench_row import sized

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
PROGRAM = BUILD / "main" / "tests" / "bench" / "catalog_bench"
PAIRS = sized(9, 1)
# Name → unit, bar, reference, higher is better.
ROWS = {
    "catalog_commit": ("ms", 1.5, "a bare upsert on the same server", False),
    "catalog_commit/batch": ("rows/s", 20, "one by one", True),
    "catalog_scale": ("ms", 3, "a bare multi-row insert of the same rows", False),
    "catalog_scale/latest": ("ms", 3, "a select by the primary key", False),
}
# On a disk, because the server's commits are durable. mariadb-install-db cannot handle a path with a blank.
DISK = "/var/tmp"


def measure(name: str) -> None:
    done = subprocess.run(
        [str(PROGRAM), name, str(PAIRS)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": DISK},
    )
    pairs = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
    unit, bar, reference, higher = ROWS[name]
    samples = [(ours, other) for ours, other in pairs]
    made = bench_row.row(name, unit, bar, samples, reference, higher_is_better=higher)
    print(json.dumps(made), flush=True)


def main() -> None:
    for name in sys.argv[1:] or list(ROWS):
        measure(name)


if __name__ == "__main__":
    main()
