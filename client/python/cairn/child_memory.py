"""A state dict on its way to a child process that saves it.

Pickled by torch a tensor moves, with its whole storage, to shared memory of torch's. Here the parent copies
the elements once, into one memory that both processes map, and pickles the rest. The child opens that memory
by the parent's descriptor, which the kernel allows to the same user alone, and marks it when it needs it no
more; so the parent uses it again for the next save.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import mmap
import os
import pickle
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from cairn import errors, tensor_archives, unchanged
from cairn.own_chunks import answers_itself

_HEAD_BYTES = mmap.PAGESIZE
_TOKEN_BYTES = 16
_STATE_AT = _TOKEN_BYTES  # a byte: whether the child still needs what is there
_IN_USE, _FREE = 1, 0
_ALIGNMENT = 64
_KEPT = 2  # memories of one connection: the child may not have opened the last one yet
_MAY_EXCEED = 2  # times what is wanted: of a memory that is used again


# --- memory --------------------------------------------------------------------------------------------


class Address(NamedTuple):
    """Where a child finds a memory."""

    pid: int
    fd: int
    length: int
    token: bytes  # it begins with this: the parent may have ended, or closed it, and the number be another's


class _Memory:
    """A page that says whose it is, and tensors behind it."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._fd = os.memfd_create("cairn-child", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.fchmod(self._fd, 0o600)
            os.ftruncate(self._fd, length)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, seals)
            self._bytes = mmap.mmap(self._fd, length)
        except BaseException:
            os.close(self._fd)
            raise
        self._bytes[:_TOKEN_BYTES] = self._token

    def __del__(self) -> None:
        if hasattr(self, "_bytes"):
            os.close(self._fd)

    @property
    def address(self) -> Address:
        return Address(os.getpid(), self._fd, self._length, self._token)

    def fits(self, length: int) -> bool:
        return length <= self._length <= _MAY_EXCEED * length

    @property
    def free(self) -> bool:
        return self._bytes[_STATE_AT] == _FREE

    def use(self) -> torch.UntypedStorage:
        self._bytes[_STATE_AT] = _IN_USE
        return torch.frombuffer(self._bytes, dtype=torch.uint8).untyped_storage()


class Memories:
    """Those of a connection."""

    def __init__(self) -> None:
        self._all: list[_Memory] = []

    def take(self, length: int) -> _Memory:
        """One that no child needs. What is there of others may be given up: the child's save fails."""
        length += _HEAD_BYTES
        found = next((one for one in self._all if one.free and one.fits(length)), None)
        self._all = [one for one in self._all if not one.free]
        found = found or _Memory(length)
        self._all = [*self._all, found][-_KEPT:]
        return found


def _open(address: Address) -> mmap.mmap:
    gone = f"what process {address.pid} had copied for its child is not there any more"
    try:
        fd = os.open(f"/proc/{address.pid}/fd/{address.fd}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise errors.FailedPrecondition(f"{gone}: {error}") from None
    try:
        if os.fstat(fd).st_size != address.length:
            raise errors.FailedPrecondition(gone)
        found = mmap.mmap(fd, address.length)
    finally:
        os.close(fd)
    if found[:_TOKEN_BYTES] != address.token:
        raise errors.FailedPrecondition(gone)
    return found


# --- tensors in it -------------------------------------------------------------------------------------


class _Place(NamedTuple):
    """A plain tensor in a memory."""

    offset: int  # in bytes
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool

    def tensor(self, storage: torch.UntypedStorage) -> torch.Tensor:
        empty = torch.empty(0, dtype=self.dtype, device="cpu")
        at = self.offset // empty.element_size()
        found = empty.set_(storage, at, self.size, self.stride)
        return found.requires_grad_() if self.requires_grad else found


class _Pickler(pickle.Pickler):
    """Pickles all but plain tensors, for which it finds places."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.sources: list[tuple[torch.Tensor, _Place]] = []
        self.end = _HEAD_BYTES
        # By id, with what has it: an object that is gone leaves its id to another.
        self._found: dict[int, tuple[torch.Tensor, _Place]] = {}

    def persistent_id(self, obj: Any) -> _Place | None:
        if type(obj) is not torch.Tensor or not _has_plain_bytes(obj):
            return None
        found = self._found.get(id(obj))
        if found is None:
            found = self._found[id(obj)] = obj, self._place(obj)
        return found[1]

    def _place(self, tensor: torch.Tensor) -> _Place:
        source = tensor.detach().resolve_conj().resolve_neg()
        if not tensor_archives.is_dense(source):
            source = source.contiguous()
        begin = -(-self.end // _ALIGNMENT) * _ALIGNMENT
        self.end = begin + source.numel() * source.element_size()
        place = _Place(
            begin, source.dtype, tuple(source.size()), source.stride(), tensor.requires_grad
        )
        self.sources.append((source, place))
        return place


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, storage: torch.UntypedStorage) -> None:
        super().__init__(io.BytesIO(content))
        self._storage = storage
        self._found: dict[_Place, torch.Tensor] = {}

    def persistent_load(self, place: Any) -> torch.Tensor:
        found = self._found.get(place)
        if found is None:
            found = self._found[place] = place.tensor(self._storage)
        return found


def _has_plain_bytes(tensor: torch.Tensor) -> bool:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        return False
    if answers_itself(tensor):
        return False
    return unchanged.address(tensor) is not None or tensor.numel() == 0


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Of a dense one, in the order in which they lie there."""
    item = tensor.element_size()
    at, length = tensor.storage_offset() * item, tensor.numel() * item
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
        tensor.untyped_storage(), at, (length,), (1,)
    )


# --- from the parent to the child ----------------------------------------------------------------------


class Parcel:
    """In the parent: copies the state dict when it is pickled, and is `Arrived` in the child. What goes wrong
    is raised there, where DCP tells all ranks."""

    def __init__(
        self,
        state_dict: dict[str, Any],
        memories: Memories,
        copied: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        """`copied` is called then, and what it raises is a failure; `ended` in any case."""
        self._state_dict: dict[str, Any] | None = state_dict
        self._memories = memories
        self._copied, self._ended = copied, ended

    def forget(self) -> None:
        """Nobody has it copied any more."""
        self._state_dict = None

    def __reduce__(self) -> Any:
        try:
            content, address = self._copy()
            self._copied()
        except Exception as error:
            return Arrived, (b"", None, errors.to_plain(error))
        finally:
            self.forget()
            self._ended()
        return Arrived, (content, address, None)

    def _copy(self) -> tuple[bytes, Address]:
        if self._state_dict is None:
            raise errors.FailedPrecondition(
                "nobody waited any more for what was to be copied, or a child has it already"
            )
        file = io.BytesIO()
        pickler = _Pickler(file)
        pickler.dump(self._state_dict)
        memory = self._memories.take(pickler.end - _HEAD_BYTES)
        storage = memory.use()
        for source, place in pickler.sources:
            if source.numel():
                into = place._replace(requires_grad=False).tensor(storage)
                _bytes_of(into).copy_(_bytes_of(source))
        return file.getvalue(), memory.address


class Staged(dict[str, Any]):
    """A state dict that a thread sees as it is, and a child process as `parcel` brings it there."""

    def __init__(self, state_dict: dict[str, Any], parcel: Parcel) -> None:
        super().__init__(state_dict)
        self._parcel = parcel

    def __reduce__(self) -> Any:
        return _ArrivedDict, (self._parcel,)


class Arrived:
    """In the child, where an exception while something is unpickled would end DCP's process."""

    def __init__(
        self,
        content: bytes,
        address: Address | None,
        failure: tuple[int, str, str] | None,
    ) -> None:
        self._content, self._address = content, address
        self._failure: Exception | None = None if failure is None else errors.from_plain(*failure)
        self._bytes: mmap.mmap | None = None

    def state_dict(self) -> dict[str, Any]:
        """Empty if it failed: see `check`."""
        try:
            if self._failure is None and self._address is not None:
                self._bytes = _open(self._address)
                storage = torch.frombuffer(self._bytes, dtype=torch.uint8).untyped_storage()
                return _Unpickler(self._content, storage).load()
        except Exception as error:
            self._failure = error
        return {}

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def release(self) -> None:
        """Its tensors are not read any more."""
        if self._bytes is not None:
            with contextlib.suppress(ValueError):
                self._bytes[_STATE_AT] = _FREE

    def __del__(self) -> None:
        self.release()


class _ArrivedDict(dict[str, Any]):
    """Filled where DCP looks into it: there Stateful objects are asked, too."""

    def __init__(self, arrived: Arrived) -> None:
        super().__init__()
        self._arrived: Arrived | None = arrived

    def items(self) -> Any:
        arrived, self._arrived = self._arrived, None
        if arrived is not None:
            self.update(arrived.state_dict())
        return super().items()
