"""What a Writer keeps from save to save of a model that stays the same, beside the plan that
`caching_planner` keeps: the frame of each tensor's archive; and on the coordinator `.metadata` and its index,
which then differ only in the name of the step.

A model of ten thousand tensors would else spend seconds in what is the same each time. What is kept counts
only where the new save is found to be equal in all that it depends on.
"""

from __future__ import annotations

import dataclasses
import io
import pickle
import struct
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple, overload

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from cairn import _native, read_index, tensor_archives
from cairn.caching_planner import Beside, CachingPlanner
from cairn.errors import FailedPrecondition
from cairn.payload import Piece
from cairn.shared_metadata import SharedMetadata

_PLACE = struct.Struct("<QQ")  # offset and length

# Kinds of tensors whose elements are where they say: others are asked for as stock does.
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _beside(planner: SavePlanner) -> Beside | None:
    """What is kept beside the plan of this save; None where that is not kept, or the planner may answer
    otherwise than stock's."""
    return planner.beside if type(planner) is CachingPlanner else None


# --- what is written ---------------------------------------------------------------------------------

# Forms and wheres of pieces, as `Step._write_pieces` takes them, and what the wheres point into.
_Pieces = tuple[list[Any], list[Any], Any]


class _Kept(NamedTuple):
    """Lists and one call, and nothing for each tensor: ten thousand small objects would keep Python's
    collector busy for longer than the copy takes."""

    forms: list[Any]  # of those that are made anew in each save, None
    positions: list[int]  # of each, among the planner's locals; of those made anew, of any tensor
    anew: list[int]


def pieces(plan: SavePlan, planner: SavePlanner) -> _Pieces:
    """What this rank writes, in the order of the plan."""
    of_plan = _beside(planner)
    if of_plan is not None and of_plan.pieces is not None:
        return _kept_pieces(plan, planner, of_plan.pieces)
    forms, wheres, keep = [], [], []
    for item in plan.items:
        (form, where), kept = _piece(planner.resolve_data(item))
        forms.append(form)
        wheres.append(where)
        keep.append(kept)
    if of_plan is not None:
        of_plan.pieces = _to_keep(plan, planner, forms, wheres)
    return forms, wheres, keep


def _piece(data: Any) -> tuple[Piece, Any]:
    if isinstance(data, io.BytesIO):
        view = data.getbuffer()
        return (None, [(view, view.nbytes)]), view
    return tensor_archives.of_tensor(data)


def _to_keep(
    plan: SavePlan, planner: SavePlanner, forms: list[Any], wheres: list[Any]
) -> _Kept | None:
    """None: of no tensor the bytes are taken as they are."""
    assert isinstance(planner, CachingPlanner)
    position_of = {name: i for i, name in enumerate(planner.state_dict)}
    positions = [position_of[item.index.fqn] for item in plan.items]
    anew = [
        i
        for i, (item, form, where) in enumerate(zip(plan.items, forms, wheres, strict=True))
        if item.type == WriteItemType.BYTE_IO
        or not isinstance(form, _native.Frame)
        or not _is_there(planner.locals[positions[i]], where)
    ]
    made_anew = set(anew)
    some = next((at for i, at in enumerate(positions) if i not in made_anew), None)
    if some is None:
        return None
    kept = list(forms)
    for i in anew:
        kept[i], positions[i] = None, some
    return _Kept(kept, positions, anew)


def _is_there(local: Any, where: Any) -> bool:
    """Whether the bytes that are written are the tensor's own memory."""
    if type(local) not in _PLAIN or local.device.type != "cpu":
        return False
    return bool(where == (local.data_ptr() if local.numel() else 0))


def _kept_pieces(plan: SavePlan, planner: SavePlanner, kept: _Kept) -> _Pieces:
    # The planner found dtypes, shapes, strides and devices of all to be as they were.
    assert isinstance(planner, CachingPlanner)
    there = planner.locals
    wheres: list[Any] = [there[at].data_ptr() for at in kept.positions]
    if not kept.anew:
        return kept.forms, wheres, there
    forms, keep = list(kept.forms), [there]
    for i in kept.anew:
        (forms[i], wheres[i]), held = _piece(planner.resolve_data(plan.items[i]))
        keep.append(held)
    return forms, wheres, keep


# --- what it says of it ------------------------------------------------------------------------------


class Results(Sequence[WriteResult]):
    """What a rank wrote where. Of a plan that is kept the ranks send each other the places alone: the
    coordinator has planned what lies there.

    Attributes:
      indexes: of what was written; None as another rank sent it.
      name: of the object.
      places: offset and length of each, as `Step._write_pieces` says.
      save_id: of the save that they are of.
    """

    def __init__(
        self, indexes: list[MetadataIndex] | None, name: str, places: bytes, save_id: str
    ) -> None:
        self.indexes, self.name, self.places, self.save_id = indexes, name, places, save_id

    def __reduce__(self) -> Any:
        return Results, (None, self.name, self.places, self.save_id)

    def __len__(self) -> int:
        return len(self.places) // _PLACE.size

    @overload
    def __getitem__(self, at: int) -> WriteResult: ...
    @overload
    def __getitem__(self, at: slice) -> list[WriteResult]: ...
    def __getitem__(self, at: int | slice) -> WriteResult | list[WriteResult]:
        return list(self)[at]

    def __iter__(self) -> Any:
        if self.indexes is None:
            raise FailedPrecondition("what another rank wrote, without the plan that it has of it")
        places = _PLACE.iter_unpack(self.places)
        for index, (offset, length) in zip(self.indexes, places, strict=True):
            yield WriteResult(index, length, _StorageInfo(self.name, offset, length))


class WholeResults(list[WriteResult]):
    """The same of a plan that is not kept.

    Attributes:
      save_id: as of Results.
    """

    save_id: str


def results(
    plan: SavePlan, planner: SavePlanner, name: str, places: bytes, save_id: str
) -> Sequence[WriteResult]:
    """Of this rank's part."""
    found = Results([item.index for item in plan.items], name, places, save_id)
    if _beside(planner) is not None:
        return found
    listed = WholeResults(found)
    listed.save_id = save_id
    return listed


# --- .metadata ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Written:
    """What the coordinator wrote when it last saved with a plan."""

    ranks: list[tuple[str, bytes]]  # name and places of each
    storage_data: dict[MetadataIndex, _StorageInfo]
    metadata: Metadata  # without storage_data
    content: bytes
    index: bytes | None
    patch: _Patch


class _Patch(NamedTuple):
    """Where in `.metadata` and its index the two words are that name the save."""

    words: tuple[bytes, bytes]
    in_content: tuple[int, ...]
    in_index: tuple[int, ...]
    first: int  # of those in `.metadata`, and the CRC-32 of all before it
    crc: int


def finish(
    metadata: Metadata,
    of_ranks: list[Sequence[WriteResult]],
    storage_meta: StorageMeta,
    of_plan: Beside | None,
) -> tuple[bytes, bytes | None]:
    """Fills metadata in. Returns what `.metadata` and its index are to hold.

    Args:
      of_ranks: what each rank's `write_data` answered.
      of_plan: what is kept beside the coordinator's plan, if that is kept.
    """
    metadata.storage_meta = storage_meta
    ranks = _ranks(of_ranks)
    if of_plan is None or ranks is None:
        metadata.storage_data = _storage_data(of_ranks, of_plan)
        return _encode(metadata)
    before = of_plan.written
    if before is not None and before.ranks == ranks and _is_same(metadata, before.metadata):
        metadata.storage_data = dict(before.storage_data)
        again = _again(before, storage_meta)
    else:
        metadata.storage_data = _storage_data(of_ranks, of_plan)
        again = None
    content, index = _encode(metadata) if again is None else again
    if again is None:
        patch = _patch(storage_meta, content, index)
        of_plan.written = patch and _Written(
            ranks,
            dict(metadata.storage_data),
            dataclasses.replace(
                _plain(metadata), state_dict_metadata=dict(metadata.state_dict_metadata)
            ),
            content,
            index,
            patch,
        )
    if index is not None and isinstance(metadata, SharedMetadata):
        metadata.next_as_index(index)
    return content, index


def _ranks(of_ranks: list[Sequence[WriteResult]]) -> list[tuple[str, bytes]] | None:
    """None: some have sent all."""
    found = [(one.name, one.places) for one in of_ranks if isinstance(one, Results)]
    return found if len(found) == len(of_ranks) else None


def _storage_data(
    of_ranks: list[Sequence[WriteResult]], of_plan: Beside | None
) -> dict[MetadataIndex, _StorageInfo]:
    return {
        result.index: result.storage_data
        for of_rank in whole(of_ranks, of_plan)
        for result in of_rank
    }


def whole(of_ranks: list[Sequence[WriteResult]], of_plan: Beside | None) -> list[list[WriteResult]]:
    """The results of all ranks in full: for who has no plan."""
    found = []
    for rank, of_rank in enumerate(of_ranks):
        if isinstance(of_rank, Results) and of_plan is not None and of_plan.indexes is not None:
            of_rank = Results(of_plan.indexes[rank], of_rank.name, of_rank.places, of_rank.save_id)
        found.append(list(of_rank))
    return found


def _plain(metadata: Metadata) -> Metadata:
    return Metadata(
        metadata.state_dict_metadata,
        metadata.planner_data,
        None,
        metadata.storage_meta,
        metadata.version,
    )


def _encode(metadata: Metadata) -> tuple[bytes, bytes | None]:
    content = pickle.dumps(metadata)
    return content, read_index.encode(metadata, content)


def _is_same(metadata: Metadata, before: Metadata) -> bool:
    """But for who saved it. What is in the dictionaries is mostly the very same objects."""
    return (
        metadata.state_dict_metadata == before.state_dict_metadata
        and list(metadata.state_dict_metadata) == list(before.state_dict_metadata)
        and metadata.planner_data == before.planner_data
        and metadata.version == before.version
    )


def _words(meta: StorageMeta) -> tuple[bytes, bytes] | None:
    """None: there is more in it."""
    words = meta.checkpoint_id, meta.save_id
    if meta != StorageMeta(*words) or not all(isinstance(word, str) for word in words):
        return None
    return str(words[0]).encode(), str(words[1]).encode()


def _patch(meta: StorageMeta, content: bytes, index: bytes | None) -> _Patch | None:
    """None: they cannot be told from all the rest."""
    words = _words(meta)
    if words is None:
        return None
    texts = [content] if index is None else [content, index]
    if any(text.count(word) != 1 for text in texts for word in words):
        return None
    in_content, *in_index = [tuple(text.index(word) for word in words) for text in texts]
    first = min(in_content)
    crc = zlib.crc32(memoryview(content)[:first])
    return _Patch(words, in_content, in_index[0] if in_index else (), first, crc)


def _again(before: _Written, meta: StorageMeta) -> tuple[bytes, bytes | None] | None:
    """A pickle of a text differs from one of another of this length only in its letters. None: the lengths
    differ."""
    words, patch = _words(meta), before.patch
    if words is None or [len(word) for word in words] != [len(word) for word in patch.words]:
        return None
    content = bytearray(before.content)
    for at, word in zip(patch.in_content, words, strict=True):
        content[at : at + len(word)] = word
    if before.index is None:
        return bytes(content), None
    index = bytearray(before.index)
    for at, word in zip(patch.in_index, words, strict=True):
        index[at : at + len(word)] = word
    read_index.sign(index, zlib.crc32(memoryview(content)[patch.first :], patch.crc))
    return bytes(content), bytes(index)
