"""A connection to the node's daemon, and what can be asked of it.

One file: everything that a user may ask of a connection stands in its class, in the order of the docs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import socket as sockets
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from cairn import _native, arguments, distributed, info, numpy_format, paths, torch_format
from cairn.checkpoint import Checkpoint
from cairn.errors import (
    CairnWarning,
    Corrupt,
    Error,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Timeout,
    Unavailable,
)
from cairn.notices import WARN_AGAIN_AFTER_S, Repeated, callers_level, log
from cairn.overlap import BUSY, Saving, Savings
from cairn.step import Step, encode

VERSION = _native.VERSION
_step_number = functools.partial(arguments.step_number, "step")
_ONLY_READS = "rank: this connection only reads; connect with rank= and world_size="
# Blocking calls are cut into pieces of this length, so that Ctrl-C is handled between them.
_WAIT_SLICE_S = 1.0
_ASK_AGAIN_S = 0.1
READER = -1  # the rank of a connection that saves nothing
# What a pickled connection tells of the steps that its process has entered: so many, the highest.
_TOLD_STEPS = 1024


@dataclasses.dataclass
class Options:
    """What a connection is made from: plain values, so that it can be made again elsewhere."""

    job: str
    rank: int
    world_size: int
    attempt: int  # 0: none, or none chosen yet
    socket: str = ""  # the daemon's; "": where it listens by default
    local_writers: int = _native.DEFAULT_LOCAL_WRITERS
    timeout: float = _native.DEFAULT_TIMEOUT_S
    copy_threads: int = _native.DEFAULT_COPY_THREADS
    takes_fds: bool = True
    policy: dict[str, Any] | None = None
    fence: bool = False
    run: str = ""  # the launcher's; "": it tells none
    restart: int = -1  # how often the launcher had started that run before; -1: it does not tell
    # Of the process that pickled it: by this secret the daemon takes both for one writer. Empty: of this one.
    process: bytes = dataclasses.field(default=b"", repr=False)


# Attempts that this process chose for itself, by (process, socket, job): a lone writer chooses once.
_chosen: dict[tuple[int, str, str], int] = {}
# Of these: the highest step that was entered, and those of which a step was committed.
_entered: dict[tuple[int, str, str], int] = {}
_committed: set[tuple[int, str, str]] = set()


class Connection:
    """One process's session with the daemon of its node, for one job. `cairn.connect` makes it.

    Usable from several threads. After fork the child's calls raise `cairn.FailedPrecondition`; the child
    must connect anew.

    A pickled connection connects by itself where it is first used, in a session of its own. It goes on as
    the same writer of the same attempt: it carries the secret by which the daemon knows this process, so
    hand it to children only, and how often each of the last steps was entered. One of the two processes
    saves a step, not both; a new attempt of the job waits for the end of both.

    Attributes:
      failures: saves that did not happen though `step()` did not raise, by the name of their error.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._native: _native.Session | None = None
        self._closed = False
        self._warnings = Repeated()
        # Since the last step that was saved, if any was not: when that was, and how many there are.
        self._not_saved: tuple[float, int] | None = None
        self.failures: dict[str, int] = {}
        self._savings = Savings(self._note_failure)
        # As which writers it has entered steps: alone as 0, and where some ranks save as one of these.
        self._entered_as = {0, options.rank}
        # A child_memory.Memories, where something was staged for a child process.
        self._child_memories: Any = None

    # --- the session -----------------------------------------------------------------------------------

    def _session(self) -> _native.Session:
        if self._closed:
            raise FailedPrecondition("this connection has been closed")
        if self._native is None:
            # Two threads may both get here and connect. The session that is stored last is used, and the
            # other one ends.
            o = self._options
            self._native = _native.Session(
                socket=o.socket,
                job=o.job,
                attempt=o.attempt,
                writer=o.rank,
                world_size=o.world_size,
                local_writers=o.local_writers,
                takes_fds=o.takes_fds,
                copy_threads=o.copy_threads,
                timeout=o.timeout,
                client=f"python {VERSION}, pid {os.getpid()} on {sockets.gethostname()}",
                policy=o.policy,
                fence=o.fence,
                run=o.run,
                restart=o.restart,
                process=o.process,
            )
        return self._native

    def _writing_session(self) -> _native.Session:
        """The session, with an attempt."""
        session = self._session()
        if self._options.attempt:
            return session
        if self._options.rank == READER:
            raise InvalidArgument(_ONLY_READS)
        key = self._chooser(session)
        if key in _chosen:
            session.set_attempt(_chosen[key])
        else:
            _chosen[key] = session.choose_attempt()
        self._options.attempt = _chosen[key]
        return session

    def _chooser(self, session: _native.Session) -> tuple[int, str, str]:
        return os.getpid(), session.socket, self._options.job

    def close(self) -> None:
        """Ends the session: unfinished steps are dropped, but what `save_async` began is finished first.
        Tensors that were loaded stay valid. Closing twice is closing once."""
        try:
            if not self._closed:
                self._savings.wait()
                self._savings.settle()
        finally:
            self._closed = True
            self._child_memories = None
            native, self._native = self._native, None
            if native is not None:
                native.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        if self._closed or self.rank == READER:
            return {"options": self._options, "entered": {}}
        self._must_be_picklable()
        attempt = self._options.attempt
        options = dataclasses.replace(
            self._options, process=self._options.process or _native.this_process()
        )
        entered = {
            writer: _native.steps_entered(self.job, attempt, writer, _TOLD_STEPS)
            for writer in self._entered_as
        }
        return {"options": options, "entered": entered}

    def _must_be_picklable(self) -> None:
        """The child's attempt is this one: it is chosen now, where it is not yet. Raises `cairn.Unavailable`
        where no daemon answers then."""
        if self._closed:
            raise FailedPrecondition("this connection has been closed")
        if self._options.attempt == 0 and self.rank != READER:
            self._writing_session()

    def _reader(self) -> Connection:
        """One of the same job that saves nothing."""
        return Connection(
            dataclasses.replace(
                self._options, rank=READER, world_size=0, local_writers=1, attempt=0
            )
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        options: Options = state["options"]
        Connection.__init__(self, options)
        for writer, entered in state["entered"].items():
            _native.note_entered(options.job, options.attempt, writer, entered)
            self._entered_as.add(writer)

    def __repr__(self) -> str:
        o = self._options
        who = "reads only" if o.rank == READER else f"rank {o.rank} of {o.world_size}"
        attempt = "" if o.rank == READER else f" attempt={o.attempt or 'not chosen yet'}"
        state = (
            "closed" if self._closed else "open" if self._native is not None else "not opened yet"
        )
        return f"<cairn.Connection job={o.job!r} {who}{attempt} {state}>"

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def job(self) -> str:
        return self._options.job

    @property
    def rank(self) -> int:
        """This writer; -1 for a connection that only reads."""
        return self._options.rank

    @property
    def world_size(self) -> int:
        return self._options.world_size

    @property
    def attempt(self) -> int:
        """This life of the job; greater is newer. A lone writer's is chosen when it is first needed."""
        if self._options.attempt == 0 and self._options.rank != READER:
            self._writing_session()
        return self._options.attempt

    @property
    def socket(self) -> str:
        return self._session().socket

    @property
    def storage_root(self) -> str:
        """Folder that checkpoints are written to, on this node; "" when the daemon has none."""
        return self._session().storage_root

    # --- saving ----------------------------------------------------------------------------------------

    def step(
        self,
        step: int,
        writers: int | None = None,
        strict: bool = False,
        *,
        writer: int | None = None,
        notes: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Step:
        """This writer's part of one step, to be used with `with`:

            with c.step(n) as s:
                s.save(model.state_dict(), "model.pt")
            if not s.ok: …

        A clean exit seals what was saved and commits it; an exception discards it. The checkpoint is
        complete when all writers have committed; a writer with nothing to save enters and leaves.

        Args:
          step: 0 … 2^63-1. Entering it again saves it again: the new content replaces the old once it is
              complete.
          writers: how many ranks save this step, when not all do. 1: this rank alone.
          writer: which of them this one is, 0 … writers-1; a step of several that are not all needs it, the
              same on each rank in all such steps of an attempt. All writers of a step say as many.
          strict: raise also when the save fails for want of room, daemon or time, or the step was removed.
          notes: strings to keep in the manifest.
          timeout: seconds for each call of this step; the connection's when None.

        Raises (here, from `save`, or on leaving the `with`):
          ValueError, FileExistsError, PermissionError: the caller's own mistake.
          cairn.Superseded: a newer attempt of this job has begun.
          cairn.FailedPrecondition: this attempt may not save the step: processes that save in an older
              attempt have not ended in time (see `connect`), the step is not above the one that this
              attempt goes on from, this connection is closed or a forked parent's, or this object was
              used before.
          Whatever `torch.save` raises for an object.
          Everything else only with `strict`: no room, no daemon, no answer in time, bytes that do not
          verify, and `cairn.Removed`, when somebody removed the step. Otherwise such a failure warns (of
          one kind every ten minutes at most), each is a record of the logger "cairn" and is counted in
          `failures`, and `s.ok` is False, so that training goes on and ranks do not part.
        """
        return self._make_step(step, writers, writer, strict, notes, timeout, self._note_failure)

    def _make_step(
        self,
        step: int,
        writers: int | None,
        writer: int | None,
        strict: bool,
        notes: Mapping[str, str] | None,
        timeout: float | None,
        note_failure: Callable[[int, Error, bool], None],
        handed_over: bytes | None = None,
        stored: bool = False,
    ) -> Step:
        number = _step_number(step)
        among = self._among(writers, writer)
        timeout = arguments.patience("timeout", timeout)
        said = arguments.texts("notes", notes or {})

        def begin() -> _native.Step:
            if handed_over is None:
                return self._begin_step(number, among, timeout or 0.0, stored)
            return self._writing_session().take_over(handed_over, timeout or 0.0)

        return Step(
            number,
            begin,
            note_failure,
            self._note_commit,
            strict=strict,
            notes=said,
            describe=lambda: self._describe_writer(among),
            remake=lambda given: (
                _remade_step,
                (self, number, among or (None, None), strict, said, timeout, given or handed_over),
            ),
        )

    def _among(self, writers: int | None, writer: int | None) -> tuple[int, int] | None:
        """(how many save a step, which of them this rank is); None: all, and its rank."""
        world = self.world_size
        if writers is None:
            if writer is not None and writer != self.rank:
                raise InvalidArgument(
                    f"writer: {writer} of how many? Say writers=, fewer than the world size {world}"
                )
            return None
        writers = arguments.integer("writers", writers)
        if world < 1:
            raise InvalidArgument(_ONLY_READS)
        if not 1 <= writers <= world:
            raise InvalidArgument(f"writers: {writers} is not in 1 … {world}, the world size")
        if writer is None:
            if writers == world:
                return None
            if writers > 1:
                raise InvalidArgument(
                    f"writer: {writers} of {world} ranks save the step; say which of them this is, "
                    f"0 … {writers - 1}"
                )
            writer = 0
        writer = arguments.integer("writer", writer)
        if not 0 <= writer < writers:
            raise InvalidArgument(f"writer: {writer} is not in 0 … {writers - 1}")
        if writers == world:
            if writer != self.rank:
                raise InvalidArgument(
                    f"writer: all {world} ranks save the step, and this is rank {self.rank}, not {writer}"
                )
            return None
        return writers, writer

    def save_async(
        self,
        step: int,
        objects: Mapping[str, Any],
        *,
        overlap: Any = None,
        busy: str = "wait",
        writers: int | None = None,
        writer: int | None = None,
        strict: bool = False,
        notes: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Saving:
        """Saves a step, this writer's part, and commits it in the background. It returns when the objects are
        copied; with `overlap` before that, and the copy runs during the next forward and backward:

            c.save_async(n, {"model.pt": model.state_dict(), "optim.pt": optimizer.state_dict()},
                         overlap=optimizer)

        What only the optimizer's step changes is then copied later, and that step waits for the copy by
        itself. All else (buffers, random numbers, an average of the weights) is copied before this returns.
        Where no torch.optim.Optimizer changes the tensors, and before torch 2, call `fence` before they
        change. A tensor that changed all the same before its copy had ended makes the save fail, by name.

        One save goes on at a time. Of one that failed the next `save_async`, which has begun its own by then,
        `fence` or `close` tells, in the way of `step`: with a warning, or raising.

        What changes memory and not the version of its tensor goes unseen: `tensor.data.mul_()`, a kernel of
        one's own. A storage must not be resized before the copy has ended.

        Args:
          objects: by name, as for `Step.save`.
          overlap: an optimizer, or several, or the tensors themselves.
          busy: while the save before goes on, or there is no memory: "wait", "skip" this one, or write it
              straight into "storage": this returns, or with `overlap` the fence does, when the files are
              written, and the step is complete once they are published. In a torch.distributed group of
              the connection's size "skip" and "storage" are collectives: all ranks do so, or none. So they
              are not for a step that only some of the ranks save.
          step, writers, writer, strict, notes, timeout: as `step`'s.

        Raises:
          as `step`; ValueError also for `overlap` and `busy`.
        """
        number = _step_number(step)
        among = self._among(writers, writer)
        alone = among == (1, 0) or self.world_size == 1
        self._check_busy(busy, only_some=among is not None and not alone)

        def make_part(stored: bool) -> Step:
            # What it fails with is told later, in the thread that saves.
            return self._make_step(
                number, writers, writer, True, notes, timeout, lambda *_: None, stored=stored
            )

        def any_rank(busy_here: bool) -> bool:
            return busy_here if alone else distributed.any_of(busy_here, self.world_size)

        self._check_storage(busy, any_rank)
        return self._savings.begin(
            number,
            objects,
            make_part,
            overlap=overlap,
            busy=busy,
            strict=strict,
            any_rank=any_rank,
        )

    def _check_busy(self, busy: str, only_some: bool) -> None:
        """`only_some`: of the ranks save the step."""
        if busy not in BUSY:
            raise InvalidArgument(f"busy: {busy!r} is none of {', '.join(BUSY)}")
        if busy != "wait" and only_some:
            raise InvalidArgument(
                f'busy: all ranks agree on "{busy}", and only some save this step: give "wait"'
            )

    def _check_storage(self, busy: str, any_rank: Callable[[bool], bool]) -> None:
        """Tells at once, and not when memory is full for the first time."""
        if busy == "storage" and self._native is not None and not self._native.storage_root:
            any_rank(True)  # other ranks, on nodes that have some, wait to hear it
            raise FailedPrecondition(
                'busy: "storage" needs a node that has storage, and this one has no storage.root'
            )

    def fence(self, timeout: float | None = None) -> bool:
        """Waits until what `save_async` saves is copied, so that it may change; whether it is, within
        `timeout` seconds (None: however long). Tells of a save that failed, as `save_async` does."""
        limit = arguments.patience("timeout", timeout)
        staged = self._savings.wait_staged(None if limit == math.inf else limit)
        self._savings.settle()
        return staged

    def _begin_step(
        self, step: int, among: tuple[int, int] | None, timeout: float, stored: bool = False
    ) -> _native.Step:
        session = self._writing_session()
        if among is not None:
            self._entered_as.add(among[1])
        chooser = self._chooser(session)
        if _chosen.get(chooser) == self._options.attempt:
            _entered[chooser] = max(step, _entered.get(chooser, step))
        return session.begin_step(step, among, timeout, stored)

    def _describe_writer(self, among: tuple[int, int] | None) -> str:
        who = f"rank {self.rank} of {self.world_size}"
        if among == (1, 0) or self.world_size == 1:
            who = "alone"
        elif among is not None:
            who += f", writer {among[1]} of {among[0]}"
        return f"job={self.job!r} {who} attempt={self._options.attempt or 'not chosen yet'}"

    def _note_failure(self, step: int, error: Error, raised: bool) -> None:
        kind = type(error).__name__
        text = f"step {step} of job {self.job} was not saved: {kind}: {error}"
        if raised:
            log.error("%s", text)
            return
        log.warning("%s", text)
        self.failures[kind] = self.failures.get(kind, 0) + 1
        since, steps = self._not_saved or (time.monotonic(), 0)
        self._not_saved = (since, steps + 1)
        more = self._warnings.since_warned(kind)
        if more is None:
            return
        again = f"; {more} more since the last warning" if more else ""
        warnings.warn(
            f"{text}{again} (a warning of this kind comes every {WARN_AGAIN_AFTER_S / 60:.0f} minutes at "
            "most; the connection's `failures` counts them, the logger `cairn` has each)",
            CairnWarning,
            stacklevel=callers_level(),
        )

    def _note_commit(self, step: int) -> None:
        if self._native is not None:
            chooser = self._chooser(self._native)
            if _chosen.get(chooser) == self._options.attempt:
                _committed.add(chooser)
        if self._not_saved is None:
            return
        since, steps = self._not_saved
        self._not_saved = None
        log.info(
            "job %s is saved again, with step %d; %d before were not, over %.0f s",
            self.job,
            step,
            steps,
            time.monotonic() - since,
        )

    def save_alone(
        self, obj: Any, path: paths.CairnPath, torch_arguments: Mapping[str, Any]
    ) -> None:
        """One object, one call, one commit: writer 0 of 1."""
        try:
            may_replace = not self._is_ahead_of_all(path.step)
            if may_replace:
                self._refuse_other_names(path)
            payload = encode(obj, torch_arguments)
            writer = self._begin_step(path.step, (1, 0), 0.0)
            try:
                payload.write_to(writer, path.name)
                # An attempt that begins waits for the end of a process, which may have saved this step
                # meanwhile. From here on nobody else does.
                if may_replace:
                    self._refuse_other_names(path)
                writer.commit({})
            finally:
                writer.drop()
        except Error as error:
            self._note_failure(path.step, error, raised=True)
            raise
        self._note_commit(path.step)

    def _is_ahead_of_all(self, step: int) -> bool:
        """Whether nothing of `step` can count yet, whatever storage has: the attempt is this process's alone,
        it has saved a lower step, above which only its own steps count, and it has entered none this high."""
        chooser = self._chooser(self._session())
        return (
            chooser in _committed
            and _chosen.get(chooser) == self._options.attempt
            and step > _entered[chooser]
        )

    def _refuse_other_names(self, path: paths.CairnPath) -> None:
        session = self._session()
        try:
            found = session.stat(path.job, path.step, 0, -1)
            if not found["facts"]["complete"] or found["facts"]["abandoned"]:
                return  # nothing of it counts
            if found["world_size"] != 1:
                raise FailedPrecondition(
                    f"step {path.step} of job {path.job} was saved by {found['world_size']} writers; "
                    "cairn.save writes as one: save with step()"
                )
            exact = f"{path.job}/{path.step}@{found['attempt']}.{found['revision']}"
            others = [entry["name"] for entry in session.list(exact)["objects"]]
        except NotFound:
            return
        others = sorted(name for name in others if name != path.name)
        if others:
            shown = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
            raise FailedPrecondition(
                f"step {path.step} of job {path.job} already holds {shown}, which a cairn.save of "
                f"{path.name} alone would replace; save the names of one step together with step()"
            )

    # --- loading ---------------------------------------------------------------------------------------

    def load(
        self,
        path: str,
        map_location: Any = None,
        pickle_module: Any = None,
        *,
        weights_only: bool | None = None,
        mmap: bool | None = None,
        attempt: int = 0,
        **pickle_load_args: Any,
    ) -> Any:
        """What was saved at `path` ("STEP/NAME" or "cairn://JOB/STEP/NAME"), as `cairn.load` gives it.
        With `attempt` what that attempt saved there, also if it is abandoned."""
        parsed = paths.recognize(path, self.job)
        if parsed is None:
            raise InvalidArgument(
                f"path: {path!r} is neither STEP/NAME nor {paths.SCHEME}JOB/STEP/NAME"
            )
        return self._load(
            parsed, map_location, pickle_module, weights_only, mmap, pickle_load_args, attempt
        )

    def _load(
        self,
        path: paths.CairnPath,
        map_location: Any,
        pickle_module: Any,
        weights_only: bool | None,
        mmap: bool | None,
        pickle_load_args: dict[str, Any],
        attempt: int = 0,
        revision: int = -1,
    ) -> Any:
        if mmap is None:
            mmap = torch_format.default_mmap()
        mode = "map" if mmap else "read"
        handle = self._open(path, mode, attempt, revision)
        try:
            kind = handle.info()["kind"]
            if kind == "raw":
                return memoryview(handle.map()) if mmap else handle.read_bytes()
            if kind not in ("torch", "numpy"):
                raise Error(
                    f"{path.name} is of kind {kind}, which cairn.load does not read; open it by file()"
                )
            region = handle.map() if mmap else handle.read()
        except NotFound as error:
            # Of something that was open: no reason to begin from nothing.
            raise Unavailable(f"{path.name} was lost while it was read: {error}") from None
        finally:
            handle.close()  # a mapping keeps the lease by itself
        if kind == "numpy":
            return numpy_format.decode(region)
        return torch_format.decode(
            region,
            map_location,
            pickle_module,
            weights_only,
            own_memory_bytes=0 if mmap else torch_format.OWN_MEMORY_BYTES,
            **pickle_load_args,
        )

    def _open(
        self, path: paths.CairnPath, mode: str, attempt: int = 0, revision: int = -1
    ) -> _native.OpenObject:
        """Raises NotFound, which programs take for "begin from nothing", only of what no checkpoint has."""
        session = self._session()
        which = (path.job, path.step, path.name, mode, 0.0, attempt, revision)
        try:
            return session.open(*which)
        except NotFound:
            if not self._has(path, attempt, revision):
                raise
        try:
            return session.open(*which)  # it may have been saved just now
        except NotFound as error:
            if not self._has(path, attempt, revision):
                raise  # it was removed just now
            raise Corrupt(
                f"{path.name}: a complete checkpoint has it, and its bytes cannot be found: {error}"
            ) from None

    def _has(self, path: paths.CairnPath, attempt: int, revision: int = -1) -> bool:
        """Whether the complete checkpoint that `path` means exists and has the object."""
        session = self._session()
        try:
            if path.step == _native.NO_STEP:
                found = session.latest(path.job)
            else:
                found = session.stat(path.job, path.step, attempt, revision)
                facts = found["facts"]
                if not facts["complete"] or (facts["abandoned"] and not attempt):
                    return False
        except NotFound:
            return False
        if not path.name:
            return True
        which = (found["step"], found["attempt"], found["revision"])
        try:
            session.stat_object(path.job, *which, path.name)
        except NotFound:
            pass
        else:
            return True
        # It has no such object, or nothing of it can be read any more.
        exact = "{}@{}.{}".format(*which)
        try:
            names = [entry["name"] for entry in session.list(f"{path.job}/{exact}")["objects"]]
        except NotFound as error:
            raise FailedPrecondition(
                f"step {found['step']} of job {path.job} is complete, and what it holds cannot be found "
                f"any more: {error}"
            ) from None
        return path.name in names

    @contextlib.contextmanager
    def file(self, path: str) -> Iterator[str]:
        """A path that any program of this process opens for reading, exactly the saved file, for as long
        as the `with` lasts:

            with c.file("12/model.pt") as p:
                state = torch.load(p, mmap=True, weights_only=True)

        What was mapped from it stays mapped afterwards.
        """
        parsed = paths.parse(path, self.job)
        handle = self._open(parsed, "file")
        try:
            yield handle.path()
        finally:
            handle.close()

    # --- finding ---------------------------------------------------------------------------------------

    def resume_latest(self) -> Checkpoint | None:
        """The newest complete checkpoint of this job, to go on from; None when there is none yet.

            checkpoint = c.resume_latest()
            first = 0
            if checkpoint is not None:
                model.load_state_dict(checkpoint.load("model.pt"))
                first = checkpoint.step + 1

        In an initialized torch.distributed group this is a collective, whatever rank and world size the
        connection has: every rank of the group calls it, with the same job. Rank 0 asks, and all ranks get
        the same checkpoint, or the same error. A rank with a job of its own asks for itself, with `latest`.

        It finds and decides nothing: an attempt goes on from the highest complete step below the first
        that it saves. (`resume` is for going on from an earlier one.)

        None means that everything that could know was asked, storage included, and there is no complete
        checkpoint.

        Raises:
          cairn.Unavailable, cairn.Timeout: it cannot be told truly now. The job may have checkpoints, so
              this is no reason to begin from nothing.
          cairn.Corrupt: what there is has no good copy; or a ring has lost all of the job, of which a step
              was safe once: `resume(None)` begins anew.
          ValueError: the ranks of the group have different jobs; on every rank.
        """
        try:
            found = distributed.agree(self.latest, job=self.job)
        except NotFound:
            return None
        return Checkpoint.of(self, found)

    def checkpoint(
        self, step: int, job: str | None = None, *, attempt: int = 0, revision: int = -1
    ) -> Checkpoint:
        """The complete checkpoint of one step, to load from: of the line, or with `attempt` what that attempt
        saved, also if it is abandoned.

        Raises:
          cairn.NotFound: there is none.
        """
        of = self.job if job is None else job
        found = self._session().stat(of, _step_number(step), attempt, revision)
        facts = found["facts"]
        if not facts["complete"] or (facts["abandoned"] and not attempt):
            why = f": {found['why']}" if found["why"] else ""
            raise NotFound(f"step {step} of job {of} is not complete{why}")
        elsewhere = "storage" if facts["persisted"] else "peer"
        return Checkpoint(
            job=of,
            step=found["step"],
            attempt=found["attempt"],
            revision=found["revision"],
            world_size=found["world_size"],
            digest=found["digest"],
            source="memory" if facts["resident"] else elsewhere,
            _connection=self,
        )

    def latest(self, job: str | None = None) -> info.Latest:
        """The highest complete step on the line of `job` (this connection's).

        Ranks that must act on the same answer ask once: `cairn.distributed.agree(c.latest, job=c.job)`.

        Raises:
          cairn.NotFound: nothing is complete.
          cairn.Unavailable: it cannot be told truly now.
        """
        return info.Latest(**self._session().latest(self.job if job is None else job))

    def resume(self, step: int | None) -> info.Latest | None:
        """Says where this attempt goes on from, before it saves anything: a complete step, or None for
        from nothing. `latest` is that step at once, also if this process dies before it saves. What the line
        before holds above it is abandoned once this attempt has a complete step. Without this call an attempt
        goes on from the highest complete step below the first it saves, and moves nothing until it has a
        complete step. Returns that checkpoint.

        As the first save does, it waits for the end of the processes that save in an older attempt.

        Raises:
          cairn.NotFound: that step is not complete on the line.
          cairn.FailedPrecondition: this attempt has saved something; or processes of an older one still save.
        """
        number = _native.NO_STEP if step is None else _step_number(step)
        answer = self._writing_session().resume(number)
        return None if answer["step"] == _native.NO_STEP else info.Latest(**answer)

    def use(self, step: int, attempt: int = 0, *, fence: bool = False) -> info.Latest:
        """Makes a complete step count that was left behind (`attempt` 0: the line's): it is `latest` from now
        on, and what the job saves next goes on from it. What came after it is abandoned, kept for a time, and
        `use` brings it back in the same way. `ls` shows what there is.

        Args:
          fence: also while processes of the newest attempt live; they can save nothing more.

        Raises:
          cairn.NotFound: that attempt has no such complete step.
          cairn.FailedPrecondition: processes of the newest attempt live, and not `fence`.
        """
        return info.Latest(**self._session().use(self.job, _step_number(step), attempt, fence))

    def stat(
        self,
        step: int | None = None,
        name: str | None = None,
        *,
        attempt: int = 0,
        revision: int = -1,
    ) -> Any:
        """One checkpoint of this job (`CheckpointInfo`), or with `name` one object in it (`ObjectInfo`,
        with its checksums). step None: the latest; attempt and revision: the line's.

        Raises:
          cairn.NotFound: there is none.
        """
        number = _native.NO_STEP if step is None else _step_number(step)
        session = self._session()
        if name is None:
            return info.checkpoint_info(session.stat(self.job, number, attempt, revision))
        return info.object_info(session.stat_object(self.job, number, attempt, revision, name))

    def exists(self, path: str, *, attempt: int = 0) -> bool:
        """Whether `load` would find `path` now: "STEP/NAME" of this job, or "cairn://JOB/STEP/NAME", STEP a
        number or `latest`. "cairn://JOB/STEP" asks for the complete checkpoint. With `attempt` it is what
        that attempt saved, also if it is abandoned. Reads no object's bytes.

        Raises:
          ValueError: a path that is not Cairn's.
          cairn.Unavailable, cairn.Timeout: it cannot be told truly now.
          cairn.FailedPrecondition: the checkpoint is complete, and storage has lost what it holds.
        """
        parsed = paths.parse(path, self.job, needs_name=False)
        attempt = arguments.integer_of_64_bits("attempt", attempt)
        if attempt and parsed.step == _native.NO_STEP:
            raise InvalidArgument(f"attempt: {path!r} is the latest, of whatever attempt")
        return self._has(parsed, attempt)

    def ls(self, path: str | None = None) -> info.Listing:
        """What there is: "" lists jobs, "JOB" its checkpoints, "JOB/STEP" that checkpoint's objects (STEP a
        number or `latest`); None this job's checkpoints. "cairn://" may stand before it.

        Raises:
          cairn.NotFound: no such job or step.
        """
        path = self.job if path is None else arguments.text("path", path)
        return info.listing(self._session().list(path.removeprefix(paths.SCHEME)))

    def status(self, job: str | None = None) -> dict[str, Any]:
        """The node's status: budget, sessions, quarantine, jobs, counters. With `job` that job's entry of it:
        resident_bytes, latest_step and latest_persisted_step (-1: none), policy, persist_problem, and so on.
        Field names are those of NodeStatus and JobStatus in proto/cairn.thrift; bytes and milliseconds as
        the names say.

        Raises:
          cairn.NotFound: neither memory nor storage has anything of `job`.
          cairn.Unavailable, cairn.Timeout: memory has nothing of it, and storage cannot be read now.
        """
        session = self._session()
        answer: dict[str, Any] = json.loads(session.status_json())
        if job is None:
            return answer
        _native.validate_job(arguments.text("job", job))
        # What only storage has is known to the node once it was asked for. What memory has is told whatever
        # storage does.
        unread: Error = NotFound(f"job: {job} is not known to this node")
        try:
            session.list(job)
        except (Unavailable, Timeout) as error:
            unread = error
        else:
            answer = json.loads(session.status_json())
        for entry in answer["jobs"]:
            if entry["job"] == job:
                return cast("dict[str, Any]", entry)
        raise unread

    # --- waiting, and what is done with checkpoints ----------------------------------------------------

    def wait(
        self, step: int | None = None, level: str = "PERSISTED", timeout: float | None = None
    ) -> info.CheckpointInfo:
        """Blocks until the checkpoint (None: the latest) is "CACHED", "REPLICATED" or "PERSISTED".

        Args:
          timeout: seconds; the connection's when None.

        Raises:
          cairn.Timeout: not by then.
          cairn.Unavailable: the daemon did not answer for as long as the connection's timeout.
          cairn.FailedPrecondition: the job's policy can never bring it there; at once.
        """
        number = _native.NO_STEP if step is None else _step_number(step)
        return self._wait(number, level.upper(), timeout)

    def _wait(
        self,
        step: int,
        level: str,
        timeout: float | None,
        attempt: int = 0,
        revision: int = -1,
    ) -> info.CheckpointInfo:
        return self._in_slices(
            timeout,
            lambda session, slice_s: session.wait(
                self.job, step, level, slice_s, attempt, revision
            ),
        )

    def wait_after(
        self, step: int | info.Latest, timeout: float | None = None
    ) -> info.CheckpointInfo:
        """Blocks until there is a complete step greater than `step` (-1: any), and returns the first. When
        the job goes back instead, to a lower step, it returns that one.
        With an answer of `latest()` nothing that happened since that answer is missed, a newer revision of
        the step included.

        Raises:
          cairn.Timeout: not within `timeout` seconds (the connection's when None).
        """
        if isinstance(step, info.Latest):
            number, head, revision = step.step, step.head, step.revision
        else:
            number = step if step == _native.NO_STEP else _step_number(step)
            head, revision = self._head(), -1
        return self._in_slices(
            timeout, lambda session, slice_s: session.wait_after(number, slice_s, head, revision)
        )

    def _head(self) -> int:
        """What the line is of now; 0: nothing yet."""
        try:
            return self.latest().head
        except (NotFound, Unavailable):
            return 0

    def _in_slices(self, timeout: float | None, ask: Any) -> info.CheckpointInfo:
        limit = self._limit(timeout)
        if math.isnan(limit) or limit < 0:
            raise InvalidArgument(f"timeout: {limit} is below 0")
        deadline = time.monotonic() + limit
        heard = time.monotonic()
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                return info.checkpoint_info(ask(self._session(), min(left, _WAIT_SLICE_S)))
            except Timeout:
                heard = time.monotonic()
                if heard >= deadline:
                    raise
            except Unavailable:
                # A process that stood still for a moment, this one or the daemon, is no reason to give up.
                now = time.monotonic()
                if now >= deadline or now - heard >= self._options.timeout:
                    raise
                time.sleep(min(_ASK_AGAIN_S, deadline - now))

    def _limit(self, timeout: float | None) -> float:
        return self._options.timeout if timeout is None else timeout

    def persist(self, step: int | None = None) -> None:
        """Asks for storage, whatever the policy, and does not wait for the file: `wait(step)` does."""
        self._session().persist(self.job, _native.NO_STEP if step is None else _step_number(step))

    def remove(self, step: int, *, memory_only: bool = False, force: bool = False) -> None:
        """Removes a step, from memory and from storage; with `memory_only` only from memory.

        Raises:
          cairn.FailedPrecondition: a last copy goes, of whatever attempt, and not `force`.
        """
        self._session().remove(self.job, _step_number(step), memory_only, force)

    def pin(self, step: int, pinned: bool = True) -> None:
        """Keeps a step in memory and in storage until it is unpinned."""
        self._session().pin(self.job, _step_number(step), pinned)

    def set_policy(self, policy: info.JobPolicy) -> None:
        """Replaces the job's policy; the owner's to do."""
        self._session().set_policy(dataclasses.asdict(policy))


def _remade_step(
    connection: Connection,
    step: int,
    among: tuple[int | None, int | None],
    strict: bool,
    notes: dict[str, str],
    timeout: float | None,
    handed_over: bytes | None,
) -> Step:
    return connection._make_step(
        step, *among, strict, notes, timeout, connection._note_failure, handed_over
    )
