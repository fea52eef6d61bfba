"""cairn.planning: who saves what, of what several ranks hold (docs: its docstrings)."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from cairn import planning
from cairn.planning import Distribution, distribute_shards

Shares = dict[Any, int]


def balance(
    ranks: dict[Any, Sequence[int]], sizes: dict[Any, int], of_others: Iterable[Any] = ()
) -> Shares:
    """The rule in a few lines of Python."""
    late = set(of_others)
    loads: dict[int, int] = {}
    owners: Shares = {}
    for shard in sorted(ranks, key=lambda s: (s in late, len(ranks[s]), -sizes[s], s)):
        owner = min(ranks[shard], key=lambda rank: (loads.get(rank, 0), rank))
        loads[owner] = loads.get(owner, 0) + sizes[shard]
        owners[shard] = owner
    return owners


def loads_of(owners: Shares, sizes: dict[Any, int], ranks: int) -> list[int]:
    loads = [0] * ranks
    for shard, rank in owners.items():
        loads[rank] += sizes[shard]
    return loads


# --- the worked example of eight ranks, tensor parallel 2 --------------------------------------------


@dataclasses.dataclass(frozen=True)
class Held:
    """A shard as Megatron-Core's ShardedTensor describes it."""

    key: str
    global_offset: tuple[int, ...]
    local_shape: tuple[int, ...]
    replica_id: int | tuple[int, ...]
    flattened_range: slice | None = None
    dtype: Any = dataclasses.field(default_factory=lambda: Float())

    def without_data(self) -> Held:
        return self


@dataclasses.dataclass(frozen=True)
class Float:
    itemsize: int = 4


def held_by(rank: int) -> list[Held]:
    """Rank 2d + t is rank t of tensor parallelism and d of data parallelism."""
    data, tensor = divmod(rank, 2)
    shards = [Held("keyB", (20 * rank,), (20,), 0)]
    for key in ("repl1", "repl2"):
        shards.append(Held(key, (10 * tensor,), (10,), data))
    for key, floats in (("keyC", 100), ("keyD", 1000), ("keyE", 100)):
        shards.append(Held(key, (0,), (floats,), (0, tensor, data)))
    return shards


def names(distribution: Distribution) -> dict[tuple[str, int], int]:
    return {(key, at[0]): rank for (key, at, _), rank in distribution.main_rank_for_shard.items()}


def bytes_of(distribution: Distribution, ranks: int) -> list[int]:
    loads = [0] * ranks
    for shard, rank in distribution.main_rank_for_shard.items():
        loads[rank] += 4 * distribution.shard_to_metadata[shard].local_shape[0]
    return loads


def test_eight_ranks_share_what_all_hold() -> None:
    found = planning._distribution([list(held_by(rank)) for rank in range(8)], ignore_groups=False)
    assert names(found) == {
        **{("keyB", 20 * rank): rank for rank in range(8)},
        ("repl1", 0): 0,
        ("repl1", 10): 1,
        ("repl2", 0): 2,
        ("repl2", 10): 3,
        ("keyD", 0): 4,
        ("keyC", 0): 5,
        ("keyE", 0): 6,
    }
    assert bytes_of(found, 8) == [120] * 4 + [4080, 480, 480, 80]


def test_four_ranks_save_what_they_have_the_main_replica_of() -> None:
    """The group is the data-parallel ranks of tensor rank 0, so each keyB has a holder of its own."""
    group = [held_by(2 * data) for data in range(4)]
    found = planning._distribution([list(of_rank) for of_rank in group], ignore_groups=False)
    shared = {name: rank for name, rank in names(found).items() if name[0] != "keyB"}
    assert shared == {
        ("keyD", 0): 0,
        ("keyC", 0): 1,
        ("keyE", 0): 2,
        ("repl1", 0): 3,
        ("repl2", 0): 3,
    }
    assert bytes_of(found, 4) == [4080, 480, 480, 160]


def test_to_load_what_others_have_the_main_replica_of_comes_last() -> None:
    """The group of tensor rank 1: the main replicas of C, D and E are in the other one."""
    group = [list(held_by(2 * data + 1)) for data in range(4)]
    saved = planning._distribution(group, ignore_groups=False)
    assert {key for key, _, _ in saved.shards_in_this_group} == {"keyB", "repl1", "repl2"}
    loaded = planning._distribution(group, ignore_groups=True)
    assert loaded.shards_in_this_group == set(loaded.shard_to_metadata)
    order = [key for key, _, _ in loaded.main_rank_for_shard]
    assert order[-3:] == ["keyD", "keyC", "keyE"]
    assert all(
        len(ranks) == 4
        for (key, _, _), ranks in loaded.all_ranks_for_shard.items()
        if key != "keyB"
    )


# --- over random inputs ------------------------------------------------------------------------------


def made_up(seed: int) -> tuple[dict[Any, list[int]], dict[Any, int], int, set[Any]]:
    """Ids as frameworks make them, many of them equal in all that comes before the id."""
    choose = random.Random(seed)
    world = choose.choice([1, 2, 7, 64])
    ids: list[Any] = []
    for i in range(choose.choice([0, 1, 50, 400])):
        key = choose.choice(
            ["layers.", "layers.1", "é", "\U0001f600", "nul\0", "nul\0\1", ""]
        ) + str(choose.randrange(8))
        offset = tuple(choose.randrange(-2, 300) for _ in range(choose.randrange(3)))
        ids.append((key, offset, (i, i + choose.randrange(9))))
    ids = list(dict.fromkeys(ids))
    ranks = {i: choose.sample(range(world), choose.randint(1, min(world, 8))) for i in ids}
    sizes = {i: choose.choice([0, 4, 4096, choose.randrange(1 << 40)]) for i in ids}
    return ranks, sizes, world, set(choose.sample(ids, len(ids) // 3))


@pytest.mark.parametrize("seed", range(60))
def test_the_rule_holds_and_so_does_its_order(seed: int) -> None:
    ranks, sizes, world, of_others = made_up(seed)
    expected = balance(ranks, sizes, of_others)
    owners = distribute_shards(ranks, sizes, world, of_others)
    assert list(owners.items()) == list(expected.items())
    assert all(owner in ranks[shard] for shard, owner in owners.items())
    assert sum(loads_of(owners, sizes, world)) == sum(sizes.values())


@pytest.mark.parametrize("seed", range(20))
def test_the_order_in_which_shards_come_does_not_matter(seed: int) -> None:
    ranks, sizes, world, of_others = made_up(seed)
    once = distribute_shards(ranks, sizes, world, of_others)
    shuffled = list(ranks)
    random.Random(seed + 1).shuffle(shuffled)
    again = distribute_shards(
        {shard: list(reversed(ranks[shard])) for shard in shuffled},
        dict(reversed(sizes.items())),
        world,
        frozenset(of_others),
    )
    assert list(again.items()) == list(once.items())


class Named:
    """An id that only Python can compare."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __lt__(self, other: Named) -> bool:
        return self.number > other.number


@pytest.mark.parametrize(
    "ids",
    [
        [1.5, -2.0, 0.25],
        ["\ud800", "\ud7ff", "\ue000", "a"],
        [2**70, -(2**70), 3],
        [(1, (2, (3, (4, (5, (6, (7, (8, (9, (i,)))))))))) for i in (3, 1, 2)],
        [b"b", b"a"],
        [Named(i) for i in (4, 1, 3)],
        [True, False],
        [(), (0,), (0, 0)],
    ],
)
def test_any_ids_that_can_be_compared(ids: list[Any]) -> None:
    ranks = {i: [0, 1] for i in ids}
    sizes = dict.fromkeys(ids, 8)
    owners = distribute_shards(ranks, sizes, 2)
    assert list(owners) == sorted(ids)
    assert list(owners.values()) == [i % 2 for i in range(len(ids))]


def test_ids_and_numbers_that_empty_the_dictionaries_are_survived() -> None:
    """They are held while code of theirs runs."""
    ranks: dict[Any, Any] = {}
    sizes: dict[Any, Any] = {}

    class Empties(Named):
        def __lt__(self, other: Named) -> bool:
            ranks.clear()
            sizes.clear()
            return self.number < other.number

    class One:
        def __index__(self) -> int:
            ranks.clear()
            sizes.clear()
            return 1

    for i in range(100):
        ranks[Empties(i)] = [0, 1]
        sizes[list(ranks)[i]] = 8
    assert len(distribute_shards(ranks, sizes, 2)) == 100
    ranks.update({(f"w{i}", (i,)): [0, One() if i == 50 else 1] for i in range(100)})
    sizes.update({shard: 8 + i for i, shard in enumerate(ranks)})
    assert len(distribute_shards(ranks, sizes, 2)) == 100
    assert not ranks


# --- bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "sizes", "says"),
    [
        ({"w": []}, {"w": 1}, "shard_to_ranks: no rank holds shard 'w'"),
        ({"w": [0, 2]}, {"w": 1}, r"shard_to_ranks: rank 2 of shard 'w' is not in 0 … 1"),
        ({"w": [-1]}, {"w": 1}, r"shard_to_ranks: -1 of shard 'w' is not in 0 … 2\^63-1"),
        ({"w": [0]}, {"v": 1}, "shard_to_size: lacks shard 'w'"),
        ({"w": [0]}, {"w": -5}, "shard_to_size: -5 of shard 'w'"),
        ({"w": [0]}, {"w": 2**64}, "shard_to_size: 18446744073709551616 of shard 'w'"),
    ],
)
def test_what_does_not_fit_is_named(ranks: Any, sizes: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        distribute_shards(ranks, sizes, 2)


@pytest.mark.parametrize(
    ("ranks", "sizes"),
    [
        ({"w": 0}, {"w": 1}),
        ({"w": ["0"]}, {"w": 1}),
        ({"w": [0]}, {"w": 1.5}),
        ({"w": [None]}, {"w": 1}),
        ({"w": [0], 1j: [0], 2j: [0]}, {"w": 1, 1j: 1, 2j: 1}),
    ],
)
def test_what_is_no_number_or_cannot_be_compared_is_a_type_error(ranks: Any, sizes: Any) -> None:
    with pytest.raises(TypeError):
        distribute_shards(ranks, sizes, 2)


def test_of_an_old_torch_dcp_says_what_it_needs() -> None:
    torch = pytest.importorskip("torch")
    if torch.__version__.startswith("1."):
        with pytest.raises(ImportError, match="needs PyTorch 2"):
            import cairn.dcp
    else:
        import cairn.dcp

        assert cairn.dcp.Writer is not None
