"""The factor on every bound that a test sets, from CAIRN_PATIENCE: 1 without it, more on a slow machine and
under a sanitizer; and the one way to await a state. Everything in Python that bounds a test asks here; C++
asks tests/support/patience.h.

A bound says when a test gives up on a state that it awaits, so a larger factor loosens nothing. What a
test requires of the product (a time-out that must not come sooner, say) is not multiplied.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

VARIABLE = "CAIRN_PATIENCE"
FACTOR = float(os.environ.get(VARIABLE) or 1)
if not 1 <= FACTOR <= 100:
    raise ValueError(f"{VARIABLE} is {FACTOR:g}; it must lie between 1 and 100")


def patient(seconds: float) -> float:
    return seconds * FACTOR


def until(what: str, condition: Callable[[], T], limit_s: float = 20) -> T:
    """The condition's first true value. The pause is a poll; only the limit, a patient one, decides."""
    deadline = time.monotonic() + patient(limit_s)
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {patient(limit_s):.0f} s: {what}"
        time.sleep(0.01)


def stays(what: str, condition: Callable[[], bool], for_s: float) -> None:
    """Asserts the condition again and again for `for_s` seconds, and once after them. The time is a period
    of the product, so it is not multiplied."""
    end = time.monotonic() + for_s
    while time.monotonic() < end:
        assert condition(), f"no longer so: {what}"
        time.sleep(0.2)
    assert condition(), f"no longer so: {what}"
