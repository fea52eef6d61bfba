"""What every Python test starts from: a clean environment, no connection, and a real daemon if it asks."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import cairn
from node import Node

_jobs = itertools.count()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in (
        "CAIRN_JOB",
        "CAIRN_ATTEMPT",
        "CAIRN_SOCKET",
        "CAIRN_STORAGE",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
    ):
        monkeypatch.delenv(variable, raising=False)
    cairn.api._said_stock.clear()
    yield
    for connection in (*cairn.api._implicit.values(), cairn.current()):
        if connection is not None:
            connection.close()
    cairn.api._implicit.clear()


@pytest.fixture(scope="module")
def shared_node() -> Iterator[Node]:
    node = Node().start()
    yield node
    node.remove()


@pytest.fixture
def node(shared_node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node that the tests of a file share; each test has a job of its own."""
    monkeypatch.setenv("CAIRN_SOCKET", shared_node.socket)
    yield shared_node


@pytest.fixture
def own_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node for a test that kills it or fills it: 32 MiB."""
    node = Node(budget=32 << 20).start()
    monkeypatch.setenv("CAIRN_SOCKET", node.socket)
    yield node
    node.remove()


@pytest.fixture
def job() -> str:
    return f"job{next(_jobs)}"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, Node) and value.log.exists():
                report.sections.append(("cairnd", value.tail()))
