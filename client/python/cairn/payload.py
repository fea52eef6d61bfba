"""What an object is turned into to be saved, and the file object that stock readers load it from."""

from __future__ import annotations

import ctypes
import dataclasses
import io
from typing import Any, Protocol, TypeAlias

from cairn import _native

_SMALL = 64 << 10  # of a snapshot: not worth pages of its own

# Where bytes are: an address, of the host's memory or of a device's, kept valid by the payload's `keep`, an
# object with contiguous bytes, or (descriptor, offset) of an open file.
Where: TypeAlias = "int | bytes | bytearray | memoryview | tuple[int, int] | _native.OnDevice"

# Part of an object that has many, its form and where its bytes are: an archive and (where, length) of each of
# its records, a frame and where its open record is, or None and (where, length) of the bytes themselves.
Piece: TypeAlias = "tuple[_native.Archive | _native.Frame | None, Where | list[tuple[Where, int]]]"

# An object among those that are written together: name, kind, and as a piece.
Object: TypeAlias = "tuple[str, str, _native.Archive | None, list[tuple[Where, int]]]"


def snapshot(address: int, length: int) -> Where:
    """A copy of the bytes that are there now."""
    if length <= _SMALL:
        return ctypes.string_at(address, length)
    region = _native.Region(length)
    view = memoryview(region)
    ctypes.memmove(ctypes.addressof(ctypes.c_char.from_buffer(view)), address, length)
    return view


class StepWriter(Protocol):
    """What a payload needs of _native.Step."""

    def write(self, name: str, kind: str, sources: list[tuple[Where, int]]) -> None: ...

    def write_zip(self, name: str, kind: str, records: list[tuple[str, Where, int]]) -> None: ...


@dataclasses.dataclass
class Payload:
    """Runs of bytes in memory, in the order in which they are saved. Exactly one of `sources` (where,
    length in bytes) and `records` (path in a zip archive, where, length in bytes) is not None."""

    kind: str
    sources: list[tuple[Where, int]] | None = None
    records: list[tuple[str, Where, int]] | None = None
    keep: Any = None  # what the addresses point into
    archive: _native.Archive | None = None  # of the records, if it is there already

    def write_to(self, writer: StepWriter, name: str) -> None:
        if self.records is not None:
            writer.write_zip(name, self.kind, self.records)
        else:
            assert self.sources is not None
            writer.write(name, self.kind, self.sources)

    def as_object(self, name: str) -> Object:
        """For _native.Step.write_later."""
        if self.records is None:
            assert self.sources is not None
            return name, self.kind, None, self.sources
        return name, self.kind, self._plan(), [(where, length) for _, where, length in self.records]

    def _plan(self) -> _native.Archive:
        if self.archive is None:
            assert self.records is not None
            self.archive = _native.Archive([(path, length) for path, _, length in self.records])
        return self.archive

    @property
    def length(self) -> int:
        """Bytes that the object has at least; an archive may fill its pages."""
        if self.records is not None:
            return self._plan().minimum_length
        return sum(length for _, length in self.sources or [])

    def copy_what_may_change(self) -> None:
        """Of sources that are the caller's own memory."""
        self.sources = [
            (where if isinstance(where, bytes) else _copy_of(where, length), length)
            for where, length in self.sources or []
        ]
        self.keep = None


def _copy_of(where: Where, length: int) -> Where:
    if isinstance(where, int):
        return snapshot(where, length) if length else b""
    assert isinstance(where, (bytearray, memoryview))
    return bytes(where)


class RegionFile(io.RawIOBase):
    """A region as a file opened for reading."""

    def __init__(self, region: _native.Region) -> None:
        self._view = memoryview(region)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        out = memoryview(buffer).cast("B")
        count = min(len(out), max(0, len(self._view) - self._at))
        out[:count] = self._view[self._at : self._at + count]
        self._at += count
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._view)}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at
