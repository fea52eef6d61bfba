"""Tests of whole rings. They need network namespaces, which an ordinary user may make on most machines,
and nft; where either is missing they skip and say why. As with the other tests of processes, PyTorch 2's
interpreter, which has no Thrift, leaves them out."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "faults", HERE.parent.parent / "hack" / "cluster"):
    sys.path.insert(0, str(folder))

import network  # noqa: E402

if importlib.util.find_spec("thrift") is None:
    collect_ignore_glob = ["test_*.py"]

CANNOT = network.unavailable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The full tier runs as root and has what it needs: there a skip is a failure.
    if CANNOT and os.environ.get("CAIRN_TIER") != "all":
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=CANNOT))
