"""What an object is turned into to be saved, and the file object that stock readers load it from."""

from __future__ import annotations

import dataclasses
import io
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from cairn import _native

# Where bytes are: an address, of the host's memory or of a device's, kept valid by the payload's `keep`, an
# object with contiguous bytes, or (descriptor, offset) of an open file.
Where: TypeAlias = "int | bytes | bytearray | memoryview | tuple[int, int] | _native.OnDevice"

# Part of an object that has many: an archive, with what its records are, or None and the bytes themselves.
Piece: TypeAlias = "tuple[_native.Archive | None, list[tuple[Where, int]]]"


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

    def write_to(self, writer: StepWriter, name: str) -> None:
        if self.records is not None:
            writer.write_zip(name, self.kind, self.records)
        else:
            assert self.sources is not None
            writer.write(name, self.kind, self.sources)


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
