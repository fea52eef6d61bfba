"""Saves that go on while the training does: what `Connection.save_async` begins.

The copy runs on a thread of libcairn's. A thread of Python's waits for it, looks whether a tensor changed
meanwhile, and commits.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from cairn import numpy_format, paths, torch_format
from cairn.errors import Error, FailedPrecondition, InvalidArgument, is_callers_own

if TYPE_CHECKING:
    from cairn import _native
    from cairn.payload import Payload
    from cairn.step import Step

_WAIT_SLICE_S = 1.0
BUSY = ("wait", "skip")


# --- which tensors stay as they are until the optimizer's step -------------------------------------------


class _Watched(NamedTuple):
    """A tensor that is copied later, of this rank, and what its version was."""

    tensor: Any
    version: int
    address: int  # of its storage


def _local(tensor: Any) -> Any:
    """Of a DTensor this rank's part, whose memory and version are what a step changes."""
    return getattr(tensor, "_local_tensor", tensor)


def _address(tensor: Any) -> int | None:
    """Of its storage; None where it has none."""
    try:
        local = _local(tensor)
        storage = local.untyped_storage() if hasattr(local, "untyped_storage") else local.storage()
        return int(storage.data_ptr()) or None
    except (RuntimeError, NotImplementedError):
        return None


def _tensors(obj: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Those in dictionaries, lists and tuples, however nested, each with where it is."""
    if isinstance(obj, sys.modules["torch"].Tensor):
        yield path, obj
    elif isinstance(obj, Mapping):
        for key, value in obj.items():
            yield from _tensors(value, (*path, key))
    elif isinstance(obj, (list, tuple)):
        for i, value in enumerate(obj):
            yield from _tensors(value, (*path, i))


def _given(overlap: Any) -> list[Any]:
    """What a caller names, as a list: optimizers, tensors."""
    if overlap is None:
        return []
    torch = sys.modules.get("torch")
    if torch is None:
        raise InvalidArgument("overlap: neither an optimizer nor tensors of torch")
    one = isinstance(overlap, (torch.optim.Optimizer, torch.Tensor))
    try:
        given = [overlap] if one else list(overlap)
    except TypeError:
        given = [overlap]
    for item in given:
        if not isinstance(item, (torch.optim.Optimizer, torch.Tensor)):
            raise InvalidArgument(
                f"overlap: {type(item).__name__} is neither an optimizer nor a tensor"
            )
    return given


def _changed_by(given: list[Any]) -> list[tuple[Any, int | None]]:
    """What only these optimizers' steps change: tensors of this rank, and the addresses of their storages."""
    tensors = []
    torch = sys.modules.get("torch")
    for item in given:
        if torch is not None and isinstance(item, torch.Tensor):
            tensors.append(item)
            continue
        for group in item.param_groups:
            tensors += group["params"]
        for of_parameter in item.state.values():
            tensors += [tensor for _, tensor in _tensors(of_parameter)]
    return [(_local(tensor), _address(tensor)) for tensor in tensors]


def _watch(
    tensors: Iterable[tuple[Any, int | None]], addresses: set[int | None]
) -> tuple[list[_Watched], set[int]]:
    """Of tensors and the addresses of their storages those at `addresses`, and where these are."""
    watched, stays = [], set()
    for tensor, address in tensors:
        if address is None or address not in addresses:
            continue
        try:
            watched.append(_Watched(tensor, tensor._version, address))
        except RuntimeError:
            continue  # made in inference mode, it tells no version
        stays.add(address)
    return watched, stays


def _encode(obj: Any, addresses: set[int | None] | None) -> tuple[Payload, list[_Watched]]:
    """With `addresses` what is not there, or tells no version, is copied now."""
    payload = numpy_format.encode(obj)
    if payload is not None:
        if addresses is not None:
            payload.copy_what_may_change()
        return payload, []
    structure = torch_format.structure_of(obj)
    if addresses is None:
        return torch_format.encode(obj, structure=structure), []
    tensors: Iterable[tuple[Any, int | None]] = structure.tensors
    if structure.key is None:
        tensors = ((_local(tensor), _address(tensor)) for _, tensor in _tensors(obj))
    watched, stays = _watch(tensors, addresses)
    return torch_format.encode(obj, stays=stays, structure=structure), watched


# --- one save ------------------------------------------------------------------------------------------


class Saving:
    """One save in the background, as `Connection.save_async` returns it.

    Attributes:
      step: its number.
      skipped: nothing was saved: the one before had not ended, and `busy` was "skip".
    """

    def __init__(self, step: int, part: Step | None, strict: bool) -> None:
        self.step = step
        self.skipped = part is None
        self._part = part
        self._strict = strict
        self._writing: _native.Writing | None = None
        self._objects: Mapping[str, Any] = {}
        self._watched: list[_Watched] = []
        self._pid = os.getpid()
        self._staged = threading.Event()
        self._done = threading.Event()
        self._failure: BaseException | None = None
        self._reported = part is None
        self._bytes = 0
        self._copied = 0
        if part is None:
            self._staged.set()
            self._done.set()

    def __repr__(self) -> str:
        return f"<cairn.Saving of step {self.step} {self._state()}>"

    def _state(self) -> str:
        if self.skipped:
            return "skipped"
        if not self.staged:
            return f"copying, {self.bytes_copied} of {self.bytes} bytes"
        if not self.done:
            return "copied, being committed"
        if self.error is not None:
            return f"not saved: {type(self.error).__name__}: {self.error}"
        return "complete" if self.complete else "committed, other writers have not yet"

    @property
    def staged(self) -> bool:
        """Everything is copied, or nothing will be: the objects may change."""
        return self._staged.is_set()

    @property
    def done(self) -> bool:
        """It is committed, failed or skipped."""
        return self._done.is_set()

    @property
    def ok(self) -> bool:
        """This part is committed. False while it goes on."""
        return self.done and not self.skipped and self._failure is None

    @property
    def error(self) -> BaseException | None:
        return self._failure

    @property
    def complete(self) -> bool:
        """All writers of the step had committed when this one did."""
        return self._part is not None and self._part.complete

    @property
    def bytes(self) -> int:
        return self._bytes

    @property
    def bytes_copied(self) -> int:
        """Of whole objects that were written together."""
        part = self._part
        return self._copied if part is None or self.staged else part.bytes_written

    def wait(self, timeout: float | None = None) -> bool:
        """Until it is committed, failed or skipped; whether it is by then. Raises nothing of the save's: see
        `error`."""
        return self._is_parents() or self._done.wait(timeout)

    def _is_parents(self) -> bool:
        """In a forked child nothing of it goes on."""
        return os.getpid() != self._pid

    # --- how it goes

    def _begin(
        self,
        payloads: list[tuple[str, Payload]],
        sources: Mapping[str, Any],
        watched: list[_Watched],
    ) -> None:
        """`payloads` of `sources`."""
        assert self._part is not None
        self._objects = sources if watched else {}
        self._watched = watched
        objects = [payload.as_object(name) for name, payload in payloads]
        self._bytes = sum(length for *_, sources in objects for _, length in sources)
        try:
            self._part.begin()
            self._writing = self._part._write_later(objects)
            # It keeps what the addresses point into.
            threading.Thread(
                target=self._go_on, args=(payloads,), name=f"cairn-save-{self.step}"
            ).start()
        except (Error, RuntimeError) as failure:  # RuntimeError: no thread
            self._end(failure)

    def _hurry(self) -> None:
        writing = self._writing
        if writing is not None:
            writing.hurry()

    def _wait_staged(self, timeout: float | None = None) -> bool:
        if self._staged.is_set() or self._is_parents():
            return True
        self._hurry()
        return self._staged.wait(timeout)

    def _go_on(self, payloads: list[tuple[str, Payload]]) -> None:
        failure: BaseException | None = None
        try:
            part = self._part
            assert part is not None
            if self._writing is not None:
                while not self._writing.wait(_WAIT_SLICE_S):
                    pass
                self._check_versions()
            self._copied = part.bytes_written
            self._writing = None
            payloads.clear()
            self._objects, self._watched = {}, []
            self._staged.set()
            part.commit()
            failure = part.error
        except BaseException as error:
            failure = error.with_traceback(None)  # it would keep what was saved alive
        self._end(failure)

    def _check_versions(self) -> None:
        moved = {one.address for one in self._watched if one.tensor._version != one.version}
        if not moved:
            return
        names = [
            f"{name}: {'.'.join(map(str, path))}"
            for name, obj in self._objects.items()
            for path, tensor in _tensors(obj)
            if _address(tensor) in moved
        ]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise FailedPrecondition(
            f"changed while it was copied: {', '.join(names[:3])}{more}; call fence() before what changes it"
        )

    def _end(self, failure: BaseException | None) -> None:
        self._failure = failure
        self._writing = None
        self._objects, self._watched = {}, []
        if failure is not None and self._part is not None:
            self._part.discard()
        self._staged.set()
        self._done.set()


# --- all of a connection's -------------------------------------------------------------------------------


class Savings:
    """The saves of one connection that go on, and those that ended and of which nobody was told yet. At most
    one goes on at a time."""

    def __init__(self, note_failure: Callable[[int, Error, bool], None]) -> None:
        self._note_failure = note_failure
        self._last: Saving | None = None
        self._mutex = threading.Lock()  # of who begins one
        self._hooked: weakref.WeakSet[Any] = weakref.WeakSet()

    def begin(
        self,
        step: int,
        objects: Mapping[str, Any],
        make_part: Callable[[], Step],
        *,
        overlap: Any,
        busy: str,
        strict: bool,
        any_rank: Callable[[bool], bool],
    ) -> Saving:
        if busy not in BUSY:
            raise InvalidArgument(f"busy: {busy!r} is none of {', '.join(BUSY)}")
        for name in objects:
            paths.check_name(name)
        given = _given(overlap)
        with self._mutex:
            last = self._last
            goes_on = last is not None and not last.done
            if busy == "skip" and any_rank(goes_on):
                return Saving(step, None, strict)
            if last is not None:
                last._wait_staged()
                last.wait()
            self.settle()
            saving = Saving(step, make_part(), strict)
            self._copy(saving, objects, given)
        if overlap is None:
            saving._wait_staged()
        self.settle()  # it may have failed at once
        return saving

    def _copy(self, saving: Saving, objects: Mapping[str, Any], given: list[Any]) -> None:
        changed = _changed_by(given)
        addresses = {address for _, address in changed} if given else None
        payloads, watched = [], []
        for name, obj in objects.items():
            payload, of_object = _encode(obj, addresses)
            payloads.append((name, payload))
            watched += of_object
        # A state made of `.data` shares the memory, and not the version.
        watched += _watch(changed, {one.address for one in watched})[0]
        for item in given:
            self._fence_before_step_of(item)
        self._last = saving
        saving._begin(payloads, objects, watched)

    def _fence_before_step_of(self, item: Any) -> None:
        """Once for each optimizer; where torch has no such hook its user calls fence()."""
        register = getattr(item, "register_step_pre_hook", None)
        if register is None or item in self._hooked:
            return
        self._hooked.add(item)
        savings = weakref.ref(self)

        def wait(*_: Any) -> None:
            found = savings()
            if found is not None:
                found.wait_staged()

        register(wait)

    def wait_staged(self, timeout: float | None = None) -> bool:
        last = self._last
        return last is None or last._wait_staged(timeout)

    def wait(self) -> None:
        last = self._last
        if last is not None:
            last._wait_staged()
            last.wait()

    def settle(self) -> None:
        """Tells of a save that ended without success, once: raises where `step` would have."""
        last = self._last
        if last is None or not last.done or last._reported:
            return
        last._reported = True
        failure = last._failure
        if failure is None:
            return
        if not isinstance(failure, Error):
            raise failure
        raised = last._strict or (is_callers_own(failure))
        self._note_failure(last.step, failure, raised)
        if raised:
            raise failure
