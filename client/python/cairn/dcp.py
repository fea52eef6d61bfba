"""torch.distributed.checkpoint (DCP) through the node's memory.

    import cairn.dcp

    c = cairn.connect(job="run7")                       # every rank of the group
    state = dict(zip(("model", "optim"), get_state_dict(model, optim)))
    cairn.dcp.save(state, c, 12)
    cairn.dcp.load(state, c)                            # the latest; or a step. Then set_state_dict

or with DCP's own functions, where a checkpoint_id names the step:

    dcp.save(state, checkpoint_id="cairn://run7/12", storage_writer=cairn.dcp.Writer(c))
    dcp.load(state, checkpoint_id="cairn://run7/12", storage_reader=cairn.dcp.Reader(c))

What is saved is what stock DCP writes: once persisted, the step is a folder that FileSystemReader reads. The
planner, resharding included, is DCP's own. Needs torch 2.

One file: all that a user calls, over what the modules beside it do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pickle
import threading
import weakref
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

if int(torch.__version__.split(".")[0]) < 2:
    raise ImportError(f"cairn.dcp needs PyTorch 2, and this is {torch.__version__}")

import torch.distributed.checkpoint as stock
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from cairn import _native, dcp_process, dcp_reads, distributed, paths, read_index
from cairn import exchange as exchanging
from cairn.arguments import step_number
from cairn.caching_planner import CachingPlanner
from cairn.checkpoint import Checkpoint
from cairn.comparing_planner import (
    DTYPES,
    MISSING,
    SHAPES,
    ComparingPlanner,
    OwnPlan,
    differences,
    in_words,
)
from cairn.connection import Connection
from cairn.dcp_writer import METADATA, Writer, step_of
from cairn.enclosed import enclose, is_stateful, opened, resolved
from cairn.errors import CairnWarning, Corrupt, Error, InvalidArgument
from cairn.exchange import Traffic
from cairn.notices import log

__all__ = ["Comparison", "Reader", "Writer", "async_save", "compare", "load", "save"]


# --- loading -----------------------------------------------------------------------------------------


class Reader(StorageReader):
    """A StorageReader over the steps of a connection's job, or of another job that it may read. What it reads
    is verified, and comes from one checkpoint (step, attempt, revision), whatever is saved meanwhile.

    Attributes:
      traffic: of the last load, what this rank has read and exchanged; None: it read for itself.
    """

    def __init__(
        self,
        connection: Connection,
        checkpoint: Checkpoint | int | None = None,
        *,
        exchange: bool | str = False,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        """
        Args:
          checkpoint: which one to read, as `resume_latest` found it, or a step; None: the checkpoint_id
              says. Ranks of a group that read "latest" each for themselves may find different ones:
              `cairn.dcp.load` asks once for all.
          exchange: as `load`'s. Every rank of the load must have the same.
          process_group: of an exchange: that of the load; None: a gloo group of all ranks, which the first
              exchange makes.

        Raises:
          ValueError: `exchange` is none; a group that has no backend for the CPU, to exchange over.
        """
        super().__init__()
        self._method = exchanging.method_of(exchange)
        self._group = process_group
        if (
            self._method
            and process_group is not None
            and not distributed.has_cpu_backend(process_group)
        ):
            raise InvalidArgument(
                "process_group: it has no backend for the CPU (gloo), and exchange needs one"
            )
        self._decision: exchanging.Decision | None = None
        self._use_collectives = True
        self.traffic: Traffic | None = None
        self._connection = connection
        self._checkpoint = (
            checkpoint
            if checkpoint is None or isinstance(checkpoint, Checkpoint)
            else self._find(connection.job, step_number("checkpoint", checkpoint))
        )
        self._storage_data: dict[MetadataIndex, _StorageInfo] = {}
        self._own_plan: OwnPlan | None = None

    def reset(self, checkpoint_id: Any = None) -> None:
        self._storage_data = {}
        if checkpoint_id is not None:
            self._checkpoint = self._find(*step_of(checkpoint_id, self._connection, to_write=False))

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
        load = found.load
        if rank is None:
            self._decision = self._decide()
            if self._decision is not None:
                load = functools.partial(exchanging.share, self._decision.group, found.load)
            indexed = read_index.read(found, name, load)
            if indexed is not None:
                return indexed
        content = load(name)
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
        self._use_collectives = kwargs.get("use_collectives", True)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        # Stock sends each rank's plan to the coordinator and back: thousands of small objects, pickled twice.
        stays = isinstance(plan, OwnPlan) and type(self) is Reader
        self._own_plan = plan if stays else None
        return LoadPlan([]) if stays else plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        own, self._own_plan = self._own_plan, None
        whole = plan if own is None else own
        self.traffic = None
        decision = self._decision if self._use_collectives else None
        if decision is None:
            for name, items in self._of_object(whole).items():
                dcp_reads.read_items(self._found(), name, items, planner)
        else:
            self.traffic = dcp_reads.exchange_items(
                self._found(), lambda: self._of_object(whole), planner, decision
            )
            log.debug("checkpoint %s, with an exchange: %s", self._found(), self.traffic)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _of_object(self, plan: LoadPlan) -> dict[str, dcp_reads.Items]:
        of_object: dict[str, dcp_reads.Items] = {}
        for item in plan.items:
            where = self._storage_data[item.storage_index]
            of_object.setdefault(where.relative_path, []).append((where, item))
        return of_object

    def _decide(self) -> exchanging.Decision | None:
        if self._method is None or distributed.group_size() == 0:
            return None
        group = distributed.own_group("load") if self._group is None else self._group
        return exchanging.decide(group, self._method, self._is_far)

    def _is_far(self) -> bool:
        """Whether some of the checkpoint is not in this node's memory."""
        found = self._found()
        which = (found.job, found.step, found.attempt, found.revision)
        facts = self._connection._session().stat(*which)["facts"]
        return not facts["resident"]

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
    if rank < 0:
        raise InvalidArgument("process_group: this process is not in it")
    of_all = (size, rank) == (connection.world_size, connection.rank)
    if not of_all and size >= connection.world_size:
        raise InvalidArgument(
            f"process_group: this is rank {rank} of {size} in it, and the connection is rank "
            f"{connection.rank} of {connection.world_size}; connect(rank=, world_size=) says which"
        )


def _check_arguments(state_dict: Any, connection: Any) -> None:
    if not callable(getattr(state_dict, "items", None)):
        raise InvalidArgument(
            f"state_dict: is of type {type(state_dict).__name__}, wanted is a mapping of names, as "
            '{"model": model.state_dict()}'
        )
    if not isinstance(connection, Connection):
        raise InvalidArgument(
            f"connection: is of type {type(connection).__name__}, wanted is what cairn.connect() returns"
        )


def _ready(
    state_dict: dict[str, Any], enclosed: bool, alone: bool
) -> tuple[dict[str, Any], Exception | None]:
    """The state dict as stock is to get it, and why this rank cannot save, if so: it takes part all the same,
    and all hear of it where the save is planned, for which the others would wait."""
    whole: dict[str, Any] = {}
    failure: Exception | None = None
    try:
        whole = resolved(state_dict, state_dict)
    except Exception as error:
        if alone:
            raise
        failure = error
    return enclose(whole) if enclosed else whole, failure


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
    _check_arguments(state_dict, connection)
    _check_group(connection, process_group, alone)
    state_dict, failure = _ready(state_dict, planner is None, alone)
    writer = Writer(
        connection, step, alone=alone, process_group=process_group, failed_before=failure
    )
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


# One function: most of it says what each argument means.
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
    returns when this rank's part is copied, unless another `async_stager` is given. The one before is waited
    for: one goes on at a time. AsyncCheckpointerType.PROCESS plans and copies here, too, and the process ends
    the save. One that fails is counted and warned of, too, as of `Connection.step`.

    Args:
      process_group: None: a gloo group of all ranks of its own, so that what DCP's thread says in it does not
          get mixed up with the training's collectives. The first call makes it, on every rank.
      overlap: an optimizer, several, or tensors, as of `Connection.save_async`: it returns before what only
          their step changes is copied, and that step, or `fence`, waits for the copy.

    Raises:
      ValueError: the connection is not the group's rank; AsyncCheckpointerType.PROCESS without
          init_process_group; `overlap` beside an `async_stager`; a `process_group` without a CPU backend.
    """
    kind = arguments.get("async_checkpointer_type")
    in_process = getattr(kind, "name", "THREAD") == "PROCESS"
    if in_process and distributed.group_size() == 0:
        raise InvalidArgument(f"async_checkpointer_type: {kind} needs init_process_group first")
    stager = arguments.get("async_stager")
    if overlap is not None and stager is not None:
        raise InvalidArgument("overlap: the async_stager that is given decides when it copies")
    alone = _alone(process_group, bool(arguments.get("no_dist")))
    _check_arguments(state_dict, connection)
    _check_group(connection, process_group, alone)
    if process_group is None and not alone:
        process_group = distributed.own_group("async_save")
    if not alone and not distributed.has_cpu_backend(process_group):
        raise InvalidArgument(
            "process_group: it has no CPU backend, which what DCP's thread says needs; leave it out, and a "
            "gloo group of Cairn's own is used"
        )
    _wait_for_uploads(connection, process_group)
    state_dict, failure = _ready(state_dict, planner is None and stager is None, alone)
    writer: Writer | None = None
    if in_process and stager is None:
        answer = dcp_process.async_save(
            state_dict,
            connection,
            step,
            planner=planner,
            process_group=process_group,
            alone=alone,
            overlap=overlap,
            failed_before=failure,
            **arguments,
        )
    else:
        together = arguments.get("use_collectives", True) and not alone
        writer = Writer(
            connection,
            step,
            alone=alone,
            process_group=process_group,
            overlap=overlap,
            failed_before=failure,
        )
        try:
            answer = stock.async_save(
                state_dict,
                storage_writer=writer,
                planner=CachingPlanner(process_group, alone=not together)
                if planner is None
                else planner,
                process_group=process_group,
                **arguments,
            )
        except BaseException:
            writer.give_up()
            if writer._saver is not None:  # it goes on, and the next save is to wait for it
                end_of = _EndOf(writer._saver)
                _uploads.append(_Upload(weakref.ref(connection), id(process_group), end_of))
            raise
    upload = getattr(answer, "upload_completion", answer)
    ended = threading.Event()
    _uploads.append(_Upload(weakref.ref(connection), id(process_group), ended))

    rank = 0 if alone else dist.get_rank(process_group)

    def end(upload: Any) -> None:
        try:
            if writer is not None:
                writer._drop()  # of a save that failed elsewhere
            _note_failure(connection, step, rank, upload)
        finally:
            ended.set()

    upload.add_done_callback(end)
    return answer


def _note_failure(connection: Connection, step: int, rank: int, upload: Any) -> None:
    """Of a save that failed, for the caller may never ask its future."""
    if upload.cancelled() or upload.exception() is None:
        return
    error = dcp_process.of_rank(rank, upload.exception())
    if not isinstance(error, Error):
        error = Error(f"{type(error).__name__}: {error}")
    with contextlib.suppress(CairnWarning):  # it may be an error there
        connection._note_failure(step, error, False)


class _EndOf:
    """A thread's, as an Event."""

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread

    def wait(self) -> None:
        self._thread.join()

    def is_set(self) -> bool:
        return not self._thread.is_alive()


class _Upload(NamedTuple):
    """A save that `async_save` began. Not its future, which holds the metadata, or of one that failed the
    state."""

    connection: weakref.ref[Connection]
    group: int  # its id, which is no other's while the save goes on
    ended: threading.Event | _EndOf


_uploads: list[_Upload] = []


def _wait_for_uploads(connection: Connection, group: Any) -> None:
    """Two saves at once would talk in the same group, on some ranks in one order and on others in another. So
    would those of two connections."""
    for upload in list(_uploads):
        in_group = group is not None and upload.group == id(group)
        if in_group or upload.connection() is connection:
            upload.ended.wait()
    _uploads[:] = [upload for upload in _uploads if not upload.ended.is_set()]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How a checkpoint fits a state dict, of however many ranks either is. Names are those of the flat state
    dict ("model.layer.weight").

    Attributes:
      world_size: ranks that saved it.
      missing: what is wanted, and was not saved.
      unexpected: what was saved, and is not wanted. A load leaves it out.
      shapes, dtypes: what differs, each with its name, as it was saved and as it is wanted.
    """

    checkpoint: Checkpoint
    world_size: int
    missing: list[str]
    unexpected: list[str]
    shapes: list[str]
    dtypes: list[str]

    @property
    def fits(self) -> bool:
        """`load` loads it, resharding it if need be."""
        return not (self.missing or self.shapes or self.dtypes)

    def __str__(self) -> str:
        kinds = {MISSING: self.missing, SHAPES: self.shapes, DTYPES: self.dtypes}
        found = {what: which for what, which in kinds.items() if which}
        if self.unexpected:
            found["not wanted"] = self.unexpected
        said = in_words(found) or "every tensor fits"
        ranks = f"{self.world_size} rank{'' if self.world_size == 1 else 's'}"
        return f"checkpoint {self.checkpoint}, saved by {ranks}: {said}"


def compare(
    state_dict: dict[str, Any], connection: Connection, checkpoint: Checkpoint | int
) -> Comparison:
    """How a checkpoint that was saved through DCP, as `resume_latest` found it, or of a step, fits what this
    process wants to load. Reads its metadata only.

    Raises:
      cairn.MissingObject: it was not saved through DCP.
      ValueError: None, as `resume_latest` returns it where nothing was saved.
    """
    _check_arguments(state_dict, connection)
    if checkpoint is None:
        raise InvalidArgument("checkpoint: None, as where nothing was saved yet")
    reader = Reader(connection, checkpoint)
    checkpoint, metadata = reader._found(), reader.read_metadata()
    wanted, _ = flatten_state_dict(resolved(state_dict, state_dict))
    found = differences(wanted, metadata)
    return Comparison(
        checkpoint,
        checkpoint.world_size,
        found.get(MISSING, []),
        [repr(name) for name in metadata.state_dict_metadata if name not in wanted],
        found.get(SHAPES, []),
        found.get(DTYPES, []),
    )


def load(
    state_dict: dict[str, Any],
    connection: Connection,
    step: int | Checkpoint | None = None,
    *,
    planner: LoadPlanner | None = None,
    process_group: dist.ProcessGroup | None = None,
    no_dist: bool = False,
    exchange: bool | str = "auto",
) -> Checkpoint:
    """Stock `dcp.load` from a checkpoint: of `resume_latest`, of a step, or the latest (None). All ranks read
    the same one, which is returned.

    Args:
      exchange: whether one rank reads what several of the group want, and hands it on. "auto": what more than
          one node would read; True, or how ("broadcast", "gather_rounds", "gather_object"): all; False: each
          rank reads for itself. The same on every rank.

    Raises:
      cairn.NotFound: there is none.
      ValueError: `exchange` means nothing, or differs between ranks; or `process_group` has no backend for
          the CPU to exchange over ("auto" does not then).
      CheckpointException: it failed on some ranks, and says on which. Of a checkpoint of another model it
          lists the names that are missing and the shapes and dtypes that differ.
    """
    alone = _alone(process_group, no_dist)
    _check_arguments(state_dict, connection)
    method = exchanging.method_of(exchange)
    if alone or dist.get_world_size(process_group) == 1:
        method = None
    elif method == exchanging.AUTO and process_group is not None:
        method = method if distributed.has_cpu_backend(process_group) else None
    if isinstance(step, Checkpoint):
        found = step
    else:
        number = _native.NO_STEP if step is None else step_number("step", step)

        def ask() -> Checkpoint:
            return _checkpoint(connection, connection.job, number)

        found = ask() if alone else _agreed(connection, ask, number, process_group, exchange)
    wanted, keys = state_dict, sorted(state_dict)  # of all ranks in the same order, as stock goes
    if planner is None:
        wanted = enclose(resolved(state_dict, keys))
    stock.load(
        wanted,
        storage_reader=Reader(
            connection, found, exchange=method or False, process_group=process_group
        ),
        planner=ComparingPlanner() if planner is None else planner,
        process_group=process_group,
        no_dist=alone,
    )
    if wanted is not state_dict:
        _give(opened(wanted), state_dict, keys)
    return found


def _give(loaded: dict[Any, Any], state_dict: dict[Any, Any], keys: list[Any]) -> None:
    """Ends a load as stock does."""
    for key in keys:
        if key not in state_dict:
            continue  # what another one loaded has removed it
        if is_stateful(state_dict[key]):
            state_dict[key].load_state_dict(loaded[key])
        else:
            state_dict[key] = loaded[key]


def _agreed(
    connection: Connection, ask: Any, step: int, group: Any, exchange: bool | str
) -> Checkpoint:
    def plain() -> tuple[Any, ...]:
        return ask()._plain()

    return Checkpoint(
        *distributed.agree(plain, group=group, job=connection.job, step=step, exchange=exchange),
        _connection=connection,
    )
