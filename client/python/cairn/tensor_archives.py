"""Tensors as torch.save archives of their own, many in one object: the items of a DCP file.

What torch writes around a plain tensor's bytes depends on its dtype, shape and strides alone. torch itself is
asked once and the answer kept, so that a save of a model whose structure stays the same pickles nothing.
"""

from __future__ import annotations

import collections
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
