"""Tests that only PyTorch 2 can run: the stage torch2 of the full tier. A node is that of tests/python."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
