#!/usr/bin/env python3
"""torch_save, torch_load, torch_load_mmap: Cairn against stock torch and tmpfs, side by side in one run.

    torch_bench.py [row...]      one JSON object per row on stdout, as tests/bench/run.py wants them

The state is 1 GiB in 400 tensors. Nine pairs, ours and the reference in turn, the order alternating; the
ratio is the median of the pairs' ratios. Every byte of the source changes before every pair. Loads run in
a new process each; their clock starts when the libraries are imported and nothing is connected, and stops
when every byte has been summed. Nothing is measured that the machine does to either alike and only now
and then: see LOAD on first touches. After the clock each result is compared with the source: a wrong byte
fails the row. The reference's files are in tmpfs; each save makes a new one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench_row import sized

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("CAIRN_BIN") or ROOT / "build" / "bin")
STATE_BYTES = sized(1024, 32) << 20
TENSORS = 400
WORDS = STATE_BYTES // 8 // TENSORS  # int64 per tensor, rounded down
PAIRS = sized(9, 1)
# Room for two checkpoints and no third, so that the third save meets a slab this process has mapped; the
# first two of each kind are discarded.
BUDGET = 5 * STATE_BYTES // 2
WARM_UP = sized(2, 1)
BARS = {"torch_save": 8.0, "torch_load": 3.0, "torch_load_mmap": 0.95}
# torch.save of 1 GiB to tmpfs takes about 0.7 s on the machines the bars were set on.
ABSURD_S = 10.0
LEEWAY = 1.05  # noise; tests/bench/run.py

# --- one load, in a process of its own -----------------------------------------------------------------

LOAD = r"""
import json, sys, time
import torch
what, path, mmap = sys.argv[1], sys.argv[2], sys.argv[3] == "mmap"
if what == "ours":
    import cairn
    load = cairn.load
else:
    load = torch.load
arguments = {"mmap": True} if mmap else {}
if not mmap:
    # A virtual machine gives freed pages back to its host, and the first touch afterwards costs ten times
    # what either load does. Both loads get pages that the machine has.
    import mmap as maps
    room = maps.mmap(-1, int(sys.argv[4]), flags=maps.MAP_PRIVATE | maps.MAP_ANONYMOUS)
    room.madvise(maps.MADV_HUGEPAGE)
    for at in range(0, len(room), 4096):
        room[at] = 1
    room.close()
begin = time.perf_counter()
state = load(path, weights_only=True, **arguments)
sums = [int(tensor.sum()) for tensor in state.values()]
took = time.perf_counter() - begin
if not mmap:  # private and writable, both
    next(iter(state.values()))[0] += 1
print(json.dumps({"took": took, "sums": sums}))
"""


def load_once(what: str, path: str, mode: str, expected: list[int]) -> float:
    done = subprocess.run(
        [sys.executable, "-c", LOAD, what, path, mode, str(3 * STATE_BYTES // 2)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{what} load failed: {done.stderr[-2000:]}")
    answer = json.loads(done.stdout.splitlines()[-1])
    if answer["sums"] != expected:
        raise RuntimeError(f"{what} load returned other bytes than were saved")
    return float(answer["took"])


# --- what is measured ----------------------------------------------------------------------------------


class Bench:
    def __init__(self, socket: str, files: Path) -> None:
        import cairn
        import torch

        self.torch = torch
        self.socket = socket
        self.files = files
        self.c = cairn.connect("bench", rank=0, world_size=1, socket=socket, timeout=60)
        self.step = 0
        self.path = files / "state.pt"
        generator = torch.Generator().manual_seed(7)
        block = torch.randint(-(2**62), 2**62, (WORDS,), generator=generator)
        self.state = {
            f"layers.{i // 4}.weight{i % 4}": block ^ (i * 0x0016_0305_0B0D_1113)
            for i in range(TENSORS)
        }

    def change(self) -> None:
        for tensor in self.state.values():
            tensor.add_(0x0103_0507_090B_0D0F)  # carries or not, every byte is another one

    def sums(self) -> list[int]:
        return [int(tensor.sum()) for tensor in self.state.values()]

    def idle(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            status = self.c.status()
            if status["prefault_done"] and not status["writing_bytes"]:
                break
            if time.monotonic() > deadline:
                raise RuntimeError("the daemon does not come to rest")
            time.sleep(0.01)
        time.sleep(0.1)

    def check(self, path: str) -> None:
        arguments = {"mmap": True} if int(self.torch.__version__.split(".")[0]) >= 2 else {}
        found = self.torch.load(path, **arguments)
        if list(found) != list(self.state) or not all(
            self.torch.equal(found[name], tensor) for name, tensor in self.state.items()
        ):
            raise RuntimeError(f"{path} does not hold what was saved")

    def save_ours(self, verify: bool = True) -> float:
        self.idle()
        self.step += 1
        begin = time.perf_counter()
        with self.c.step(self.step, strict=True) as s:
            s.save(self.state, "model.pt")
        took = time.perf_counter() - begin
        if verify:
            # A copy: what had been opened by its path would have to be mapped anew by a later save.
            copy = self.files / "copy.pt"
            name = f"bench/{self.step}/model.pt"
            get = [BIN / "cairn", "--socket", self.socket, "get", name, copy]
            subprocess.run(get, check=True, stdout=subprocess.DEVNULL)
            self.check(str(copy))
            copy.unlink()
        return took

    def save_stock(self, verify: bool = True) -> float:
        self.idle()
        self.path.unlink(missing_ok=True)
        begin = time.perf_counter()
        self.torch.save(self.state, self.path)
        took = time.perf_counter() - begin
        if verify:
            self.check(str(self.path))
        return took

    def row_torch_save(self) -> dict[str, Any]:
        for _ in range(WARM_UP):
            self.save_ours(verify=False)
            self.save_stock(verify=False)
        return self.pairs(
            "torch_save", self.save_ours, self.save_stock, "torch.save, new tmpfs file"
        )

    def loads(self, name: str, mode: str, reference: str) -> dict[str, Any]:
        expected: list[int] = []

        def prepare() -> None:
            self.save_ours(verify=False)
            self.save_stock(verify=False)
            expected[:] = self.sums()
            self.idle()

        return self.pairs(
            name,
            lambda: load_once("ours", f"cairn://bench/{self.step}/model.pt", mode, expected),
            lambda: load_once("stock", str(self.path), mode, expected),
            reference,
            prepare,
        )

    def row_torch_load(self) -> dict[str, Any]:
        return self.loads("torch_load", "private", "torch.load from tmpfs, summed")

    def row_torch_load_mmap(self) -> dict[str, Any]:
        if int(self.torch.__version__.split(".")[0]) < 2:
            why = f"torch {self.torch.__version__} has no torch.load(mmap=True)"
            return row("torch_load_mmap", [], [], "torch.load(mmap=True), summed", invalid=why)
        return self.loads("torch_load_mmap", "mmap", "torch.load(mmap=True) from tmpfs, summed")

    def pairs(
        self,
        name: str,
        ours: Callable[[], float],
        stock: Callable[[], float],
        reference: str,
        prepare: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        took_ours, took_stock = [], []
        for i in range(PAIRS):
            self.change()
            prepare()
            for side in (0, 1) if i % 2 == 0 else (1, 0):
                if side == 0:
                    took_ours.append(ours())
                else:
                    took_stock.append(stock())
        return row(name, took_ours, took_stock, reference)


def row(
    name: str, ours: list[float], stock: list[float], reference: str, invalid: str = ""
) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "name": name,
        "unit": "s",
        "bar": BARS[name],
        "direction": "higher",
        "pages": "4 KiB in the cache; 2 MiB in private memory where the machine has them",
        "commit": commit(),
        "invalid": invalid,
        "reference": reference,
    }
    if not ours:
        return {
            **answer,
            "value": 0.0,
            "reference_value": 0.0,
            "ok": False,
            "ratio": 0.0,
            "samples": [],
        }
    value, reference_value = statistics.median(ours), statistics.median(stock)
    ratio = statistics.median(s / o for o, s in zip(ours, stock, strict=True))
    if reference_value > ABSURD_S:
        answer["invalid"] = f"the reference took {reference_value:.1f} s for 1 GiB"
    return {
        **answer,
        "value": value,
        "reference_value": reference_value,
        "ratio": ratio,
        "ok": ratio >= BARS[name] / LEEWAY and not answer["invalid"],
        "samples": [[round(o, 5), round(s, 5)] for o, s in zip(ours, stock, strict=True)],
    }


def commit() -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    )
    return done.stdout.strip()


# --- a daemon of its own -------------------------------------------------------------------------------


@contextmanager
def daemon(folder: Path, budget: int = BUDGET) -> Iterator[str]:
    socket = str(folder / "s")
    (folder / "storage").mkdir()
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [
                str(BIN / "cairnd"),
                f"--socket={socket}",
                f"--memory.budget={budget}",
                f"--storage.root={folder / 'storage'}",
                f"--catalog.path={folder / 'catalog'}",
                "--persist.mode=on-demand",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield socket
    except BaseException:
        sys.stderr.write((folder / "log").read_text(errors="replace")[-2000:])
        raise
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> int:
    rows = sys.argv[1:] or list(BARS)
    unknown = [name for name in rows if name not in BARS]
    if unknown:
        raise SystemExit(f"no such row: {', '.join(unknown)}; there are {', '.join(BARS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # leaves no daemon
    folder = Path(tempfile.mkdtemp(prefix="cairn-bench-"))
    files = Path(tempfile.mkdtemp(prefix="cairn-bench-", dir="/dev/shm"))
    try:
        if shutil.disk_usage(files).free < 3 * STATE_BYTES:
            raise SystemExit("/dev/shm has less than 3 GiB free")
        with daemon(folder) as socket:
            os.environ["CAIRN_SOCKET"] = socket
            bench = Bench(socket, files)
            for name in rows:
                print(json.dumps(getattr(bench, f"row_{name}")()), flush=True)
            bench.c.close()
        return 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(files, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
