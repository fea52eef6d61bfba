"""DCP's load planner, which describes a checkpoint of another model."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan

from cairn.caching_planner import DTensor
from cairn.enclosed import opened
from cairn.errors import InvalidArgument
from cairn.read_index import IndexedPlanner

_MOST_SAID = 8  # names, of each kind of difference
MISSING, SHAPES, DTYPES = "not in the checkpoint", "of another shape", "of another dtype"


class OwnPlan(LoadPlan):
    """What a rank reads, which its planner takes back as it is: no other rank has to know."""


class ComparingPlanner(IndexedPlanner):
    """Stock's, which says of a checkpoint of another model all that differs, not only the first name, and
    does not load a tensor into one of another dtype."""

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        metadata: Metadata | None = None,
        is_coordinator: bool = False,
    ) -> None:
        self._locals: dict[str, torch.Tensor] = {}
        super().set_up_planner(opened(state_dict), metadata, is_coordinator)

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """Of a DTensor, of which many saved chunks may be wanted, the local tensor is made once."""
        local = self._locals.get(index.fqn)
        if local is None:
            local = super().lookup_tensor(index)
            if type(self.state_dict[index.fqn]) is DTensor:
                self._locals[index.fqn] = local
        return local

    def create_local_plan(self) -> LoadPlan:
        try:
            plan = super().create_local_plan()
        except (RuntimeError, ValueError) as error:
            found = self._differences()
            if not found:
                raise
            raise InvalidArgument(_another_model(found)) from error
        found = self._differences()
        if found:
            raise InvalidArgument(
                f"{_another_model(found)}; planner=DefaultLoadPlanner() converts dtypes"
            )
        if type(self) is not ComparingPlanner:
            return plan
        return OwnPlan(plan.items, plan.storage_data, plan.planner_data)

    def _differences(self) -> dict[str, list[str]]:
        assert self.metadata is not None
        return differences(self.state_dict, self.metadata)


def differences(state_dict: dict[str, Any], metadata: Metadata) -> dict[str, list[str]]:
    """Of a flat state dict, what of it the checkpoint has not, or otherwise, by kind."""
    saved = metadata.state_dict_metadata
    found: dict[str, list[str]] = {}
    for name, value in state_dict.items():
        if name not in saved:
            found.setdefault(MISSING, []).append(repr(name))
            continue
        of = saved[name]
        if not isinstance(value, torch.Tensor) or not isinstance(of, TensorStorageMetadata):
            continue
        if of.size != value.size():
            text = f"{name!r} saved as {tuple(of.size)}, wanted as {tuple(value.size())}"
            found.setdefault(SHAPES, []).append(text)
        elif of.properties.dtype != value.dtype:
            text = f"{name!r} saved as {of.properties.dtype}, wanted as {value.dtype}"
            found.setdefault(DTYPES, []).append(text)
    return found


def _another_model(found: dict[str, list[str]]) -> str:
    return f"state_dict: the checkpoint is of another model: {in_words(found)}"


def in_words(found: dict[str, list[str]]) -> str:
    parts = []
    for what, which in found.items():
        more = f" and {len(which) - _MOST_SAID} more" if len(which) > _MOST_SAID else ""
        parts.append(f"{len(which)} {what}: {', '.join(which[:_MOST_SAID])}{more}")
    return "; ".join(parts)
