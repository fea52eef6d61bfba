"""Ranks of a group that want the same bytes of a checkpoint: each block is read once, and handed on.

What is exchanged are blocks of 4 MiB, as they lie in an object and as they are checksummed. Each rank says
which it wants, and all make the same plan of that (exchange_plan.py). A rank has two rounds at hand at a
time: one is handed on while what comes next is read. Who reads a block verifies it, and so does each rank
that gets it.

`run` is a collective. What goes wrong on a rank is told to all before the next round is handed on, and
raised on all: nobody waits for a rank that has given up. A rank that dies ends the waiting of the others as
the group does: at once where it notices, else after the group's timeout.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import itertools
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from cairn import _native, distributed, errors
from cairn.errors import InvalidArgument
from cairn.exchange_plan import (
    BLOCK,
    BROADCAST,
    GATHER_OBJECT,
    GATHER_ROUNDS,
    METHODS,
    Part,
    Piece,
    Place,
    Rank,
    Run,
    Wants,
    bytes_of,
    plan,
    without,
)

AUTO = "auto"
_ALONE_BLOCKS = 8  # that a rank reads for itself at a time


def method_of(exchange: Any) -> str | None:
    """Of an argument `exchange`: one of METHODS, "auto", or None for none.

    Raises:
      ValueError: it is something else.
    """
    if exchange is None or exchange is False:
        return None
    if exchange is True:
        return BROADCAST
    if exchange in (AUTO, *METHODS):
        return str(exchange)
    raise InvalidArgument(
        f"exchange: {exchange!r} is none of True, False, {AUTO!r}, {', '.join(map(repr, METHODS))}"
    )


@dataclasses.dataclass
class Traffic:
    """What one rank did in one load.

    Attributes:
      read_bytes: that it read, from memory, storage or another node.
      sent_bytes, received_bytes: that it handed on, one time for each rank; that others handed on to it.
      rounds: in which it took part.
    """

    read_bytes: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    rounds: int = 0


class Source(Protocol):
    """An object of which this rank wants something. `read` is called from another thread, too; all else from
    the one that called `run`."""

    name: str
    length: int
    place: Place
    runs: list[Run]  # the blocks of which it wants something, ascending

    def read(self, first: int, into: _native.Region) -> None:
        """The blocks from `first` on, verified. Raises a `cairn.Error`."""

    def put(self, first: int, blocks: _native.Region) -> None:
        """Copies what is wanted of blocks to where it is wanted. Called in the order of the blocks; when the
        last one has been put, all is there."""

    def read_all(self) -> None:
        """Instead of `put`: reads all that is wanted straight to where it is wanted."""


# --- what all ranks see --------------------------------------------------------------------------------


def gather(group: Any, mine: Any, failure: Exception | None) -> list[Any]:
    """What each rank says, on every rank. If one has failed instead, its error is raised on every rank.

    Raises:
      its own error where it was raised, elsewhere what `errors.from_plain` makes of it, naming the rank.
    """
    said: list[Any] = [None] * dist.get_world_size(group)
    plain = None if failure is None else errors.to_plain(failure)
    distributed.talk(lambda: dist.all_gather_object(said, (plain, mine), group=group))
    if failure is not None:
        raise failure
    for rank, (plain, _) in enumerate(said):
        if plain is not None:
            code, kind, message = plain
            raise errors.from_plain(code, kind, f"rank {rank}: {message}")
    return [answer for _, answer in said]


class Decision(NamedTuple):
    """As `run` takes it."""

    group: Any
    method: str
    sparing: bool


def decide(group: Any, method: str, is_far: Callable[[], bool]) -> Decision | None:
    """Whether the ranks of a group exchange, and how; None: each reads for itself. A collective.

    Args:
      method: as `method_of` returns it.
      is_far: whether this rank's node has not all in its memory. What it raises is raised on all ranks.

    Raises:
      ValueError: `method` differs between the ranks; on all.
    """
    failure: Exception | None = None
    far = False
    try:
        far = method != AUTO or is_far()
    except Exception as error:
        failure = error
    known = (AUTO, *METHODS)
    mine = torch.tensor([known.index(method), int(far), int(failure is not None)], device="cpu")
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    distributed.talk(lambda: dist.all_gather(rows, mine, group=group))
    for rank, row in enumerate(rows):
        other = known[int(row[0])]
        if other != method:
            raise InvalidArgument(
                f"exchange: differs between ranks: here {method!r}, on rank {rank} {other!r}"
            )
    if any(row[2] for row in rows):
        gather(group, None, failure)
    if not any(row[1] for row in rows):
        return None
    return Decision(group, BROADCAST if method == AUTO else method, sparing=method == AUTO)


def share(group: Any, load: Callable[[str], bytes], name: str) -> bytearray:
    """What `load(name)` returns on rank 0, or raises there, on every rank; a collective."""
    content, failure = bytearray(), None
    if dist.get_rank(group) == 0:
        try:
            content = bytearray(load(name))
        except Exception as error:
            failure = error
    length = gather(group, len(content), failure)[0]
    if dist.get_rank(group) != 0:
        content = bytearray(length)
    if length:
        tensor = torch.frombuffer(content, dtype=torch.uint8)
        distributed.talk(
            lambda: dist.broadcast(tensor, dist.get_global_rank(group, 0), group=group)
        )
    return content


def _greatest(group: Any, number: int) -> int:
    flag = torch.tensor([number], device="cpu")
    distributed.talk(lambda: dist.all_reduce(flag, dist.ReduceOp.MAX, group=group))
    return int(flag.item())


# --- the exchange ---------------------------------------------------------------------------------------


def run(decision: Decision, open_sources: Callable[[], Sequence[Source]]) -> Traffic:
    """Reads what the ranks of a group want, each block once, and puts it where they want it. A collective.

    Args:
      open_sources: what this rank wants. What it raises is raised on all ranks.

    Raises:
      what reading or putting raised: on every rank, or here alone once the last block has been handed on.
      cairn.Unavailable: a rank does not answer.
    """
    sources: Sequence[Source] = ()
    failure: Exception | None = None
    try:
        sources = open_sources()
    except Exception as error:
        failure = error
    mine = Rank(_this_node(), [Wants(s.name, s.length, s.place, s.runs) for s in sources])
    ranks = gather(decision.group, mine, failure)
    rounds = plan(ranks, decision.method, decision.sparing)
    return _Exchange(decision.group, decision.method, sources, rounds).run()


def _this_node() -> str:
    """Equal for processes that share a page cache."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


class _Round:
    """The blocks of a round, in memory one after the other."""

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces
        self.memory: _native.Region | None = None  # of BLOCK for each
        counts = [piece.count for piece in pieces]
        starts = itertools.accumulate(counts, initial=0)
        self._starts = {id(piece): start for piece, start in zip(pieces, starts, strict=False)}
        self.count = sum(counts)

    def parts(self) -> Iterator[tuple[Piece, Part, _native.Region]]:
        for piece in self.pieces:
            for part in piece.parts:
                yield piece, part, self.blocks(piece, part.first, piece.bytes_of(part))

    def blocks(self, piece: Piece, first: int, length: int) -> _native.Region:
        assert self.memory is not None
        return self.memory.slice((self._starts[id(piece)] + first - piece.first) * BLOCK, length)

    def whole(self, piece: Piece) -> _native.Region:
        return self.blocks(piece, piece.first, bytes_of(piece.length, piece.first, piece.count))


class _Exchange:
    def __init__(
        self, group: Any, method: str, sources: Sequence[Source], rounds: list[list[Piece]]
    ) -> None:
        self._group = group
        self._rank = dist.get_rank(group)
        self._hand_on = _WAYS[method]
        self._sources = {source.name: source for source in sources}
        self._failure: Exception | None = None
        self.traffic = Traffic()
        handed: dict[str, list[Run]] = {}
        for piece in itertools.chain.from_iterable(rounds):
            if self._rank in piece.ranks:
                handed.setdefault(piece.name, []).append((piece.first, piece.count))
        self._straight = [s for name, s in self._sources.items() if name not in handed]
        self._alone = collections.deque(
            (name, begin, min(_ALONE_BLOCKS, first + count - begin))
            for name in sorted(handed)
            for first, count in without(self._sources[name].runs, handed[name])
            for begin in range(first, first + count, _ALONE_BLOCKS)
        )
        self._aside: _native.Region | None = None
        self._rounds = [
            _Round([p for p in pieces if method != BROADCAST or self._rank in p.ranks])
            for pieces in rounds
        ]

    def _take_memory(self) -> None:
        """Two in turn: a round is read while the one before is handed on."""
        most = max((round_.count for round_ in self._rounds), default=0)
        memories = [_native.Region(most * BLOCK) for _ in self._rounds[:2]]
        for i, round_ in enumerate(self._rounds):
            round_.memory = memories[i % 2]

    def run(self) -> Traffic:
        self._attempt(self._take_memory)
        with concurrent.futures.ThreadPoolExecutor(1, "cairn-exchange") as reader:
            reading = [reader.submit(self._read_parts, round_) for round_ in self._rounds[:1]]
            for i, round_ in enumerate(self._rounds):
                self._attempt(self._note, reading[i])
                if _greatest(self._group, int(self._failure is not None)):
                    gather(self._group, None, self._failure)
                for after in self._rounds[i + 1 : i + 2]:
                    reading.append(reader.submit(self._read_parts, after))
                if round_.pieces:
                    self.traffic.rounds += 1
                    self._talk(round_)
                    self._attempt(self._put, round_)
        self._attempt(self._read_alone, None)
        for source in self._straight:
            self._attempt(self._read_straight, source)
        if self._failure is not None:
            raise self._failure
        return self.traffic

    def _attempt(self, work: Callable[..., None], *arguments: Any) -> None:
        """What fails waits until all can be told. From then on this rank does nothing but talk."""
        if self._failure is not None:
            return
        try:
            work(*arguments)
        except Exception as error:
            self._failure = error

    def _talk(self, round_: _Round) -> None:
        distributed.talk(lambda: self._hand_on(self._group, round_, self.traffic))

    def _read_parts(self, round_: _Round) -> int:
        """In a thread of its own; returns how many bytes."""
        bytes_ = 0
        for piece, part, blocks in round_.parts():
            if part.reader == self._rank:
                self._sources[piece.name].read(part.first, blocks)
                bytes_ += len(blocks)
        return bytes_

    def _note(self, reading: concurrent.futures.Future[int]) -> None:
        self.traffic.read_bytes += reading.result()

    def _put(self, round_: _Round) -> None:
        for piece in round_.pieces:
            if self._rank in piece.ranks:
                self._read_alone((piece.name, piece.first))
                self._sources[piece.name].put(piece.first, round_.whole(piece))

    def _read_alone(self, before: tuple[str, int] | None) -> None:
        """What this rank reads for itself, and comes in order before what has been handed on."""
        while self._alone and (before is None or self._alone[0][:2] < before):
            name, first, count = self._alone.popleft()
            source = self._sources[name]
            if self._aside is None:
                self._aside = _native.Region(_ALONE_BLOCKS * BLOCK)
            blocks = self._aside.slice(0, bytes_of(source.length, first, count))
            source.read(first, blocks)
            self.traffic.read_bytes += len(blocks)
            source.put(first, blocks)

    def _read_straight(self, source: Source) -> None:
        source.read_all()
        for first, count in source.runs:
            self.traffic.read_bytes += bytes_of(source.length, first, count)


# --- the ways to hand on -------------------------------------------------------------------------------


def _broadcast(group: Any, round_: _Round, traffic: Traffic) -> None:
    """From who has read it to each who wants it. All wait for everything at once: no order is needed."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    waiting = []
    for piece, part, blocks in round_.parts():
        tensor = _tensor(blocks)
        reader = dist.get_global_rank(group, part.reader)
        others = [other for other in piece.ranks if other != part.reader]
        if rank == part.reader:
            traffic.sent_bytes += len(blocks) * len(others)
        else:
            traffic.received_bytes += len(blocks)
        if len(piece.ranks) == world > 2:
            waiting.append(dist.broadcast(tensor, reader, group=group, async_op=True))
        elif rank == part.reader:
            for other in others:
                to = dist.get_global_rank(group, other)
                waiting.append(dist.isend(tensor, to, group=group))
        else:
            waiting.append(dist.irecv(tensor, reader, group=group))
    for work in waiting:
        work.wait()


def _gather_rounds(group: Any, round_: _Round, traffic: Traffic) -> None:
    """Each rank gathers, of each other, as many bytes as the one that has read the most."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    of_ranks: list[list[torch.Tensor]] = [[] for _ in range(world)]
    for _, part, blocks in round_.parts():
        of_ranks[part.reader].append(_tensor(blocks))
    most = max(sum(map(len, tensors)) for tensors in of_ranks)
    rows = torch.empty(world, most, dtype=torch.uint8, device="cpu")
    mine = torch.empty(most, dtype=torch.uint8, device="cpu")
    for span, tensor in zip(_spans(mine, of_ranks[rank]), of_ranks[rank], strict=True):
        span.copy_(tensor)
    dist.all_gather(list(rows), mine, group=group)
    for other, tensors in enumerate(of_ranks):
        if other != rank:
            for span, tensor in zip(_spans(rows[other], tensors), tensors, strict=True):
                tensor.copy_(span)
    traffic.sent_bytes += most * (world - 1)
    traffic.received_bytes += most * (world - 1)


def _spans(row: torch.Tensor, tensors: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Where in a row of bytes each lies, if they lie there one after the other."""
    at = 0
    for tensor in tensors:
        yield row[at : at + len(tensor)]
        at += len(tensor)


def _gather_object(group: Any, round_: _Round, traffic: Traffic) -> None:
    """Each rank gathers dictionaries of what the others have read."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    where = {(piece.name, part.first): (part, blocks) for piece, part, blocks in round_.parts()}
    mine = {
        which: bytes(memoryview(blocks))
        for which, (part, blocks) in where.items()
        if part.reader == rank
    }
    gathered: list[Any] = [None] * world
    dist.all_gather_object(gathered, mine, group=group)
    for other, found in enumerate(gathered):
        size = sum(map(len, found.values()))
        if other == rank:
            traffic.sent_bytes += size * (world - 1)
            continue
        traffic.received_bytes += size
        for which, content in found.items():
            memoryview(where[which][1])[:] = content


_WAYS: dict[str, Callable[[Any, _Round, Traffic], None]] = {
    BROADCAST: _broadcast,
    GATHER_ROUNDS: _gather_rounds,
    GATHER_OBJECT: _gather_object,
}


def _tensor(region: _native.Region) -> torch.Tensor:
    return torch.frombuffer(memoryview(region), dtype=torch.uint8)
