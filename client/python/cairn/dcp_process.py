"""Async saves that DCP's process ends (AsyncCheckpointerType.PROCESS).

The plan comes first, and each tensor is copied once, into the node's memory: so both happen here, in a
thread, as in a save without that process. Then this rank's part of the step is handed over. The process
writes the metadata and commits, over a connection of its own; of the state it gets nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.distributed.checkpoint as stock
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from cairn import distributed, kept_saves
from cairn.caching_planner import CachingPlanner
from cairn.dcp_writer import Writer, as_others_get_it
from cairn.errors import Error, FailedPrecondition

if TYPE_CHECKING:
    from cairn.connection import Connection
    from cairn.step import Step


class HandingWriter(Writer):
    """In the parent, for one save: a stager that makes all of it but the end."""

    def __init__(
        self,
        connection: Connection,
        step: int,
        *,
        save: Callable[[Any, Writer], Any],
        **of_writer: Any,
    ) -> None:
        """`save` is stock's, of a state dict and this writer; `of_writer` are Writer's arguments."""
        super().__init__(connection, step, **of_writer)
        self._save: Callable[[Any, Writer], Any] | None = save
        self._handed: Step | None = None
        self._metadata: Metadata | None = None  # where it is written, with the results
        self._results: list[list[WriteResult]] = []

    def stage(self, state_dict: Any) -> Any:
        """Nothing goes to the process with the state; what fails is told by the Writer there."""
        staged = self._begin_staging(state_dict)
        self._saver = threading.Thread(target=self._run, args=(staged,), name="cairn-dcp-save")
        try:
            self._saver.start()
        except RuntimeError as error:  # no thread
            self._saver = None
            self._fail(error)
        return {}

    def _run(self, state_dict: Any) -> None:
        save, self._save = self._save, None  # its planner holds the state
        try:
            assert save is not None
            save(state_dict, self)
        except BaseException as error:  # DCP's are no Exceptions
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failure = of_rank(self._rank(), error)
        self.discard()
        self._forget_staging()

    def _in_save(self) -> None:
        """`stage` has said which thread it is."""

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        self._check_same(results)
        self._metadata = metadata
        self._results = kept_saves.whole(results, self._beside_plan)
        self._commit()

    def _commit(self) -> None:
        part, self._part = self._entered(), None
        self._handed = part.hand_over()

    def discard(self) -> None:
        """Of a save that failed, also in the process: nothing of it is kept."""
        self._drop()
        handed, self._handed = self._handed, None
        if handed is not None:
            with contextlib.suppress(Error):  # it is gone, or committed
                handed.begin().discard()

    def give_up(self) -> None:
        """DCP has begun no save."""
        self._abandoned = True
        if self._saver is not None:
            self._saver.join()
        self.discard()

    def __reduce__(self) -> Any:
        if self._saver is not None:
            self._saver.join()
        return EndingWriter, (
            self._connection,
            self._number,
            self._among,
            self._handed,
            self._metadata,
            self._results,
            self._failure,
        )


def of_rank(rank: int, error: BaseException) -> Exception:
    """What this rank says: each says its own, and DCP collects it."""
    if isinstance(error, CheckpointException):
        if rank not in error.failures:
            first = min(error.failures)
            cause = error.failures[first][0]
            return FailedPrecondition(
                f"rank {first} failed before: {type(cause).__name__}: {cause}"
            )
        error = error.failures[rank][0]
    return as_others_get_it(error)


class EndingWriter(Writer):
    """In DCP's process: ends what was handed over."""

    def __init__(
        self,
        connection: Connection,
        step: int,
        among: tuple[int, int] | None,
        handed: Step | None,
        metadata: Metadata | None,
        results: list[list[WriteResult]],
        failure: Exception | None,
    ) -> None:
        super().__init__(connection, step)
        self._among = among
        self._own_connection = True
        self._handed = handed
        self._metadata, self._results = metadata, results
        self._failure = failure

    def _enter(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._handed is None:
            raise FailedPrecondition("this Writer ends one save, and has done so")
        handed, self._handed = self._handed, None
        self._part = handed.begin()

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """It is written."""
        if not self._commits_last:
            self._commit()
        done: Future[list[WriteResult]] = Future()
        done.set_result([])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Fills in `metadata`, which is what the save returns in the parent."""
        if self._metadata is None:
            raise FailedPrecondition("the coordinator of DCP's process is not the group's")
        for field in dataclasses.fields(self._metadata):
            setattr(metadata, field.name, getattr(self._metadata, field.name))
        super().finish(metadata, self._results)


class NothingToPlan(SavePlanner):
    """In DCP's process: it is planned."""

    def set_up_planner(
        self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False
    ) -> None:
        pass

    def create_local_plan(self) -> SavePlan:
        return SavePlan([])

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        return all_plans, Metadata({})

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> Any:
        raise NotImplementedError


def async_save(
    state_dict: dict[str, Any],
    connection: Connection,
    step: int,
    *,
    planner: SavePlanner | None,
    process_group: Any,
    alone: bool,
    overlap: Any,
    failed_before: Exception | None,
    **arguments: Any,
) -> Any:
    """As `cairn.dcp.async_save`, with all that is not given there decided."""
    group = process_group if alone else distributed.group_beside(process_group)
    use_collectives = arguments.get("use_collectives", True)
    chosen = planner or CachingPlanner(group, alone=alone or not use_collectives)

    def save(state: Any, writer: Writer) -> None:
        stock.save(
            state,
            storage_writer=writer,
            planner=chosen,
            process_group=group,
            no_dist=alone,
            use_collectives=use_collectives,
        )

    writer = HandingWriter(
        connection,
        step,
        alone=alone,
        process_group=process_group,
        overlap=overlap,
        failed_before=failed_before,
        save=save,
    )
    try:
        upload = stock.async_save(
            state_dict,
            storage_writer=writer,
            planner=NothingToPlan(),
            process_group=process_group,
            **arguments,
        )
    except BaseException:
        writer.give_up()
        raise

    def end(upload: Any) -> None:
        if upload.exception() is not None:
            writer.discard()

    upload.add_done_callback(end)
    return upload
