#!/usr/bin/env python3
"""async_return, overlap: what a save costs a training loop whose next step it is hidden behind.

    overlap_bench.py [row...]      one JSON object per row on stdout, as tests/bench/run.py wants them

Both with one rank, and one thread of torch's. Nine pairs, ours and the reference in turn, the order
alternating; the first two saves of each are discarded.

async_return: 1 GiB in 400 tensors; until `save_async(overlap=)` returns, against a plain copy of these bytes
into memory that is there. Every byte changes before every pair. After the clock the save must have succeeded.
overlap: a step is matrix products, which take as long as ten plain copies of the state, and then an update
of every tensor. Three steps make a sample: of a loop that saves every step, the last copy included, and of
the same loop that never saves. After the clock every save must have succeeded, and the last holds what it
should.
"""

from __future__ import annotations

import json
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import bench_row
import cairn
import torch
from bench_row import sized
from torch_bench import daemon

STATE_BYTES = sized(1024, 32) << 20
PAIRS = sized(9, 1)
WARM_UP = sized(2, 1)
STEPS = 3
PRODUCTS = sized(200, 10)  # of two matrices, which say how long one takes
BARS = {"async_return": 0.05, "overlap": 1.05}

State = dict[str, torch.Tensor]


def make_state(bytes_: int, tensors: int) -> State:
    words = bytes_ // 8 // tensors
    generator = torch.Generator().manual_seed(7)
    block = torch.randint(-(2**62), 2**62, (words,), generator=generator)
    return {
        f"layers.{i // 4}.weight{i % 4}": block ^ (i * 0x0016_0305_0B0D_1113)
        for i in range(tensors)
    }


def change(state: State) -> None:
    for tensor in state.values():
        tensor.add_(0x0103_0507_090B_0D0F)  # carries or not, every byte is another one


def copy(state: State, into: State) -> float:
    begin = time.perf_counter()
    for name, tensor in state.items():
        into[name].copy_(tensor)
    return time.perf_counter() - begin


def must(saving: cairn.Saving) -> None:
    if not saving.wait(60) or not saving.ok:
        raise RuntimeError(f"{saving!r}: {saving.error}")


class Bench:
    def __init__(self, socket: str) -> None:
        self.c = cairn.connect("bench", rank=0, world_size=1, socket=socket, timeout=60)
        self.step = 0

    def save(self, state: State) -> cairn.Saving:
        self.step += 1
        return self.c.save_async(
            self.step, {"model.pt": state}, overlap=state.values(), strict=True
        )

    def row_async_return(self) -> dict[str, Any]:
        state = make_state(STATE_BYTES, 400)
        into = {name: tensor.clone() for name, tensor in state.items()}

        def ours() -> float:
            begin = time.perf_counter()
            saving = self.save(state)
            took = time.perf_counter() - begin
            must(saving)
            return took

        for _ in range(WARM_UP):
            ours()
            copy(state, into)
        samples = []
        for pair in range(PAIRS):
            change(state)
            time.sleep(0.2)
            if pair % 2:
                other = copy(state, into)
                samples.append((ours(), other))
            else:
                took = ours()
                samples.append((took, copy(state, into)))
        return bench_row.row(
            "async_return", "s", BARS["async_return"], samples, "plain copy of these bytes"
        )

    def row_overlap(self) -> dict[str, Any]:
        state = make_state(STATE_BYTES // 4, 100)
        into = {name: tensor.clone() for name, tensor in state.items()}
        copy_s = statistics.median(copy(state, into) for _ in range(9))
        a, b = torch.randn(512, 512), torch.randn(512, 512)

        def compute(products: int) -> None:
            for _ in range(products):
                torch.mm(a, b)

        begin = time.perf_counter()
        compute(PRODUCTS)
        products = round(10 * copy_s / ((time.perf_counter() - begin) / PRODUCTS))

        def loop(saves: bool) -> float:
            savings = []
            begin = time.perf_counter()
            for _ in range(STEPS):
                compute(products)
                if saves:
                    self.c.fence()
                change(state)
                if saves:
                    savings.append(self.save(state))
            if saves:
                self.c.fence()
            took = time.perf_counter() - begin
            for saving in savings:
                must(saving)
            return took / STEPS

        loop(True)
        loop(False)
        samples = []
        for pair in range(PAIRS):
            if pair % 2:
                other = loop(False)
                samples.append((loop(True), other))
            else:
                took = loop(True)
                samples.append((took, loop(False)))
        loop(True)
        found = self.c.load(f"{self.step}/model.pt")
        for name, tensor in state.items():
            if not torch.equal(found[name], tensor):
                raise RuntimeError(f"{name} does not hold what was saved")
        return bench_row.row(
            "overlap",
            "s",
            BARS["overlap"],
            samples,
            "the same loop, never saving",
            note=f"a plain copy of the state takes {copy_s * 1e3:.0f} ms",
        )


def main() -> int:
    rows = sys.argv[1:] or list(BARS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # leaves no daemon
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="cairn-bench-") as folder:
        with daemon(Path(folder)) as socket:
            bench = Bench(socket)
            for name in rows:
                print(json.dumps(getattr(bench, f"row_{name}")()), flush=True)
            bench.c.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
