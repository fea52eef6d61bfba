"""cairn.planning against megatron-core's own functions: the same results, in the same order."""

from __future__ import annotations

import random
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from cairn import planning
from patience import patient

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what it would rather have installed
    from megatron.core.dist_checkpointing import exchange_utils as theirs


def made_up(seed: int) -> tuple[dict[Any, list[int]], dict[Any, int], int, set[Any]]:
    choose = random.Random(seed)
    world = choose.choice([1, 2, 8, 48])
    ids: list[Any] = [
        (
            f"layers.{choose.randrange(12)}.{'w' * choose.randrange(3)}",
            (choose.randrange(64), i),
            None,
        )
        for i in range(choose.choice([0, 3, 300]))
    ]
    ranks = {i: choose.sample(range(world), choose.randint(1, world)) for i in ids}
    sizes = {i: choose.choice([0, 2, 8192, choose.randrange(1 << 33)]) for i in ids}
    return ranks, sizes, world, set(choose.sample(ids, len(ids) // 4))


@pytest.mark.parametrize("seed", range(100))
def test_shards_are_distributed_as_megatron_does(seed: int) -> None:
    ranks, sizes, world, of_others = made_up(seed)
    expected = theirs.distribute_shards_to_ranks(ranks, sizes, world, of_others)
    owners = planning.distribute_shards(ranks, sizes, world, of_others)
    assert list(owners.items()) == list(expected.items())


# --- a group whose ranks hold shards -----------------------------------------------------------------

RANK = r"""
import random, sys, warnings
warnings.simplefilter("ignore")
import torch
import torch.distributed as dist
from cairn import planning
from megatron.core.dist_checkpointing import exchange_utils as theirs
from megatron.core.dist_checkpointing.mapping import ShardedTensor

def held_by(seed, rank, world):
    "What this rank has, by the same dice on every rank."
    choose = random.Random(seed)
    state = {}
    for i in range(choose.choice([1, 40])):
        holders = sorted(choose.sample(range(world), choose.randint(1, world)))
        shape = (choose.randrange(1, 5), choose.randrange(0, 300))
        dtype = choose.choice([torch.float32, torch.bfloat16, torch.int64, torch.uint8])
        offset = (shape[0] * choose.randrange(3), 0)
        main_is_elsewhere = choose.random() < 0.3
        as_tuple = choose.random() < 0.5
        if rank in holders:
            replica = holders.index(rank) + main_is_elsewhere
            state[f"weight{i}"] = ShardedTensor(
                key=f"weight{i % 17}", data=torch.empty(shape, dtype=dtype), dtype=dtype,
                local_shape=shape, global_shape=(shape[0] * 3, shape[1]), global_offset=offset,
                axis_fragmentations=(3, 1), replica_id=(0, replica) if as_tuple else replica,
            )
    return state

rank, world, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=world)
shared = 0
for seed in range(25):
    for ignore_groups in (False, True):
        state = held_by(seed, rank, world)
        expected = theirs.determine_main_replica_uniform_distribution(
            state, dist.group.WORLD, ignore_groups
        )
        found = planning.uniform_distribution(state.values(), dist.group.WORLD, ignore_groups)
        assert found._fields == expected._fields
        assert list(found.main_rank_for_shard.items()) == list(expected.main_rank_for_shard.items())
        assert found.shards_in_this_group == expected.shards_in_this_group
        assert found.all_ranks_for_shard == expected.all_ranks_for_shard
        assert list(found.shard_to_metadata) == list(expected.shard_to_metadata)
        shared += len(found.main_rank_for_shard)
        for shard, saver in found.main_rank_for_shard.items():
            assert saver in found.all_ranks_for_shard[shard]
        of_ranks = [None] * world
        dist.all_gather_object(of_ranks, list(found.main_rank_for_shard.items()))
        assert of_ranks == [of_ranks[0]] * world
        # Ranks that have what they hold, each shard once, in another order.
        held = list({(t.key, t.global_offset): t for t in state.values()}.values())
        once = planning.uniform_distribution(held, dist.group.WORLD, ignore_groups)
        random.Random(seed + 100 * rank).shuffle(held)
        again = planning.uniform_distribution(held, dist.group.WORLD, ignore_groups)
        assert again.main_rank_for_shard == once.main_rank_for_shard
        assert again.shards_in_this_group == once.shards_in_this_group
alone = dist.new_group([rank], use_local_synchronization=True)
assert planning.uniform_distribution(state.values(), alone) is None
assert theirs.determine_main_replica_uniform_distribution(state, alone) is None
dist.destroy_process_group()
print("shared", shared)
"""


def test_a_group_shares_as_megatrons_does(tmp_path: Path) -> None:
    world = 2
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(world), str(tmp_path / "meeting")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    outputs = [rank.communicate(timeout=patient(240))[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world, "\n".join(outputs)
    shared = {output.split()[-1] for output in outputs}
    assert len(shared) == 1 and int(shared.pop()) > 500
