"""A compact index beside DCP's `.metadata`, of which a reader decodes only the tensors that it asks for.

`.metadata` is one pickle of every chunk that any rank saved; to load one tensor, a rank has to unpickle all
and look at all. The index `.metadata.index` holds the same in flat arrays. `.metadata` stays what counts:
the index says by length and checksum which one it belongs to, and is only ever an addition.

    header      magic, version, checksum of all that follows, length and CRC-32 of `.metadata`, numbers of
                names, places and coordinates, and the lengths of the last two parts
    names       for each: end of its name in the text, properties (-1: an object, no tensor), dimensions,
                first place, number of places, first coordinate
    places      for each chunk: file, offset, length
    coordinates of each tensor: its size, the offsets of all its chunks, the sizes of all its chunks
    text        the names, UTF-8, one after the other
    rest        a pickle: properties, files, planner_data, storage_meta, version

One file: the format as it is written, as it is read, and how a read is planned from its arrays.

All integers are little-endian and signed, of 64 bits but in the header. Like `.metadata` it holds a pickle,
and is to be trusted as much.
"""

from __future__ import annotations

import logging
import pickle
import struct
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import _create_chunk_list, _create_read_items

from cairn.errors import Corrupt, MissingObject
from cairn.own_chunks import answers_itself

try:
    from torch.distributed.tensor import DTensor
except ImportError:  # before PyTorch 2.5
    from torch.distributed._tensor import DTensor

if TYPE_CHECKING:
    from cairn.checkpoint import Checkpoint

try:
    import numpy
except ImportError:  # PyTorch works without it; then there is no index
    numpy = None  # type: ignore[assignment]

log = logging.getLogger("cairn")

SUFFIX = ".index"

_MAGIC = b"CAIRNIDX"
_VERSION = 1
_HEAD = struct.Struct("<8sII")  # magic, version, CRC-32 of all that follows
_NUMBERS = struct.Struct("<QIIQQQQQ")  # length and CRC-32 of .metadata, 0, and the numbers below
_CONTENT_CRC = 8  # where it stands in these
_COLUMNS = 6  # of a name
_OBJECT = -1


# --- writing -----------------------------------------------------------------------------------------


class _Unusual(Exception):
    """Metadata that the format cannot hold."""


def encode(metadata: Metadata, content: bytes) -> bytes | None:
    """The index of a Metadata whose pickle is `content`. None: the format cannot hold it, and its readers
    take `.metadata`."""
    if numpy is None or not isinstance(metadata, Metadata):
        return None
    try:
        return _Encoder(metadata).index(content)
    except (_Unusual, AttributeError, OverflowError, TypeError, ValueError):
        return (
            None  # another planner's or storage's values in it; a save does not fail for its index
        )


def sign(index: bytearray, content_crc: int) -> None:
    """Makes an index whose bytes were changed, without a change of lengths, the one of a `.metadata` of the
    same length with that CRC-32."""
    struct.pack_into("<I", index, _HEAD.size + _CONTENT_CRC, content_crc)
    body = memoryview(index)[_HEAD.size :]
    _HEAD.pack_into(index, 0, _MAGIC, _VERSION, zlib.crc32(body))


class _Encoder:
    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._properties: dict[tuple[Any, ...], int] = {}
        self._files: dict[str, int] = {}
        self._coordinates: list[int] = []
        self._saved: dict[Any, tuple[int, int, int]] = {}  # by (name, offset)
        if type(metadata.storage_data) is not dict:
            raise _Unusual
        for key, info in metadata.storage_data.items():
            if type(key) is not MetadataIndex or not _is_plain(info):
                raise _Unusual
            file = self._files.setdefault(info.relative_path, len(self._files))
            self._saved[key.fqn, key.offset] = file, info.offset, info.length

    def index(self, content: bytes) -> bytes:
        metadata = self._metadata
        names: list[tuple[int, ...]] = []
        places: list[tuple[int, int, int]] = []
        text = bytearray()
        for name, saved in metadata.state_dict_metadata.items():
            first, at = len(places), len(self._coordinates)
            if type(saved) is BytesStorageMetadata:
                properties, dimensions = _OBJECT, 0
                places.append(self._place(name, None))
            elif type(saved) is TensorStorageMetadata:
                properties, dimensions = self._number_of(saved.properties), len(saved.size)
                self._add_boxes(saved)
                places += [self._place(name, chunk.offsets) for chunk in saved.chunks]
            else:
                raise _Unusual
            text += name.encode("utf-8", "surrogatepass")
            names.append((len(text), properties, dimensions, first, len(places) - first, at))
        if len(places) != len(self._saved):
            raise _Unusual
        rest = pickle.dumps(
            (
                list(self._properties),
                list(self._files),
                metadata.planner_data,
                metadata.storage_meta,
                metadata.version,
            )
        )
        numbers = _NUMBERS.pack(
            len(content),
            zlib.crc32(content),
            0,
            len(names),
            len(places),
            len(self._coordinates),
            len(text),
            len(rest),
        )
        body = b"".join(
            [numbers, _array(names), _array(places), _array(self._coordinates), text, rest]
        )
        return _HEAD.pack(_MAGIC, _VERSION, zlib.crc32(body)) + body

    def _number_of(self, properties: TensorProperties) -> int:
        if type(properties) is not TensorProperties:
            raise _Unusual
        # With its own way to pickle what pickle cannot (memory formats).
        return self._properties.setdefault(properties.__getstate__(), len(self._properties))

    def _place(self, name: str, offset: torch.Size | None) -> tuple[int, int, int]:
        place = self._saved.get((name, offset))
        if place is None:
            raise _Unusual
        return place

    def _add_boxes(self, saved: TensorStorageMetadata) -> None:
        dimensions = len(saved.size)
        add = self._coordinates.extend
        add(saved.size)
        for chunk in saved.chunks:
            if type(chunk) is not ChunkStorageMetadata:
                raise _Unusual
            if len(chunk.offsets) != dimensions or len(chunk.sizes) != dimensions:
                raise _Unusual
            add(chunk.offsets)
        for chunk in saved.chunks:
            add(chunk.sizes)


def _is_plain(info: Any) -> bool:
    return (
        type(info) is _StorageInfo
        and getattr(info, "transform_descriptors", None) is None  # torch 2.7
    )


def _array(values: list[Any]) -> bytes:
    return numpy.array(values, dtype="<i8").tobytes()


# --- reading -----------------------------------------------------------------------------------------


def read(checkpoint: Checkpoint, name: str, load: Callable[[str], Any]) -> Metadata | None:
    """What the object `name` of a checkpoint holds, by its index. None: it has none that can be used, and the
    object itself says.

    Args:
      load: as `Checkpoint.load`.

    Raises:
      as `load`, but of the index.
    """
    if numpy is None:
        return None
    try:
        index = Index(load(name + SUFFIX), name + SUFFIX)
        if not index.belongs_to(load(name)):
            raise Corrupt(f"{name}{SUFFIX}: is of another {name}")
    except MissingObject:
        return None
    except Corrupt as error:
        log.warning("checkpoint %s: %s; %s is read whole", checkpoint, error, name)
        return None
    return index.metadata()


class Index:
    """The arrays of an index, over the bytes that hold it."""

    def __init__(self, content: Any, name: str) -> None:
        """
        Args:
          content: any buffer; it must not change.
          name: of the object, for errors.

        Raises:
          cairn.Corrupt: it is no index, or a part of one.
        """
        view = memoryview(content).cast("B")
        if len(view) < _HEAD.size + _NUMBERS.size:
            raise Corrupt(f"{name}: {len(view)} bytes are no index of DCP's metadata")
        magic, version, crc = _HEAD.unpack_from(view)
        if magic != _MAGIC or version != _VERSION:
            raise Corrupt(f"{name}: no index of DCP's metadata of version {_VERSION}")
        if zlib.crc32(view[_HEAD.size :]) != crc:
            raise Corrupt(f"{name}: the bytes do not match their checksum")
        self.metadata_length, self.metadata_crc, _, *numbers = _NUMBERS.unpack_from(
            view, _HEAD.size
        )
        names, places, coordinates, text, rest = numbers
        lengths = [8 * _COLUMNS * names, 24 * places, 8 * coordinates, text, rest]
        at = _HEAD.size + _NUMBERS.size
        if at + sum(lengths) != len(view):
            raise Corrupt(f"{name}: {len(view)} bytes, and its header says {at + sum(lengths)}")
        parts = []
        for length in lengths:
            parts.append(view[at : at + length])
            at += length
        of_names = numpy.frombuffer(parts[0], "<i8").reshape(names, _COLUMNS)
        self.places = numpy.frombuffer(parts[1], "<i8").reshape(places, 3)
        self.coordinates = numpy.frombuffer(parts[2], "<i8")
        try:
            rest = pickle.loads(parts[4])
            states, self.files, self.planner_data, self.storage_meta, self.version = rest
            self._check(of_names, len(states), text)
            self._decode(of_names.tolist(), states, bytes(parts[3]))
        except Exception as error:
            raise Corrupt(f"{name}: {type(error).__name__}: {error}") from error

    def _check(self, of_names: Any, states: int, text: int) -> None:
        """Once for all, so that what is decoded later can be."""
        ends, properties, dimensions, first, count, at = of_names.T
        coordinates = numpy.where(properties == _OBJECT, 0, dimensions * (1 + 2 * count))
        good = (
            (numpy.diff(ends, prepend=0) >= 0) & (ends <= text),
            (properties >= _OBJECT) & (properties < states),
            (dimensions >= 0) & (count >= 0) & ((properties != _OBJECT) | (count == 1)),
            (first >= 0) & (first + count <= len(self.places)),
            (at >= 0) & (at + coordinates <= len(self.coordinates)),
        )
        files = self.places[:, 0]
        if not all(part.all() for part in good) or ((files < 0) | (files >= len(self.files))).any():
            raise ValueError("its tables point outside of it")

    def _decode(self, of_names: list[list[int]], states: list[Any], text: bytes) -> None:
        self.tensors: dict[str, _Tensor] = {}
        self.objects: dict[str, int] = {}  # the place of each
        self._entries: dict[str, Any] = {}
        begin = 0
        for end, properties, dimensions, first, count, at in of_names:
            name = text[begin:end].decode("utf-8", "surrogatepass")
            begin = end
            if properties == _OBJECT:
                self.objects[name] = first
                self._entries[name] = BytesStorageMetadata()
            else:
                tensor = _Tensor.of(self, states[properties], dimensions, first, count, at)
                self.tensors[name] = self._entries[name] = tensor

    def metadata(self) -> Metadata:
        """All that `.metadata` holds. What it says of chunks is decoded when somebody looks."""
        return Metadata(
            state_dict_metadata=dict(self._entries),
            planner_data=self.planner_data,
            storage_data=StorageData.of(self),
            storage_meta=self.storage_meta,
            version=self.version,
        )

    def belongs_to(self, content: Any) -> bool:
        """Whether it is the index of the `.metadata` with these bytes."""
        return len(content) == self.metadata_length and zlib.crc32(content) == self.metadata_crc

    def info(self, place: list[int]) -> _StorageInfo:
        file, offset, length = place
        return _StorageInfo(self.files[file], offset, length)


class _Tensor(TensorStorageMetadata):
    """A TensorStorageMetadata whose `chunks` are made when somebody asks for them. Copies and pickles of it
    are plain ones."""

    @classmethod
    def of(
        cls, index: Index, state: Any, dimensions: int, first: int, count: int, at: int
    ) -> _Tensor:
        self = cls.__new__(cls)
        self.properties = TensorProperties.__new__(TensorProperties)
        self.properties.__setstate__(state)
        self.size = torch.Size(index.coordinates[at : at + dimensions].tolist())
        self._index, self._dimensions, self.count = index, dimensions, count
        self._first, self._at = first, at + dimensions
        return self

    def __getattr__(self, name: str) -> Any:
        if name != "chunks":
            raise AttributeError(name)
        offsets, sizes = self.boxes()
        self.chunks = [
            ChunkStorageMetadata(torch.Size(offset), torch.Size(size))
            for offset, size in zip(offsets.tolist(), sizes.tolist(), strict=True)
        ]
        return self.chunks

    @property
    def is_unseen(self) -> bool:
        """Nobody has the chunks as a list, which they might have changed."""
        return "chunks" not in self.__dict__

    def boxes(self) -> tuple[Any, Any]:
        """Offsets and sizes of all chunks, each an array of [chunk, dimension]."""
        count, dimensions = self.count, self._dimensions
        both = self._index.coordinates[self._at : self._at + 2 * count * dimensions]
        both = both.reshape(2, count, dimensions)
        return both[0], both[1]

    def rows(self) -> tuple[list[tuple[int, ...]], list[list[int]]]:
        """Where all chunks are in the tensor, and their places."""
        places = self._index.places[self._first : self._first + self.count]
        return list(map(tuple, self.boxes()[0].tolist())), places.tolist()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorStorageMetadata):
            return NotImplemented
        return (self.properties, self.size, self.chunks) == (
            other.properties,
            other.size,
            other.chunks,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(TensorStorageMetadata(self.properties, self.size, self.chunks))

    def __reduce__(self) -> Any:
        return TensorStorageMetadata, (self.properties, self.size, self.chunks)


class StorageData(dict[MetadataIndex, _StorageInfo]):
    """`Metadata.storage_data`: a dict that looks single keys up in the index. Whatever else is done with it
    fills it first; from then on it is a dict like any other. Copies and pickles of it are plain ones."""

    _index: Index | None = None  # until it is filled
    _rows: dict[
        str, tuple[list[tuple[int, ...]], list[list[int]]]
    ]  # offsets and places of a tensor

    @classmethod
    def of(cls, index: Index) -> StorageData:
        self = cls()
        self._index, self._rows = index, {}
        return self

    def _found(self, index: Index, key: Any) -> _StorageInfo | None:
        if not isinstance(key, MetadataIndex):
            return None
        name, offset = key.fqn, key.offset
        if offset is None:
            place = index.objects.get(name)
            return None if place is None else index.info(index.places[place].tolist())
        rows = self._rows.get(name)
        if rows is None:
            if name not in index.tensors:
                return None
            rows = self._rows[name] = index.tensors[name].rows()
        offsets, places = rows
        hint = key.index  # the number of the chunk, where it was planned from
        if hint is None or not 0 <= hint < len(offsets) or offsets[hint] != offset:
            if offset not in offsets:
                return None
            hint = offsets.index(offset)
        return index.info(places[hint])

    def _fill(self) -> None:
        index = self._index
        if index is None:
            return
        add = super().__setitem__
        for name, place in index.objects.items():
            add(MetadataIndex(name), index.info(index.places[place].tolist()))
        for name, tensor in index.tensors.items():
            for number, (offset, place) in enumerate(zip(*tensor.rows(), strict=True)):
                add(MetadataIndex(name, offset, number), index.info(place))
        self._index, self._rows = None, {}

    def __getitem__(self, key: Any) -> _StorageInfo:
        index = self._index
        if index is None:
            return super().__getitem__(key)
        found = self._found(index, key)
        if found is None:
            raise KeyError(key)
        return found

    def get(self, key: Any, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def __contains__(self, key: Any) -> bool:
        index = self._index
        return super().__contains__(key) if index is None else self._found(index, key) is not None

    def __len__(self) -> int:
        index = self._index
        return super().__len__() if index is None else len(index.places)

    def copy(self) -> dict[MetadataIndex, _StorageInfo]:
        return dict(self.items())

    def __reduce__(self) -> Any:
        return dict, (self.copy(),)

    __hash__ = None  # type: ignore[assignment]


def _filled(name: str) -> Callable[..., Any]:
    of_dict = getattr(dict, name)

    def method(self: StorageData, *arguments: Any, **more: Any) -> Any:
        for one in (self, *arguments):
            if isinstance(one, StorageData):
                one._fill()
        return of_dict(self, *arguments, **more)

    method.__name__ = name
    return method


for _name in (
    *("__iter__", "__reversed__", "keys", "values", "items"),
    *("__eq__", "__ne__", "__or__", "__ror__", "__ior__", "__repr__"),
    *("__setitem__", "__delitem__", "pop", "popitem", "setdefault", "update", "clear"),
):
    setattr(StorageData, _name, _filled(_name))


# --- planning ----------------------------------------------------------------------------------------


class IndexedPlanner(DefaultLoadPlanner):
    """Stock's load planner, with stock's plans. Which saved chunks a rank wants it finds in the arrays of
    the index, where there is one."""

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        saved = self.metadata.state_dict_metadata
        if any(name not in saved for name in self.state_dict):
            # Missing, or of a checkpoint from before PyTorch 2.4: stock knows.
            return super().create_local_plan()
        planning = _Planning()
        for name, value in self.state_dict.items():
            planning.add(name, value, saved[name])
        return LoadPlan(planning.items)


# The number of a local chunk, and of each saved one that overlaps it: its number, where it begins, and dest
# offsets, storage offsets and lengths.
_Overlaps = tuple[int, list[tuple[int, torch.Size, torch.Size, torch.Size, torch.Size]]]


class _Planning:
    """The read items of one local plan. What is equal is made once: a plan has many thousands of items, and
    it is the objects in them that cost."""

    def __init__(self) -> None:
        self.items: list[ReadItem] = []
        self._chunks: dict[Any, list[ChunkStorageMetadata]] = {}
        self._sizes: dict[tuple[int, ...], torch.Size] = {}
        self._overlaps: dict[Any, list[_Overlaps]] = {}

    def add(self, name: str, value: Any, saved: Any) -> None:
        is_tensor = isinstance(saved, TensorStorageMetadata)
        if is_tensor and getattr(value, "size", None) is not None and saved.size != value.size():
            raise ValueError(
                f"Size mismatch between saved {saved.size} and current: {value.size()} for {name}"
            )
        if isinstance(value, DTensor) and value.device_mesh.get_coordinate() is None:
            return
        if isinstance(saved, _Tensor) and saved.is_unseen and isinstance(value, torch.Tensor):
            self._add_overlaps(name, saved, self._local_chunks(value))
        else:
            self.items += _create_read_items(name, saved, value)

    def _local_chunks(self, tensor: torch.Tensor) -> list[ChunkStorageMetadata]:
        if type(tensor) is not DTensor or answers_itself(tensor):
            return _create_chunk_list(tensor)
        key = (
            tensor.shape,
            id(tensor.device_mesh),
            tuple((type(one), one) for one in tensor.placements),
        )
        found = self._chunks.get(key)
        if found is None:
            found = self._chunks[key] = _create_chunk_list(tensor)
        return found

    def _add_overlaps(
        self, name: str, saved: _Tensor, local_chunks: list[ChunkStorageMetadata]
    ) -> None:
        """As stock's `create_read_items_for_chunk_list`, in its order."""
        if not local_chunks or not saved.count:
            return
        offsets, sizes = saved.boxes()
        local = tuple((chunk.offsets, chunk.sizes) for chunk in local_chunks)
        # The layers of a model are cut alike.
        key = (local, offsets.shape, offsets.tobytes(), sizes.tobytes())
        found = self._overlaps.get(key)
        if found is None:
            found = self._overlaps[key] = self._find_overlaps(offsets, sizes, local)
        add = self.items.append
        for number, overlaps in found:
            dest_index = MetadataIndex(name, local[number][0], number)
            for saved_number, start, dest, storage, length in overlaps:
                add(
                    ReadItem(
                        type=LoadItemType.TENSOR,
                        dest_index=dest_index,
                        dest_offsets=dest,
                        storage_index=MetadataIndex(name, start, saved_number),
                        storage_offsets=storage,
                        lengths=length,
                    )
                )

    def _find_overlaps(self, offsets: Any, sizes: Any, chunks: tuple[Any, ...]) -> list[_Overlaps]:
        """By where the local chunk begins, then by where the saved one ends, along the longest dimension."""
        ends = offsets + sizes
        dimensions = offsets.shape[1]
        local = numpy.array([(*begin, *size) for begin, size in chunks], "<i8")
        local = local.reshape(len(chunks), 2, dimensions)
        local_ends = local[:, 0] + local[:, 1]
        longest, order = 0, list(range(len(chunks)))
        if dimensions > 1:
            longest = int(numpy.maximum(ends.max(axis=0), local_ends.max(axis=0)).argmax())
        if dimensions and len(order) > 1:
            order.sort(key=local[:, 0, longest].tolist().__getitem__)
        made: list[_Overlaps] = []
        for number in order:
            begin, end = local[number, 0], local_ends[number]
            found = ((begin < ends) & (offsets < end)).all(axis=1).nonzero()[0]
            if dimensions and len(found) > 1:
                found = found[ends[found, longest].argsort(kind="stable")]
            starts = offsets[found]
            first = numpy.maximum(starts, begin)
            rows = [starts, first - begin, first - starts, numpy.minimum(ends[found], end) - first]
            columns = [list(map(self._size, row.tolist())) for row in rows]
            made.append((number, list(zip(found.tolist(), *columns, strict=True))))
        return made

    def _size(self, values: list[int]) -> torch.Size:
        key = tuple(values)
        found = self._sizes.get(key)
        if found is None:
            found = self._sizes[key] = torch.Size(key)
        return found
