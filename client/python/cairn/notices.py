"""What a person is told: log records of the logger "cairn", and warnings that come again after a while.

The logger has a handler that does nothing, so that a program that sets up no logging sees the warnings
alone. Every failure is a log record; of each kind a warning comes at once, and then at most every ten
minutes, with how many there were since.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable

log = logging.getLogger("cairn")
log.addHandler(logging.NullHandler())

WARN_AGAIN_AFTER_S = 600.0


def callers_level() -> int:
    """The `stacklevel` with which the caller's warning names the line that called into this package."""
    level = 1
    frame = sys._getframe(1)
    while (
        frame.f_back is not None
        and frame.f_globals.get("__name__", "").partition(".")[0] == "cairn"
    ):
        frame = frame.f_back
        level += 1
    return level


class Repeated:
    """Says of each kind of event when to warn of it. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._warned: dict[str, tuple[float, int]] = {}  # when; how many there were since

    def since_warned(self, kind: str) -> int | None:
        """Counts one more: None when it is too early to warn again, else how many were not warned of."""
        now = self._clock()
        with self._lock:
            if kind in self._warned:
                when, since = self._warned[kind]
                if now - when < WARN_AGAIN_AFTER_S:
                    self._warned[kind] = (when, since + 1)
                    return None
            else:
                since = 0
            self._warned[kind] = (now, 0)
            return since
