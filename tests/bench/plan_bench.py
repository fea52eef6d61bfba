#!/usr/bin/env python3
"""plan/megatron, plan/python: who saves which of 10,000 shards that 8 of 1,024 ranks hold, dictionaries in
and out, against megatron-core's function and against plain Python that looks at holders only.

    plan_bench.py [row...]      one JSON object per row on stdout, as tests/bench/run.py wants them

Nine pairs, ours and the reference in turn, the order alternating; each time on dictionaries of its own, so
that nobody finds the other's in the processor's cache. After the clock the two results are compared.
"""

from __future__ import annotations

import json
import random
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import bench_row
from bench_row import sized
from cairn import planning

SHARDS, RANKS, HOLDERS = sized(10_000, 200), sized(1_024, 32), 8
PAIRS = sized(9, 1)
BARS = {"plan/megatron": 100.0, "plan/python": 5.0}

Inputs = tuple[dict[Any, list[int]], dict[Any, int]]
Plan = Callable[[dict[Any, list[int]], dict[Any, int]], dict[Any, int]]


def inputs(seed: int) -> Inputs:
    """Ids as Megatron-Core makes them; a third of the shards are as large as many others."""
    choose = random.Random(seed)
    ids = [(f"decoder.layers.{i % 96}.mlp.{i}.weight", (i * 64, 0), None) for i in range(SHARDS)]
    ranks = {shard: choose.sample(range(RANKS), HOLDERS) for shard in ids}
    sizes = {
        shard: 8192 if choose.random() < 1 / 3 else choose.randrange(1, 1 << 24) for shard in ids
    }
    return ranks, sizes


def ours(ranks: dict[Any, list[int]], sizes: dict[Any, int]) -> dict[Any, int]:
    return planning.distribute_shards(ranks, sizes, RANKS)


def plain(ranks: dict[Any, list[int]], sizes: dict[Any, int]) -> dict[Any, int]:
    loads = [0] * RANKS
    owners = {}
    for shard in sorted(ranks, key=lambda s: (len(ranks[s]), -sizes[s], s)):
        owner = min(ranks[shard], key=lambda rank: (loads[rank], rank))
        loads[owner] += sizes[shard]
        owners[shard] = owner
    return owners


def megatron() -> Plan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.dist_checkpointing.exchange_utils import distribute_shards_to_ranks
    return lambda ranks, sizes: distribute_shards_to_ranks(ranks, sizes, RANKS, set())


def timed(plan: Plan, seed: int) -> tuple[float, dict[Any, int]]:
    ranks, sizes = inputs(seed)
    begin = time.perf_counter()
    owners = plan(ranks, sizes)
    return time.perf_counter() - begin, owners


def measure(name: str, reference: Plan, words: str) -> dict[str, Any]:
    samples: list[tuple[float, float]] = []
    for pair in range(PAIRS):
        if pair % 2:
            other_s, expected = timed(reference, pair)
            took_s, owners = timed(ours, pair)
        else:
            took_s, owners = timed(ours, pair)
            other_s, expected = timed(reference, pair)
        if list(owners.items()) != list(expected.items()):
            raise RuntimeError(f"{name}: the results differ")
        samples.append((1 / took_s, 1 / other_s))
    return bench_row.row(name, "plans/s", BARS[name], samples, words, higher_is_better=True)


def main() -> int:
    for name in sys.argv[1:] or list(BARS):
        if name == "plan/megatron":
            row = measure(name, megatron(), "megatron-core 0.16.1")
        else:
            row = measure(name, plain, "plain Python, holders only")
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
