"""Metadata of a save that goes to every rank as its index.

Stock DCP's `save` returns the metadata on every rank: the coordinator pickles all of it and each rank
unpickles it, whether anybody looks or not. For ten thousand tensors that takes longer than the rest of a
save. The index says the same in flat arrays, and is decoded by who looks.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from cairn import read_index

_FIELDS = tuple(field.name for field in dataclasses.fields(Metadata))


class SharedMetadata(Metadata):
    """A Metadata like any other, but for one pickle: the next one after `next_as_index`. Other pickles and
    copies of it are plain ones."""

    _encoded: bytes | None = None  # the index, of one whose fields are not decoded yet
    _next: bytes | None = None  # the index, for the next pickle

    @classmethod
    def of(cls, metadata: Metadata) -> SharedMetadata:
        return cls(**{name: getattr(metadata, name) for name in _FIELDS})

    @classmethod
    def _of_index(cls, encoded: bytes) -> SharedMetadata:
        self = cls.__new__(cls)
        self._encoded = encoded
        return self

    def next_as_index(self, encoded: bytes) -> None:
        """What is pickled next goes to the ranks of this save. `encoded` is the index of what it holds."""
        self._next = encoded

    def __getattribute__(self, name: str) -> Any:
        if name in _FIELDS and name not in object.__getattribute__(self, "__dict__"):
            self._decode()
        return super().__getattribute__(name)

    def _decode(self) -> None:
        encoded = self._encoded
        if encoded is None:
            return  # it is being made
        whole = read_index.Index(encoded, "the metadata of a save").metadata()
        for name in _FIELDS:
            self.__dict__.setdefault(name, getattr(whole, name))
        self._encoded = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Metadata):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _FIELDS)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(Metadata(*(getattr(self, name) for name in _FIELDS)))

    def __reduce__(self) -> Any:
        encoded, self._next = self._next, None
        if encoded is not None:
            return SharedMetadata._of_index, (encoded,)
        return Metadata, tuple(getattr(self, name) for name in _FIELDS)
