"""Streaming weights; see `cairn.weights`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

from cairn import _native, arguments, info
from cairn.connection import Connection
from cairn.errors import InvalidArgument, NotFound, Timeout, Unavailable
from cairn.tensor_types import torch_dtype, torch_module, torch_shape


@dataclasses.dataclass(frozen=True)
class Shard:
    """What `rank` of `of` has along `dim`, as torch.chunk and DTensor cut. Every rank has scalars whole."""

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


# What is wanted of tensors that match a pattern.
Cuts = Shard | Slice | Mapping[str, "Shard | Slice"]


class Stream:
    """Tensors of one step, on their way into a device. Iterate over it for (name, tensor), or over
    `buckets()` for what arrives together. One thread at a time, a second is refused; leaving its `with`, or
    `close`, from any thread, stops it.

    Attributes:
      job, step, attempt, revision: of what it streams.
    """

    def __init__(
        self,
        key: tuple[str, int, int, int],
        native: _native.WeightStream,
        maker: _Placer | _Maker,
    ) -> None:
        self._native: _native.WeightStream | None = native
        self._maker = maker
        self._rest: dict[str, Any] = {}  # of the bucket that an iteration has not finished
        self._last: dict[str, Any] = {}
        self.job, self.step, self.attempt, self.revision = key

    def __repr__(self) -> str:
        state = "closed" if self._native is None else "open"
        return f"<cairn.weights.Stream of {self.job}/{self.step}, {state}>"

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        while True:
            while self._rest:
                name = next(iter(self._rest))
                yield name, self._rest.pop(name)
            self._rest = next(self.buckets(), {})
            if not self._rest:
                return

    def buckets(self) -> Iterator[dict[str, Any]]:
        """What arrives together, {name: tensor}. Of views: they are valid until the next bucket is taken."""
        if self._rest:
            rest, self._rest = self._rest, {}
            yield rest
        while (native := self._native) is not None:
            bucket = native.next()
            if not bucket:
                self.close()
                return
            yield {tensor[0]: self._maker.make(*tensor) for tensor in bucket}

    def for_each_bucket(self, callback: Callable[[dict[str, Any]], object]) -> None:
        """Calls it with each bucket; the next ones are brought meanwhile."""
        for bucket in self.buckets():
            callback(bucket)

    @property
    def stats(self) -> dict[str, Any]:
        """How many bytes and blocks came and by which `way` ("standing", "direct", "ring";
        `standing_because`: why not by a standing mapping), where they were checked (`host_because`: why not
        on the device), how many were read again, on how many threads."""
        native = self._native
        if native is not None:
            self._last = native.stats()
        return dict(self._last)

    def close(self) -> None:
        """Stops it, and lets the step go. Tensors that were handed out stay, what views show does not."""
        native, self._native = self._native, None
        if native is None:
            return
        self._last = native.stats()
        native.close()
        self._rest = {}
        self._maker.forget()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _exception: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()


# One function: most of it says what each argument means.
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
    """Streams the tensors of a published step into a device, in layer order; those of a step that was
    published from files as they lie in these. No tensor is handed out before all its blocks have been
    compared with their checksums.

    Args:
      step: which one; None: the latest.
      device: "cuda", "cuda:1", "cpu", a torch.device; None: the GPU if there is one.
      names: names, or patterns as in a shell; None: all tensors.
      slices: what is wanted of them: a `Shard` or `Slice` of each, or {pattern: one}, of which the first
          that matches counts.
      views: tensors lie in two buffers of the stream's own, and are valid until the next bucket is taken; on
          a GPU for work on the CUDA stream that was current at this call.
      check: "auto", "device" or "host", where checksums are taken; "none": not at all.
      bucket_bytes: how much is handed out at once; 0: 64 MiB, of views up to 256. The first is at most 16
          MiB, so that the first layer comes early.
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
    torch = torch_module()
    which = _device(torch, device)
    if which.type == "cuda" and not torch.cuda.is_available():
        reason = _native.why_no_cuda() or "torch finds none"
        raise Unavailable(f"device: {which}: {reason}")
    if which.type == "cuda" and which.index >= torch.cuda.device_count():
        raise Unavailable(f"device: {which}: this machine has {torch.cuda.device_count()}")
    if check not in ("auto", "device", "host", "none"):
        raise InvalidArgument(f"check: {check!r} is none of auto, device, host, none")
    # What uses the tensors' memory before, and views while they are valid, is on this stream.
    order = None if which.type == "cpu" else torch.cuda.current_stream(which)
    own = order is not None and not arguments.boolean("views", views)
    maker = _Placer(torch, which, order) if own else _Maker(torch, which)
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
            place=maker if own else None,
            caller=None if order is None else order.cuda_stream,
            views=arguments.boolean("views", views),
            bucket_bytes=_not_negative("bucket_bytes", bucket_bytes),
            ahead=None if ahead is None else _not_negative("ahead", ahead),
            threads=_not_negative("threads", threads),
            check=arguments.text("check", check),
            ring=False,
        )
        return Stream(weights.key(), native, maker)
    finally:
        weights.close()  # the stream has opened what it reads


class _Versions:
    """The iterator of `follow`. One that raised goes on with the next version."""

    def __init__(
        self, c: Connection, device: Any, timeout: float | None, wanted: Mapping[str, Any]
    ) -> None:
        self._c = c
        self._device = device
        self._timeout = timeout
        self._wanted = wanted
        self._seen: info.Latest | None = None
        self._version: Stream | None = None

    def __iter__(self) -> _Versions:
        return self

    def __next__(self) -> Stream:
        self.close()
        while True:
            latest = self._next_version()
            try:
                self._version = stream(
                    self._c,
                    latest.step,
                    self._device,
                    attempt=latest.attempt,
                    revision=latest.revision,
                    **self._wanted,
                )
                return self._version
            except NotFound:
                continue
            except InvalidArgument:
                if self._has_weights(latest):
                    raise
                # An ordinary step of a job that saves both.

    def close(self) -> None:
        version, self._version = self._version, None
        if version is not None:
            version.close()

    def _next_version(self) -> info.Latest:
        while True:
            try:
                if self._seen is not None:
                    self._wait_after(self._seen)
                self._seen = self._c.latest()
                return self._seen
            except NotFound:
                self._wait_after(_native.NO_STEP)

    def _wait_after(self, seen: info.Latest | int) -> None:
        try:
            self._c.wait_after(seen, self._timeout)
        except Timeout:
            after = f" after step {seen.step}" if isinstance(seen, info.Latest) else ""
            limit = self._c._limit(self._timeout)
            raise Timeout(f"job {self._c.job}: no version{after} within {limit:g} s") from None

    def _has_weights(self, latest: info.Latest) -> bool:
        which = f"{latest.job}/{latest.step}@{latest.attempt}.{latest.revision}"
        try:
            objects = self._c._session().list(which)["objects"]
        except NotFound:
            return False
        return any(entry["kind"] == "safetensors" for entry in objects)


def follow(
    c: Connection, device: Any = None, *, timeout: float | None = None, **wanted: Any
) -> Iterator[Stream]:
    """Streams of the latest version of the connection's job, and then of each that comes; who is late gets
    the newest. A version that was replaced or removed before it could be opened is left out, and so is a
    step that holds no weights. When the job goes back to an older version by `resume` or `use`, that one
    comes.

        for version in cairn.weights.follow(c, "cuda"):
            for name, tensor in version:
                ...

    The stream before is closed when the next version is asked for. After an error one can go on with `next`:
    the version that could not be streamed is passed over.

    Args:
      timeout: seconds to wait for the next version; the connection's when None.
      wanted: `names`, `slices`, `views`, `check`, `bucket_bytes`, `ahead`, `threads`, as of `stream`.

    Raises:
      cairn.Timeout: there was none in that time.
      as `stream`.
    """
    for name in ("step", "job", "attempt", "revision"):
        if name in wanted:
            raise InvalidArgument(
                f"{name}: follow takes the versions of the connection's job as they come"
            )
    torch_module()  # takes seconds the first time: before a version comes, not after
    return _Versions(c, device, timeout, wanted)


def index(c: Connection, step: int | None = None, job: str | None = None) -> list[TensorInfo]:
    """The tensors of a published step, in the order of `stream`.

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
    if isinstance(names, (str, bytes)):
        names = [names]  # type: ignore[list-item]
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


class _Placer:
    """Gives tensors of torch's own as destinations, and keeps them until they are handed out."""

    def __init__(self, torch: Any, device: Any, order: Any) -> None:
        self._torch = torch
        self._device = device
        self._order = order
        self._placed: dict[str, Any] = {}

    def __call__(self, name: str, dtype: str, shape: tuple[int, ...]) -> int:
        kind = torch_dtype(self._torch, name, dtype)
        # torch's allocator gives out memory that earlier work of the *current* stream may still use.
        with self._torch.cuda.stream(self._order):
            tensor = self._torch.empty(
                torch_shape(name, dtype, shape), dtype=kind, device=self._device
            )
        self._placed[name] = tensor
        return int(tensor.data_ptr())

    def make(self, name: str, *_: Any) -> Any:
        return self._placed.pop(name)

    def forget(self) -> None:
        self._placed.clear()


class _DeviceBytes:
    """Bytes of a GPU that torch makes a tensor of; the tensor keeps this, and this what keeps the memory."""

    def __init__(self, address: int, length: int, region: Any) -> None:
        self._region = region
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (length,),
            "typestr": "|u1",
            "version": 2,
        }


class _Maker:
    """Makes tensors of memory that the stream gave."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device

    def make(
        self, name: str, dtype: str, shape: tuple[int, ...], length: int, address: int, region: Any
    ) -> Any:
        torch = self._torch
        kind = torch_dtype(torch, name, dtype)
        shape = torch_shape(name, dtype, shape)
        if length == 0:
            return torch.empty(shape, dtype=kind, device=self._device)
        if self._device.type == "cpu":
            raw = torch.frombuffer(region, dtype=torch.uint8)
        else:
            raw = torch.as_tensor(_DeviceBytes(address, length, region), device=self._device)
        return raw.view(kind).reshape(shape)

    def forget(self) -> None:
        pass
