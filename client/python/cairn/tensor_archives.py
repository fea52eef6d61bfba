"""Tensors as torch.save archives of their own, many in one object: the items of a DCP file.

What torch writes around a plain tensor's bytes depends on its dtype, shape and strides alone. torch itself is
asked once and the answer kept, so that a save of a model whose structure stays the same pickles nothing.
"""

from __future__ import annotations

import collections
import sys
import threading
from typing import Any, NamedTuple

from cairn import _native, device_memory, torch_format
from cairn.payload import Piece, Where

_KEPT = 4096  # structures; each a few KiB


class _Template(NamedTuple):
    archive: _native.Archive
    before: list[tuple[Where, int]]  # the records before the tensor's bytes
    after: list[tuple[Where, int]]

    def around(self, where: Where, length: int) -> Piece:
        return self.archive, [*self.before, (where, length), *self.after]


class Archived(NamedTuple):
    piece: Piece
    keep: Any  # what its addresses point into


_templates: collections.OrderedDict[Any, _Template] = collections.OrderedDict()
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
    if not _is_dense(tensor):
        tensor = tensor.contiguous()
    if tensor.device.type != "cpu":
        where = device_memory.source(tensor.device, tensor.data_ptr())
        if where is None:
            tensor = tensor.cpu()
    else:
        where = None
    template = _template_of(torch, tensor)
    if template is None:
        return _of_any(tensor)
    length = tensor.numel() * tensor.element_size()
    if where is None:
        where = tensor.data_ptr() if length else 0
    return Archived(template.around(where, length), tensor)


def _is_dense(tensor: Any) -> bool:
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


def _template_of(torch: Any, tensor: Any) -> _Template | None:
    key = (tensor.dtype, tuple(tensor.size()), tensor.stride())
    with _mutex:
        found = _templates.get(key)
        if found is not None:
            _templates.move_to_end(key)
            return found
    made = _make_template(torch, *key)
    if made is None:
        return None
    with _mutex:
        _templates[key] = made
        while len(_templates) > _KEPT:
            _templates.popitem(last=False)
    return made


def _make_template(torch: Any, dtype: Any, size: Any, stride: Any) -> _Template | None:
    """None: this torch writes such a tensor otherwise than we know."""
    like = torch.empty_strided(size, stride, dtype=dtype)  # never touched
    payload = torch_format.encode(like)
    records = payload.records
    length = like.numel() * like.element_size()
    at = [i for i, (name, _, _) in enumerate(records or []) if name.endswith("/data/0")]
    if records is None or len(at) != 1 or records[at[0]][2] != length:
        return None
    return _Template(
        _native.Archive([(name, bytes_) for name, _, bytes_ in records]),
        [(where, bytes_) for _, where, bytes_ in records[: at[0]]],
        [(where, bytes_) for _, where, bytes_ in records[at[0] + 1 :]],
    )


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
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int  # in elements


_shapes: collections.OrderedDict[bytes, _Shape] = collections.OrderedDict()
_MOST_PICKLE = 4096  # bytes: a plain tensor's has a few hundred


def read_tensor(region: _native.Region) -> Any:
    """What torch.load(weights_only=True) returns for the archive that `region` holds; of a plain tensor a
    view of the region. A pickle that was read once is not read again: equal ones mean equal dtype, shape and
    strides.

    Raises:
      as torch.load.
    """
    torch = torch_format._torch()
    records = {name: (at, length) for name, at, length in _native.zip_directory(region)}
    folder = next(iter(records), "").split("/")[0]
    storage = records.get(f"{folder}/data/0")
    pickled = _pickle_of(region, records, folder)
    if storage is None or pickled is None or f"{folder}/data/1" in records:
        return _load(region)
    with _mutex:
        shape = _shapes.get(pickled)
        if shape is not None:
            _shapes.move_to_end(pickled)
    if shape is None:
        tensor = _load(region)
        if type(tensor) is torch.Tensor and tensor.layout == torch.strided:
            _note(pickled, tensor)
        return tensor
    at, length = storage
    if length == 0:
        return torch.empty_strided(shape.size, shape.stride, dtype=shape.dtype)
    raw = torch.frombuffer(region, dtype=torch.uint8, count=length, offset=at).view(shape.dtype)
    return raw.as_strided(shape.size, shape.stride, shape.offset)


def _pickle_of(
    region: _native.Region, records: dict[str, tuple[int, int]], folder: str
) -> bytes | None:
    """The archive's pickle, if it is one that can be kept: short, and of this machine's byte order."""
    at, length = records.get(f"{folder}/data.pkl", (0, 0))
    if not 0 < length <= _MOST_PICKLE:
        return None
    view = memoryview(region)
    order, bytes_ = records.get(f"{folder}/byteorder", (0, 0))
    if bytes(view[order : order + bytes_]) != sys.byteorder.encode():
        return None
    return bytes(view[at : at + length])


def _note(pickled: bytes, tensor: Any) -> None:
    if tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.requires_grad:
        return
    shape = _Shape(
        tensor.dtype, tuple(tensor.size()), tuple(tensor.stride()), tensor.storage_offset()
    )
    with _mutex:
        _shapes[pickled] = shape
        while len(_shapes) > _KEPT:
            _shapes.popitem(last=False)


def _load(region: _native.Region) -> Any:
    return torch_format.decode(region, map_location="cpu", weights_only=True, own_memory_bytes=0)
