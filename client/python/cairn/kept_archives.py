"""Archives of objects whose structure has been saved before: torch pickles it the first time only.

What torch.save writes around the storages depends on the containers, the values that are no tensors, and of
each tensor on its type, dtype, shape, strides, place in its storage and which storage that is. Where all of
these are as they were, so is what torch wrote, but for equal strings of which torch writes one only once;
the storages are elsewhere, or hold something else.
"""

from __future__ import annotations

import collections
import struct
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from cairn import _native
from cairn.payload import Payload, Where

_KEPT = 16  # structures
_MOST_BYTES = 8 << 20  # of what torch wrote around one's storages

Key = tuple[Any, ...]


class _Unknown(Exception):
    """Torch alone knows how this is pickled."""


class _Kept(NamedTuple):
    archive: _native.Archive
    records: list[tuple[str, Where, int]]
    storages: list[tuple[int, int]]  # which record is which of the structure's storages


_kept: collections.OrderedDict[Key, _Kept] = collections.OrderedDict()
_mutex = threading.Lock()
_PLAIN = frozenset({str, int, bool, type(None), bytes})


class Structure:
    """What an archive of `obj` depends on, and the storages in it, each once.

    Attributes:
      key: None where torch must be asked each time.
      storages: with their addresses.
      tensors: all that there are, each with its storage's address; only where there is a key.
    """

    def __init__(self, torch: Any, obj: Any) -> None:
        self.storages: list[tuple[Any, int]] = []
        self.tensors: list[tuple[Any, int]] = []
        self.key: Key | None = None
        self._parts: list[Any] = []
        self._objects: dict[int, int] = {}  # by id: `obj` keeps them alive
        self._numbers: dict[int, int] = {}  # of storages, as torch tells them apart
        self._tensor, self._parameter = torch.Tensor, torch.nn.Parameter
        self._strided = torch.strided
        self._values = (torch.dtype, torch.Size)
        try:
            self._add(obj)
            self.key = tuple(self._parts)
        except (_Unknown, RuntimeError, NotImplementedError, RecursionError):
            pass

    def _add(self, obj: Any) -> None:
        kind = type(obj)
        if kind in _PLAIN:
            self._parts.append((kind, obj))
            return
        if kind is float:
            self._parts.append(struct.pack("<d", obj))  # tells 0.0 from -0.0, and equals itself
            return
        # The same object twice is pickled once.
        known = self._objects.get(id(obj))
        if known is not None:
            self._parts.append(known)
            return
        self._objects[id(obj)] = len(self._objects)
        if kind is self._tensor or kind is self._parameter:
            self._add_tensor(kind, obj)
        elif kind is dict or kind is collections.OrderedDict:
            attributes = None if kind is dict else obj.__dict__  # as state_dict()'s _metadata
            self._parts.append((kind, len(obj), bool(attributes)))
            for key, value in obj.items():
                self._add(key)
                self._add(value)
            if attributes:
                self._add(attributes)
        elif kind is list or kind is tuple:
            self._parts.append((kind, len(obj)))
            for value in obj:
                self._add(value)
        elif kind in self._values:
            self._parts.append((kind, obj))
        else:
            raise _Unknown

    def _add_tensor(self, kind: Any, tensor: Any) -> None:
        if (
            tensor.layout is not self._strided
            or tensor.is_quantized
            or tensor.is_conj()
            or tensor.is_neg()
            or tensor._backward_hooks
            or tensor.__dict__
        ):
            raise _Unknown
        storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else None
        if storage is None:
            raise _Unknown  # before torch 2
        address, length = storage.data_ptr(), storage.nbytes()
        if not address:
            raise _Unknown  # which of the empty ones it is, an address does not tell
        number = self._numbers.get(storage._cdata)
        if number is None:
            number = self._numbers[storage._cdata] = len(self.storages)
            self.storages.append((storage, address))
        self.tensors.append((tensor, address))
        self._parts.append(
            (
                kind,
                tensor.dtype,
                tensor.size(),
                tensor.stride(),
                tensor.storage_offset(),
                tensor.requires_grad,
                storage.device,
                number,
                length,
            )
        )


def find(
    structure: Structure, place: Callable[[Any, int], tuple[Where, Any] | None]
) -> Payload | None:
    """The archive, if one of this structure is kept. `place` says of a storage and its address where its
    bytes are saved from, and what keeps them there; None: torch must be asked."""
    if structure.key is None:
        return None
    with _mutex:
        kept = _kept.get(structure.key)
        if kept is None:
            return None
        _kept.move_to_end(structure.key)
    records = list(kept.records)
    keep = []
    for record, number in kept.storages:
        placed = place(*structure.storages[number])
        if placed is None:
            return None
        path, _, length = records[record]
        records[record] = path, placed[0], length
        keep.append(placed[1])
    return Payload("torch", records=records, keep=keep, archive=kept.archive)


def note(structure: Structure, payload: Payload, addresses: list[int | None]) -> None:
    """Keeps what torch wrote. `addresses` are parallel to the payload's records: of the storage whose bytes
    one is, None for what torch wrote itself."""
    if structure.key is None or payload.records is None:
        return
    numbers = {address: i for i, (_, address) in enumerate(structure.storages)}
    if len(numbers) != len(structure.storages):
        return  # two over the same memory, which the addresses do not tell apart
    storages, written = [], 0
    records: list[tuple[str, Where, int]] = []
    for i, ((path, where, length), address) in enumerate(
        zip(payload.records, addresses, strict=True)
    ):
        if address is None:
            written += length
            records.append((path, where, length))
        elif address in numbers:
            storages.append((i, numbers[address]))
            records.append((path, 0, length))
        else:
            return  # of something that the structure does not show
    if written > _MOST_BYTES or len(storages) != len(numbers):
        return
    archive = _native.Archive([(path, length) for path, _, length in records])
    payload.archive = archive
    with _mutex:
        _kept[structure.key] = _Kept(archive, records, storages)
        while len(_kept) > _KEPT:
            _kept.popitem(last=False)


def forget() -> None:
    """As in a new process."""
    with _mutex:
        _kept.clear()
