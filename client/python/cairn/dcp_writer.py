"""DCP's StorageWriter over a connection, which is its own stager. `cairn.dcp` says how it is used."""

from __future__ import annotations

import contextlib
import copy
import pickle
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing import active_children
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from cairn import (
    _native,
    child_memory,
    errors,
    kept_saves,
    own_chunks,
    paths,
    read_index,
    unchanged,
)
from cairn.enclosed import Enclosed, opened
from cairn.errors import CairnWarning, Error, FailedPrecondition, InvalidArgument
from cairn.notices import log

if TYPE_CHECKING:
    from cairn.connection import Connection
    from cairn.step import Step

METADATA = ".metadata"
LATEST = "latest"
_LOOK_AGAIN_S = 0.05
_BEGINS_WITHIN_S = 60.0
_PROCESS_BEGINS_WITHIN_S = 1800.0  # as DCP waits


# --- which step --------------------------------------------------------------------------------------


def step_of(checkpoint_id: Any, connection: Connection, *, to_write: bool) -> tuple[str, int]:
    """(job, step) of a checkpoint_id, step NO_STEP for the latest.

    Raises:
      ValueError: it names no step, or to write another job's, or "latest".
    """
    job = connection.job
    text = checkpoint_id
    if isinstance(text, int) and not isinstance(text, bool):
        text = str(text)
    if not isinstance(text, str):
        paths.recognize(text, "")  # refuses what was a Cairn path before it became a PathLike
        raise InvalidArgument(
            f"checkpoint_id: {checkpoint_id!r} is a file's; wanted is {paths.SCHEME}JOB/STEP or STEP"
        )
    if text.isascii() and (text.isdigit() or text == LATEST):
        text = f"{paths.SCHEME}{job}/{text}"
    if not text.startswith(paths.SCHEME):
        raise InvalidArgument(
            f"checkpoint_id: {checkpoint_id!r} is not {paths.SCHEME}JOB/STEP or STEP"
        )
    try:
        found = paths.parse(text, job, needs_name=False)
    except InvalidArgument as error:
        raise InvalidArgument(
            f"checkpoint_id: {checkpoint_id!r} is not {paths.SCHEME}JOB/STEP or STEP: {error}"
        ) from None
    if found.name:
        raise InvalidArgument(f"checkpoint_id: {checkpoint_id!r} names an object, not a step")
    if to_write and found.step == _native.NO_STEP:
        raise InvalidArgument(f"checkpoint_id: {checkpoint_id!r}: what is written has a number")
    if to_write and found.job != job:
        raise InvalidArgument(
            f"checkpoint_id: {checkpoint_id!r} is of job {found.job}, and this connection writes {job}"
        )
    return found.job, found.step


# --- saving ------------------------------------------------------------------------------------------


class Writer(StorageWriter, AsyncStager):
    """A StorageWriter whose checkpoints are steps of a connection's job. Every rank of the saving group has
    one, over a connection of its own. It can be used again for the next step.

    The step is complete when `finish` has returned: the coordinator commits then, with the metadata in its
    part, and the others when they have written theirs. When anything fails on any rank the step is absent,
    and the previous one stays the latest.

    With `async_save` it is its own stager: there is no copy but the one into the node's memory, of what this
    rank writes. async_save returns when that has been made, and the rest goes on in DCP's thread.

    In DCP's process (AsyncCheckpointerType.PROCESS) it saves over its own connection, as the same writer.
    What it writes is known only there; so all of this rank's tensors are copied first, into memory that
    both processes map. async_save returns when that has been made; in the first save, once the process has
    started. `cairn.dcp.async_save` plans first, and spares that copy.
    """

    def __init__(
        self,
        connection: Connection,
        step: int | None = None,
        *,
        alone: bool = False,
        process_group: Any = None,
        overlap: Any = None,
        failed_before: Exception | None = None,
    ) -> None:
        """
        Args:
          connection: this process's; its rank and world size are those of the group that saves, or of a
              larger one.
          step: the step to save; None: the checkpoint_id says.
          alone: this process saves the step by itself, as with no_dist=True.
          process_group: the group that saves, where that is only some of the connection's ranks.
          overlap: as of `Connection.save_async`: async_save returns before these are copied. The group that
              saves must be another one than the training's.
          failed_before: why this rank cannot save, as all ranks are to hear once they plan.
        """
        super().__init__()
        self._connection = connection
        self._number = step
        self._among = (1, 0) if alone else _place_in(process_group)
        self._part: Step | None = None
        self._commits_last = True  # in `finish`: the coordinator, and everyone without collectives
        self._rank_metadata = False
        self._copied = threading.Event()
        self._awaited = False  # somebody waits for the copy
        self._overlap = None if overlap is None else unchanged.optimizers_and_tensors(overlap)
        self._synchronize_after_execute = self._overlap is None
        self._watch: unchanged.Watch | None = None
        self._watched_in: Any = None
        self._staged_at: float | None = None  # of the last async_save
        self._saver: threading.Thread | None = None  # of that, once it has begun
        self._failed_before = failed_before
        self._stage_failure: Exception | None = None  # all ranks are to hear of it
        self._beside_plan: Any = None  # of this save
        self._abandoned = False  # who waited for its copy does not wait any more
        self._parcel: child_memory.Parcel | None = None  # what was staged, should it go to a child
        self._own_connection = False  # in the child: it is closed when the save is over
        self._arrived: child_memory.Arrived | None = None  # in the child: that
        self._failure: Exception | None = None  # in the child: why it cannot save

    def reset(self, checkpoint_id: Any = None) -> None:
        self._in_save()
        self._drop()
        if checkpoint_id is not None:
            _, self._number = step_of(checkpoint_id, self._connection, to_write=True)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return isinstance(checkpoint_id, str) and checkpoint_id.startswith(paths.SCHEME)

    @property
    def checkpoint_id(self) -> str:
        step = "?" if self._number is None else self._number
        return f"{paths.SCHEME}{self._connection.job}/{step}"

    def storage_meta(self) -> StorageMeta:
        """The first call of a save, on every rank: the step is entered here, also where planning then
        fails, so that the next save of the same step has the same revision on all ranks."""
        self._in_save()
        self._enter()
        if self._arrived is not None:
            self._arrived.check()
        return StorageMeta(checkpoint_id=self.checkpoint_id, save_id=self._save_id())

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._part is None:
            self._enter()
        rank = kwargs.get("rank", self._rank())
        if rank is not None and rank != self._rank():
            raise InvalidArgument(
                f"process_group: this is rank {rank} of the group that saves, and the Writer is rank "
                f"{self._rank()}: give the Writer the group, too"
            )
        self._rank_metadata = not kwargs.get("use_collectives", True)
        self._commits_last = is_coordinator or self._rank_metadata

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        failure, self._stage_failure = self._stage_failure, None
        if failure is None:
            failure = self._failed_before
        if failure is not None:
            raise as_others_get_it(failure)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        with self._dropping_what_fails():
            try:
                results = self._copy(plan, planner)
                self._check_copied()
            finally:
                self._forget_staging()
            if not self._commits_last:
                self._commit()
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def _copy(self, plan: SavePlan, planner: SavePlanner) -> Sequence[WriteResult]:
        """Writes what this rank saves. Afterwards the state may change."""
        part = self._entered()
        name = f"__{self._rank()}_0.distcp"
        forms, wheres, keep = kept_saves.pieces(plan, planner)
        self._beside_plan = getattr(planner, "beside", None)
        part._copy_beside(self._watch is not None and not self._awaited)
        places = part._write_pieces(name, "raw", forms, wheres) if forms else b""
        del keep
        return kept_saves.results(plan, planner, name, places, self._save_id())

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        with self._dropping_what_fails():
            part = self._entered()
            writers = self._connection.world_size if self._among is None else self._among[0]
            if len(results) != writers and not self._rank_metadata:
                raise InvalidArgument(
                    f"no_dist, process_group: {len(results)} save, and the Writer is one of {writers}: give "
                    "it alone=True, or the process_group"
                )
            self._check_same(results)
            name = f"__{self._rank()}{METADATA}" if self._rank_metadata else METADATA
            storage_meta = StorageMeta(self.checkpoint_id, self._save_id())
            content, index = kept_saves.finish(metadata, results, storage_meta, self._beside_plan)
            part.save(content, name)
            if index is not None and not self._rank_metadata:
                part.save(index, name + read_index.SUFFIX)
            self._commit()

    def _check_same(self, results: list[list[WriteResult]]) -> None:
        """Raises where the ranks saved different steps: two saves would make one step of two states."""
        mine = self._save_id()
        for rank, of_rank in enumerate(results):
            said = getattr(of_rank, "save_id", mine)
            if said != mine:
                raise FailedPrecondition(
                    f"step: the ranks of a group save the same one; rank {self._rank()} saves {mine}, and "
                    f"rank {rank} saves {said} (JOB/STEP@ATTEMPT.REVISION)"
                    + _why_revisions_differ(mine, said)
                )

    # --- as a stager

    def stage(self, state_dict: Any) -> Any:
        """Copies nothing yet: which of it this rank writes is known when the save has been planned. With
        `overlap` what is not of it is copied now."""
        staged = self._begin_staging(state_dict)
        if self._connection._child_memories is None:
            self._connection._child_memories = child_memory.Memories()
        self._parcel = child_memory.Parcel(
            staged, self._connection._child_memories, self._check_copied, self._forget_staging
        )
        return child_memory.Staged(staged, self._parcel)

    def _begin_staging(self, state_dict: Any) -> Any:
        saver = self._saver
        if saver is not None and saver is not threading.current_thread():
            saver.join()  # the save before
        self._staged_at, self._saver = time.monotonic(), None
        self._awaited = self._abandoned = False
        self._stage_failure = None
        self._copied.clear()
        if self._overlap is None:
            return state_dict
        try:
            self._watch = unchanged.Watch(self._overlap)
            self._watched_in = opened(state_dict)
            staged = _copied(state_dict, self._watch)
            self._watch.complete()
        except Exception as error:
            # Raised here the other ranks would wait for this one, which would be in no save. They hear of it
            # where the save is planned.
            self._forget_staging()
            self._stage_failure = error
            return state_dict
        except BaseException:
            self._forget_staging()
            raise
        savings = self._connection._savings
        savings.fence_before_steps_of(self._overlap)
        savings.hold(self._wait_copied)
        return staged

    def _check_copied(self) -> None:
        if self._abandoned:
            raise FailedPrecondition("nobody waited any more for what was to be copied")
        if self._watch is not None:
            self._watch.check({"state_dict": self._watched_in}, places=True)

    def synchronize_staging(self) -> None:
        """Until this rank's part is copied, or the save has failed."""
        try:
            self._wait_copied(None)
        except BaseException:
            self._abandoned = True
            raise

    def _in_save(self) -> None:
        """In the thread that saves, at the begin of a save: the staged one, or one without."""
        if self._staged_at is not None and self._saver is None:
            self._saver = threading.current_thread()
        elif self._saver is not threading.current_thread():
            self._forget_staging()

    def _forget_staging(self) -> None:
        self._watch = self._watched_in = None
        if self._parcel is not None:
            self._parcel.forget()
        if self._arrived is not None:
            self._arrived.release()
        self._copied.set()

    def _wait_copied(self, timeout: float | None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        self._awaited = timeout != 0
        part = self._part
        if part is not None and self._awaited:
            part._copy_beside(False)
        while not self._copied.wait(_LOOK_AGAIN_S if timeout != 0 else 0):
            saver, now = self._saver, time.monotonic()
            if saver is None:
                # DCP has begun no save, as where it got no thread. If it does later it will not be taken.
                # Its process may take long to start; it is one of these.
                patience = _PROCESS_BEGINS_WITHIN_S if active_children() else _BEGINS_WITHIN_S
                if now - (self._staged_at or now) > patience:
                    self._abandoned = True
            if self._abandoned or (saver is not None and not saver.is_alive()):
                self._forget_staging()
            elif end is not None and now >= end:
                return False
        return True

    def give_up(self) -> None:
        """Nobody waits for what was staged: a save of it that begins all the same fails."""
        self._abandoned = True
        self._forget_staging()

    def close(self) -> None:
        pass

    def __getstate__(self) -> dict[str, Any]:
        """For DCP's process. Raises nothing where the other ranks would wait for this one."""
        parcel, self._parcel = self._parcel, None
        if parcel is not None:
            _say_once(
                "DCP's process plans what this rank writes, so all of its tensors are copied for it first; "
                "cairn.dcp.async_save plans before it copies (said once)"
            )
        connection, failure = self._connection, None
        if self._failed_before is not None:
            failure = errors.to_plain(self._failed_before)
        try:
            connection._must_be_picklable()
        except Error as error:
            connection, failure = connection._reader(), errors.to_plain(error)
        return {
            "connection": connection,
            "number": self._number,
            "among": self._among,
            "arrived": parcel,
            "failure": failure,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        Writer.__init__(self, state["connection"], state["number"])
        self._among = state["among"]
        self._own_connection = True
        self._arrived = state["arrived"]
        if state["failure"] is not None:
            self._failure = errors.from_plain(*state["failure"])

    # --- its part of the step

    def _rank(self) -> int:
        return self._connection.rank if self._among is None else self._among[1]

    def _save_id(self) -> str:
        part = self._entered()
        return f"{self._connection.job}/{part.step}@{self._connection.attempt}.{part.revision}"

    def _enter(self) -> None:
        self._drop()
        if self._failure is not None:
            raise self._failure
        if self._number is None:
            raise InvalidArgument("checkpoint_id: give one, or the Writer a step")
        writers, writer = self._among or (None, None)
        self._part = self._connection.step(
            self._number, writers, strict=True, writer=writer
        ).begin()

    def _entered(self) -> Step:
        if self._part is None:
            raise FailedPrecondition("this Writer is in no save")
        return self._part

    def _commit(self) -> None:
        part, self._part = self._entered(), None
        part.commit()
        self._over()

    def _over(self) -> None:
        """A child leaves nothing mapped: its parent or the next save need the memory."""
        if self._own_connection:
            self._drop()
            self._connection.close()

    @contextlib.contextmanager
    def _dropping_what_fails(self) -> Iterator[None]:
        """At once: the error that DCP's future keeps would keep this, and with it the part's memory."""
        try:
            yield
        except BaseException:
            self._drop()
            self._over()
            raise

    def _drop(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            part.discard()


def as_others_get_it(error: BaseException) -> Exception:
    """It, or what says the same, if other ranks could not read it: they would wait for this one."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return Error(f"{type(error).__name__}: {error}")
    return error if isinstance(error, Exception) else Error(f"{type(error).__name__}: {error}")


def _why_revisions_differ(one: str, other: str) -> str:
    if one.rpartition(".")[0] != other.rpartition(".")[0]:
        return ""
    return (
        ": one of them has entered this step more often, as where a save failed before the other met it; "
        "save another step"
    )


def _place_in(group: Any) -> tuple[int, int] | None:
    """(its size, this process's rank in it); None: no group."""
    if group is None:
        return None
    return dist.get_world_size(group), dist.get_rank(group)


_said: set[str] = set()


def _say_once(text: str) -> None:
    if text in _said:
        return
    _said.add(text)
    log.warning("%s", text)
    with contextlib.suppress(
        CairnWarning
    ):  # it may be an error there: not what fails one rank's save
        warnings.warn(text, CairnWarning, stacklevel=2)


def _copied(obj: Any, watch: unchanged.Watch) -> Any:
    """With copies of all but what is watched from now on."""
    if isinstance(obj, torch.Tensor):
        if watch.add([(unchanged.local(obj), unchanged.address(obj))]):
            return obj
        return own_chunks.copied(obj)
    if isinstance(obj, Enclosed):
        return Enclosed(_copied(obj.whole, watch))
    if isinstance(obj, dict):
        return {key: _copied(value, watch) for key, value in obj.items()}
    if type(obj) in (list, tuple):
        return type(obj)(_copied(value, watch) for value in obj)
    return copy.deepcopy(obj)
