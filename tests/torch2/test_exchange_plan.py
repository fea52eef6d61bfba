"""Who reads what several ranks want, and in which round it is handed on."""

from __future__ import annotations

import random

import pytest
from cairn import exchange, exchange_plan
from cairn.exchange_plan import BLOCK, Place, Rank, Wants, plan, without


def wants(
    *runs: tuple[int, int], name: str = "o", blocks: int = 1000, place: Place = Place.FILE
) -> Wants:
    return Wants(name, blocks * BLOCK, place, list(runs))


def alone(*wants_of_each: Wants) -> list[Rank]:
    """Ranks, each on a node of its own."""
    return [Rank(str(number), [each]) for number, each in enumerate(wants_of_each)]


def blocks_of(runs: list[tuple[int, int]]) -> set[int]:
    return {block for first, count in runs for block in range(first, first + count)}


def some_wants(choose: random.Random, ranks: int) -> list[Rank]:
    of_ranks = []
    for _ in range(ranks):
        mine = []
        for name in choose.sample(["a", "b", "c"], choose.randint(0, 3)):
            edges = sorted(choose.sample(range(100), 2 * choose.randint(1, 5)))
            runs = [(a, b - a) for a, b in zip(edges[::2], edges[1::2], strict=True)]
            place = choose.choice(list(Place))
            mine.append(wants(*runs, name=name, blocks=100, place=place))
        of_ranks.append(Rank(choose.choice("xy"), mine))
    return of_ranks


@pytest.mark.parametrize("method", exchange.METHODS)
@pytest.mark.parametrize("seed", range(20))
def test_each_block_is_read_by_one_of_those_who_want_it(
    monkeypatch: pytest.MonkeyPatch, method: str, seed: int
) -> None:
    choose = random.Random(seed)
    most = choose.choice([1, 3, 16])
    monkeypatch.setattr(exchange_plan, "ROUND_BYTES", most * BLOCK)
    of_ranks = some_wants(choose, choose.randint(2, 6))
    wanting: dict[tuple[str, int], set[int]] = {}
    for rank, mine in enumerate(of_ranks):
        for each in mine.wants:
            for block in blocks_of(each.runs):
                wanting.setdefault((each.name, block), set()).add(rank)
    rounds = plan(of_ranks, method, sparing=False)
    readers: dict[tuple[str, int], int] = {}
    in_order: dict[int, list[tuple[str, int]]] = {rank: [] for rank in range(len(of_ranks))}
    for pieces in rounds:
        got = [0] * len(of_ranks)
        for piece in pieces:
            for rank in range(len(of_ranks)) if method != exchange.BROADCAST else piece.ranks:
                got[rank] += piece.count
            for part in piece.parts:
                for block in range(part.first, part.first + part.count):
                    key = (piece.name, block)
                    assert key not in readers
                    readers[key] = part.reader
                    assert set(piece.ranks) == wanting[key] and part.reader in piece.ranks
                    for rank in piece.ranks:
                        in_order[rank].append(key)
        assert max(got) <= most
    assert set(readers) == {key for key, ranks in wanting.items() if len(ranks) > 1}
    assert all(blocks == sorted(blocks) for blocks in in_order.values())


def test_replicas_read_equal_shares() -> None:
    of_ranks = [
        Rank(str(rank), [wants((0, 999), name=name) for name in ("a", "b")]) for rank in range(7)
    ]
    read = [0] * 7
    for pieces in plan(of_ranks, exchange.BROADCAST, sparing=True):
        for piece in pieces:
            for part in piece.parts:
                read[part.reader] += part.count
    assert sum(read) == 2 * 999 and max(read) - min(read) <= 1


def test_groups_of_replicas_take_part_in_the_same_rounds() -> None:
    """Ranks 0 and 2 want one object, 1 and 3 another."""
    of_ranks = alone(*(wants((0, 320), name=str(rank % 2)) for rank in range(4)))
    rounds = plan(of_ranks, exchange.BROADCAST, sparing=False)
    assert len(rounds) == 320 * BLOCK // exchange_plan.ROUND_BYTES
    assert [sorted(piece.ranks for piece in pieces) for pieces in rounds] == [
        [(0, 2), (1, 3)] for _ in rounds
    ]


def test_who_has_it_in_memory_reads_it_for_the_others_alone() -> None:
    near, far = wants((0, 4), place=Place.MEMORY), wants((0, 4))
    assert plan(alone(near, near), exchange.BROADCAST, sparing=True) == []
    ((piece,),) = plan(alone(near, far, near, far), exchange.BROADCAST, sparing=True)
    assert piece.ranks == (0, 1, 3) and [part.reader for part in piece.parts] == [0]
    assert plan(alone(near, near), exchange.BROADCAST, sparing=False) != []


@pytest.mark.parametrize(
    ("place", "nodes", "handed_on"),
    [
        (Place.FILE, "xx", False),
        (Place.FILE, "xy", True),
        (Place.ELSEWHERE, "xx", True),
        (Place.MEMORY, "xy", False),
    ],
)
def test_what_a_node_reads_faster_than_it_is_handed_on_is_not(
    place: Place, nodes: str, handed_on: bool
) -> None:
    ranks = [Rank(node, [wants((0, 4), place=place)]) for node in nodes]
    assert bool(plan(ranks, exchange.BROADCAST, sparing=True)) == handed_on
    assert plan(ranks, exchange.BROADCAST, sparing=False)


def test_what_is_not_handed_on_is_what_is_left() -> None:
    choose = random.Random(1)
    for _ in range(200):
        runs, taken = (
            [(a, b - a) for a, b in zip(edges[::2], edges[1::2], strict=True)]
            for edges in (
                sorted(choose.sample(range(30), 2 * choose.randint(0, 5))) for _ in range(2)
            )
        )
        left = without(runs, taken)
        assert blocks_of(left) == blocks_of(runs) - blocks_of(taken)
        assert left == sorted(left)


@pytest.mark.parametrize("bad", ["gather", 3, b"auto", ""])
def test_an_exchange_that_there_is_not_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match=r"exchange: .* is none of"):
        exchange.method_of(bad)
