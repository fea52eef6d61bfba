"""torch.distributed.checkpoint (DCP) through the node's memory.

    import cairn.dcp

    c = cairn.connect(job="run7")                       # every rank of the group
    cairn.dcp.save({"model": model, "optim": optim}, c, 12)
    cairn.dcp.load({"model": model, "optim": optim}, c) # the latest; or a step

or with DCP's own functions, where a checkpoint_id names the step:

    dcp.save(state, checkpoint_id="cairn://run7/12", storage_writer=cairn.dcp.Writer(c))
    dcp.load(state, checkpoint_id="cairn://run7/12", storage_reader=cairn.dcp.Reader(c))

What is saved is what stock DCP writes: once persisted, the step is a folder that FileSystemReader reads. The
planner, resharding included, is DCP's own. Needs torch 2.
"""

from __future__ import annotations

import copy
import io
import pickle
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if int(torch.__version__.split(".")[0]) < 2:
    raise ImportError(f"cairn.dcp needs PyTorch 2, and this is {torch.__version__}")

import torch.distributed.checkpoint as stock
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from cairn import _native, dcp_reads, distributed, paths, read_index, tensor_archives, unchanged
from cairn.caching_planner import CachingPlanner
from cairn.checkpoint import Checkpoint
from cairn.comparing_planner import ComparingPlanner
from cairn.errors import Corrupt, FailedPrecondition, InvalidArgument

if TYPE_CHECKING:
    from cairn.connection import Connection
    from cairn.payload import Piece
    from cairn.step import Step

METADATA = ".metadata"
LATEST = "latest"
_LOOK_AGAIN_S = 0.05
_BEGINS_WITHIN_S = 60.0

__all__ = ["Reader", "Writer", "async_save", "load", "save"]


# --- which step --------------------------------------------------------------------------------------


def _step_of(checkpoint_id: Any, connection: Connection, *, to_write: bool) -> tuple[str, int]:
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
        self._abandoned = False  # who waited for its copy does not wait any more

    def reset(self, checkpoint_id: Any = None) -> None:
        self._in_save()
        self._drop()
        if checkpoint_id is not None:
            _, self._number = _step_of(checkpoint_id, self._connection, to_write=True)

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

    def _copy(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        """Writes what this rank saves. Afterwards the state may change."""
        part = self._entered()
        name = f"__{self._rank()}_0.distcp"
        pieces: list[Piece] = []
        keep: list[Any] = []
        for item in plan.items:
            data = planner.resolve_data(item)
            if item.type == WriteItemType.BYTE_IO:
                assert isinstance(data, io.BytesIO)
                view = data.getbuffer()
                pieces.append((None, [(view, view.nbytes)]))
                keep.append(view)
            else:
                archived = tensor_archives.of_tensor(data)
                pieces.append(archived.piece)
                keep.append(archived.keep)
        part._copy_beside(self._watch is not None and not self._awaited)
        places = part._write_pieces(name, "raw", pieces) if pieces else []
        del keep
        return list(_results(plan.items, name, places))

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        part = self._entered()
        metadata.storage_data = {
            result.index: result.storage_data for of_rank in results for result in of_rank
        }
        metadata.storage_meta = StorageMeta(self.checkpoint_id, self._save_id())
        name = f"__{self._rank()}{METADATA}" if self._rank_metadata else METADATA
        content = pickle.dumps(metadata)
        part.save(content, name)
        index = None if self._rank_metadata else read_index.encode(metadata, content)
        if index is not None:
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


def _results(
    items: list[WriteItem], name: str, places: list[tuple[int, int]]
) -> Iterator[WriteResult]:
    for item, (offset, length) in zip(items, places, strict=True):
        yield WriteResult(
            index=item.index,
            size_in_bytes=length,
            storage_data=_StorageInfo(name, offset, length),
        )


# --- loading -----------------------------------------------------------------------------------------


class Reader(StorageReader):
    """A StorageReader over the steps of a connection's job, or of another job that it may read. What it reads
    is verified, and comes from one checkpoint (step, attempt, revision), whatever is saved meanwhile."""

    def __init__(self, connection: Connection, checkpoint: Checkpoint | int | None = None) -> None:
        """
        Args:
          checkpoint: which one to read, as `resume_latest` found it, or a step; None: the checkpoint_id
              says. Ranks of a group that read "latest" each for themselves may find different ones:
              `cairn.dcp.load` asks once for all.
        """
        super().__init__()
        self._connection = connection
        self._checkpoint = (
            self._find(connection.job, checkpoint) if isinstance(checkpoint, int) else checkpoint
        )
        self._storage_data: dict[MetadataIndex, _StorageInfo] = {}

    def reset(self, checkpoint_id: Any = None) -> None:
        self._storage_data = {}
        if checkpoint_id is not None:
            self._checkpoint = self._find(
                *_step_of(checkpoint_id, self._connection, to_write=False)
            )

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return Writer.validate_checkpoint_id(checkpoint_id)

    @property
    def checkpoint_id(self) -> str:
        found = self._found()
        return f"{paths.SCHEME}{found.job}/{found.step}"

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        rank = kwargs.get("rank")
        name = METADATA if rank is None else f"__{rank}{METADATA}"
        found = self._found()
        indexed = read_index.read(found, name) if rank is None else None
        if indexed is not None:
            return indexed
        content = found.load(name)
        try:
            metadata = pickle.loads(content)
        except Exception as error:
            raise Corrupt(
                f"{name} of checkpoint {found} is no metadata of DCP: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
            raise Corrupt(
                f"{name} of checkpoint {found} holds {type(metadata).__name__}, not DCP's"
            )
        return metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        self._storage_data = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        of_object: dict[str, list[tuple[_StorageInfo, ReadItem]]] = {}
        for item in plan.items:
            where = self._storage_data[item.storage_index]
            of_object.setdefault(where.relative_path, []).append((where, item))
        for name, items in of_object.items():
            dcp_reads.read_items(self._found(), name, items, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _found(self) -> Checkpoint:
        if self._checkpoint is None:
            raise InvalidArgument("checkpoint_id: give one, or the Reader a checkpoint")
        return self._checkpoint

    def _find(self, job: str, step: int) -> Checkpoint:
        return _checkpoint(self._connection, job, step)


def _checkpoint(connection: Connection, job: str, step: int) -> Checkpoint:
    """A complete one. NO_STEP: the latest."""
    if step == _native.NO_STEP:
        return Checkpoint.of(connection, connection.latest(job))
    return connection.checkpoint(step, job)


# --- both in one word --------------------------------------------------------------------------------


def _alone(group: Any, no_dist: bool) -> bool:
    return no_dist or distributed.group_size() == 0


def _check_group(connection: Connection, group: Any, alone: bool) -> None:
    if alone:
        return
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    if (size, rank) != (connection.world_size, connection.rank):
        raise InvalidArgument(
            f"process_group: this is rank {rank} of {size} in it, and the connection is rank "
            f"{connection.rank} of {connection.world_size}; connect(rank=, world_size=) says which"
        )


def save(
    state_dict: dict[str, Any],
    connection: Connection,
    step: int,
    *,
    planner: SavePlanner | None = None,
    process_group: dist.ProcessGroup | None = None,
    no_dist: bool = False,
    use_collectives: bool = True,
) -> Metadata:
    """Stock `dcp.save` into a step of the connection's job. A collective of `process_group`; when it
    returns, the step is complete in memory.

    Raises:
      CheckpointException: it failed on some ranks, and says on which; the step is absent.
      ValueError: the connection is not the group's rank.
    """
    alone = _alone(process_group, no_dist)
    _check_group(connection, process_group, alone)
    writer = Writer(connection, step, alone=alone)
    try:
        return stock.save(
            state_dict,
            storage_writer=writer,
            planner=CachingPlanner(process_group, alone=alone or not use_collectives)
            if planner is None
            else planner,
            process_group=process_group,
            no_dist=alone,
            use_collectives=use_collectives,
        )
    finally:
        writer._drop()  # of a save that failed elsewhere


def async_save(
    state_dict: dict[str, Any],
    connection: Connection,
    step: int,
    *,
    planner: SavePlanner | None = None,
    process_group: dist.ProcessGroup | None = None,
    overlap: Any = None,
    **arguments: Any,
) -> Any:
    """Stock `dcp.async_save` into a step of the connection's job, with its arguments and its answer. It
    returns when this rank's part is copied, unless another `async_stager` is given.

    Args:
      process_group: None: a gloo group of all ranks of its own, so that what DCP's thread says in it does not
          get mixed up with the training's collectives. The first call makes it, on every rank.
      overlap: an optimizer, several, or tensors, as of `Connection.save_async`: it returns before what only
          their step changes is copied, and that step, or `fence`, waits for the copy.

    Raises:
      ValueError: the connection is not the group's rank; AsyncCheckpointerType.PROCESS; `overlap` beside an
          `async_stager`.
    """
    kind = arguments.get("async_checkpointer_type")
    if getattr(kind, "name", "THREAD") != "THREAD":
        raise InvalidArgument(f"async_checkpointer_type: {kind}: only THREAD is supported")
    if overlap is not None and arguments.get("async_stager") is not None:
        raise InvalidArgument("overlap: the async_stager that is given decides when it copies")
    alone = _alone(process_group, bool(arguments.get("no_dist")))
    _check_group(connection, process_group, alone)
    if process_group is None and not alone:
        process_group = distributed.own_group()
    if planner is None:
        together = arguments.get("use_collectives", True) and not alone
        planner = CachingPlanner(process_group, alone=not together)
    return stock.async_save(
        state_dict,
        storage_writer=Writer(connection, step, alone=alone, overlap=overlap),
        planner=planner,
        process_group=process_group,
        **arguments,
    )


def load(
    state_dict: dict[str, Any],
    connection: Connection,
    step: int | Checkpoint | None = None,
    *,
    planner: LoadPlanner | None = None,
    process_group: dist.ProcessGroup | None = None,
    no_dist: bool = False,
) -> Checkpoint:
    """Stock `dcp.load` from a checkpoint: of `resume_latest`, of a step, or the latest (None). All ranks read
    the same one, which is returned.

    Raises:
      cairn.NotFound: there is none.
      CheckpointException: it failed on some ranks, and says on which. Of a checkpoint of another model it
          lists the names that are missing and the shapes and dtypes that differ.
    """
    alone = _alone(process_group, no_dist)
    if isinstance(step, Checkpoint):
        found = step
    else:
        number = _native.NO_STEP if step is None else step

        def ask() -> Checkpoint:
            return _checkpoint(connection, connection.job, number)

        found = ask() if alone else _agreed(connection, ask, number)
    stock.load(
        state_dict,
        storage_reader=Reader(connection, found),
        planner=ComparingPlanner() if planner is None else planner,
        process_group=process_group,
        no_dist=alone,
    )
    return found


def _agreed(connection: Connection, ask: Any, step: int) -> Checkpoint:
    def plain() -> tuple[Any, ...]:
        return ask()._plain()

    return Checkpoint(
        *distributed.agree(plain, job=connection.job, step=step), _connection=connection
    )
