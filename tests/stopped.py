"""A process that stands still, as by SIGSTOP, for tests of Python of every folder."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def _stands(task: Path) -> bool:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] in "TtZX"
    except (FileNotFoundError, ProcessLookupError):
        return True  # it has ended


def stands(pid: int) -> bool:
    return all(_stands(task) for task in Path(f"/proc/{pid}/task").iterdir())


def stop(pid: int) -> None:
    """Returns when none of its threads runs: one may answer another call before the signal reaches it."""
    os.kill(pid, signal.SIGSTOP)
    while not stands(pid):
        time.sleep(0.001)


def go_on(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    stop(pid)
    try:
        yield
    finally:
        go_on(pid)
