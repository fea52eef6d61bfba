"""Until when a stage may begin something new and the run may last, and the record of what was not reached.

A run of the full tier has an end, because continuous integration has one. A stage whose compilers find
nothing in ccache may need longer than its share: it then begins nothing new, and says what it left. The
ledger (ledger.py) makes a debt of it. Without an end, as under `make asan`, nothing is left.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

# When the time of the stage is up, and that of the run, by the monotonic clock, which all processes share.
ENDS = "CAIRN_STAGE_ENDS"
RUN_ENDS = "CAIRN_RUN_ENDS"
# A file of the stage: a line for each thing that it left.
LEFT = "CAIRN_STAGE_LEFT"


def _until(variable: str) -> float:
    ends = os.environ.get(variable)
    return float(ends) - time.monotonic() if ends else float("inf")


def seconds_left() -> float:
    """In the stage that this process is part of; infinity without an end."""
    return min(_until(ENDS), _until(RUN_ENDS))


def run_seconds_left() -> float:
    """In the whole run; nothing may take longer, whatever its own limit is."""
    return _until(RUN_ENDS)


def leave(what: str) -> None:
    """The stage's time was up before `what` could begin."""
    print(f"  not reached in this run: {what}", flush=True)
    if LEFT in os.environ:
        with open(os.environ[LEFT], "a", encoding="utf-8") as left:
            left.write(f"{what}\n")


def read_left(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
