"""What a stage may still begin before its time is up, and the record of what it left for another run.

A run of the full tier has an end, because continuous integration has one. A stage whose compilers find
nothing in ccache may need longer than its share: it then begins nothing new, and says what it left. The next
run begins elsewhere (`in_turn`), and finds in ccache what this one compiled. Without a bound, as under
`make asan`, nothing is left.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

# When the stage's time is up, by the monotonic clock, which all processes share.
ENDS = "CAIRN_STAGE_ENDS"
# A file of the stage's: a line for each thing that it left.
LEFT = "CAIRN_STAGE_LEFT"
DAY_S = 86_400

T = TypeVar("T")


def seconds_left() -> float:
    """Of the stage that this process is part of; infinity where nobody set an end."""
    ends = os.environ.get(ENDS)
    return float(ends) - time.monotonic() if ends else float("inf")


def leave(what: str) -> None:
    """It is not done in this run, for want of time."""
    print(f"  left for another run: {what}", flush=True)
    if LEFT in os.environ:
        with open(os.environ[LEFT], "a", encoding="utf-8") as left:
            left.write(f"{what}\n")


def read_left(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def in_turn(things: Sequence[T]) -> list[T]:
    """Another one first each day, so that it is not always the last ones that are left."""
    first = int(time.time()) // DAY_S % len(things) if things else 0
    return [*things[first:], *things[:first]]
