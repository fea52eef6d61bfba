"""DCP's StorageWriter over a connection, which is its own stager. `cairn.dcp` says how it is used."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from cairn import _native, kept_saves, paths, read_index, unchanged
from cairn.errors import FailedPrecondition, InvalidArgument

if TYPE_CHECKING:
    from cairn.connection import Connection
    from cairn.step import Step

METADATA = ".metadata"
LATEST = "latest"
_LOOK_AGAIN_S = 0.05
_BEGINS_WITHIN_S = 60.0


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
    found = paths.parse(text, job, needs_name=False)
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
    """

    def __init__(
        self,
        connection: Connection,
        step: int | None = None,
        *,
        alone: bool = False,
        overlap: Any = None,
    ) -> None:
        """
        Args:
          connection: its rank and world size are those of the group that saves.
          step: the step to save; None: the checkpoint_id says.
          alone: this process saves the step by itself, as with no_dist=True.
          overlap: as of `Connection.save_async`: async_save returns before these are copied. The group that
              saves must be another one than the training's.
        """
        super().__init__()
        self._connection = connection
        self._number = step
        self._alone = alone
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
        self._beside_plan: Any = None  # of this save
        self._abandoned = False  # who waited for its copy does not wait any more

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
        return StorageMeta(checkpoint_id=self.checkpoint_id, save_id=self._save_id())

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._part is None:
            self._enter()
        self._rank_metadata = not kwargs.get("use_collectives", True)
        self._commits_last = is_coordinator or self._rank_metadata

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        try:
            results = self._copy(plan, planner)
            if self._abandoned:
                raise FailedPrecondition("nobody waited any more for what was to be copied")
            if self._watch is not None:
                self._watch.check({"state_dict": self._watched_in}, places=True)
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
        return kept_saves.results(plan, planner, name, places)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        part = self._entered()
        name = f"__{self._rank()}{METADATA}" if self._rank_metadata else METADATA
        storage_meta = StorageMeta(self.checkpoint_id, self._save_id())
        content, index = kept_saves.finish(metadata, results, storage_meta, self._beside_plan)
        part.save(content, name)
        if index is not None and not self._rank_metadata:
            part.save(index, name + read_index.SUFFIX)
        self._commit()

    # --- as a stager

    def stage(self, state_dict: Any) -> Any:
        """Copies nothing yet: which of it this rank writes is known when the save has been planned. With
        `overlap` what is not of it is copied now."""
        saver = self._saver
        if saver is not None and saver is not threading.current_thread():
            saver.join()  # the save before
        self._staged_at, self._saver = time.monotonic(), None
        self._awaited = self._abandoned = False
        self._copied.clear()
        if self._overlap is None:
            return state_dict
        try:
            self._watch = unchanged.Watch(self._overlap)
            self._watched_in = state_dict
            staged = _copied(state_dict, self._watch)
            self._watch.complete()
        except BaseException:
            self._forget_staging()
            raise
        savings = self._connection._savings
        savings.fence_before_steps_of(self._overlap)
        savings.hold(self._wait_copied)
        return staged

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
                self._abandoned = now - (self._staged_at or now) > _BEGINS_WITHIN_S
            if self._abandoned or (saver is not None and not saver.is_alive()):
                self._forget_staging()
            elif end is not None and now >= end:
                return False
        return True

    def close(self) -> None:
        pass

    def __reduce__(self) -> Any:
        self._copied.set()  # nobody shall wait for what another process would copy
        raise FailedPrecondition(
            "a cairn.dcp.Writer saves in its own process; AsyncCheckpointerType.PROCESS is not supported"
        )

    # --- its part of the step

    def _rank(self) -> int:
        return 0 if self._alone else self._connection.rank

    def _save_id(self) -> str:
        part = self._entered()
        return f"{self._connection.job}/{part.step}@{self._connection.attempt}.{part.revision}"

    def _enter(self) -> None:
        self._drop()
        if self._number is None:
            raise InvalidArgument("checkpoint_id: give one, or the Writer a step")
        writers = 1 if self._alone else None
        self._part = self._connection.step(self._number, writers, strict=True).begin()

    def _entered(self) -> Step:
        if self._part is None:
            raise FailedPrecondition("this Writer is in no save")
        return self._part

    def _commit(self) -> None:
        part, self._part = self._entered(), None
        part.commit()

    def _drop(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            part.discard()


def _copied(obj: Any, watch: unchanged.Watch) -> Any:
    """With copies of all but what is watched from now on."""
    if isinstance(obj, torch.Tensor):
        if watch.add([(unchanged.local(obj), unchanged.address(obj))]):
            return obj
        return obj.detach().clone()
    if isinstance(obj, dict):
        return {key: _copied(value, watch) for key, value in obj.items()}
    if type(obj) in (list, tuple):
        return type(obj)(_copied(value, watch) for value in obj)
    return copy.deepcopy(obj)
