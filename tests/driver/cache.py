"""The folder that one run leaves to the next, in another clone of the same user too."""

from __future__ import annotations

import os
from pathlib import Path


def folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "cairn"
