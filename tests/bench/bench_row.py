"""A row as tests/bench/run.py wants it, from a program's samples; and how large what it measures is."""

from __future__ import annotations

import os
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LEEWAY = 1.05  # noise; tests/bench/run.py
TINY = "CAIRN_BENCH_TINY" in os.environ  # run.py --tiny; C++ asks tests/bench/tiny.h


def sized(full: int, tiny: int) -> int:
    return tiny if TINY else full


def row(
    name: str,
    unit: str,
    bar: float,
    samples: Sequence[tuple[float, float]],
    reference: str,
    *,
    absolute: bool = False,
    higher_is_better: bool = False,
    invalid: str = "",
    note: str = "",
) -> dict[str, Any]:
    """Of samples of (ours, reference). `absolute`: the bar is on ours alone."""

    def median(values: list[float]) -> float:
        return statistics.median(values) if values else 0.0

    value, beside = median([ours for ours, _ in samples]), median([other for _, other in samples])
    ratio = None if absolute else median([ours / other for ours, other in samples])
    measured = value if ratio is None else ratio
    met = measured >= bar / LEEWAY if higher_is_better else measured <= bar * LEEWAY
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "reference": reference,
        "reference_value": beside,
        "ratio": ratio,
        "direction": "higher" if higher_is_better else "lower",
        "bar": bar,
        "ok": not invalid and met,
        "pages": "4 KiB",
        "samples": [[round(ours, 4), round(other, 4)] for ours, other in samples],
        "commit": commit(),
        "invalid": invalid,
        "note": note,
    }


def commit() -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    )
    return done.stdout.strip()
