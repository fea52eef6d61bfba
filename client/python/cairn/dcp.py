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

import io
import pickle
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
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from cairn import _native, dcp_reads, distributed, paths, tensor_archives
from cairn.checkpoint import Checkpoint
from cairn.comparing_planner import ComparingPlanner
from cairn.errors import Corrupt, FailedPrecondition, InvalidArgument

if TYPE_CHECKING:
    from cairn.connection import Connection
    from cairn.payload import Piece
    from cairn.step import Step

METADATA = ".metadata"
LATEST = "latest"

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


class Writer(StorageWriter):
    """A StorageWriter whose checkpoints are steps of a connection's job. Every rank of the saving group has
    one, over a connection of its own. It can be used again for the next step.

    The step is complete when `finish` has returned: the coordinator commits then, with the metadata in its
    part, and the others when they have written theirs. When anything fails on any rank the step is absent,
    and the previous one stays the latest.
    """

    def __init__(
        self, connection: Connection, step: int | None = None, *, alone: bool = False
    ) -> None:
        """
        Args:
          connection: its rank and world size are those of the group that saves.
          step: the step to save; None: the checkpoint_id says.
          alone: this process saves the step by itself, as with no_dist=True.
        """
        super().__init__()
        self._connection = connection
        self._number = step
        self._alone = alone
        self._part: Step | None = None
        self._commits_last = True  # in `finish`: the coordinator, and everyone without collectives
        self._rank_metadata = False

    def reset(self, checkpoint_id: Any = None) -> None:
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
        places = part._write_pieces(name, "raw", pieces) if pieces else []
        del keep
        if not self._commits_last:
            self._commit()
        done: Future[list[WriteResult]] = Future()
        done.set_result(list(_results(plan.items, name, places)))
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        part = self._entered()
        metadata.storage_data = {
            result.index: result.storage_data for of_rank in results for result in of_rank
        }
        metadata.storage_meta = StorageMeta(self.checkpoint_id, self._save_id())
        name = f"__{self._rank()}{METADATA}" if self._rank_metadata else METADATA
        part.save(pickle.dumps(metadata), name)
        self._commit()

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
            planner=planner,
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
    **arguments: Any,
) -> Any:
    """Stock `dcp.async_save` into a step of the connection's job, with its arguments and its answer. The
    state is staged by DCP's stager before it returns."""
    _check_group(connection, process_group, alone=False)
    return stock.async_save(
        state_dict,
        storage_writer=Writer(connection, step),
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
