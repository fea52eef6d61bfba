"""What a DCP load wants of one object: in one pass over it, bytes go straight into tensors that are plain,
and through torch into others."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlanner, ReadItem

from cairn import _native, tensor_archives
from cairn.errors import Corrupt, InvalidArgument

if TYPE_CHECKING:
    from cairn.checkpoint import Checkpoint

# Of archives that are read whole at a time, before their tensors are copied to where they are wanted.
_WHOLE_BYTES = 256 << 20

# Of a tensor whose bytes have changed: autograd is to know, as after a copy_. The first torch 2 has none.
_changed = getattr(torch.autograd.graph, "increment_version", lambda tensor: None)

_Place = tuple[int, int]  # offset and length in the object


class _Read(NamedTuple):
    place: _Place
    item: ReadItem
    target: torch.Tensor | None  # of a tensor


def read_items(
    checkpoint: Checkpoint,
    name: str,
    items: list[tuple[_StorageInfo, ReadItem]],
    planner: LoadPlanner,
) -> None:
    """Reads them from object `name`, each byte verified.

    Raises:
      as Checkpoint.load; ValueError: a shape that is not the wanted one.
    """
    with checkpoint._opened(name) as handle:
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
        _Object(handle, planner).read(reads)


class _Object:
    def __init__(self, handle: _native.OpenObject, planner: LoadPlanner) -> None:
        self._handle = handle
        self._planner = planner

    def read(self, reads: list[_Read]) -> None:
        # What is peeked is not verified: it says only which bytes to read, and counts once the same call has
        # verified it along with them.
        places = sorted({read.place for read in reads if read.target is not None})
        ends = self._handle.peek_archives(places)
        found = {place: tensor_archives.find(ends, i, place[0]) for i, place in enumerate(places)}
        straight: list[tuple[_Read, _native._Piece]] = []
        through_torch: list[_Read] = []
        for read in reads:
            piece = _piece_of(found.get(read.place), read)
            if piece is None:
                through_torch.append(read)
            else:
                straight.append((read, piece))
        straight, overlapping = _apart(straight)
        through_torch = sorted(through_torch + overlapping, key=lambda read: read.place)

        batches = _batches(through_torch)
        first = next(batches, [])
        if not self._read_pieces([piece for _, piece in straight], first, ends):
            # Those bytes were bad, and the daemon has another copy.
            straight, batches = [], _batches(reads)
        for read, _ in straight:
            _changed(read.target)
            self._planner.commit_tensor(read.item, read.target)
        for batch in batches:
            self._read_pieces([], batch, None)

    def _read_pieces(
        self,
        straight: list[_native._Piece],
        batch: list[_Read],
        ends: _native.ArchiveEnds | None,
    ) -> bool:
        """Reads pieces and, whole, what is wanted through torch, and puts the latter where it belongs."""
        regions = {read.place: _native.Region(read.place[1]) for read in batch}
        whole: list[_native._Piece] = [
            (offset, length, (), (), region, ())
            for (offset, length), region in regions.items()
            if length
        ]
        if not self._handle.read_pieces([*straight, *whole], ends):
            return False
        last: tuple[_Place | None, Any] = (
            None,
            None,
        )  # many cuts of a tensor come one after the other
        for read in batch:
            region = regions[read.place]
            if read.target is None:
                self._planner.load_bytes(read.item, io.BytesIO(memoryview(region)))
                continue
            if last[0] != read.place:
                last = read.place, _tensor_in(region, read.item.storage_index.fqn)
            _copy(read.item, last[1], read.target)
            self._planner.commit_tensor(read.item, read.target)
        return True


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


def _batches(reads: list[_Read]) -> Iterator[list[_Read]]:
    batch: list[_Read] = []
    bytes_ = 0
    for read in reads:
        more = 0 if batch and batch[-1].place == read.place else read.place[1]
        if batch and more and bytes_ + more > _WHOLE_BYTES:
            yield batch
            batch, bytes_ = [], 0
        batch.append(read)
        bytes_ += more
    if batch:
        yield batch


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
