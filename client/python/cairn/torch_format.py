"""torch.save's format, written and read without the copies torch makes.

Pickling and unpickling are stock torch's own `_save` and `_load`, given objects that look like its zip
writer and reader. So aliasing, views, subclasses, sparse and quantized tensors, whole modules and custom
pickle modules mean what they always mean. Only the movement of bytes is ours: a save notes where each
storage is in memory, and the copy engine moves it straight into the slab; a load makes each storage a view
of one buffer that was filled in parallel. When the installed torch does not fit (a signature that changed,
a record that cannot be deferred), stock torch.save and torch.load do the work with the same result.

One file: the format as it is written and as it is read.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import io
import os
import pickle
import sys
import threading
import zipfile
from collections.abc import Container
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from cairn import device_memory, kept_archives, payload
from cairn.errors import Corrupt
from cairn.payload import Payload, RegionFile, Where

if TYPE_CHECKING:
    from cairn import _native

ARCHIVE = "archive"  # the folder in the zip; torch takes any, and uses this for buffers
ALIGNMENT = "64"  # of records, in bytes; what our zip layout guarantees
DEFAULT_PROTOCOL = 2

# A storage of at most this many bytes gets memory of its own when loaded, so that a step counter that
# outlives the rest does not keep the whole buffer.
OWN_MEMORY_BYTES = 64 << 10


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "cairn saves and loads this kind of object in torch's format, and torch is not installed; "
            "bytes and numpy arrays need none"
        ) from error
    return torch


class _Unfit(Exception):
    """This object, or this torch, is one for stock torch.save."""


# --- saving ------------------------------------------------------------------------------------------


class _TailRecords(NamedTuple):
    """Records that torch's zip writer adds by itself when it closes an archive."""

    version: bytes
    serialization_id: bool


@functools.lru_cache(maxsize=1)
def _tail_records() -> _TailRecords:
    # Taken from the installed torch, so that our archives always look like its own.
    buffer = io.BytesIO()
    _torch().save({}, buffer)
    with zipfile.ZipFile(buffer) as archive:
        folder = archive.namelist()[0].split("/")[0]
        return _TailRecords(
            archive.read(f"{folder}/version"),
            f"{folder}/.data/serialization_id" in archive.namelist(),
        )


class _OnDevice:
    """A storage on a device, for torch's loop over storages, which would first bring it to the host."""

    class device:  # as torch calls it
        type = "cpu"

    def __init__(self, storage: Any, where: Where) -> None:
        self.storage = storage
        self.where = where

    def clone(self) -> _OnDevice:
        copy = self.storage.clone()
        where = device_memory.source(copy.device, copy.data_ptr())
        assert where is not None
        return _OnDevice(copy, where)

    def nbytes(self) -> int:
        return int(self.storage.nbytes())

    def data_ptr(self) -> _DeviceAddress:  # before 2.3 torch passes only this on
        address = _DeviceAddress(self.storage.data_ptr())
        address.of = self
        return address


class _DeviceAddress(int):
    of: _OnDevice


class _Collector:
    """Looks like torch's zip writer; notes records instead of writing them."""

    def __init__(self, stays: Container[int] | None) -> None:
        self.records: list[tuple[str, Where, int]] = []
        self.addresses: list[int | None] = []  # parallel to the records: of the storage that one is
        self.keep: list[Any] = []
        self.addresses_only = False
        self._stays = stays

    def _may_change(self, address: int) -> bool:
        return self._stays is not None and address not in self._stays

    def write_record(self, name: str, data: Any, size: int) -> None:
        if name == ".format_version":
            # This record promises the spacing of torch's own writer, and torch then computes offsets
            # instead of reading them. Ours is spaced differently; without the record torch reads them.
            return
        if name == ".storage_alignment" and data != ALIGNMENT:
            raise _Unfit(f"records aligned to {data} bytes")
        where: Where
        address = None
        if isinstance(data, str):
            where = data.encode()
            size = len(where)
        elif isinstance(data, (bytes, bytearray)):
            where = bytes(data)
            if size != len(where):
                raise _Unfit(f"a record of {size} bytes, given {len(where)}")
        elif isinstance(data, (_OnDevice, _DeviceAddress)):
            there = data if isinstance(data, _OnDevice) else data.of
            address = there.storage.data_ptr()
            if size and self._may_change(address):
                there = there.clone()
            where = there.where if size else 0
            self.keep.append(there.storage)
        elif isinstance(data, int):
            # Before 2.3 torch passes only the address of a storage that its own frame keeps alive.
            address = data
            where = payload.snapshot(data, size) if size and self._may_change(data) else data
            self.addresses_only = True
        else:
            if data.device.type != "cpu" or data.nbytes() < size:
                raise _Unfit(f"a storage on {data.device}")
            address = data.data_ptr()
            where = address if size else 0
            if size and self._may_change(address):
                where = payload.snapshot(address, size)
            else:
                self.keep.append(data)
        self.records.append((f"{ARCHIVE}/{name}", where, size))
        self.addresses.append(address)


# The picklers of the save that this thread is in.
_saving = threading.local()


@functools.lru_cache(maxsize=16)
def _keeping(pickle_module: Any, pickler: Any) -> Any:
    """`pickle_module` with its Pickler as one that stays in `_saving.picklers`, and with it everything it has
    pickled: the storages of tensors that some __reduce__ made only for the occasion are copied later.

    One class per module, which knows no save: a class of its own for each save would be a reference cycle
    that holds the tensors until the garbage collector comes.
    """

    class Pickler(pickler):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            _saving.picklers.append(self)

        def dump(self, obj: Any) -> None:
            super().dump(obj)
            if device_memory.in_use():
                _leave_on_device(_storages(self))

    kept = ModuleType(getattr(pickle_module, "__name__", "pickle"))
    kept.__dict__.update(getattr(pickle_module, "__dict__", {}))
    kept.Pickler = Pickler  # type: ignore[attr-defined]
    return kept


def _storages(pickler: Any) -> dict[str, Any] | None:
    """Those that torch will write, in a dict of its own; None: this torch keeps them elsewhere."""
    function = getattr(pickler, "persistent_id", None)
    while function is not None:
        names = inspect.getclosurevars(function).nonlocals
        if "serialized_storages" in names:
            found: dict[str, Any] = names["serialized_storages"]
            return found
        function = names.get("persistent_id")
    return None


def _leave_on_device(storages: dict[str, Any] | None) -> None:
    for key, storage in (storages or {}).items():
        where = device_memory.source(storage.device, storage.data_ptr())
        if where is not None:
            storages[key] = _OnDevice(storage, where)  # type: ignore[index]


def _check_addresses(pickler: Any) -> None:
    """Where torch handed over addresses, all must be of storages that the pickler's closure holds: a copy
    that torch made of another device's storage is gone by now."""
    held = _storages(pickler)
    if held is None or any(storage.device.type != "cpu" for storage in held.values()):
        raise _Unfit("storages that are not held")


def _serialization_id(records: list[tuple[str, Where, int]]) -> bytes:
    """40 digits, as torch writes them: of what was pickled and of how many bytes each record has. Equal
    content is equal bytes; what the tensors hold is not read here."""
    digest = hashlib.sha256()
    for name, where, size in records:
        digest.update(f"{name}\0{size}\0".encode())
        if isinstance(where, bytes):
            digest.update(where)
    return b"%040d" % (int.from_bytes(digest.digest()[:16], "little") % 10**40)


def _collect(
    torch: Any,
    obj: Any,
    pickle_module: Any,
    pickle_protocol: int,
    disable_byteorder: bool,
    stays: Container[int] | None,
) -> tuple[Payload, list[int | None]]:
    """The payload, and of its records the addresses of the storages that they are."""
    save = torch.serialization._save
    collector = _Collector(stays)
    arguments = [obj, collector, _keeping(pickle_module, pickle_module.Pickler), pickle_protocol]
    if len(inspect.signature(save).parameters) > len(arguments):
        arguments.append(disable_byteorder)
    outer = getattr(_saving, "picklers", None)  # a __reduce__ may itself save something
    picklers: list[Any] = []
    _saving.picklers = picklers
    try:
        save(*arguments)
    finally:
        _saving.picklers = outer
    if collector.addresses_only:
        _check_addresses(picklers[-1])
    records = collector.records
    tail = _tail_records()
    records.append((f"{ARCHIVE}/version", tail.version, len(tail.version)))
    if tail.serialization_id:
        identity = _serialization_id(records)
        records.append((f"{ARCHIVE}/.data/serialization_id", identity, len(identity)))
    written = Payload("torch", records=records, keep=(collector.keep, picklers))
    return written, collector.addresses + [None] * (len(records) - len(collector.addresses))


def structure_of(obj: Any) -> kept_archives.Structure:
    return kept_archives.Structure(_torch(), obj)


def _encode_plainly(
    torch: Any, obj: Any, stays: Container[int] | None, structure: kept_archives.Structure
) -> Payload:
    """With the default arguments: without torch, where it wrote the same structure before."""

    def place(storage: Any, address: int) -> tuple[Where, Any] | None:
        may_change = stays is not None and address not in stays
        if device_memory.in_use():
            where = device_memory.source(storage.device, address)
            if where is not None and may_change:
                storage = storage.clone()
                where = device_memory.source(storage.device, storage.data_ptr())
            if where is not None:
                return where, storage
        if storage.device.type != "cpu":
            return None
        if may_change:
            return payload.snapshot(storage.data_ptr(), storage.nbytes()), None
        return address, storage

    found = kept_archives.find(structure, place)
    if found is None:
        found, addresses = _collect(torch, obj, pickle, DEFAULT_PROTOCOL, False, stays)
        kept_archives.note(structure, found, addresses)
    return found


def _skips_data(torch: Any) -> bool:
    """Inside torch.serialization.skip_data()."""
    return bool(
        getattr(getattr(torch.serialization, "_serialization_tls", None), "skip_data", False)
    )


def encode(
    obj: Any,
    pickle_module: Any = pickle,
    pickle_protocol: int = DEFAULT_PROTOCOL,
    _use_new_zipfile_serialization: bool = True,
    _disable_byteorder_record: bool = False,
    stays: Container[int] | None = None,
    structure: kept_archives.Structure | None = None,
) -> Payload:
    """What torch.save would write, as records that point at the storages' own memory.

    Arguments are torch.save's. The storages must not change before the payload is written; with `stays` only
    those at these addresses must not, and the others are copied now. `structure`: the object's, if known.

    Raises:
      whatever torch.save raises for this object; ImportError without torch.
    """
    torch = _torch()
    check_dill = getattr(torch.serialization, "_check_dill_version", None)
    if check_dill is not None:
        check_dill(pickle_module)
    if _use_new_zipfile_serialization:
        try:
            how = (pickle_module, pickle_protocol, _disable_byteorder_record)
            if how == (pickle, DEFAULT_PROTOCOL, False) and not _skips_data(torch):
                return _encode_plainly(torch, obj, stays, structure or structure_of(obj))
            return _collect(torch, obj, *how, stays)[0]
        except (_Unfit, AttributeError, TypeError):
            pass  # torch.save below succeeds, or raises what it always raises
    arguments: dict[str, Any] = {"_use_new_zipfile_serialization": _use_new_zipfile_serialization}
    if "_disable_byteorder_record" in inspect.signature(torch.save).parameters:
        arguments["_disable_byteorder_record"] = _disable_byteorder_record
    buffer = io.BytesIO()
    torch.save(obj, buffer, pickle_module, pickle_protocol, **arguments)
    view = buffer.getbuffer()
    return Payload("torch", sources=[(view, view.nbytes)], keep=buffer)


# --- loading -----------------------------------------------------------------------------------------


class _Reader:
    """Looks like torch's zip reader, over an archive in memory."""

    def __init__(self, torch: Any, region: _native.Region, own_memory_bytes: int) -> None:
        from cairn import _native as native

        self._torch = torch
        self._region = region
        self._view = memoryview(region)
        self._own_memory_bytes = own_memory_bytes
        entries = native.zip_directory(region)
        if not entries:
            raise Corrupt("an archive without records")
        self._folder = entries[0][0].split("/")[0] + "/"
        self._records = {name: (offset, length) for name, offset, length in entries}

    def has_record(self, name: str) -> bool:
        return self._folder + name in self._records

    def get_all_records(self) -> list[str]:
        return [name[len(self._folder) :] for name in self._records]

    def get_record(self, name: str) -> bytes:
        offset, length = self._records[self._folder + name]
        return bytes(self._view[offset : offset + length])

    def get_record_offset(self, name: str) -> int:
        return self._records[self._folder + name][0]

    def get_record_header_offset(self, name: str) -> int:
        # Only a starting point for offsets that get_record_offset_no_read then looks up.
        return self.get_record_offset(name)

    def get_record_offset_no_read(self, _start: int, name: str, _size: int, _align: int) -> int:
        return self.get_record_offset(name)

    def get_storage_from_record(self, name: str, nbytes: int, _dtype: Any) -> Any:
        offset, length = self._records[self._folder + name]
        if nbytes > length:
            raise Corrupt(f"{name} has {length} bytes, its tensor wants {nbytes}")
        if nbytes == 0:  # which frombuffer refuses
            return self._torch.empty(0, dtype=self._torch.uint8, device="cpu")
        tensor = self._torch.frombuffer(
            self._region, dtype=self._torch.uint8, count=nbytes, offset=offset
        )
        return tensor.clone() if nbytes <= self._own_memory_bytes else tensor

    def serialization_id(self) -> str:
        name = ".data/serialization_id"
        return self.get_record(name).decode() if self.has_record(name) else ""


class _HeadReader(_Reader):
    """The same over an archive's first bytes: what its storages hold is not there."""

    def __init__(
        self, torch: Any, head: bytes, records: dict[str, tuple[int, int]], folder: str
    ) -> None:
        self._torch = torch
        self._view = memoryview(head)
        self._folder = folder + "/"
        self._records = records

    def get_record(self, name: str) -> bytes:
        offset, length = self._records[self._folder + name]
        if offset + length > len(self._view):
            raise Corrupt(f"{name} is not in the archive's first bytes")
        return bytes(self._view[offset : offset + length])

    def get_storage_from_record(self, name: str, nbytes: int, _dtype: Any) -> Any:
        _, length = self._records[self._folder + name]
        if nbytes > length:
            raise Corrupt(f"{name} has {length} bytes, its tensor wants {nbytes}")
        return untouched(self._torch, self._torch.uint8, (nbytes,), (1,))

    def serialization_id(self) -> str:
        return ""  # torch only counts them


def untouched(torch: Any, dtype: Any, size: tuple[int, ...], stride: tuple[int, ...]) -> Any:
    """A tensor whose memory nobody touches: torch.empty's lies on the default device, and is filled where
    algorithms are deterministic."""
    like = torch.empty(0, dtype=dtype, device="cpu")
    elements = 0 if 0 in size else 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    storage = torch.UntypedStorage(elements * like.element_size(), device="cpu")
    return like.set_(storage, 0, size, stride)


def _is_true(variable: str) -> bool:
    return os.environ.get(variable, "0").lower() in ("1", "y", "yes", "true")


def _unpickler(torch: Any, pickle_module: Any, weights_only: bool | None, extra: bool) -> Any:
    """The module torch.load would unpickle with; None where it would refuse or warn, which is then left
    to it."""
    if _is_true("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"):
        return None
    if _is_true("TORCH_FORCE_WEIGHTS_ONLY_LOAD"):
        weights_only = True
    if weights_only is None:
        default = getattr(torch.serialization, "_default_to_weights_only", None)
        weights_only = default(pickle_module) if default is not None else False
    if not weights_only:
        return pickle if pickle_module is None else pickle_module
    if pickle_module is not None or extra:
        return None
    return torch.serialization._weights_only_unpickler


def decode_head(head: bytes, records: dict[str, tuple[int, int]], folder: str) -> Any:
    """What torch.load(weights_only=True) would return for an archive that begins with `head`, over storages
    that nobody has read. None: torch has to have all of it."""
    torch = _torch()
    unpickler = _unpickler(torch, None, True, False)
    if unpickler is None:
        return None
    try:
        reader = _HeadReader(torch, head, records, folder)
        return torch.serialization._load(reader, "cpu", unpickler, encoding="utf-8")
    except Exception:
        return None


def default_mmap() -> bool:
    """What torch.load's mmap=None means: torch.utils.serialization.config says, where there is one."""
    config = sys.modules.get("torch.utils.serialization.config")
    return config is not None and bool(config.load.mmap)


def _stock_load(torch: Any, region: _native.Region, **arguments: Any) -> Any:
    if arguments["weights_only"] is None:
        # Not every version's torch.load takes None for its own default.
        del arguments["weights_only"]
    return torch.load(io.BufferedReader(RegionFile(region)), **arguments)


def decode(
    region: _native.Region,
    map_location: Any = None,
    pickle_module: Any = None,
    weights_only: bool | None = None,
    own_memory_bytes: int = OWN_MEMORY_BYTES,
    **pickle_load_args: Any,
) -> Any:
    """What torch.load would return for the file that `region` holds. Arguments are torch.load's; its
    default for `weights_only` is that of the torch at hand. CPU storages are views of the region, which
    lives as long as one of them, except those of at most `own_memory_bytes`.

    Raises:
      whatever torch.load raises for this file; ImportError without torch.
    """
    torch = _torch()
    stock = {
        "map_location": map_location,
        "pickle_module": pickle_module,
        "weights_only": weights_only,
        **pickle_load_args,
    }
    unpickler = _unpickler(torch, pickle_module, weights_only, bool(pickle_load_args))
    if unpickler is None:
        return _stock_load(torch, region, **stock)
    check_dill = getattr(torch.serialization, "_check_dill_version", None)
    if check_dill is not None:
        check_dill(unpickler)
    try:
        reader = _Reader(torch, region, own_memory_bytes)
    except Corrupt:
        # Not a zip archive of stored records: the format of before 1.6, or somebody's own.
        return _stock_load(torch, region, **stock)
    if not reader.has_record("constants.pkl"):  # else a TorchScript archive
        try:
            return torch.serialization._load(
                reader, map_location, unpickler, **{"encoding": "utf-8", **pickle_load_args}
            )
        except (MemoryError, Corrupt):
            raise
        except Exception:
            # Another torch than we know, or a file it refuses: torch.load does it, or says why not in
            # the words of the version at hand.
            pass
    return _stock_load(torch, region, **stock)
