"""One writer's part of one step: what is sealed and committed together."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cairn import numpy_format, paths, torch_format
from cairn.errors import Error, FailedPrecondition, is_callers_own
from cairn.payload import Object, Payload

if TYPE_CHECKING:
    from cairn import _native


def encode(obj: Any, arguments: Mapping[str, Any]) -> Payload:
    """numpy arrays and bytes as they are, everything else as torch.save would."""
    payload = numpy_format.encode(obj)
    return payload if payload is not None else torch_format.encode(obj, **arguments)


class Step:
    """One writer's part of one step; `Connection.step` says how it is used. One thread at a time.

    A save that outlives a `with` calls `begin`, then from any thread `save`, and ends with `commit` or
    `discard`; one that is forgotten is discarded.

    Attributes:
      ok: so far nothing was lost; after the `with`: this part is committed.
      error: why not, if not.
      complete: after the `with`, that all writers of the step had committed by then.
    """

    def __init__(
        self,
        step: int,
        begin: Callable[[], _native.Step],
        note_failure: Callable[[int, Error, bool], None],
        note_commit: Callable[[int], None],
        *,
        strict: bool,
        notes: dict[str, str],
        describe: Callable[[], str],
    ) -> None:
        """`begin` enters the step on its connection's session; `note_failure` hears of each failure,
        and whether it is raised; `note_commit` of what was saved; `describe` says for people of which job,
        rank and attempt it is."""
        self._step = step
        self._begin = begin
        self._note_failure = note_failure
        self._note_commit = note_commit
        self._strict = strict
        self._notes = notes
        self._describe = describe
        self._writer: _native.Step | None = None
        self._entered = False
        self._revision = -1
        self.ok = False
        self.error: Error | None = None
        self.complete = False
        self.digest = ""

    def __repr__(self) -> str:
        return f"<cairn.Step {self._step} {self._describe()} {self._state()}>"

    def _state(self) -> str:
        if not self._entered:
            return "not entered"
        if self._writer is not None:
            return f"open, {self._writer.bytes_written} bytes written"
        if self.error is not None:
            return f"not saved: {type(self.error).__name__}: {self.error}"
        if not self.ok:
            return "discarded"
        return "complete" if self.complete else "committed, other writers have not yet"

    @property
    def step(self) -> int:
        return self._step

    @property
    def bytes_written(self) -> int:
        """Bytes copied so far."""
        return 0 if self._writer is None else self._writer.bytes_written

    @property
    def revision(self) -> int:
        """How often this attempt had entered the step before; -1 while it is not entered."""
        return self._revision

    def begin(self) -> Step:
        """Enters the step. Raises as `Connection.step` says."""
        if self._entered:
            raise FailedPrecondition("a step object is entered once; call step() again")
        self._entered = True
        self.ok = True
        try:
            self._writer = self._begin()
            self._revision = self._writer.revision
        except Error as error:
            self._failed(error)
        return self

    def save(
        self,
        obj: Any,
        name: str,
        pickle_module: Any = pickle,
        pickle_protocol: int = torch_format.DEFAULT_PROTOCOL,
        _use_new_zipfile_serialization: bool = True,
        _disable_byteorder_record: bool = False,
    ) -> None:
        """Saves one object under `name`: a numpy array as .npy, bytes as they are, anything else exactly
        as torch.save would write it (its arguments are torch.save's). When it returns, the bytes have
        been copied and `obj` may change.

        After a failure that was not raised (see `Connection.step`) the rest of the step is not copied.

        Raises:
          ValueError: a name that is none, or that this step has already.
          Whatever torch.save raises for this object.
        """
        if not self._entered:
            raise FailedPrecondition("save() outside the `with` of its step")
        paths.check_name(name)
        if self._writer is None:
            if self.error is None:
                raise FailedPrecondition("save() after the `with` of its step has ended")
            return
        payload = encode(
            obj,
            {
                "pickle_module": pickle_module,
                "pickle_protocol": pickle_protocol,
                "_use_new_zipfile_serialization": _use_new_zipfile_serialization,
                "_disable_byteorder_record": _disable_byteorder_record,
            },
        )
        self._put(payload, name)

    def _put(self, payload: Payload, name: str) -> None:
        """Writes one object, unless the step has failed."""
        if self._writer is None:
            return
        try:
            payload.write_to(self._writer, name)
        except Error as error:
            self._failed(error)

    def _write_later(self, objects: list[Object]) -> _native.Writing | None:
        """Begins to write them in the background; None once the step has failed. Whoever waits for it tells
        `_failed` what it raises."""
        if self._writer is None:
            return None
        try:
            return self._writer.write_later(objects)
        except Error as error:
            self._failed(error)
            return None

    def _copy_beside(self, beside: bool) -> None:
        """Whether copies leave the machine's other cores to this process; of the one that goes on, too."""
        writer = self._writer
        if writer is not None:
            writer.copy_beside(beside)

    def _write_pieces(self, name: str, kind: str, forms: list[Any], wheres: list[Any]) -> bytes:
        """Writes one object of many pieces, of each its form and where its bytes are, and returns where in it
        each lies: offset and length of the first, of the second, and so on, as little-endian integers of 64
        bits. Nothing once the step has failed."""
        if self._writer is None:
            return b""
        try:
            return self._writer.write_pieces(name, kind, forms, wheres)
        except Error as error:
            self._failed(error)
            return b""

    def __enter__(self) -> Step:
        return self.begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _exception: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.discard()

    def discard(self) -> None:
        """Drops what was saved; of a step that has ended, nothing."""
        writer, self._writer = self._writer, None
        if writer is not None:
            self.ok = False
            with contextlib.suppress(Error):
                writer.abort()

    def _drop(self) -> None:
        """As `discard`, of a daemon that did not answer: without waiting for it."""
        writer, self._writer = self._writer, None
        if writer is not None:
            self.ok = False
            writer.drop()

    def commit(self) -> None:
        """Seals what was saved and commits it. Raises as `Connection.step` says."""
        if not self._entered:
            raise FailedPrecondition("commit() of a step that was not entered")
        writer, self._writer = self._writer, None
        if writer is None:
            return  # it failed before, without raising
        try:
            self.digest, self.complete = writer.commit(self._notes)
        except Error as error:
            self._failed(error)
        else:
            self._note_commit(self._step)

    def _failed(self, error: Error) -> None:
        """Drops the step; raises where step() promises to, and else tells who counts and warns."""
        self.ok = False
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.drop()
        if self._strict or is_callers_own(error):
            self.error = error
            self._note_failure(self._step, error, True)
            raise error
        # Its traceback would keep the objects that were being saved alive.
        self.error = error.with_traceback(None)
        self._note_failure(self._step, error, False)
