"""Models as steps: published as safetensors files, streamed into GPUs, every block checked.

    cairn.weights.publish(c, 12, model)                        # the trainer, each rank its own part
    for name, tensor in cairn.weights.stream(c, 12, "cuda"):   # a consumer on the same node
        ...

The step's objects are safetensors files that stock tools open, from memory (`files`) and from storage.
docs/weights.md says what each way of streaming costs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from cairn import _native, arguments, paths
from cairn.connection import Connection
from cairn.errors import InvalidArgument
from cairn.payload import Payload
from cairn.step import Step

__all__ = [
    "Part",
    "Shard",
    "Slice",
    "Stream",
    "TensorInfo",
    "files",
    "index",
    "publish",
    "stream",
]

# safetensors' names of element types, and torch's; which of them there are depends on the torch at hand.
_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "I64": "int64",
    "U64": "uint64",
    "F64": "float64",
}
PARTS_KEY = "cairn.parts"  # client/cpp/weights_index.h
_HEAD_BYTES = 1 << 16  # of a safetensors file: most headers are shorter


# --- what is published and selected ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Part:
    """One rank's part of a tensor: `tensor` is its box that begins at `start`; `shape` is the whole's."""

    tensor: Any
    shape: Sequence[int]
    start: Sequence[int]


@dataclasses.dataclass(frozen=True)
class Shard:
    """What `rank` of `of` has along `dim`, as torch.chunk and DTensor cut."""

    rank: int
    of: int
    dim: int = 0

    def _cut(self, pattern: str) -> tuple[str, str, int, int, int]:
        rank = _not_negative("Shard.rank", self.rank)
        of = _not_negative("Shard.of", self.of)
        return pattern, "shard", rank, of, arguments.integer_of_32_bits("Shard.dim", self.dim)


@dataclasses.dataclass(frozen=True)
class Slice:
    """The elements [begin, end) along `dim`."""

    begin: int
    end: int
    dim: int = 0

    def _cut(self, pattern: str) -> tuple[str, str, int, int, int]:
        begin = _not_negative("Slice.begin", self.begin)
        end = _not_negative("Slice.end", self.end)
        return pattern, "slice", begin, end, arguments.integer_of_32_bits("Slice.dim", self.dim)


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """A published tensor; `dtype` as safetensors writes it, `parts`: from how many writers it comes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: int


def _not_negative(field: str, value: Any) -> int:
    number = arguments.integer_of_64_bits(field, value)
    if number < 0:
        raise InvalidArgument(f"{field}: {number} is below 0")
    return number


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError("cairn.weights needs torch, which is not installed") from error
    return torch


def _dtype_name(torch: Any, name: str, tensor: Any) -> str:
    for ours, theirs in _DTYPES.items():
        if getattr(torch, theirs, None) is tensor.dtype:
            return ours
    raise InvalidArgument(f"tensor {name!r}: {tensor.dtype} has no place in a safetensors file")


# --- publishing --------------------------------------------------------------------------------------


def publish(
    c: Connection,
    step: int,
    source: Any,
    writers: int | None = None,
    strict: bool = False,
    *,
    notes: Mapping[str, str] | None = None,
    remove_files: bool = False,
    timeout: float | None = None,
) -> Step:
    """Saves a model as a step that consumers stream. When it returns, the bytes have been copied.

    Each rank of the job publishes what it has; together that is one index of tensors. Host tensors are
    copied once, into the node's memory; tensors of a GPU go through this process's memory first.

    Args:
      source: a state dict or a module (a DTensor stands for this rank's part of it, and of a replicated
          one the first replica is taken); a dict in which `Part`s say what this rank has; or the path of
          a safetensors file, or several, which are read straight into the node's memory.
      writers, strict, notes, timeout: as `Connection.step`.
      remove_files: of files: each is removed once the step is committed.

    Returns:
      the step; `ok`, `error` and `complete` say what became of it.

    Raises:
      ValueError: a tensor that no safetensors file can hold, a file that is none; names it.
      what `Connection.step` raises.
    """
    files = _files(source)
    if remove_files and files is None:
        raise InvalidArgument("remove_files: the source is no file")
    alone = writers == 1 or c.world_size == 1
    with (
        contextlib.ExitStack() as held,
        c.step(step, writers, strict, notes=notes, timeout=timeout) as s,
    ):
        if files is None:
            rank, world = (0, 1) if alone else (c.rank, c.world_size)
            payload = _payload(_state_dict(source), rank)
            name = (
                "model.safetensors" if alone else f"model-{rank + 1:05d}-of-{world:05d}.safetensors"
            )
            s._put(payload, name)
        else:
            for name, path in files.items():
                s._put(_file_payload(path, held), name)
    if remove_files and s.ok:
        assert files is not None
        for path in files.values():
            os.unlink(path)
    return s


def _files(source: Any) -> dict[str, str] | None:
    """{name: path} if the source is of files."""
    if isinstance(source, (str, os.PathLike)):
        source = [source]
    elif isinstance(source, Mapping) or not isinstance(source, Sequence):
        return None
    named: dict[str, str] = {}
    for path in source:
        text = arguments.file_path("source", path)
        name = os.path.basename(text)
        paths.check_name(name)
        if named.setdefault(name, text) != text or list(source).count(path) > 1:
            raise InvalidArgument(f"source: two files are called {name!r}")
    if not named:
        raise InvalidArgument("source: no file")
    return named


def _state_dict(source: Any) -> Mapping[str, Any]:
    if isinstance(source, Mapping):
        return source
    state_dict = getattr(source, "state_dict", None)
    if state_dict is None:
        raise InvalidArgument(
            f"source: {type(source).__name__} is no state dict, module or path of a safetensors file"
        )
    found = state_dict()
    assert isinstance(found, Mapping)
    return found


def _payload(state: Mapping[str, Any], rank: int) -> Payload:
    torch = _torch()
    tensors: list[Any] = []
    entries: list[tuple[str, str, list[int]]] = []
    parts: dict[str, dict[str, list[int]]] = {}
    for name, value in state.items():
        part = _part(torch, name, value)
        if part is None:
            continue
        tensor = part.tensor
        if (
            not isinstance(tensor, torch.Tensor)
            or tensor.layout != torch.strided
            or tensor.is_quantized
        ):
            kind = getattr(tensor, "layout", type(tensor).__name__)
            raise InvalidArgument(f"tensor {name!r}: {kind} has no place in a safetensors file")
        tensor = tensor.detach()
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        tensor = tensor.to("cpu").contiguous()
        tensors.append(tensor)
        entries.append((name, _dtype_name(torch, name, tensor), list(tensor.shape)))
        shape, start = list(part.shape), list(part.start)
        if shape != list(tensor.shape) or any(start):
            parts[name] = {"shape": shape, "start": start}
    metadata = {"format": "pt"}
    if parts:
        import json

        metadata[PARTS_KEY] = json.dumps(parts, separators=(",", ":"))
    head, order = _native.safetensors_head(entries, metadata)
    sources: list[tuple[Any, int]] = [(head, len(head))]
    for i in order:
        bytes_of = tensors[i].numel() * tensors[i].element_size()
        if bytes_of:
            sources.append((tensors[i].data_ptr(), bytes_of))
    return Payload("safetensors", sources=sources, keep=tensors)


def _part(torch: Any, name: str, value: Any) -> Part | None:
    """What this rank saves of a value; None: another rank does."""
    if isinstance(value, Part):
        return value
    if hasattr(value, "device_mesh") and hasattr(value, "placements"):
        return _dtensor_part(name, value)
    if not isinstance(value, torch.Tensor):
        raise InvalidArgument(f"tensor {name!r} is a {type(value).__name__}, no tensor")
    return Part(value, tuple(value.shape), (0,) * value.dim())


def _dtensor_part(name: str, value: Any) -> Part | None:
    try:
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    except ImportError:
        from torch.distributed._tensor._utils import (  # torch before 2.5
            compute_local_shape_and_global_offset,
        )
    mesh, placements = value.device_mesh, value.placements
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return None  # a rank outside the mesh
    for place, placement in zip(coordinate, placements, strict=True):
        if placement.is_partial():
            raise InvalidArgument(f"tensor {name!r} is partial: reduce it before it is published")
        if placement.is_replicate() and place != 0:
            return None
    local = value.to_local()
    shape, start = compute_local_shape_and_global_offset(value.shape, mesh, placements)
    if tuple(shape) != tuple(local.shape):
        raise InvalidArgument(
            f"tensor {name!r}: this rank has {tuple(local.shape)} of it, by its placements {tuple(shape)}"
        )
    if 0 in local.shape:
        return None
    return Part(local, tuple(value.shape), tuple(start))


def _file_payload(path: str, held: contextlib.ExitStack) -> Payload:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    held.callback(os.close, descriptor)
    size = os.fstat(descriptor).st_size
    head = os.pread(descriptor, _HEAD_BYTES, 0)
    try:
        wanted = _native.check_safetensors(head, size)
        if wanted > len(head):
            _native.check_safetensors(os.pread(descriptor, wanted, 0), size)
    except ValueError as error:
        raise InvalidArgument(f"{path}: {error}") from None
    return Payload("safetensors", sources=[((descriptor, 0), size)])


# --- streaming ---------------------------------------------------------------------------------------

# What is wanted of tensors that match a pattern.
Cuts = Shard | Slice | Mapping[str, "Shard | Slice"]


class Stream:
    """Tensors of one step, on their way into a device. Iterate over it for (name, tensor), or over
    `buckets()` for what arrives together. One thread at a time; leaving its `with`, or `close`, stops it.

    Attributes:
      job, step, attempt, revision: of what it streams.
    """

    def __init__(
        self,
        weights: _native.Weights,
        native: _native.WeightStream,
        make: Callable[[str, str, tuple[int, ...], int, int, Any], Any],
    ) -> None:
        self._weights = weights
        self._native: _native.WeightStream | None = native
        self._make = make
        self.job, self.step, self.attempt, self.revision = weights.key()

    def __repr__(self) -> str:
        state = "closed" if self._native is None else "open"
        return f"<cairn.weights.Stream of {self.job}/{self.step}, {state}>"

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for bucket in self.buckets():
            yield from bucket.items()

    def buckets(self) -> Iterator[dict[str, Any]]:
        """What arrives together, {name: tensor}. Of views: they are valid until the next bucket is taken."""
        while self._native is not None:
            bucket = self._native.next()
            if not bucket:
                self.close()
                return
            yield {tensor[0]: self._make(*tensor) for tensor in bucket}

    def for_each_bucket(self, callback: Callable[[dict[str, Any]], object]) -> None:
        """Calls it with each bucket; the next ones are brought meanwhile."""
        for bucket in self.buckets():
            callback(bucket)

    @property
    def stats(self) -> dict[str, Any]:
        """How many bytes and blocks came, where they were checked ("host_because": why not on the device),
        how many were read again, on how many threads."""
        if self._native is not None:
            self._last = self._native.stats()
        return dict(self._last)

    def close(self) -> None:
        """Stops it, and lets the step go. Tensors that were handed out stay, views do not."""
        if self._native is None:
            return
        self._last = self._native.stats()
        self._native.close()
        self._native = None
        self._weights.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _exception: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()


def stream(
    c: Connection,
    step: int | None = None,
    device: Any = None,
    *,
    names: Iterable[str] | None = None,
    slices: Cuts | None = None,
    views: bool = False,
    check: str = "auto",
    bucket_bytes: int = 0,
    ahead: int | None = None,
    threads: int = 0,
    job: str | None = None,
    attempt: int = 0,
    revision: int = -1,
) -> Stream:
    """Streams the tensors of a published step into a device, in layer order; no tensor is handed out before
    all its blocks have been compared with their checksums.

    Args:
      step: which one; None: the latest.
      device: "cuda", "cuda:1", "cpu", a torch.device; None: the GPU if there is one.
      names: names, or patterns as in a shell; None: all tensors.
      slices: what is wanted of them: a `Shard` or `Slice` of each, or {pattern: one}, of which the first
          that matches counts.
      views: tensors lie in two buffers of the stream's own, and are valid until the next bucket is taken.
      check: "auto", "device" or "host", where checksums are taken; "none": not at all.
      bucket_bytes: how much is handed out at once; 0: 64 MiB, of views up to 256.
      ahead: how many buckets are brought before they are taken; 2.
      threads: that read; 0: as many as processors, up to 8.
      job, attempt, revision: of another job than the connection's; of a checkpoint that the line left.

    Raises (here, or from the iteration):
      cairn.NotFound: no such step.
      ValueError: a step without safetensors objects; a name, pattern, slice or rank that does not fit; a
          tensor whose parts leave a hole or overlap.
      cairn.Corrupt: a block matches its checksum in no copy; names tensor and block.
      cairn.Unavailable: no such device; `cairn.gpu.available()` says why.
      torch.cuda.OutOfMemoryError: no room for a tensor.
    """
    torch = _torch()
    which = _device(torch, device)
    placer = None if views or which.type == "cpu" else _Placer(torch, which)
    number = _native.NO_STEP if step is None else _not_negative("step", step)
    weights = c._session().open_weights(
        c.job if job is None else job, number, attempt, revision, 0.0
    )
    try:
        native = _native.WeightStream(
            weights=weights,
            device=_native.HOST_DEVICE if which.type == "cpu" else which.index,
            names=_names(names),
            cuts=_cuts(slices),
            place=placer,
            caller=None if which.type == "cpu" else torch.cuda.current_stream(which).cuda_stream,
            views=arguments.boolean("views", views),
            bucket_bytes=_not_negative("bucket_bytes", bucket_bytes),
            ahead=None if ahead is None else _not_negative("ahead", ahead),
            threads=_not_negative("threads", threads),
            check=arguments.text("check", check),
            ring=False,
        )
    except BaseException:
        weights.close()
        raise
    return Stream(weights, native, placer.take if placer else _maker(torch, which))


def index(c: Connection, step: int | None = None, job: str | None = None) -> list[TensorInfo]:
    """The tensors of a published step, in layer order.

    Raises:
      as `stream`.
    """
    number = _native.NO_STEP if step is None else _not_negative("step", step)
    weights = c._session().open_weights(c.job if job is None else job, number, 0, -1, 0.0)
    try:
        return [TensorInfo(*tensor) for tensor in weights.tensors()]
    finally:
        weights.close()


@contextlib.contextmanager
def files(
    c: Connection, step: int | None = None, job: str | None = None
) -> Iterator[dict[str, str]]:
    """The step's safetensors files, {name: path}, for loaders that take paths; valid within the `with`:

        with cairn.weights.files(c, 12) as paths:
            state = {k: v for p in paths.values() for k, v in safetensors.torch.load_file(p).items()}

    Raises:
      as `stream`.
    """
    number = _native.NO_STEP if step is None else _not_negative("step", step)
    session = c._session()
    weights = session.open_weights(c.job if job is None else job, number, 0, -1, 0.0)
    with contextlib.ExitStack() as held:
        held.callback(weights.close)
        key = weights.key()
        paths_by_name = {}
        for name in weights.objects():
            opened = session.open(key[0], key[1], name, "file", 0.0, key[2], key[3])
            held.callback(opened.close)
            paths_by_name[name] = opened.path()
        yield paths_by_name


def _device(torch: Any, device: Any) -> Any:
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        which = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidArgument(f"device: {error}") from None
    if which.type not in ("cpu", "cuda"):
        raise InvalidArgument(f"device: {device!r} is neither the host's nor a CUDA device")
    if which.type == "cuda" and which.index is None:
        current = torch.cuda.current_device() if torch.cuda.is_available() else 0
        which = torch.device("cuda", current)
    return which


def _names(names: Iterable[str] | None) -> list[str]:
    if names is None:
        return []
    if isinstance(names, str):
        names = [names]
    wanted = [arguments.text("names", name) for name in names]
    if not wanted:
        raise InvalidArgument("names: nothing is named; None means all")
    return wanted


def _cuts(slices: Cuts | None) -> list[tuple[str, str, int, int, int]]:
    if slices is None:
        return []
    if isinstance(slices, (Shard, Slice)):
        slices = {"*": slices}
    if not isinstance(slices, Mapping):
        raise InvalidArgument(
            f"slices: {slices!r} is no Shard, no Slice and no dict of them by pattern"
        )
    cuts = []
    for pattern, cut in slices.items():
        if not isinstance(cut, (Shard, Slice)):
            raise InvalidArgument(f"slices[{pattern!r}]: {cut!r} is neither a Shard nor a Slice")
        cuts.append(cut._cut(arguments.text("slices", pattern)))
    return cuts


def _torch_dtype(torch: Any, name: str, dtype: str) -> Any:
    found = getattr(torch, _DTYPES.get(dtype, ""), None)
    if found is None:
        raise InvalidArgument(
            f"tensor {name!r} is of {dtype}, which torch {torch.__version__} lacks"
        )
    return found


class _Placer:
    """Gives tensors of torch's own as destinations, and keeps them until they are handed out."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self._placed: dict[str, Any] = {}

    def __call__(self, name: str, dtype: str, shape: tuple[int, ...]) -> int:
        kind = _torch_dtype(self._torch, name, dtype)
        tensor = self._torch.empty(shape, dtype=kind, device=self._device)
        self._placed[name] = tensor
        return int(tensor.data_ptr())

    def take(self, name: str, *_: Any) -> Any:
        return self._placed.pop(name)


class _DeviceBytes:
    """Bytes of a GPU that torch makes a tensor of."""

    def __init__(self, address: int, length: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (length,),
            "typestr": "|u1",
            "version": 2,
        }


def _maker(torch: Any, device: Any) -> Callable[[str, str, tuple[int, ...], int, int, Any], Any]:
    """What makes a tensor of memory that the stream gave."""

    def make(
        name: str, dtype: str, shape: tuple[int, ...], length: int, address: int, region: Any
    ) -> Any:
        kind = _torch_dtype(torch, name, dtype)
        if length == 0:
            return torch.empty(shape, dtype=kind, device=device)
        if device.type == "cpu":
            raw = torch.frombuffer(region, dtype=torch.uint8)
        else:
            raw = torch.as_tensor(_DeviceBytes(address, length), device=device)
        return raw.view(kind).reshape(shape)

    return make
