#!/usr/bin/env python3
"""cairn.dcp against stock torch.distributed.checkpoint, in the same processes.

    dcp_bench.py [row...]        one JSON object per row on stdout, as tests/bench/run.py wants them

Two ranks of a gloo group have 1 GiB in 400 tensors, distributed by rows (as FSDP2 does). Nine pairs, ours
and the reference in turn, the order alternating, after two pairs that do not count. What is timed goes from
a barrier to the end of the slower rank. Each rank has one torch thread, as torchrun gives it, and ours as
many copy threads as it has by default. Python's collector runs before the clock starts: whichever came first
would else collect what the one before left, for 0.2 s.

dcp_async_stall/default, /kept: how long async_save blocks; stock's with a stager of its own for each save,
    and with a DefaultStager that is kept. Both saves are awaited after the clock.
dcp_durable: from the call until the step is PERSISTED; stock's `save`, synced, to the same disk.
dcp_load/memory, /reshard: `memory` loads what was saved, ours from the node's memory and stock's from files
    in tmpfs; `reshard` loads the same by columns, so that each rank wants a half of every row of every
    tensor. Before each pair every byte is another one and both save anew; before each load every byte of
    the targets, which are the same for both, is overwritten, and so is touched. After the clock every
    element is compared with what was saved. What is ours is verified within the time; stock verifies
    nothing.
dcp_small: 10,000 tensors of 64 KiB; ours against ours of one tensor with these bytes, after four pairs.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_row import row, sized
from torch_bench import BUDGET, STATE_BYTES, daemon

RANKS = 2
TENSORS = 400
ROWS = 1024  # of a tensor; so many rows are the same on each rank
COLUMNS = STATE_BYTES // 4 // TENSORS // ROWS // 2 * 2
WARM_UP = sized(2, 1)
# Of the daemon of dcp_small: room for four of its checkpoints. Its two kinds, whose slabs differ in length,
# are saved in the order many, one, one, many, so each finds the slabs that one of its kind left.
SMALL_BUDGET = sized(11 * 1024 // 4, 128) << 20
PAIRS = sized(9, 1)
BARS = {
    "dcp_async_stall/default": 0.35,
    "dcp_async_stall/kept": 0.8,
    "dcp_durable": 0.6,
    "dcp_load/memory": 0.3,
    "dcp_load/reshard": 0.3,
    "dcp_small": 1.5,
}
REFERENCES = {
    "dcp_async_stall/default": "dcp.async_save, a stager of its own",
    "dcp_async_stall/kept": "dcp.async_save, a kept DefaultStager",
    "dcp_durable": "dcp.save, synced, to the same disk",
    "dcp_load/memory": "dcp.load from tmpfs, not verified",
    "dcp_load/reshard": "dcp.load from tmpfs, not verified",
    "dcp_small": "ours, one tensor of these bytes",
}
SMALL = sized(10_000, 200)
SMALL_BYTES = 64 << 10
# Stock takes about a second on the machines the bars were set on.
ABSURD_S = 20.0


# --- one rank, in a process of its own -------------------------------------------------------------------


class Rank:
    def __init__(self, rank: int, folder: Path, files: Path, socket: str) -> None:
        import cairn
        import cairn.dcp
        import torch
        import torch.distributed as dist
        import torch.distributed.checkpoint as stock
        from torch.distributed.device_mesh import init_device_mesh

        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=RANKS
        )
        self.torch, self.dist, self.stock, self.ours = torch, dist, stock, cairn.dcp
        self.mesh = init_device_mesh("cpu", (RANKS,))
        self.rank = rank
        self.folder = folder
        self.files = files
        self.c = cairn.connect("bench", rank=rank, world_size=RANKS, socket=socket, timeout=60)
        self.step = 0
        self.saved = self.state(by_rows=True)

    def state(self, by_rows: bool) -> dict[str, Any]:
        from torch.distributed.tensor import DTensor, Shard

        shape = (ROWS // RANKS, COLUMNS) if by_rows else (ROWS, COLUMNS // RANKS)
        return {
            f"layers.{i // 4}.weight{i % 4}": DTensor.from_local(
                self.torch.zeros(shape, dtype=self.torch.int32),
                self.mesh,
                [Shard(0 if by_rows else 1)],
            )
            for i in range(TENSORS)
        }

    def fill(self, state: dict[str, Any], by_rows: bool) -> None:
        """What the step at hand saves."""
        for i, tensor in enumerate(state.values()):
            tensor.to_local().copy_(self.values(i, by_rows))

    def values(self, i: int, by_rows: bool) -> Any:
        """Of tensor i, this rank's part."""
        torch = self.torch
        whole = torch.arange(ROWS * COLUMNS, dtype=torch.int32).view(ROWS, COLUMNS)
        dim = 0 if by_rows else 1
        # Odd, so that each value is another one; and in each step each byte.
        factor = 0x01030507 + 0x00100600 * i
        return whole.chunk(RANKS, dim)[self.rank] * factor + 0x01010101 * self.step

    def prepare(self) -> None:
        self.step += 1
        self.fill(self.saved, by_rows=True)
        self.ours.save(self.saved, self.c, self.step)
        self.dist.barrier()
        if self.rank == 0:
            shutil.rmtree(self.files / str(self.step - 1), ignore_errors=True)
        self.stock.save(
            self.saved, storage_writer=self.stock.FileSystemWriter(self.files / str(self.step))
        )
        self.idle()
        self.dist.barrier()

    def idle(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            status = self.c.status()
            if status["prefault_done"] and not status["writing_bytes"]:
                break
            if time.monotonic() > deadline:
                raise RuntimeError("the daemon does not come to rest")
            time.sleep(0.01)
        time.sleep(0.2)

    def load(self, what: str, state: dict[str, Any], by_rows: bool) -> float:
        for tensor in state.values():
            tensor.to_local().fill_(-1)
        gc.collect()
        self.dist.barrier()
        begin = time.perf_counter()
        if what == "ours":
            self.ours.load(state, self.c)
        else:
            folder = self.files / str(self.step)
            self.stock.load(state, storage_reader=self.stock.FileSystemReader(folder))
        took = self.torch.tensor([time.perf_counter() - begin], dtype=self.torch.float64)
        self.dist.all_reduce(took, self.dist.ReduceOp.MAX)
        for i, tensor in enumerate(state.values()):
            if not tensor.to_local().equal(self.values(i, by_rows)):
                raise RuntimeError(f"{what}: tensor {i} is not what was saved")
        return float(took)

    def timed(self, call: Callable[[], Any]) -> tuple[float, Any]:
        """How long the slower rank took; what it returned."""
        gc.collect()
        self.dist.barrier()
        begin = time.perf_counter()
        answer = call()
        took = self.torch.tensor([time.perf_counter() - begin], dtype=self.torch.float64)
        self.dist.all_reduce(took, self.dist.ReduceOp.MAX)
        return float(took), answer

    def in_turn(
        self, ours: Callable[[], float], other: Callable[[], float], warm_up: int = WARM_UP
    ) -> list[tuple[float, float]]:
        samples = []
        for i in range(PAIRS + warm_up):
            if i % 2 == 0:
                took = ours()
                samples.append((took, other()))
            else:
                took = other()
                samples.append((ours(), took))
        return samples[warm_up:]

    def another(self) -> None:
        """The next step, with other bytes."""
        self.step += 1
        self.fill(self.saved, by_rows=True)
        self.dist.barrier()
        self.idle()

    def stalls(self, kept: bool) -> list[tuple[float, float]]:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        group = self.dist.new_group()  # DCP's thread talks in it while the ranks talk here
        stager = DefaultStager(StagingOptions(False, False, False, False)) if kept else None

        def ours() -> float:
            self.another()
            took, done = self.timed(lambda: self.ours.async_save(self.saved, self.c, self.step))
            done.result()
            return took

        def stock() -> float:
            self.another()
            folder = self.files / "async"
            writer = self.stock.FileSystemWriter(folder)
            took, done = self.timed(
                lambda: self.stock.async_save(
                    self.saved,
                    storage_writer=writer,
                    async_stager=stager,
                    process_group=group,
                )
            )
            done.result()
            self.dist.barrier()
            if self.rank == 0:
                shutil.rmtree(folder)
            self.dist.barrier()
            return took

        return self.in_turn(ours, stock)

    def durable(self) -> list[tuple[float, float]]:
        def ours() -> float:
            self.another()

            def save() -> None:
                self.ours.save(self.saved, self.c, self.step)
                if self.rank == 0:
                    self.c.persist(self.step)
                    self.c.wait(self.step, "PERSISTED", timeout=60)

            took = self.timed(save)[0]
            self.dist.barrier()
            if self.rank == 0:
                self.c.remove(self.step, force=True)
            return took

        def stock() -> float:
            self.another()
            folder = self.folder / "stock"
            writer = self.stock.FileSystemWriter(folder)
            took = self.timed(lambda: self.stock.save(self.saved, storage_writer=writer))[0]
            self.dist.barrier()
            if self.rank == 0:
                shutil.rmtree(folder)
            return took

        return self.in_turn(ours, stock)

    def small(self) -> list[tuple[float, float]]:
        from torch.distributed.tensor import DTensor, Shard

        words = SMALL_BYTES // 4 // RANKS
        many = {
            f"experts.{i // 100}.weight{i % 100}": DTensor.from_local(
                self.torch.full((words,), i, dtype=self.torch.int32), self.mesh, [Shard(0)]
            )
            for i in range(SMALL)
        }
        whole = self.torch.zeros(SMALL * words, dtype=self.torch.int32)
        one = {"weight": DTensor.from_local(whole, self.mesh, [Shard(0)])}
        # As a model's state: stock logs a line for each key of the outermost dictionary.

        def save(state: dict[str, Any]) -> float:
            self.step += 1
            self.dist.barrier()
            self.idle()
            return self.timed(lambda: self.ours.save({"model": state}, self.c, self.step))[0]

        # Until the memory is full (SMALL_BUDGET).
        return self.in_turn(lambda: save(many), lambda: save(one), warm_up=4)

    def samples(self, name: str) -> list[tuple[float, float]]:
        if name.startswith("dcp_async_stall"):
            return self.stalls(kept=name.endswith("kept"))
        if name == "dcp_durable":
            return self.durable()
        return self.small() if name == "dcp_small" else self.loads(name)

    def loads(self, name: str) -> list[tuple[float, float]]:
        by_rows = name == "dcp_load/memory"
        state = self.state(by_rows)
        samples = []
        for i in range(PAIRS + 1):
            self.prepare()
            order = ("ours", "stock") if i % 2 == 0 else ("stock", "ours")
            took = {what: self.load(what, state, by_rows) for what in order}
            samples.append((took["ours"], took["stock"]))
        return samples[1:]  # the first pair also imports what torch imports when it is first used

    def run(self, names: list[str]) -> None:
        for name in names:
            samples = self.samples(name)
            if self.rank == 0:
                print(json.dumps([name, samples]), flush=True)
        self.dist.barrier()
        self.dist.destroy_process_group()
        self.c.close()


# --- both of them ----------------------------------------------------------------------------------------


def measure(names: list[str], folder: Path, files: Path, socket: str) -> None:
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                __file__,
                "--rank",
                str(rank),
                str(folder),
                str(files),
                socket,
                *names,
            ],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        )
        for rank in range(RANKS)
    ]
    try:
        assert ranks[0].stdout is not None
        for line in ranks[0].stdout:
            name, samples = json.loads(line)
            slow = max(stock for _, stock in samples)
            invalid = f"stock took {slow:.1f} s for 1 GiB" if slow > ABSURD_S else ""
            answer = row(name, "s", BARS[name], samples, REFERENCES[name], invalid=invalid)
            print(json.dumps(answer), flush=True)
        codes = [rank.wait() for rank in ranks]
        if codes != [0] * RANKS:
            raise SystemExit(f"the ranks ended with {codes}")
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def main() -> int:
    if sys.argv[1:2] == ["--rank"]:
        rank, folder, files, socket, *names = sys.argv[2:]
        Rank(int(rank), Path(folder), Path(files), socket).run(names)
        return 0
    names = sys.argv[1:] or list(BARS)
    unknown = [name for name in names if name not in BARS]
    if unknown:
        raise SystemExit(f"no such row: {', '.join(unknown)}; there are {', '.join(BARS)}")
    import torch

    if int(torch.__version__.split(".")[0]) < 2:
        for name in names:
            why = f"torch {torch.__version__} has no DCP that Cairn supports"
            print(json.dumps(row(name, "s", BARS[name], [], "dcp.load", invalid=why)), flush=True)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # leaves no daemon
    folder = Path(tempfile.mkdtemp(prefix="cairn-bench-"))
    files = Path(tempfile.mkdtemp(prefix="cairn-bench-", dir="/dev/shm"))
    try:
        if shutil.disk_usage(files).free < 5 * STATE_BYTES // 2:
            raise SystemExit("/dev/shm has less than 2.5 GiB free")
        small = [name for name in names if name == "dcp_small"]
        others = [name for name in names if name not in small]
        for number, (rows, budget) in enumerate([(others, BUDGET), (small, SMALL_BUDGET)]):
            if rows:
                of_its_own = folder / str(number)
                of_its_own.mkdir()
                with daemon(of_its_own, budget) as socket:
                    measure(rows, of_its_own, files, socket)
        return 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(files, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
