"""Publishing weights; see `cairn.weights`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any

from cairn import _native, arguments, device_memory, paths, unchanged
from cairn.connection import Connection
from cairn.errors import Error, InvalidArgument
from cairn.payload import Payload
from cairn.step import Step
from cairn.tensor_types import dtype_name, safetensors_shape, torch_module

log = logging.getLogger("cairn")

PARTS_KEY = "cairn.parts"  # client/cpp/weights_index.h
_HEAD_BYTES = 1 << 16  # of a safetensors file: most headers are shorter


@dataclasses.dataclass(frozen=True)
class Part:
    """One rank's part of a tensor: `tensor` is its box that begins at `start`; `shape` is the whole's."""

    tensor: Any
    shape: Sequence[int]
    start: Sequence[int]


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

    Each rank of the job publishes what it has; together that is one index of tensors. Tensors are
    copied once, into the node's memory: those of a GPU as its current stream leaves them, through a little
    pinned memory.

    Args:
      source: a state dict or a module (a DTensor stands for this rank's part of it, of a replicated one the
          first replica is taken, and plain tensors beside DTensors are rank 0's); a dict in which `Part`s
          say what this rank has; or the path of a safetensors file, or several, which are read straight
          into the node's memory. Plain tensors are this rank's alone: where all ranks have the same (DDP),
          one of them publishes, with writers=1.
      writers, strict, notes, timeout: as `Connection.step`.
      remove_files: of files: each is removed once the step is complete, for which this waits; they stay when
          other writers have not committed in time.

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
            payload = _payload(_state_dict(source), rank, alone)
            name = (
                "model.safetensors" if alone else f"model-{rank + 1:05d}-of-{world:05d}.safetensors"
            )
            s._put(payload, name)
        else:
            opened = {name: _SourceFile(path, held) for name, path in files.items()}
            _refuse_two_of_a_name(opened)
            for name, file in opened.items():
                s._put(file.payload(), name)
    if remove_files and _is_safe(c, s, timeout):
        assert files is not None
        for path in files.values():
            try:
                os.unlink(path)
            except OSError as error:
                log.warning("%s was published and is not removed: %s", path, error)
    return s


def _is_safe(c: Connection, s: Step, timeout: float | None) -> bool:
    """Whether the whole step is there as it was saved now, with other writers' parts: one that is never
    complete goes, and one that was there before may have other tensors."""
    if not s.ok or s.complete:
        return s.ok
    try:
        c._wait(s.step, "CACHED", timeout, c.attempt, s._revision)
    except Error as error:
        log.warning("step %d: its files stay, for it is not complete: %s", s.step, error)
        return False
    return True


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


def _payload(state: Mapping[str, Any], rank: int, alone: bool) -> Payload:
    torch = torch_module()
    tensors: list[Any] = []
    entries: list[tuple[str, str, list[int]]] = []
    parts: dict[str, dict[str, list[int]]] = {}
    # Beside DTensors a plain tensor (a buffer) is the same on all ranks, and the first has it published.
    replicated = rank > 0 and any(_is_dtensor(value) for value in state.values())
    for name, value in state.items():
        if replicated and isinstance(value, torch.Tensor) and not _is_dtensor(value):
            continue
        _check_tensor_name(name)
        part = _part(torch, name, value, alone)
        if part is None:
            continue
        _check_part(name, part)
        tensor = part.tensor.detach()
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        # Where it is: a save from a device comes after what its current stream was asked for.
        tensor = tensor.contiguous()
        if not device_memory.is_source(tensor.device):
            tensor = tensor.to("cpu")
        tensors.append(tensor)
        dtype = dtype_name(torch, name, tensor)
        own, shape, start = (
            safetensors_shape(dtype, box) for box in (tensor.shape, part.shape, part.start)
        )
        entries.append((name, dtype, own))
        if shape != own or any(start):
            parts[name] = {"shape": shape, "start": start}
    metadata = {"format": "pt"}
    if parts:
        metadata[PARTS_KEY] = json.dumps(parts, separators=(",", ":"))
    head, order = _native.safetensors_head(entries, metadata)
    sources: list[tuple[Any, int]] = [(head, len(head))]
    for i in order:
        bytes_of = tensors[i].numel() * tensors[i].element_size()
        if bytes_of:
            address = tensors[i].data_ptr()
            sources.append((device_memory.source(tensors[i].device, address) or address, bytes_of))
    return Payload("safetensors", sources=sources, keep=tensors)


def _check_tensor_name(name: Any) -> None:
    if not isinstance(name, str):
        raise InvalidArgument(
            f"tensor {name!r}: its name is of type {type(name).__name__}, wanted is a str"
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"tensor {name!r}: its name is not UTF-8") from None


def _check_tensor(torch: Any, name: str, tensor: Any) -> None:
    problem = _why_not_saved(torch, tensor)
    if problem:
        raise InvalidArgument(f"tensor {name!r}: {problem} has no place in a safetensors file")


def _why_not_saved(torch: Any, tensor: Any) -> str:
    if not isinstance(tensor, torch.Tensor):
        return type(tensor).__name__
    if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        return "a lazy tensor, which has no shape yet,"
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.is_quantized:
        return "a quantized tensor"
    if tensor.layout != torch.strided:
        return f"a tensor of layout {tensor.layout}"
    if tensor.device.type == "meta":
        return "a tensor without data, on the meta device,"
    if tensor.numel() and unchanged.address(tensor) is None:
        return f"a {type(tensor).__name__} without storage of its own"
    return ""


def _check_part(name: str, part: Part) -> None:
    """A part that reaches beyond its tensor: the step could never be streamed."""
    shape, start, size = list(part.shape), list(part.start), list(part.tensor.shape)
    if not len(shape) == len(start) == len(size):
        raise InvalidArgument(
            f"tensor {name!r}: a part of {len(size)} dimensions that begins at {start}, of shape {shape}"
        )
    for dim, (whole, begin, length) in enumerate(zip(shape, start, size, strict=True)):
        if begin < 0 or begin + length > whole:
            raise InvalidArgument(
                f"tensor {name!r}: a part of {size} at {start} reaches beyond {shape} along dim {dim}"
            )


def _is_dtensor(value: Any) -> bool:
    return hasattr(value, "device_mesh") and hasattr(value, "placements")


def _part(torch: Any, name: str, value: Any, alone: bool) -> Part | None:
    """What this rank saves of a value; None: another rank does."""
    if isinstance(value, Part):
        part: Part | None = value
    elif _is_dtensor(value):
        part = _dtensor_part(name, value, alone)
    elif isinstance(value, torch.Tensor):
        _check_tensor(torch, name, value)  # some kinds have no shape
        part = Part(value, tuple(value.shape), (0,) * value.dim())
    else:
        raise InvalidArgument(f"tensor {name!r} is a {type(value).__name__}, no tensor")
    if part is not None:
        _check_tensor(torch, name, part.tensor)
    return part


def _dtensor_part(name: str, value: Any, alone: bool) -> Part | None:
    mesh = value.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return None  # a rank outside the mesh
    for place, placement in zip(coordinate, value.placements, strict=True):
        if placement.is_partial():
            raise InvalidArgument(f"tensor {name!r} is partial: reduce it before it is published")
        if placement.is_replicate() and place != 0 and not alone:
            return None
    box = _local_box(name, value)
    if box is None:
        return None
    local, start = box
    if 0 in local.shape and 0 not in value.shape:
        return None
    return Part(local, tuple(value.shape), tuple(start))


def _local_box(name: str, value: Any) -> tuple[Any, Sequence[int]] | None:
    """This rank's part of a DTensor, and where it begins in the whole; None: it has no part."""
    from cairn.own_chunks import answers_itself

    if answers_itself(value):
        items = value.__create_write_items__(name, value)
        if not items:
            return None
        if len(items) != 1:
            raise InvalidArgument(
                f"tensor {name!r}: this rank has {len(items)} chunks of it, wanted is one"
            )
        return value.__get_tensor_shard__(items[0].index), items[0].tensor_data.chunk.offsets
    try:
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    except ImportError:
        from torch.distributed._tensor._utils import (  # torch before 2.5
            compute_local_shape_and_global_offset,
        )
    local = value.to_local()
    shape, start = compute_local_shape_and_global_offset(
        value.shape, value.device_mesh, value.placements
    )
    if tuple(shape) != tuple(local.shape):
        raise InvalidArgument(
            f"tensor {name!r}: this rank has {tuple(local.shape)} of it, by its placements {tuple(shape)}"
        )
    for dim in {one.dim for one in value.placements if hasattr(one, "split_factor")}:
        _check_in_one_piece(name, value, dim)
    return local, start


def _check_in_one_piece(name: str, value: Any, dim: int) -> None:
    """torch cuts a _StridedShard into more pieces than ranks. Only if a later placement cuts each rank's
    again is one piece left."""
    torch = torch_module()
    shape = [1] * value.dim()
    shape[dim] = value.shape[dim]
    kept = torch.arange(value.shape[dim]).view(shape)
    mesh = value.device_mesh
    coordinate = mesh.get_coordinate()
    for number, placement in enumerate(value.placements):
        if getattr(placement, "dim", None) == dim:
            parts, _ = placement._split_tensor(kept, mesh.size(number), with_padding=False)
            kept = parts[coordinate[number]]
    numbers = kept.flatten()
    if numbers.numel() and int(numbers[-1] - numbers[0]) != numbers.numel() - 1:
        raise InvalidArgument(
            f"tensor {name!r}: by its placements {value.placements} this rank has several pieces of it along "
            f"dimension {dim}: redistribute it before it is published"
        )


class _SourceFile:
    """A safetensors file that is published as it is; open as long as `held`."""

    def __init__(self, path: str, held: contextlib.ExitStack) -> None:
        self.path = path
        # O_NONBLOCK: a FIFO is refused, not waited for.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        held.callback(os.close, self._descriptor)
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise InvalidArgument(f"{path}: is no regular file")
        self._size = found.st_size
        self._head = os.pread(self._descriptor, _HEAD_BYTES, 0)
        try:
            wanted = _native.check_safetensors(self._head, self._size)
            if wanted > len(self._head):
                self._head = os.pread(self._descriptor, wanted, 0)
                _native.check_safetensors(self._head, self._size)
        except ValueError as error:
            raise InvalidArgument(f"{path}: {error}") from None

    def whole_tensors(self) -> set[str]:
        """The names of those of which it has all, as far as its header says."""
        length = int.from_bytes(self._head[:8], "little")
        header: dict[str, Any] = json.loads(self._head[8 : 8 + length])
        metadata = header.pop("__metadata__", None) or {}
        try:
            parts = json.loads(metadata.get(PARTS_KEY, "{}"))
        except ValueError:
            parts = {}  # refused when it is streamed, by name
        return header.keys() - (parts.keys() if isinstance(parts, dict) else set())

    def payload(self) -> Payload:
        return Payload("safetensors", sources=[((self._descriptor, 0), self._size)])


def _refuse_two_of_a_name(files: Mapping[str, _SourceFile]) -> None:
    """Before anything is copied, or a file removed: of such a step nothing could be streamed."""
    if len(files) < 2:
        return
    found: dict[str, str] = {}
    for file in files.values():
        for tensor in sorted(file.whole_tensors()):
            if found.setdefault(tensor, file.path) != file.path:
                raise InvalidArgument(
                    f"source: {found[tensor]} and {file.path} both have tensor {tensor!r}"
                )
