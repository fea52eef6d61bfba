"""Tests that only PyTorch 2 can run: the stage torch2 of the full tier. A node is that of tests/python."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import cairn
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from node import MIB, Node


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    node = Node(budget=1024 * MIB).start()
    yield node
    node.remove()


@pytest.fixture
def c(node: Node, request: pytest.FixtureRequest) -> Iterator[cairn.Connection]:
    """For a job of the test's own."""
    job = "j" + str(abs(hash(request.node.name)) % 10**12)
    with cairn.connect(job=job, rank=0, world_size=1, socket=node.socket) as connection:
        yield connection
