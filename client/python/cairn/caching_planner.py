"""DCP's save planner, which plans a model once and asks the ranks only whether it is still the same.

Stock DCP plans each save anew: every rank describes every tensor, the coordinator collects the plans, merges
and checks them, and sends each rank its part. All of it depends only on the description of the state dicts.
So each rank keeps the description that it planned, beside its final plan, and a plan has a random name that
all ranks got from the coordinator:

    every rank                                  coordinator
    described as kept: sends the plan's name    all names equal its own: sends the name back, every rank
    otherwise: sends its whole local plan         takes what it kept
                                                only whole plans: plans, under a new name
                                                both: sends "again", and in `finish_plan` the ranks that sent
                                                  a name send their whole plans

All is decided by the coordinator from what it got from everyone, so the ranks never disagree, and the second
round begins only when every rank was told of it. A rank that failed, or forgot, sends a whole plan.

A description is compared value by value and not by a digest: nothing that differs can pass for equal.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.utils import _DistWrapper

from cairn.enclosed import opened
from cairn.errors import FailedPrecondition, InvalidArgument
from cairn.own_chunks import answers_itself
from cairn.shared_metadata import SharedMetadata

try:
    from torch.distributed.tensor import DTensor
except ImportError:  # before PyTorch 2.5
    from torch.distributed._tensor import DTensor

_KEPT = 4  # plans of this process: models, groups, or phases of one


# --- what a plan depends on --------------------------------------------------------------------------


class _Walk:
    """One pass over a state dict: its leaves, and all that stock's planning asks of them.

    Attributes:
      leaves: in the order of stock's `flatten_state_dict`.
      locals: of each leaf the tensor that has this process's elements; the leaf itself where it is none.
      facts: plain values, one after the other; equal ones mean equal local plans, and local tensors that are
          equal but for where their elements are, and for these.
      can_be_kept: False where a value plans itself (ShardedTensor, own_chunks.py).
    """

    def __init__(self, state_dict: Mapping[Any, Any], expected: list[Any]) -> None:
        """
        Args:
          expected: facts that are probably found again. They are then taken: ten thousand new ones that are
              equal would keep Python's collector busy for longer than it takes to compare them.
        """
        self._expected, self._so_far = expected, 0
        self.leaves: list[Any] = []
        self.locals: list[Any] = []
        self._may_be_pinned = _has_accelerator()
        self.facts: list[Any] = []
        self.can_be_kept = True
        self._kinds: dict[type, Callable[[Any], None]] = {DTensor: self._dtensor}
        self._meshes: dict[int, int] = {}  # id of a mesh that is alive: where it stands among all
        self._add(torch.is_grad_enabled())
        self._mapping(state_dict)
        if self._so_far == len(expected):
            self.facts = expected
        else:
            self._differ()
        self._kinds = {}  # methods of this: a cycle, which would keep the state until the collector runs

    def _add(self, fact: Any) -> None:
        at = self._so_far
        if at >= 0:
            expected = self._expected
            if at < len(expected) and expected[at] == fact:
                self._so_far = at + 1
                return
            self._differ()
        self.facts.append(fact)

    def _differ(self) -> None:
        if self._so_far >= 0:
            self.facts = self._expected[: self._so_far]
            self._so_far = -1

    def _visit(self, value: Any) -> None:
        kind = self._kinds.get(type(value))
        if kind is None:
            kind = self._kinds[type(value)] = self._kind_of(value)
        kind(value)

    def _kind_of(self, value: Any) -> Callable[[Any], None]:
        if isinstance(value, Mapping):
            return self._mapping
        if isinstance(value, list):
            return self._list
        if isinstance(value, (DTensor, ShardedTensor)):
            return self._plans_itself  # a subclass may answer otherwise than DTensor
        if isinstance(value, torch.Tensor):
            return self._tensor
        return self._object

    def _mapping(self, values: Mapping[Any, Any]) -> None:
        # Names are made of str(key): 1 and True are equal keys and have different names.
        self._add(list(map(str, values)))
        for value in values.values():
            self._visit(value)

    def _list(self, values: list[Any]) -> None:
        if _is_terminal(values):
            self._object(values)
            return
        self._add(len(values))
        for value in values:
            self._visit(value)

    def _dtensor(self, value: Any) -> None:
        if answers_itself(value):
            self._plans_itself(value)
            return
        self.leaves.append(value)
        spec, local = value._spec, value._local_tensor
        self.locals.append(local)
        mesh = self._meshes.get(id(spec.mesh))
        if mesh is None:
            mesh = self._note_mesh(spec.mesh)
        dtype = local.dtype
        self._add(
            (
                mesh,
                # In some versions of torch a _StridedShard equals the Shard of its dimension.
                [(type(one), one) for one in spec.placements],
                value.shape,
                type(local),
                dtype,
                local.layout,
                value.requires_grad,
                local.requires_grad,
                self._may_be_pinned and local.is_pinned(),
                local.device,
                local.shape,
                local.stride() if local.layout is torch.strided else None,
                local.is_neg(),
                dtype.is_complex and local.is_conj(),
            )
        )

    def _note_mesh(self, mesh: Any) -> int:
        number = self._meshes[id(mesh)] = len(self._meshes)
        self._add((mesh.mesh.tolist(), mesh.device_type, mesh.get_coordinate()))
        return number

    def _tensor(self, value: Any) -> None:
        if answers_itself(value):
            self._plans_itself(value)
            return
        self.leaves.append(value)
        self.locals.append(value)
        dtype = value.dtype
        self._add(
            (
                type(value),
                value.shape,
                dtype,
                value.layout,
                value.requires_grad,
                self._may_be_pinned and value.is_pinned(),
                value.device,
                value.stride() if value.layout is torch.strided else None,
                value.is_neg(),
                dtype.is_complex and value.is_conj(),
            )
        )

    def _object(self, value: Any) -> None:
        """It is serialized anew in every save; only that it is there belongs to the plan."""
        if answers_itself(value):
            self._plans_itself(value)
            return
        self.leaves.append(value)
        self.locals.append(value)
        self._add(type(value))

    def _plans_itself(self, value: Any) -> None:
        self.can_be_kept = False
        self.leaves.append(value)
        self.locals.append(value)


def _has_accelerator() -> bool:
    """Memory can be pinned for one only, and to ask each tensor takes a third of the walk."""
    found = getattr(torch, "accelerator", torch.cuda)  # PyTorch 2.6
    return bool(found.is_available())


def _is_terminal(values: list[Any]) -> bool:
    """As stock's `traverse_state_dict` says: such a list is saved as one object."""
    for value in values:
        if isinstance(value, (torch.Tensor, Mapping)):
            return False
        if isinstance(value, list) and not _is_terminal(value):
            return False
    return True


# --- what is kept ------------------------------------------------------------------------------------


class Beside:
    """What a storage writer keeps beside a plan, for as long as that is kept. Its attributes are replaced as
    a whole: saves in several threads may have the same plan.

    Attributes:
      indexes: where the global plan was made, those of the items of each rank.
      pieces, written: the storage writer's own.
    """

    def __init__(self, indexes: list[list[MetadataIndex]] | None) -> None:
        self.indexes = indexes
        self.pieces: Any = None
        self.written: Any = None


class _Kept(NamedTuple):
    facts: list[Any]
    header: tuple[Any, ...]
    generation: bytes  # the name of the plan, on all ranks
    names: list[str]
    mappings: dict[str, Any]
    final_plan: SavePlan
    metadata: Metadata | None  # where the global plan was made
    beside: Beside


_kept: list[_Kept] = []  # the last used first
_mutex = threading.Lock()


def _find(header: tuple[Any, ...], facts: list[Any]) -> _Kept | None:
    with _mutex:
        for at, one in enumerate(_kept):
            if one.header == header and (one.facts is facts or one.facts == facts):
                _kept.insert(0, _kept.pop(at))
                return one
    return None


def _last_facts(header: tuple[Any, ...]) -> list[Any]:
    """Those of the plan with this header that was used last."""
    with _mutex:
        return next((one.facts for one in _kept if one.header == header), [])


def _keep(new: _Kept) -> None:
    with _mutex:
        _kept[:] = [one for one in _kept if one.header != new.header or one.facts != new.facts]
        _kept.insert(0, new)
        del _kept[_KEPT:]


def forget() -> None:
    """Drops all that this process keeps; the next save plans in full."""
    with _mutex:
        _kept.clear()


# --- what the ranks send each other, in place of SavePlan.planner_data -------------------------------


class _Name(NamedTuple):
    """Instead of a plan: the one that all keep. The rank is part of it, so that a group with the same ranks
    in another order does not take one another's parts."""

    generation: bytes
    rank: int


class _Local(NamedTuple):
    planner_data: Any
    can_be_kept: bool


class _Final(NamedTuple):
    planner_data: Any
    generation: bytes | None  # None: it is not kept


class _Again(NamedTuple):
    """The ranks that sent a name send their plans now."""


class CachingPlanner(DefaultSavePlanner):
    """Stock's DefaultSavePlanner, whose plans are kept from save to save. One instance for one save, or for
    many. What it plans is stock's, value for value.

    A tensor's bytes, and every object that is no tensor, are read anew in each save. Of the Metadata, the
    coordinator gets a copy whose `state_dict_metadata` holds the kept values: read them, do not change them.

    Attributes:
      beside: what is kept beside the plan of this save; None where it is not kept. From `finish_plan` on.
      locals: of each value of `state_dict`, in its order, the tensor that holds this rank's elements, or the
          value itself.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        *,
        alone: bool = False,
        dedup_save_to_lowest_rank: bool = False,
    ) -> None:
        """
        Args:
          process_group: the group that saves.
          alone: this process plans by itself: no_dist=True, or use_collectives=False.
        """
        super().__init__(dedup_save_to_lowest_rank=dedup_save_to_lowest_rank)
        self._alone = alone or not dist.is_available() or not dist.is_initialized()
        self._ranks = _DistWrapper(process_group, not self._alone, 0)
        self._found: _Kept | None = None
        self.beside: Beside | None = None
        self.locals: list[Any] = []

    def __reduce__(self) -> Any:
        """In another process, DCP's, the group that saves is all of its world."""
        make = functools.partial(
            CachingPlanner,
            alone=self._alone,
            dedup_save_to_lowest_rank=self.dedup_save_to_lowest_rank,
        )
        return make, ()

    # --- stock's protocol

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,
    ) -> None:
        state_dict = opened(state_dict)
        header = self._header()
        walk = _Walk(state_dict, _last_facts(header))
        self._facts, self._can_be_kept = walk.facts, walk.can_be_kept
        self.beside, self.locals, self._indexes = None, walk.locals, None
        self._metadata_to_keep: Metadata | None = None
        self._found = _find(header, walk.facts) if walk.can_be_kept else None
        if self._found is None:
            super().set_up_planner(state_dict, storage_meta, is_coordinator)
            return
        self.state_dict = dict(zip(self._found.names, walk.leaves, strict=True))
        self.mappings = self._found.mappings
        self.is_coordinator = is_coordinator

    def create_local_plan(self) -> SavePlan:
        if self._found is not None:
            return _instead_of_a_plan(_Name(self._found.generation, self._ranks.get_rank()))
        return self._whole_local_plan()

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        if len(all_plans) != self._ranks.get_world_size():
            raise InvalidArgument(
                f"planner: {len(all_plans)} plans of a group of {self._ranks.get_world_size()}; it wants the "
                "process_group that saves, and alone=True with no_dist or without collectives"
            )
        if not all(_is(_Name, plan) or _is(_Local, plan) for plan in all_plans):
            raise InvalidArgument("planner: the ranks of a save have different ones")
        names = [plan.planner_data for plan in all_plans if _is(_Name, plan)]
        if not names:
            return self._plan_in_full(all_plans)
        if len(names) == len(all_plans):
            found = self._found
            assert found is not None  # this rank's is one of the names
            wanted = [_Name(found.generation, rank) for rank in range(len(all_plans))]
            if names == wanted and found.metadata is not None:
                metadata = _copy_of(found.metadata)
                if not self._alone:
                    metadata = SharedMetadata.of(metadata)
                return [_instead_of_a_plan(name) for name in names], metadata
        self._sent = all_plans
        self._promised = Metadata({})  # stock holds on to it; it is filled in `finish_plan`
        return [_instead_of_a_plan(_Again())] * len(all_plans), self._promised

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        if _is(_Again, new_plan):
            storage_data = new_plan.storage_data
            new_plan = self._second_round()
            new_plan = dataclasses.replace(new_plan, storage_data=storage_data)
        is_kept = _is(_Name, new_plan)
        self.plan = self._kept_plan(new_plan) if is_kept else self._keep_plan(new_plan)
        self._sent, self._found = [], None
        return self.plan

    # --- its steps

    def _header(self) -> tuple[Any, ...]:
        """What the plan depends on beside the state dict."""
        if self._alone:
            return (self.dedup_save_to_lowest_rank,)
        group = self._ranks.group
        return self.dedup_save_to_lowest_rank, dist.get_rank(), dist.get_process_group_ranks(group)

    def _whole_local_plan(self) -> SavePlan:
        plan = super().create_local_plan()
        return dataclasses.replace(plan, planner_data=_Local(plan.planner_data, self._can_be_kept))

    def _plan_in_full(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        can_be_kept = all(plan.planner_data.can_be_kept for plan in all_plans)
        plans, metadata = super().create_global_plan(
            [_with_data(plan, plan.planner_data.planner_data) for plan in all_plans]
        )
        generation = os.urandom(16) if can_be_kept else None
        if generation is not None:
            self._metadata_to_keep = _copy_of(metadata)
            self._indexes = [[item.index for item in plan.items] for plan in plans]
        return [_with_data(plan, _Final(plan.planner_data, generation)) for plan in plans], metadata

    def _second_round(self) -> SavePlan:
        """Every rank is here: each was sent the same "again"."""

        def send() -> SavePlan | None:
            return self._whole_local_plan() if self._found is not None else None

        def plan(sent_now: list[SavePlan | None]) -> list[SavePlan]:
            whole = [
                now if now is not None else before
                for now, before in zip(sent_now, self._sent, strict=True)
            ]
            plans, metadata = self._plan_in_full(whole)
            self.metadata = self._promised
            for field in dataclasses.fields(metadata):
                setattr(self._promised, field.name, getattr(metadata, field.name))
            return plans

        return self._ranks.reduce_scatter("plan", send, plan)

    def _kept_plan(self, sent_back: SavePlan) -> SavePlan:
        found = self._found
        if found is None or found.generation != sent_back.planner_data.generation:
            raise FailedPrecondition("planner: the coordinator named a plan that this rank did not")
        self.beside = found.beside
        kept = found.final_plan
        return SavePlan(list(kept.items), sent_back.storage_data, dict(kept.planner_data))

    def _keep_plan(self, new_plan: SavePlan) -> SavePlan:
        final: _Final = new_plan.planner_data
        plan = _with_data(new_plan, final.planner_data)
        if final.generation is not None:
            self.beside = Beside(self._indexes)
            _keep(
                _Kept(
                    self._facts,
                    self._header(),
                    final.generation,
                    list(self.state_dict),
                    self.mappings,
                    SavePlan(list(plan.items), planner_data=dict(plan.planner_data)),
                    self._metadata_to_keep,
                    self.beside,
                )
            )
        return plan


def _is(kind: type, plan: SavePlan) -> bool:
    return isinstance(plan.planner_data, kind)


def _instead_of_a_plan(data: Any) -> SavePlan:
    return SavePlan([], planner_data=data)


def _with_data(plan: SavePlan, data: Any) -> SavePlan:
    return dataclasses.replace(plan, planner_data=data)


def _copy_of(metadata: Metadata) -> Metadata:
    """One that a storage writer may fill in."""
    return dataclasses.replace(
        metadata,
        state_dict_metadata=dict(metadata.state_dict_metadata),
        planner_data=dict(metadata.planner_data),
    )
