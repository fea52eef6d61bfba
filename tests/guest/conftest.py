"""Tests of whole rings over RDMA, in a machine that has devices: `make test-guest` (hack/guest) runs them.
Elsewhere they are not collected."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (
    HERE.parent / "cluster",
    HERE.parent / "faults",
    HERE.parent.parent / "hack" / "cluster",
):
    sys.path.insert(0, str(folder))

if not Path("/sys/class/infiniband/rxe0").exists():
    collect_ignore_glob = ["test_*.py"]
