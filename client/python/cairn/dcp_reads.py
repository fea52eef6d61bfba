"""What a DCP load wants of one object: in one pass over it, bytes go straight into tensors that are plain,
and through torch into others. The pass is over what this rank reads, or over what the ranks of a group hand
on (exchange.py)."""

from __future__ import annotations

import collections
import contextlib
import io
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlanner, ReadItem

from cairn import _native, exchange, tensor_archives
from cairn.errors import Corrupt, InvalidArgument
from cairn.exchange_plan import BLOCK, Place

if TYPE_CHECKING:
    from cairn.checkpoint import Checkpoint

# Of archives that are read whole at a time, before their tensors are copied to where they are wanted.
_WHOLE_BYTES = 256 << 20
_ALIGNED = 64  # where an archive begins in that memory; its tensors are aligned to as much in it

# Of a tensor whose bytes have changed: autograd is to know, as after a copy_. The first torch 2 has none.
_changed = getattr(torch.autograd.graph, "increment_version", lambda tensor: None)

_Place = tuple[int, int]  # offset and length in the object
Items = list[tuple[_StorageInfo, ReadItem]]  # of one object


class _Read(NamedTuple):
    place: _Place
    item: ReadItem
    target: torch.Tensor | None  # of a tensor


def read_items(checkpoint: Checkpoint, name: str, items: Items, planner: LoadPlanner) -> None:
    """Reads them from object `name`, each byte verified.

    Raises:
      as Checkpoint.load; ValueError: a shape that is not the wanted one.
    """
    with checkpoint._opened(name) as handle:
        _read(handle, _reads_of(handle, name, items, planner), planner)


def _reads_of(
    handle: _native.OpenObject, name: str, items: Items, planner: LoadPlanner
) -> list[_Read]:
    """In the order of the object."""
    length = handle.info()["length"]
    reads = []
    for where, item in sorted(items, key=lambda pair: pair[0].offset):
        if where.offset + where.length > length:
            raise Corrupt(
                f"{item.storage_index.fqn}: bytes {where.offset} to {where.offset + where.length} of "
                f"{name}, which has {length}"
            )
        target = None
        if item.type != LoadItemType.BYTE_IO:
            target = planner.resolve_tensor(item).detach()
        reads.append(_Read((where.offset, where.length), item, target))
    return reads


_Straight: TypeAlias = "list[tuple[_Read, _native._Piece]]"


def _sorted(
    handle: _native.OpenObject, reads: list[_Read]
) -> tuple[_Straight, list[_Read], _native.ArchiveEnds]:
    """What goes straight, what goes through torch, and what that was found in."""
    # What is peeked is not verified: it says only which bytes to read, and counts once the same call has
    # verified it along with them.
    places = sorted({read.place for read in reads if read.target is not None})
    ends = handle.peek_archives(places)
    found = {place: tensor_archives.find(ends, i, place[0]) for i, place in enumerate(places)}
    straight: _Straight = []
    through_torch: list[_Read] = []
    for read in reads:
        piece = _piece_of(found.get(read.place), read)
        if piece is None:
            through_torch.append(read)
        else:
            straight.append((read, piece))
    straight, overlapping = _apart(straight)
    return straight, sorted(through_torch + overlapping, key=lambda read: read.place), ends


def _read(handle: _native.OpenObject, reads: list[_Read], planner: LoadPlanner) -> None:
    straight, through_torch, ends = _sorted(handle, reads)
    batches = _batches(through_torch)
    first = next(batches, _Batch([]))
    if not handle.read_pieces([*(piece for _, piece in straight), *first.pieces()], ends):
        # Those bytes were bad, and the daemon has another copy.
        _read_whole(handle, reads, planner)
        return
    first.put(planner)
    _commit(straight, planner)
    for batch in batches:
        _read_batch(handle, batch, planner)


def _commit(straight: _Straight, planner: LoadPlanner) -> None:
    for read, _ in straight:
        _changed(read.target)
        planner.commit_tensor(read.item, read.target)


def _read_whole(handle: _native.OpenObject, reads: list[_Read], planner: LoadPlanner) -> None:
    """Through torch, whatever it is."""
    for batch in _batches(reads):
        _read_batch(handle, batch, planner)


def _read_batch(handle: _native.OpenObject, batch: _Batch, planner: LoadPlanner) -> None:
    handle.read_pieces(batch.pieces())
    batch.put(planner)


class _Batch:
    """Archives that are read whole, and then put where what is in them belongs."""

    def __init__(self, reads: list[_Read]) -> None:
        self._reads = reads
        self._regions: dict[_Place, _native.Region] = {}

    @property
    def end(self) -> int:
        """Of the last archive, in the object."""
        offset, length = self._reads[-1].place
        return offset + length

    def pieces(self) -> list[_native._Piece]:
        # One mapping for all: a process has 65,530 at most.
        starts, end = {}, 0
        for read in self._reads:
            if read.place not in starts:
                starts[read.place] = end
                end += -(-read.place[1] // _ALIGNED) * _ALIGNED
        memory = _native.Region(end)
        self._regions = {place: memory.slice(at, place[1]) for place, at in starts.items()}
        return [
            (offset, length, (), (), region, ())
            for (offset, length), region in self._regions.items()
            if length
        ]

    def put(self, planner: LoadPlanner) -> None:
        # Many cuts of a tensor come one after the other.
        last: tuple[_Place | None, Any] = (None, None)
        for read in self._reads:
            region = self._regions[read.place]
            if read.target is None:
                planner.load_bytes(read.item, io.BytesIO(memoryview(region)))
                continue
            if last[0] != read.place:
                last = read.place, _tensor_in(region, read.item.storage_index.fqn)
            _copy(read.item, last[1], read.target)
            planner.commit_tensor(read.item, read.target)
        self._regions = {}


# --- handed on in a group -----------------------------------------------------------------------------


def exchange_items(
    checkpoint: Checkpoint,
    of_object: Callable[[], Mapping[str, Items]],
    planner: LoadPlanner,
    decision: exchange.Decision,
) -> exchange.Traffic:
    """As `read_items` of each object, by all ranks of a group together; a collective.

    Args:
      of_object: what this rank wants. What it raises is raised on all ranks.
    """
    sources: list[_Source] = []
    late: dict[str, list[_Read]] = {}

    def open_sources() -> list[_Source]:
        sources.extend(
            _Source(checkpoint, name, items, planner) for name, items in of_object().items()
        )
        late.update(_overlapping(sources))
        for source in sources:
            if source.name in late:
                source.leave_out(late[source.name])
        return sources

    try:
        traffic = exchange.run(decision, open_sources)
    finally:
        for source in sources:
            source.close()
    # Blocks come in the order of the objects' names; which of these counts goes by the order of the plan.
    for name, reads in late.items():
        with checkpoint._opened(name) as handle:
            _read(handle, reads, planner)
    return traffic


def _overlapping(sources: Iterable[_Source]) -> dict[str, list[_Read]]:
    """Of several objects, what goes to memory that they share."""
    of_read = {id(read): source.name for source in sources for read, _ in source.straight}
    _, overlapping = _apart([pair for source in sources for pair in source.straight])
    found: dict[str, list[_Read]] = {source.name: [] for source in sources}
    for read in overlapping:
        found[of_read[id(read)]].append(read)
    return {
        name: sorted(reads, key=lambda read: read.place) for name, reads in found.items() if reads
    }


class _Source:
    """An object, as exchange.Source."""

    def __init__(
        self, checkpoint: Checkpoint, name: str, items: Items, planner: LoadPlanner
    ) -> None:
        self.name = name
        self._checkpoint = checkpoint
        self._planner = planner
        self._open = contextlib.ExitStack()
        self._mutex = threading.Lock()
        self._handle: _native.OpenObject | None = None
        with checkpoint._opened(name) as handle:
            info = handle.info()
            self.length: int = info["length"]
            self.place = (
                Place.MEMORY
                if info["in_memory"]
                else Place.FILE
                if info["from_storage"]
                else Place.ELSEWHERE
            )
            self._reads = _reads_of(handle, name, items, planner)
            self._sort(handle)

    def _sort(self, handle: _native.OpenObject) -> None:
        self.straight, through_torch, ends = _sorted(handle, self._reads)
        # Their memory is not touched before blocks are put there.
        self._batches = collections.deque(_batches(through_torch))
        whole = [piece for batch in self._batches for piece in batch.pieces()]
        self._pieces = handle.pieces_of_blocks(
            [*(piece for _, piece in self.straight), *whole], ends
        )
        self.runs = self._pieces.runs()

    def leave_out(self, reads: list[_Read]) -> None:
        out = set(map(id, reads))
        self._reads = [read for read in self._reads if id(read) not in out]
        with self._checkpoint._opened(self.name) as handle:
            self._sort(handle)

    def close(self) -> None:
        with self._mutex:
            self._handle = None
            self._open.close()

    def read(self, first: int, into: _native.Region) -> None:
        with self._mutex:
            if self._handle is None:
                self._handle = self._open.enter_context(self._checkpoint._opened(self.name))
            handle = self._handle
        handle.read_pieces([(first * BLOCK, len(into), (), (), into, ())])

    def put(self, first: int, blocks: _native.Region) -> None:
        self._pieces.put(first, blocks)
        end = first * BLOCK + len(blocks)
        while self._batches and self._batches[0].end <= end:
            self._batches.popleft().put(self._planner)
        if end >= min(self.length, sum(self.runs[-1]) * BLOCK):
            self._finish()

    def _finish(self) -> None:
        self.close()
        if self._pieces.peeked_holds():
            _commit(self.straight, self._planner)
            return
        with self._checkpoint._opened(self.name) as handle:
            _read_whole(handle, self._reads, self._planner)

    def read_all(self) -> None:
        with self._checkpoint._opened(self.name) as handle:
            _read(handle, self._reads, self._planner)


def _piece_of(found: tensor_archives.Found | None, read: _Read) -> _native._Piece | None:
    if found is None or read.target is None:
        return None
    return tensor_archives.piece(found, read.item.storage_offsets, read.item.lengths, read.target)


def _apart(
    straight: list[tuple[_Read, _native._Piece]],
) -> tuple[list[tuple[_Read, _native._Piece]], list[_Read]]:
    """Those whose targets are apart, and the rest: of names that share memory, as tied weights do, the one
    that comes last in the object counts, as with stock."""
    spans = []
    for i, (read, piece) in enumerate(straight):
        begin = piece[4]
        assert isinstance(begin, int)
        reach = sum((n - 1) * step for n, step in zip(piece[2], piece[5], strict=True))
        spans.append((begin, begin + reach + piece[1], read.item.dest_index.fqn, i))
    spans.sort()
    shared: set[int] = set()
    group: list[int] = []  # whose spans touch each other
    names: set[str] = set()
    end = 0
    for begin, until, name, i in spans:
        if begin >= end:
            group, names = [], set()
        group.append(i)
        names.add(name)
        end = max(end, until)
        if len(names) > 1:  # cuts of one tensor may lie between each other
            shared.update(group)
            group = []
    apart = [both for i, both in enumerate(straight) if i not in shared]
    return apart, [both[0] for i, both in enumerate(straight) if i in shared]


def _batches(reads: list[_Read]) -> Iterator[_Batch]:
    batch: list[_Read] = []
    bytes_ = 0
    for read in reads:
        more = 0 if batch and batch[-1].place == read.place else read.place[1]
        if batch and more and bytes_ + more > _WHOLE_BYTES:
            yield _Batch(batch)
            batch, bytes_ = [], 0
        batch.append(read)
        bytes_ += more
    if batch:
        yield _Batch(batch)


def _copy(item: ReadItem, saved: torch.Tensor, target: torch.Tensor) -> None:
    for dim, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
        saved = saved.narrow(dim, offset, length)
    if target.size() != saved.size():
        raise InvalidArgument(
            f"{item.storage_index.fqn}: saved as {tuple(saved.size())}, wanted as "
            f"{tuple(target.size())}"
        )
    target.copy_(saved)


def _tensor_in(region: _native.Region, name: str) -> torch.Tensor:
    """A view of the tensor that lies there."""
    saved = tensor_archives.read(region)
    if not isinstance(saved, torch.Tensor):
        raise Corrupt(f"{name}: a {type(saved).__name__} where a tensor was saved")
    return saved
