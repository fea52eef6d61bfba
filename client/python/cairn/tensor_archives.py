"""Tensors as torch.save archives of their own, many in one object: the items of a DCP file.

What torch writes around a plain tensor's bytes depends on its dtype, shape and strides alone. torch itself is
asked once and the answer kept, so that a save of a model whose structure stays the same pickles nothing.
"""

from __future__ import annotations

import collections
import sys
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from cairn import _native, device_memory, torch_format
from cairn.payload import Piece

_KEPT = 4096  # structures; each a few KiB


class Archived(NamedTuple):
    piece: Piece
    keep: Any  # what its addresses point into


_frames: collections.OrderedDict[Any, _native.Frame] = collections.OrderedDict()
_mutex = threading.Lock()


def of_tensor(tensor: Any) -> Archived:
    """What torch.save would write of it, with a storage that holds only its own elements. It must not
    change before the piece is written."""
    torch = torch_format._torch()
    tensor = tensor.detach()
    if type(tensor) is not torch.Tensor or tensor.layout != torch.strided:
        return _of_any(tensor)
    if tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return _of_any(tensor.resolve_conj().resolve_neg())
    if not is_dense(tensor):
        tensor = tensor.contiguous()
    if tensor.device.type != "cpu":
        where = device_memory.source(tensor.device, tensor.data_ptr())
        if where is None:
            tensor = tensor.cpu()
    else:
        where = None
    frame = _frame_of(torch, tensor)
    if frame is None:
        return _of_any(tensor)
    length = tensor.numel() * tensor.element_size()
    if where is None:
        where = tensor.data_ptr() if length else 0
    return Archived((frame, where), tensor)


def is_dense(tensor: Any) -> bool:
    """Whether its elements fill one run of memory, in whatever order."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _frame_of(torch: Any, tensor: Any) -> _native.Frame | None:
    key = (tensor.dtype, tuple(tensor.size()), tensor.stride())
    with _mutex:
        found = _frames.get(key)
        if found is not None:
            _frames.move_to_end(key)
            return found
    made = _make_frame(torch, *key)
    if made is None:
        return None
    with _mutex:
        _frames[key] = made
        while len(_frames) > _KEPT:
            _frames.popitem(last=False)
    return made


def _make_frame(torch: Any, dtype: Any, size: Any, stride: Any) -> _native.Frame | None:
    """None: this torch writes such a tensor otherwise than we know."""
    like = torch_format.untouched(torch, dtype, size, stride)
    payload = torch_format.encode(like)
    length = like.numel() * like.element_size()
    records: list[tuple[str, int, bytes | None]] = []
    for name, where, bytes_ in payload.records or []:
        if name.endswith("/data/0") and bytes_ == length:
            records.append((name, bytes_, None))
        elif isinstance(where, bytes):
            records.append((name, bytes_, where))
        else:
            return None
    if [content for _, _, content in records].count(None) != 1:
        return None
    return _native.Frame(records)


def _of_any(obj: Any) -> Archived:
    """Of a subclass, a sparse or a quantized tensor: what torch itself says."""
    payload = torch_format.encode(obj)
    if payload.records is None:
        assert payload.sources is not None
        return Archived((None, payload.sources), payload.keep)
    archive = _native.Archive([(name, length) for name, _, length in payload.records])
    return Archived(
        (archive, [(where, length) for _, where, length in payload.records]), payload.keep
    )


# --- reading ---------------------------------------------------------------------------------------------


class _Shape(NamedTuple):
    """What a pickle says of a plain tensor over the one storage of its archive."""

    dtype: Any
    item_bytes: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int  # in elements


_shapes: collections.OrderedDict[bytes, _Shape | None] = collections.OrderedDict()
_MOST_PICKLE = 4096  # bytes: a plain tensor's has a few hundred


class Found(NamedTuple):
    """Where a plain tensor's elements lie in an object."""

    dtype: Any
    item_bytes: int
    size: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes
    offset: int  # of the first


def find(ends: _native.ArchiveEnds, index: int, offset: int) -> Found | None:
    """The tensor in an archive that begins at `offset` of its object, by what was peeked of it. None: it is
    no plain one, and `read` reads it. A pickle that was read once is not read again: equal ones mean equal
    dtype, shape and strides."""
    peeked = ends.at(index)
    if peeked is None:
        return None
    records, head = peeked
    by_name = {name: (at, length) for name, at, length in records}
    folder = records[0][0].split("/")[0]
    storage = by_name.get(f"{folder}/data/0")
    pickled = _pickle_of(head, by_name, folder)
    if storage is None or pickled is None or f"{folder}/data/1" in by_name:
        return None
    with _mutex:
        known = pickled in _shapes
        shape = _shapes.get(pickled)
        if known:
            _shapes.move_to_end(pickled)
    if not known:
        shape = _shape_of(head, by_name, folder)
        with _mutex:
            _shapes[pickled] = shape
            while len(_shapes) > _KEPT:
                _shapes.popitem(last=False)
    if shape is None:
        return None
    item = shape.item_bytes
    at, length = storage
    reach = sum((n - 1) * stride for n, stride in zip(shape.size, shape.stride, strict=True))
    if 0 not in shape.size and (shape.offset + reach + 1) * item > length:
        return None
    strides = tuple(stride * item for stride in shape.stride)
    return Found(shape.dtype, item, shape.size, strides, offset + at + shape.offset * item)


def _pickle_of(head: bytes, records: dict[str, tuple[int, int]], folder: str) -> bytes | None:
    """The archive's pickle, if it is one that can be kept: short, and of this machine's byte order."""
    at, length = records.get(f"{folder}/data.pkl", (0, 0))
    if not 0 < length <= _MOST_PICKLE or at + length > len(head):
        return None
    order, bytes_ = records.get(f"{folder}/byteorder", (0, 0))
    if head[order : order + bytes_] != sys.byteorder.encode():
        return None
    return head[at : at + length]


def _shape_of(head: bytes, records: dict[str, tuple[int, int]], folder: str) -> _Shape | None:
    """By torch's own unpickler, over a storage that nobody has read. None: not a plain tensor's."""
    torch = torch_format._torch()
    tensor = torch_format.decode_head(head, records, folder)
    if type(tensor) is not torch.Tensor or tensor.layout != torch.strided:
        return None
    if tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.requires_grad:
        return None
    return _Shape(
        tensor.dtype,
        tensor.element_size(),
        tuple(tensor.size()),
        tensor.stride(),
        tensor.storage_offset(),
    )


def read(region: _native.Region) -> Any:
    """What torch.load(weights_only=True) returns for the archive that `region` holds.

    Raises:
      as torch.load.
    """
    return torch_format.decode(region, map_location="cpu", weights_only=True, own_memory_bytes=0)


# --- pieces -------------------------------------------------------------------------------------------


def piece(
    found: Found, offsets: Sequence[int], lengths: Sequence[int], target: Any
) -> _native._Piece | None:
    """What `target` wants of a tensor: its part of `lengths` from `offsets` on. None: not bytes as they are,
    each to a place of its own in this machine's memory."""
    torch = torch_format._torch()
    if type(target) is not torch.Tensor or target.layout != torch.strided:
        return None
    if target.dtype != found.dtype or target.device.type != "cpu":
        return None
    if target.is_quantized or target.is_conj() or target.is_neg():
        return None
    size = tuple(target.size())
    if not len(offsets) == len(found.size) == len(size) or size != tuple(lengths):
        return None
    at = found.offset
    for whole, begin, length, stride in zip(
        found.size, offsets, lengths, found.strides, strict=True
    ):
        if not 0 <= begin <= whole - length:
            return None
        at += begin * stride
    stride = target.stride()
    if 0 in size:
        return None
    if not target.is_contiguous() and _overlaps(size, stride):
        return None
    item = found.item_bytes
    there = tuple(step * item for step in stride)
    return (at, item, size, found.strides, target.data_ptr(), there)


def _overlaps(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether two elements may have one place. Not so where each dimension steps over all of the next."""
    reach = 1
    for step, count in sorted(zip(stride, size, strict=True)):
        if count == 1:
            continue
        if step < reach:
            return True
        reach += (count - 1) * step
    return False
