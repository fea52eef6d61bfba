#!/usr/bin/env python3
"""What planning of torch.distributed.checkpoint costs, ours against stock DCP.

    dcp_plan_bench.py [row...]      one JSON object per row on stdout, as tests/bench/run.py wants them

plan_cached: a save of 10,000 DTensors that were saved before and have not changed, from `set_up_planner` to
`finish_plan`, with DCP's gather and scatter between, in a gloo group of one rank. The reference plans anew
(stock) or has its own cache warm (stock_cached, `enable_plan_caching=True`).

Nine pairs, ours and the reference in turn, the order alternating, after one of each that does not count.
After the clock the plans are compared with stock's.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bench_row
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as stock
from cairn.caching_planner import CachingPlanner
from torch.distributed.checkpoint.utils import _DistWrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

PAIRS = 9
DTENSORS = 10_000
BARS = {"plan_cached/stock": 0.05, "plan_cached/stock_cached": 0.25}

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
    """The bar is on ours ÷ the reference, in time."""
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
            return bench_row.row(name, "ms", BARS[name], samples, words, invalid="results differ")
        samples.append((took_ms, other_ms))
    return bench_row.row(name, "ms", BARS[name], samples, words)


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


def main() -> int:
    warnings.simplefilter("ignore")
    for name in sys.argv[1:] or list(BARS):
        print(json.dumps(plan_cached(name)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
