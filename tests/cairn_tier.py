"""A pytest plugin (-p cairn_tier): the tiers of docs/testing.md as markers.

`later` is what the product does not do yet: `pytest -m later` runs it, the tiers leave it out.
The full tier runs Python twice. Under PyTorch 2 (CAIRN_TORCH_ONLY) only what uses torch runs again: modules
that name it, or a helper beside them that does.

`root` needs uid 0, `full` needs minutes or gigabytes, `torch2` needs PyTorch 2. In the ordinary tier the
first two skip; in the full tier nothing skips for want of a capability: the test runs, and fails if it
must. tests/run.py sets CAIRN_TIER; without it the tier is the ordinary one.

`machine` needs the machine for itself (a limit of the whole user, gigabytes): of such tests one runs at a
time, whatever other processes run tests. The others may run beside it.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MACHINE = "needs the machine for itself: one of these runs at a time"
LATER = "what is not there yet; no tier runs it (docs/bugs.md lists it)"
MARKERS = {
    "root": "needs uid 0: make test TIER=all",
    "full": "needs minutes, gigabytes or tools of the full tier: make test TIER=all",
    "torch2": "needs PyTorch 2: make test TIER=all",
}


def pytest_configure(config: pytest.Config) -> None:
    for name, text in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {text}")
    config.addinivalue_line("markers", f"later: {LATER}")
    config.addinivalue_line("markers", f"machine: {MACHINE}")


@contextmanager
def whole_machine() -> Iterator[None]:
    """Not below TMPDIR, which a run of the tests has for itself."""
    path = os.environ.get("CAIRN_MACHINE_LOCK") or f"/tmp/cairn-machine-{os.getuid()}.lock"
    held = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if item.get_closest_marker("machine"):
        with whole_machine():
            yield
    else:
        yield


def torch_major() -> int:
    try:
        import torch
    except ImportError:
        return 0
    return int(torch.__version__.split(".")[0])


@functools.cache
def uses_torch(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    if re.search(r"\btorch", text):
        return True
    helpers = re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE)
    beside = [path.parent / f"{name}.py" for name in helpers]
    return any(helper.is_file() and uses_torch(helper) for helper in beside)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    full = os.environ.get("CAIRN_TIER") == "all"
    wants_torch2 = any(item.get_closest_marker("torch2") for item in items)
    has_torch2 = wants_torch2 and torch_major() >= 2
    kept, elsewhere = [], []
    torch_only = bool(os.environ.get("CAIRN_TORCH_ONLY"))
    asked_for_later = "later" in (config.getoption("-m") or "")
    for item in items:
        if item.get_closest_marker("later") and not asked_for_later:
            elsewhere.append(item)
            continue
        if torch_only and not uses_torch(item.path):
            elsewhere.append(item)
            continue
        if item.get_closest_marker("torch2") and not has_torch2:
            if full:
                # The full tier runs everything a second time under PyTorch 2: these run there.
                elsewhere.append(item)
                continue
            item.add_marker(pytest.mark.skip(reason=MARKERS["torch2"]))
        if not full:
            for name in ("root", "full"):
                if item.get_closest_marker(name):
                    item.add_marker(pytest.mark.skip(reason=MARKERS[name]))
        kept.append(item)
    if elsewhere:
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = kept
