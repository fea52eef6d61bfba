"""Saves that go on while the training does: what `Connection.save_async` begins.

The copy runs on a thread of libcairn's. A thread of Python's waits for it, looks whether a tensor changed
meanwhile, and commits.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cairn import numpy_format, paths, torch_format, unchanged
from cairn.errors import (
    Error,
    FailedPrecondition,
    Full,
    InvalidArgument,
    Timeout,
    Unavailable,
    is_callers_own,
)

if TYPE_CHECKING:
    from cairn import _native
    from cairn.payload import Payload
    from cairn.step import Step

_WAIT_SLICE_S = 1.0
BUSY = ("wait", "skip", "storage")
# With "skip" and "storage" memory that is about to come back is waited for so long.
_ROOM_PATIENCE_S = 0.2


def _encode(obj: Any, watch: unchanged.Watch | None) -> Payload:
    """With `watch` what is not watched is copied now."""
    payload = numpy_format.encode(obj)
    if payload is not None:
        if watch is not None:
            payload.copy_what_may_change()
        return payload
    structure = torch_format.structure_of(obj)
    if watch is None:
        return torch_format.encode(obj, structure=structure)
    tensors: unchanged.Tensors = structure.tensors
    if structure.key is None and not unchanged.is_transparent(obj):
        # What else is in there may share memory with the tensors that a step changes.
        return torch_format.encode(obj, stays=frozenset())
    if structure.key is None:
        tensors = (
            (unchanged.local(tensor), unchanged.address(tensor))
            for _, tensor in unchanged.tensors_in(obj)
        )
    return torch_format.encode(obj, stays=watch.add(tensors), structure=structure)


# --- one save ------------------------------------------------------------------------------------------


class Saving:
    """One save in the background, as `Connection.save_async` returns it.

    Attributes:
      step: its number.
      skipped: nothing was saved, as `busy` was "skip": on some rank the one before had not ended, or there
          was no memory.
      stored: it goes straight into storage, as `busy` was "storage".
    """

    def __init__(self, step: int, part: Step | None, strict: bool, stored: bool = False) -> None:
        self.step = step
        self.skipped = part is None
        self.stored = stored
        self._part = part
        self._strict = strict
        self._writing: _native.Writing | None = None
        self._objects: Mapping[str, Any] = {}
        self._watch: unchanged.Watch | None = None
        self._pid = os.getpid()
        self._staged = threading.Event()
        self._done = threading.Event()
        self._failure: BaseException | None = None
        self._reported = part is None
        self._abandoned = False  # who began it was interrupted before it was copied
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
            doing = "going into storage" if self.stored else "copying"
            return f"{doing}, {self.bytes_copied} of {self.bytes} bytes"
        if not self.done:
            return "copied, being committed"
        if self.error is not None:
            return f"not saved: {type(self.error).__name__}: {self.error}"
        return "complete" if self.complete else "committed, other writers have not yet"

    @property
    def staged(self) -> bool:
        """Everything is copied, or written to storage, or nothing will be: the objects may change."""
        return self._staged.is_set() or self.done

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

    def _enter(self) -> None:
        """Before anything that can fail, as on all ranks, so that the next save of the step has the same
        revision on all. When this fails the save has."""
        part = self._part
        assert part is not None
        try:
            part.begin()
        except Error as failure:
            self._end(failure)

    def _find_room(self, payloads: list[tuple[str, Payload]]) -> bool:
        """Sets memory aside; False when there is none, or the save has failed."""
        part = self._part
        if self._failure is not None:
            return False
        assert part is not None
        try:
            part._set_aside({name: payload.length for name, payload in payloads}, _ROOM_PATIENCE_S)
        except Full:
            return False
        except Error as failure:
            self._end(failure)
            return False
        return True

    def _skip(self) -> None:
        """Unless it has failed."""
        if self._failure is None:
            self._end(None)
            assert self._part is not None
            self._part.discard()
            self._part, self.skipped, self._reported = None, True, True

    def _go_straight(self, part: Step) -> None:
        """There is no room: `part`, which takes none, is saved instead. It is entered also where this has
        failed, as on the other ranks."""
        if self._failure is not None:
            _enter_in_vain(part)
            return
        assert self._part is not None
        self._part.discard()
        self._part, self.stored = part, True
        self._enter()

    def _give_up(self, part: Step | None) -> None:
        """It failed here before the other ranks heard of it, which go on with `part`, if with any."""
        before, self._part = self._part, None
        if before is not None:
            before.discard()
        if part is not None:
            _enter_in_vain(part)

    def _begin(
        self,
        payloads: list[tuple[str, Payload]],
        sources: Mapping[str, Any],
        watch: unchanged.Watch | None,
    ) -> None:
        """`payloads` of `sources`."""
        part = self._part
        assert part is not None
        self._objects, self._watch = sources, watch
        thread = threading.Thread(
            target=self._go_on, args=(payloads,), name=f"cairn-save-{self.step}"
        )
        try:
            objects = [payload.as_object(name) for name, payload in payloads]
            self._bytes = sum(length for *_, sources in objects for _, length in sources)
            self._writing = part._write_later(objects)
            thread.start()  # it keeps what the addresses point into
        except BaseException as failure:
            told = isinstance(failure, (Error, RuntimeError))  # RuntimeError: no thread
            self._reported = not told
            if thread.ident is not None:
                self._abandoned = True  # the thread ends it
            else:
                self._wait_written()
                self._end(failure if told else Error(f"interrupted by {type(failure).__name__}"))
            if not told:
                raise

    def _abandon(self) -> None:
        """It is not known any more that nothing changes before it is copied: it will not be committed."""
        self._abandoned = self._reported = True

    def _wait_written(self) -> None:
        while self._writing is not None:
            self._hurry()
            with contextlib.suppress(Error):
                if not self._writing.wait(_WAIT_SLICE_S):
                    continue
            self._writing = None

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
                if self._abandoned:
                    raise FailedPrecondition("interrupted before it was copied")
                if self._watch is not None:
                    self._watch.check(self._objects)
            if self.stored:  # their checksums were taken; the bytes are read where they lie
                part.commit()
            self._copied = self._bytes if self.stored else part.bytes_written
            self._writing = None
            if not self.stored:
                payloads.clear()
                self._objects, self._watch = {}, None
                self._staged.set()
                part.commit()
            failure = part.error
        except BaseException as error:
            failure = error
        payloads.clear()
        self._end(failure)

    def _end(self, failure: BaseException | None) -> None:
        # A traceback would keep what was saved alive.
        self._failure = None if failure is None else failure.with_traceback(None)
        self._writing = None
        self._objects, self._watch = {}, None
        if failure is None:
            self._done.set()  # first: of one that is stored who waited until it was staged asks how it ended
        self._staged.set()
        part = self._part
        if failure is not None and part is not None:
            if isinstance(failure, (Timeout, Unavailable)):
                part._drop()  # a daemon that does not answer is not waited for twice
            else:
                part.discard()
        self._done.set()


def _enter_in_vain(part: Step) -> None:
    with contextlib.suppress(Error):
        part.begin()
    part._drop()


# --- all of a connection's -------------------------------------------------------------------------------


class Savings:
    """The saves of one connection that go on, and those that ended and of which nobody was told yet. One goes
    on at a time, and beside it at most one that goes straight into storage."""

    def __init__(self, note_failure: Callable[[int, Error, bool], None]) -> None:
        self._note_failure = note_failure
        self._under_way: list[Saving] = []  # in their order; also those that nobody was told of
        self._pid = os.getpid()
        self._mutex = threading.Lock()  # of who begins one
        self._begins = 0  # the thread that does
        self._hooked: weakref.WeakSet[Any] = weakref.WeakSet()
        self._held_mutex = threading.Lock()
        self._held: list[weakref.WeakMethod[Callable[[float | None], bool]]] = []

    def begin(
        self,
        step: int,
        objects: Mapping[str, Any],
        make_part: Callable[[bool], Step],
        *,
        overlap: Any,
        busy: str,
        strict: bool,
        any_rank: Callable[[bool], bool],
    ) -> Saving:
        """`make_part(True)` is of a part that goes straight into storage."""
        if not callable(getattr(objects, "items", None)):
            raise InvalidArgument(
                f"objects: is of type {type(objects).__name__}, wanted is a mapping from names to objects"
            )
        for name in objects:
            paths.check_name(name)
        given = unchanged.optimizers_and_tensors(overlap)
        watch = None if overlap is None else unchanged.Watch(given)
        if os.getpid() != self._pid:
            make_part(False).begin()  # raises: in a forked child nothing can be saved
        if self._begins == threading.get_ident():
            raise FailedPrecondition("save_async within save_async, as in a handler of a signal")
        with self._mutex:
            self._begins = threading.get_ident()
            try:
                before = list(self._under_way)
                goes_on = any(not saving.done for saving in before)
                stored = busy != "wait" and any_rank(goes_on)
                if stored and busy == "skip":
                    return Saving(step, None, strict)
                for earlier in before:
                    if earlier.stored or not stored:
                        earlier._wait_staged()
                        earlier.wait()
                saving = Saving(step, make_part(stored), strict, stored)
                self._copy(
                    saving,
                    objects,
                    given,
                    watch,
                    None if busy == "wait" or stored else any_rank,
                    None if busy != "storage" or stored else functools.partial(make_part, True),
                )
            finally:
                self._begins = 0
        if watch is None:
            try:
                saving._wait_staged()
            except BaseException:
                saving._abandon()
                raise
        self.settle()
        self._settle(saving)  # it may have failed at once
        return saving

    def _copy(
        self,
        saving: Saving,
        objects: Mapping[str, Any],
        given: list[Any],
        watch: unchanged.Watch | None,
        any_rank: Callable[[bool], bool] | None,
        make_stored: Callable[[], Step] | None,
    ) -> None:
        """With `any_rank`: where on some rank there is no room it is what `make_stored` makes, or skipped."""
        try:
            saving._enter()
            payloads = [(name, _encode(obj, watch)) for name, obj in objects.items()]
            if watch is not None:
                watch.complete()
            no_room = any_rank is not None and not saving._find_room(payloads)
        except BaseException:
            if any_rank is not None:
                with contextlib.suppress(Error):  # of a rank that does not answer
                    any_rank(True)  # the others wait to hear it
            saving._give_up(None if make_stored is None else make_stored())
            raise
        try:
            without_memory = any_rank is not None and any_rank(no_room)
        except BaseException:
            saving._give_up(None)
            raise
        if without_memory:
            if make_stored is None:
                saving._skip()
            else:
                saving._go_straight(make_stored())
        if saving.done:
            return
        self.fence_before_steps_of(given)
        self._under_way.append(saving)
        saving._begin(payloads, objects, watch)

    def fence_before_steps_of(self, given: list[Any]) -> None:
        """Once for each optimizer; where torch has no such hook its user calls fence()."""
        savings = weakref.ref(self)

        def wait(*_: Any) -> None:
            found = savings()
            if found is not None:
                found.wait_staged()

        for item in given:
            register = getattr(item, "register_step_pre_hook", None)
            if register is not None and item not in self._hooked:
                self._hooked.add(item)
                register(wait)

    def hold(self, wait: Callable[[float | None], bool]) -> None:
        """Of another save that copies later, while it is there: fences wait for it, too. `wait`, a method,
        tells whether it has copied."""
        with self._held_mutex:
            self._held = [held for held in self._held if not _has_copied(held, 0.0)]
            self._held.append(weakref.WeakMethod(wait))

    def wait_staged(self, timeout: float | None = None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout

        def left() -> float | None:
            return None if end is None else max(0.0, end - time.monotonic())

        copied = [saving._wait_staged(left()) for saving in list(self._under_way)]
        with self._held_mutex:
            held = list(self._held)
        return all([*copied, *(_has_copied(wait, left()) for wait in held)])

    def wait(self) -> None:
        self.wait_staged()
        for saving in list(self._under_way):
            saving._wait_staged()
            saving.wait()

    def settle(self) -> None:
        try:
            for saving in list(self._under_way):
                self._settle(saving)
        finally:
            self._under_way = [
                saving
                for saving in self._under_way
                if not saving.done or not (saving._reported or saving._failure is None)
            ]

    def _settle(self, saving: Saving) -> None:
        """Tells of a save that ended without success, once: raises where `step` would have."""
        failure = saving._failure
        if failure is None or saving._reported:
            return
        saving._reported = True
        if not isinstance(failure, Error):
            raise copy.copy(failure)
        raised = saving._strict or is_callers_own(failure)
        self._note_failure(saving.step, failure, raised)
        if raised:
            # A copy: what is kept shall not get this traceback, and with it the caller's variables.
            raise copy.copy(failure)


def _has_copied(
    wait: weakref.WeakMethod[Callable[[float | None], bool]], timeout: float | None
) -> bool:
    method = wait()
    return method is None or method(timeout)
