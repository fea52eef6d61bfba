"""Fault tests need no torch: the second run of the full tier, under PyTorch 2's interpreter, leaves them
out, because that interpreter has no Thrift."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

if importlib.util.find_spec("thrift") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from cairn_daemon import Node, node

    @pytest.fixture
    def daemon() -> Node:
        """A node with 64 MiB and storage."""
        with node() as instance:
            yield instance
