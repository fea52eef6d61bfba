#!/usr/bin/env python3
"""What planning of torch.distributed.checkpoint costs, ours against stock DCP.

    dcp_plan_bench.py [row...]      one JSON object per row on stdout, as tests/bench/run.py wants them

plan_cached: a save of 10,000 DTensors that were saved before and have not changed, from `set_up_planner` to
`finish_plan`, with DCP's gather and scatter between, in a gloo group of one rank. The reference plans anew
(stock) or has its own cache warm (stock_cached, `enable_plan_caching=True`).

dcp_read_plan: from `read_metadata` of a checkpoint in memory to the local plan of one rank, of 2,000 tensors
that 64 ranks saved in a chunk each. `one_of_48`: rank 5 of 48 wants its part of each, three chunks or less.
`all_chunks`: a rank wants all of each. The reference is FileSystemReader over tmpfs, with DefaultLoadPlanner.

Nine pairs, ours and the reference in turn, the order alternating, after one of each that does not count.
After the clock the plans are compared with stock's.
"""

from __future__ import annotations

import gc
import json
import pickle
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

import bench_row
import cairn
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as stock
from bench_row import sized
from cairn import read_index
from cairn.caching_planner import CachingPlanner
from cairn.dcp import Reader
from cairn.read_index import IndexedPlanner
from node import Node
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.utils import _DistWrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

PAIRS = sized(9, 1)
DTENSORS = sized(10_000, 50)
TENSORS, SAVED_BY, READ_BY, RANK, COLUMNS = sized(2_000, 20), 64, 48, 5, 8
BARS = {
    "plan_cached/stock": 0.05,
    "plan_cached/stock_cached": 0.25,
    "dcp_read_plan/one_of_48": 10.0,
    "dcp_read_plan/all_chunks": 2.5,
}

Timed = tuple[float, Any]  # milliseconds, and what came out


@contextmanager
def group(backend: str, **arguments: Any) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        if "store" not in arguments:
            arguments["init_method"] = f"file://{Path(folder) / 'meeting'}"
        dist.init_process_group(backend, **arguments)
        try:
            yield
        finally:
            dist.destroy_process_group()


def timed(work: Callable[[], Any]) -> Timed:
    gc.collect()  # what one leaves is not collected on the other's time
    begin = time.perf_counter()
    result = work()
    return 1e3 * (time.perf_counter() - begin), result


def measure(
    name: str,
    ours: Callable[[], Any],
    reference: Callable[[], Any],
    words: str,
    same: Callable[[Any, Any], bool],
) -> dict[str, Any]:
    """Of two pieces of work, in milliseconds; of `dcp_read_plan` in plans a second."""
    faster = name.startswith("dcp_read_plan")
    unit = "plans/s" if faster else "ms"
    samples: list[tuple[float, float]] = []
    ours(), reference()
    for pair in range(PAIRS):
        if pair % 2:
            other_ms, expected = timed(reference)
            took_ms, found = timed(ours)
        else:
            took_ms, found = timed(ours)
            other_ms, expected = timed(reference)
        if not same(found, expected):
            raise RuntimeError(f"{name}: the results differ")
        del found, expected
        samples.append((1e3 / took_ms, 1e3 / other_ms) if faster else (took_ms, other_ms))
    return bench_row.row(name, unit, BARS[name], samples, words, higher_is_better=faster)


# --- plan_cached -------------------------------------------------------------------------------------


def plan_save(planner: Any, state: dict[str, Any]) -> tuple[Any, Any]:
    """(final plan, metadata), as stock's save drives a planner."""
    ranks = _DistWrapper(None, True, 0)
    made: list[Any] = []

    def local() -> Any:
        planner.set_up_planner(state, None, is_coordinator=True)
        return planner.create_local_plan()

    def together(plans: list[Any]) -> list[Any]:
        plans, metadata = planner.create_global_plan(plans)
        made.append(metadata)
        return plans

    return planner.finish_plan(ranks.reduce_scatter("plan", local, together)), made[0]


def plan_cached(name: str) -> dict[str, Any]:
    with group("gloo", rank=0, world_size=1):
        mesh = init_device_mesh("cpu", (1,))
        state = {
            "model": {
                f"layers.{i}.weight": DTensor.from_local(torch.zeros(2, 3), mesh, [Shard(0)])
                for i in range(DTENSORS)
            }
        }
        caches = name == "plan_cached/stock_cached"
        reference = "stock, cache warm" if caches else "stock"
        return measure(
            name,
            lambda: plan_save(CachingPlanner(), state),
            lambda: plan_save(stock.DefaultSavePlanner(enable_plan_caching=caches), state),
            reference,
            lambda found, expected: found == expected,
        )


# --- dcp_read_plan -----------------------------------------------------------------------------------


def saved_by_64() -> Metadata:
    rows = READ_BY * SAVED_BY
    size = torch.Size((rows // SAVED_BY, COLUMNS))
    tensors, places, paths = {}, {}, {}
    for number in range(TENSORS):
        name = f"layers.{number}.weight"
        paths[name] = ("layers", str(number), "weight")
        offsets = [torch.Size((size[0] * rank, 0)) for rank in range(SAVED_BY)]
        tensors[name] = TensorStorageMetadata(
            TensorProperties(dtype=torch.float32),
            torch.Size((rows, COLUMNS)),
            [ChunkStorageMetadata(offset, size) for offset in offsets],
        )
        for rank, offset in enumerate(offsets):
            place = _StorageInfo(f"__{rank}_0.distcp", number * 2048, 2048)
            places[MetadataIndex(name, offset, rank)] = place
    return Metadata(tensors, paths, places, StorageMeta("cairn://bench/1", "bench"))


def write(c: cairn.Connection, folder: Path) -> None:
    """As `Writer.finish` does; the tensors themselves are not there, and not read."""
    metadata = saved_by_64()
    content = pickle.dumps(metadata)
    with c.step(1, strict=True) as s:
        s.save(content, ".metadata")
        s.save(read_index.encode(metadata, content), ".metadata" + read_index.SUFFIX)
    (folder / ".metadata").write_bytes(content)


def wanted(name: str) -> dict[str, Any]:
    whole = torch.Size((READ_BY * SAVED_BY, COLUMNS))
    if name == "dcp_read_plan/all_chunks":
        return {
            "layers": {str(i): {"weight": torch.zeros(1).expand(whole)} for i in range(TENSORS)}
        }
    mesh = init_device_mesh("cpu", (READ_BY,))
    local = torch.zeros(SAVED_BY, COLUMNS)
    return {
        "layers": {
            str(i): {"weight": DTensor.from_local(local, mesh, [Shard(0)], run_check=False)}
            for i in range(TENSORS)
        }
    }


def plan_load(reader: Any, planner: Any, state: dict[str, Any]) -> Any:
    metadata = reader.read_metadata()
    planner.set_up_planner(state, metadata, is_coordinator=False)
    reader.set_up_storage_reader(metadata, False)
    return planner.create_local_plan()


def read_plan(name: str) -> dict[str, Any]:
    node = Node(budget=256 << 20).start()
    try:
        with (
            tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
            group("fake", rank=RANK, world_size=READ_BY, store=FakeStore()),
            cairn.connect("bench", rank=0, world_size=1, socket=node.socket, timeout=60) as c,
        ):
            write(c, Path(folder))
            state, checkpoint = wanted(name), c.checkpoint(1)
            return measure(
                name,
                lambda: plan_load(Reader(c, checkpoint), IndexedPlanner(), state),
                lambda: plan_load(
                    stock.FileSystemReader(folder), stock.DefaultLoadPlanner(), state
                ),
                "stock, tmpfs",
                lambda found, expected: found == expected,
            )
    finally:
        node.remove()


def main() -> int:
    warnings.simplefilter("ignore")
    for name in sys.argv[1:] or list(BARS):
        row = read_plan(name) if name.startswith("dcp_read_plan") else plan_cached(name)
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
