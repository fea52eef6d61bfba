"""Who saves what, of what several ranks hold: each shard one rank's, so that the bytes are balanced.

The rules are Megatron-Core's (`megatron.core.dist_checkpointing.exchange_utils` of 0.16.1), and so are the
results, in the same order: a rank that plans with these functions agrees with one that plans with those.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from cairn import _native

T = TypeVar("T")

# How a shard is told from others: its key, its offset in the whole tensor, and of a flattened one the range.
ShardId = tuple[str, tuple[int, ...], "tuple[int, int] | None"]


class Shard(Protocol):
    """What is asked of a shard: Megatron-Core's `ShardedTensor` has all of it."""

    key: str
    global_offset: tuple[int, ...]
    local_shape: tuple[int, ...]
    flattened_range: slice | None
    dtype: Any
    replica_id: Any

    def without_data(self) -> Shard: ...


class Distribution(NamedTuple):
    """Fields, their names and their order are those of Megatron-Core's `ShardDistribution`.

    Attributes:
      main_rank_for_shard: which rank of the group saves or loads the shard.
      shards_in_this_group: those that this group sees to; of all others some other group does.
      shard_to_metadata: the shard without its data, as the lowest rank that holds it has it.
      all_ranks_for_shard: which ranks of the group hold it.
    """

    main_rank_for_shard: dict[ShardId, int]
    shards_in_this_group: set[ShardId]
    shard_to_metadata: dict[ShardId, Shard]
    all_ranks_for_shard: dict[ShardId, list[int]]


def distribute_shards(
    shard_to_ranks: Mapping[T, Sequence[int]],
    shard_to_size: Mapping[T, int],
    num_ranks: int,
    of_others: Collection[T] = (),
) -> dict[T, int]:
    """One rank for each shard: megatron-core's `distribute_shards_to_ranks`.

    Shards get their turn in this order: those that are not `of_others` first, then those that few ranks
    hold, then the larger ones, then by id. Each goes to that one of its holders which has the fewest bytes
    by then, of equals to the lowest rank. The result has the shards in that order.

    Args:
      shard_to_ranks: the ranks that hold each shard; ids are of one kind, hashable, and can be compared.
      shard_to_size: bytes of each shard.
      num_ranks: in the group that shares the work.
      of_others: shards whose main copy is in another group (`cross_parallelization_group_loads`).

    Raises:
      ValueError: a shard that no rank holds, that has no size, or that a rank outside the group holds.
      TypeError: ids that cannot be compared.
    """
    return _native.distribute_shards(
        shard_to_ranks if isinstance(shard_to_ranks, dict) else dict(shard_to_ranks),
        shard_to_size if isinstance(shard_to_size, dict) else dict(shard_to_size),
        num_ranks,
        of_others,
    )


def uniform_distribution(
    shards: Iterable[Shard], group: Any, ignore_groups: bool = False
) -> Distribution | None:
    """Who saves, or loads, each shard of a group of torch.distributed: megatron-core's
    `determine_main_replica_uniform_distribution`. One all-gather, of the shards without their data.

    Args:
      shards: what this rank holds, `ShardedTensor`s of Megatron-Core's state dict.
      group: the process group that shares the work; None: the default one.
      ignore_groups: False, to save: only shards whose main replica is in the group. True, to load: all;
          those whose main replica is in another group get their turn last.

    Returns None for a group of one, which has nothing to share.
    """
    import torch.distributed as dist

    size = dist.get_world_size(group=group)
    if size <= 1:
        return None
    held: list[list[Shard]] = [[] for _ in range(size)]
    dist.all_gather_object(held, [shard.without_data() for shard in shards], group=group)
    return _distribution(held, ignore_groups)


def _distribution(held: list[list[Shard]], ignore_groups: bool) -> Distribution:
    """What follows from what each rank holds."""
    ranks: dict[ShardId, list[int]] = {}
    sizes: dict[ShardId, int] = {}
    metadata: dict[ShardId, Shard] = {}
    main_here: set[ShardId] = set()
    for rank, of_rank in enumerate(held):
        for shard in of_rank:
            shard_id = shard_id_of(shard)
            if shard_id not in ranks:
                ranks[shard_id] = []
                sizes[shard_id] = _bytes_of(shard)
                metadata[shard_id] = shard
            ranks[shard_id].append(rank)
            if _is_main_replica(shard.replica_id):
                main_here.add(shard_id)
    ours = set(ranks) if ignore_groups else main_here
    ranks = {shard_id: holders for shard_id, holders in ranks.items() if shard_id in ours}
    owners = distribute_shards(ranks, sizes, len(held), ours - main_here)
    return Distribution(owners, ours, metadata, ranks)


def shard_id_of(shard: Shard) -> ShardId:
    """megatron-core's `_sharded_tensor_shard_id`."""
    flattened = shard.flattened_range
    return (
        shard.key,
        shard.global_offset,
        None if flattened is None else (flattened.start, flattened.stop),
    )


def _bytes_of(shard: Shard) -> int:
    items = 1
    for extent in shard.local_shape:
        items *= extent
    return int(items * shard.dtype.itemsize)


def _is_main_replica(replica_id: Any) -> bool:
    if isinstance(replica_id, int):
        return replica_id == 0
    return all(number == 0 for number in replica_id)
