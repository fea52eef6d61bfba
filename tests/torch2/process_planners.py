"""Planners that DCP's process finds by name: it is given them pickled."""

from __future__ import annotations

import os
import time
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as stock


class Breaks(stock.DefaultSavePlanner):
    """On rank 1, or in the coordinator's global plan."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where

    def create_local_plan(self) -> Any:
        if self._where == "plan" and dist.get_rank() == 1:
            raise RuntimeError("broken by design")
        return super().create_local_plan()

    def create_global_plan(self, all_plans: Any) -> Any:
        if self._where == "global":
            raise RuntimeError("broken by design")
        return super().create_global_plan(all_plans)

    def resolve_data(self, write_item: Any) -> Any:
        if self._where == "write" and dist.get_rank() == 1:
            raise RuntimeError("broken by design")
        return super().resolve_data(write_item)


class Waits(stock.DefaultSavePlanner):
    """Says by one file that it resolves data, and goes on when there is another."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder

    def resolve_data(self, write_item: Any) -> Any:
        begun, may = (os.path.join(self._folder, name) for name in ("begun", "may"))
        open(begun, "w").close()
        while not os.path.exists(may):
            time.sleep(0.01)
        return super().resolve_data(write_item)
