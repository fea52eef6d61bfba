"""DCP's load planner, which describes a checkpoint of another model."""

from __future__ import annotations

import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan

from cairn.errors import InvalidArgument
from cairn.read_index import IndexedPlanner

_MOST_SAID = 8  # names, of each kind of difference


class ComparingPlanner(IndexedPlanner):
    """Stock's, which says of a checkpoint of another model all that differs, not only the first name, and
    does not load a tensor into one of another dtype."""

    def create_local_plan(self) -> LoadPlan:
        try:
            plan = super().create_local_plan()
        except (RuntimeError, ValueError) as error:
            differences = self._differences()
            if not differences:
                raise
            raise InvalidArgument(_in_words(differences)) from error
        differences = self._differences()
        if differences:
            raise InvalidArgument(
                f"{_in_words(differences)}; planner=DefaultLoadPlanner() converts dtypes"
            )
        return plan

    def _differences(self) -> dict[str, list[str]]:
        assert self.metadata is not None
        saved = self.metadata.state_dict_metadata
        found: dict[str, list[str]] = {}
        for name, value in self.state_dict.items():
            if name not in saved:
                found.setdefault("not in the checkpoint", []).append(repr(name))
                continue
            of = saved[name]
            if not isinstance(value, torch.Tensor) or not isinstance(of, TensorStorageMetadata):
                continue
            if of.size != value.size():
                text = f"{name!r} saved as {tuple(of.size)}, wanted as {tuple(value.size())}"
                found.setdefault("of another shape", []).append(text)
            elif of.properties.dtype != value.dtype:
                text = f"{name!r} saved as {of.properties.dtype}, wanted as {value.dtype}"
                found.setdefault("of another dtype", []).append(text)
        return found


def _in_words(differences: dict[str, list[str]]) -> str:
    parts = []
    for what, which in differences.items():
        more = f" and {len(which) - _MOST_SAID} more" if len(which) > _MOST_SAID else ""
        parts.append(f"{len(which)} {what}: {', '.join(which[:_MOST_SAID])}{more}")
    return f"state_dict: the checkpoint is of another model: {'; '.join(parts)}"
