"""One writer's part of one step: what is sealed and committed together."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from cairn import _native, arguments, numpy_format, paths, torch_format
from cairn.errors import Error, FailedPrecondition, InvalidArgument, is_callers_own
from cairn.payload import Object, Payload


def encode(obj: Any, arguments: Mapping[str, Any]) -> Payload:
    """numpy arrays and bytes as they are, everything else as torch.save would."""
    payload = numpy_format.encode(obj)
    return payload if payload is not None else torch_format.encode(obj, **arguments)


class Step:
    """One writer's part of one step; `Connection.step` says how it is used. One thread at a time.

    A save that outlives a `with` calls `begin`, then from any thread `save`, and ends with `commit` or
    `discard`; one that is forgotten is discarded. A child process goes on with it after `hand_over`. Before
    it is entered it can be pickled with its connection.

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
        remake: Callable[[bytes | None], tuple[Callable[..., Step], tuple[Any, ...]]],
    ) -> None:
        """`begin` enters the step on its connection's session; `note_failure` hears of each failure,
        and whether it is raised; `note_commit` of what was saved; `describe` says for people of which job,
        rank and attempt it is; `remake`, with what was handed over, how one is made that goes on with it."""
        self._step = step
        self._begin = begin
        self._note_failure = note_failure
        self._note_commit = note_commit
        self._strict = strict
        self._notes = notes
        self._describe = describe
        self._remake = remake
        self._writer: _native.Step | None = None
        self._committing: _native.Step | None = (
            None  # one that goes straight into storage is read then
        )
        self._entered = False
        self._revision = -1
        self._handed_over = False
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
            return "handed over" if self._handed_over else "discarded"
        return "complete" if self.complete else "committed, other writers have not yet"

    @property
    def step(self) -> int:
        return self._step

    @property
    def bytes_written(self) -> int:
        """Bytes copied so far."""
        writer = self._writer or self._committing
        return 0 if writer is None else writer.bytes_written

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
        if not self._goes_on("save", name):
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

    def buffer(self, name: str, nbytes: int) -> _native.Region:
        """Memory of a new object `name`: what is put there is saved, and copied nowhere.

            buffer = s.buffer("table", table.nbytes)
            np.frombuffer(buffer, table.dtype)[:] = table.ravel()

        The result has the buffer protocol, for `memoryview`, `numpy.frombuffer` and `torch.frombuffer`. It is
        filled from any threads until `seal`, or the end of the step, which seals the rest. Loading gives the
        object's bytes. What is not written has no defined content.

        From the seal on the memory belongs to nobody: it may be kept and touched, but what is read there is
        not the object, and what is written there is lost. So nothing that is wanted later lies there. A
        forked child must not touch it.

        After a failure that was not raised (see `Connection.step`) it is memory that is not saved.

        Raises:
          ValueError: a name that is none, or that this step has already; `nbytes`.
        """
        length = arguments.integer("nbytes", nbytes)
        if not 0 <= length <= _native.MAX_OBJECT_BYTES:
            raise InvalidArgument(f"nbytes: {length} is not in 0 … {_native.MAX_OBJECT_BYTES}")
        if self._goes_on("buffer", name):
            assert self._writer is not None
            try:
                return self._writer.reserve(name, "raw", length)
            except Error as error:
                self._failed(error)
        return _native.Region.scratch(length)

    def seal(self, name: str) -> None:
        """The buffer `name` is filled: takes its checksums now, while others are filled.

        Raises:
          ValueError: no buffer of this step, or sealed already.
        """
        if not self._goes_on("seal", name):
            return
        assert self._writer is not None
        try:
            self._writer.seal(name)
        except Error as error:
            self._failed(error)

    def _goes_on(self, call: str, name: str) -> bool:
        """Whether the step has not failed. Raises where `call` of this object is a mistake."""
        if not self._entered:
            raise FailedPrecondition(f"{call}() outside the `with` of its step")
        paths.check_name(name)
        if self._writer is None and self.error is None:
            raise FailedPrecondition(f"{call}() after the `with` of its step has ended")
        return self._writer is not None

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

    def _set_aside(self, lengths: Mapping[str, int], patience: float) -> None:
        """Sets memory aside for these objects. Raises as `begin`."""
        if self._writer is None:
            return
        try:
            self._writer.set_aside(lengths, patience)
        except Error as error:
            self._failed(error)

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

    def hand_over(self) -> Step:
        """Ends it here and drops nothing. What is returned goes on with it where it is entered: here, or in a
        child process, pickled there with its connection.

            handed = s.hand_over()                        # in the parent, after s.begin() and s.save(…)
            with handed as s: s.save(more, "more.pt")     # in the child: saves more, and commits it all

        What was saved is there until it is committed or discarded, or until one of the two processes ends or
        closes its connection.
        """
        writer = self._writer
        if writer is None:
            raise FailedPrecondition("hand_over() of a step that is not open")
        try:
            handed_over = writer.hand_over()
        except Error as error:
            self._failed(error)
            raise
        self._writer = None
        self.ok = False
        self._handed_over = True
        remade, arguments = self._remake(handed_over)
        return remade(*arguments)

    def __reduce__(self) -> Any:
        if self._entered:
            raise FailedPrecondition("hand_over() gives what of an entered step can be pickled")
        return self._remake(None)

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
        self._committing = writer
        try:
            self.digest, self.complete = writer.commit(self._notes)
        except Error as error:
            self._failed(error)
        else:
            self._note_commit(self._step)
        finally:
            self._committing = None

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
