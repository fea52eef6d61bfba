#!/usr/bin/env python3
"""The row `rdma_read`: our transport against perftest's ib_read_bw, with the same chunk, queue pairs, reads
under way and MTU, one after the other in one guest (hack/guest). An emulated processor's figures say nothing
about a network; the ratio does.

    rdma_bench.py             the row
    rdma_bench.py --records   without a bar: registration, and a restart with 4 GiB registered
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
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


def print_row(samples: list[tuple[float, float]], **words: str) -> None:
    reference = "ib_read_bw, the same chunk, queue pairs, reads under way and MTU"
    made = bench_row.row(
        "rdma_read", "MB/s", 0.85, samples, reference, higher_is_better=True, **words
    )
    print(json.dumps(made), flush=True)


def measure() -> None:
    samples = [(ours(), theirs()) for _ in range(PAIRS)]
    checked = [ours("checked") for _ in range(3)]
    print_row(samples, note=f"with the checksum of what arrived {sorted(checked)[1]:.0f} MB/s")


# --- records


def registration() -> None:
    Path("/proc/sys/vm/nr_hugepages").write_text("160")
    for page_kib in (4, 2048):
        command = [str(PROGRAM), DEVICE, "registration", str(page_kib)]
        runs = [
            subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            for _ in range(5)
        ]
        there, back = (sorted(float(run[i]) for run in runs)[2] for i in (0, 1))
        print(f"registration, {page_kib} KiB pages: {there:.0f} ms per GiB, back {back:.0f} ms")
    Path("/proc/sys/vm/nr_hugepages").write_text("0")


def restart() -> None:
    """A daemon with 4 GiB registered is killed: until the next one answers, and has registered them."""
    sys.path[:0] = [str(ROOT / "tests" / "faults"), str(ROOT / "hack" / "cluster")]
    from cairn_daemon import Node
    from patience import until

    def registered() -> int:
        Path("/proc/sys/vm/stat_refresh").write_text("1")
        counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
        return int(counts["nr_foll_pin_acquired"]) - int(counts["nr_foll_pin_released"])

    with tempfile.TemporaryDirectory(prefix="cairn-", dir="/tmp") as folder:
        nodes = "0=127.0.0.1:7400,1=127.0.0.2:7400"
        ring = ("--ring.cluster=ring", "--ring.rank=0", f"--ring.nodes={nodes}")
        own = ("--transport=rdma", "--pool.slabs=1GiB*4")
        node = Node(Path(folder), budget=4352 << 20, storage=False, options=(*ring, *own))
        os.environ["NCCL_IB_HCA"] = f"={DEVICE}"
        node.start()
        try:
            pages = (4 << 30) // 4096
            until("4 GiB are registered", lambda: registered() >= pages, 240)
            for _ in range(3):
                begin = time.monotonic()
                node.kill_daemon()
                node.wait_ready(60)
                answered = time.monotonic() - begin
                until("4 GiB are registered", lambda: registered() >= pages, 240)
                ready = time.monotonic() - begin
                print(f"restart: answers after {answered:.2f} s, registered after {ready:.2f} s")
        finally:
            node.kill_all()


def main() -> int:
    if "--inside" in sys.argv:
        measure()
        return 0
    if "--inside-records" in sys.argv:
        registration()
        restart()
        return 0
    if bench_row.TINY:
        print_row([], invalid="it needs an RDMA device, and perftest")
        return 0
    records = "--records" in sys.argv
    guest = [str(ROOT / "hack" / "guest"), "--limit", "500" if records else "280"]
    guest += ["--memory", "6144"] if records else []
    inside = "--inside-records" if records else "--inside"
    return subprocess.run([*guest, sys.executable, str(HERE), inside], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
