"""Which rank reads which blocks of what several ranks want, and in which round it hands them on.

A block is 4 MiB of an object, the unit of checksums. Each block that is exchanged is read by one of the ranks
that want it, each of which reads as much as the others as far as that goes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cairn import _native

BLOCK = _native.BLOCK_BYTES
ROUND_BYTES = 64 << 20  # that a rank gets in a round, of what others and it itself have read

BROADCAST, GATHER_ROUNDS, GATHER_OBJECT = METHODS = ("broadcast", "gather_rounds", "gather_object")

Run = tuple[int, int]  # first block, number of blocks


def bytes_of(length: int, first: int, count: int) -> int:
    """Of blocks of an object of `length` bytes: its last one is shorter."""
    return min(length, (first + count) * BLOCK) - first * BLOCK


class Place(enum.Enum):
    """Where a rank has an object."""

    MEMORY = "in its node's memory, mapped"
    FILE = "in a file, which its node reads once, whoever of its ranks asks"
    ELSEWHERE = "in another node's memory, or not mapped"


class Wants(NamedTuple):
    """What a rank tells the others of an object."""

    name: str
    length: int
    place: Place
    runs: list[Run]


class Rank(NamedTuple):
    node: str
    wants: Sequence[Wants]


class Part(NamedTuple):
    """Blocks that one rank reads and hands on."""

    reader: int
    first: int
    count: int


class Piece(NamedTuple):
    """Blocks of an object that the same ranks want, which get them in the same round."""

    name: str
    length: int  # of the object
    ranks: tuple[int, ...]
    parts: list[Part]

    @property
    def first(self) -> int:
        return self.parts[0].first

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)

    def bytes_of(self, part: Part) -> int:
        return bytes_of(self.length, part.first, part.count)


class _Stretch(NamedTuple):
    name: str
    length: int
    first: int
    count: int
    readers: tuple[int, ...]  # of whom one reads a block
    others: tuple[int, ...]  # who get it, whoever reads it


def plan(ranks: Sequence[Rank], method: str, sparing: bool) -> list[list[Piece]]:
    """The rounds: equal for equal arguments, on every rank.

    Args:
      sparing: only what no node reads faster than it is handed on. Ranks that have an object in their memory
          read it for themselves, one of them also for those that do not; and of a file each of the ranks of
          one node finds in that node's page cache what one of them has read.
    """
    together = method != BROADCAST  # every rank gets all
    return _Rounds(len(ranks), together).of(_stretches(ranks, sparing))


def _stretches(ranks: Sequence[Rank], sparing: bool) -> Iterable[_Stretch]:
    """What more than one rank wants, in the order of objects and blocks."""
    of_object: dict[str, list[tuple[int, Wants]]] = {}
    for number, rank in enumerate(ranks):
        for wants in rank.wants:
            of_object.setdefault(wants.name, []).append((number, wants))
    for name in sorted(of_object):
        wanting = of_object[name]
        length = wanting[0][1].length
        places = {number: wants.place if sparing else None for number, wants in wanting}
        for first, count, who in _cut([(number, wants.runs) for number, wants in wanting]):
            have = tuple(number for number in who if places[number] == Place.MEMORY)
            others = tuple(number for number in who if places[number] != Place.MEMORY)
            readers = {
                ranks[number].node if places[number] == Place.FILE else number for number in others
            }
            if len(readers) + bool(have) > 1 and others:
                yield _Stretch(name, length, first, count, have or others, others)


def _cut(of_ranks: list[tuple[int, list[Run]]]) -> Iterable[tuple[int, int, tuple[int, ...]]]:
    """Stretches of blocks that the same ranks want: first, count, ranks."""
    edges: dict[int, list[tuple[int, bool]]] = {}
    for rank, runs in of_ranks:
        for first, count in runs:
            edges.setdefault(first, []).append((rank, True))
            edges.setdefault(first + count, []).append((rank, False))
    wanting: set[int] = set()
    before = 0
    for at in sorted(edges):
        if wanting:
            yield before, at - before, tuple(sorted(wanting))
        for rank, begins in sorted(edges[at], key=lambda edge: edge[1]):
            if begins:
                wanting.add(rank)
            else:
                wanting.discard(rank)
        before = at


class _Rounds:
    """Fills rounds in the order of the stretches: no rank gets more than ROUND_BYTES in one, and each gets
    its blocks in order. Ranks that want nothing of each other do so in the same rounds."""

    def __init__(self, ranks: int, together: bool) -> None:
        self._all = tuple(range(ranks)) if together else None
        self._most = max(1, ROUND_BYTES // BLOCK)
        self._at = [0] * ranks  # the round in which a rank gets what comes next
        self._filled = [0] * ranks  # blocks of it
        self._read = [0] * ranks  # blocks, in all rounds
        self._rounds: list[list[Piece]] = []

    def of(self, stretches: Iterable[_Stretch]) -> list[list[Piece]]:
        for stretch in stretches:
            first, left = stretch.first, stretch.count
            while left:
                count = self._add(stretch, first, left)
                first, left = first + count, left - count
        return self._rounds

    def _add(self, stretch: _Stretch, first: int, left: int) -> int:
        """As many blocks as there is room for; returns how many."""
        others = stretch.others
        if stretch.readers != others:
            reader = min(stretch.readers, key=lambda rank: (self._read[rank], rank))
            readers: Sequence[int] = (reader,)
            others = tuple(sorted((*others, reader)))
        else:
            readers = sorted(others, key=lambda rank: (self._read[rank], rank))
        getting = self._all or others
        number = max(self._at[rank] for rank in getting)
        filled = max(self._filled[rank] for rank in getting if self._at[rank] == number)
        if filled >= self._most:
            number, filled = number + 1, 0
        count = min(left, self._most - filled)
        for rank in getting:
            if self._at[rank] != number:
                self._at[rank], self._filled[rank] = number, 0
            self._filled[rank] += count
        while len(self._rounds) <= number:
            self._rounds.append([])
        parts = []
        begin = first
        share, more = divmod(count, len(readers))
        for i, reader in enumerate(readers[:count]):
            reads = share + (i < more)
            parts.append(Part(reader, begin, reads))
            begin += reads
            self._read[reader] += reads
        self._rounds[number].append(Piece(stretch.name, stretch.length, others, parts))
        return count


def without(runs: Sequence[Run], taken: Sequence[Run]) -> list[Run]:
    """The blocks of `runs` that are not in `taken`; both ascending."""
    left = []
    ahead = iter(taken)
    cut = next(ahead, None)
    for first, count in runs:
        end = first + count
        while cut is not None and cut[0] < end:
            if cut[0] > first:
                left.append((first, cut[0] - first))
            first = max(first, cut[0] + cut[1])
            if first >= end:
                break
            cut = next(ahead, None)
        if first < end:
            left.append((first, end - first))
    return left
