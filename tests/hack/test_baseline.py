"""hack/baseline.py lets the known findings of a check pass, and lets their file only become shorter."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "hack"))

import baseline

SLEEP = "tests/a.py:sleep:time.sleep(1)"
BOUND = "tests/b.py:bound:assert took < 2"


@pytest.fixture
def known(tmp_path: Path) -> Path:
    path = tmp_path / "x.baseline"
    path.write_text(f"{SLEEP}\n{SLEEP}\n{BOUND}\n", encoding="utf-8")
    return path


def test_known_findings_pass(known: Path) -> None:
    assert baseline.check(known, Counter({SLEEP: 2, BOUND: 1}), shrink=False) == []


def test_a_finding_without_a_row_is_a_problem(known: Path) -> None:
    hits = Counter({SLEEP: 2, BOUND: 1, "tests/a.py:sleep:time.sleep(9)": 1})
    assert baseline.check(known, hits, shrink=False) == ["tests/a.py:sleep:time.sleep(9) (new)"]


def test_one_more_equal_line_is_a_problem(known: Path) -> None:
    (problem,) = baseline.check(known, Counter({SLEEP: 3, BOUND: 1}), shrink=False)
    assert problem == f"{SLEEP} (new)"


def test_a_row_without_a_finding_is_a_problem(known: Path) -> None:
    (problem,) = baseline.check(known, Counter({SLEEP: 1, BOUND: 1}), shrink=False)
    assert problem == f"{SLEEP} (gone; remove its row from x.baseline)"


def test_shrinking_removes_such_rows_and_adds_none(known: Path) -> None:
    new = "tests/c.py:sleep:time.sleep(3)"
    hits = Counter({SLEEP: 1, new: 1})
    assert baseline.check(known, hits, shrink=True) == [f"{new} (new)"]
    assert known.read_text(encoding="utf-8") == f"{SLEEP}\n"


def test_a_missing_file_has_no_rows(tmp_path: Path) -> None:
    assert baseline.check(tmp_path / "none", Counter({SLEEP: 1}), shrink=False) == [
        f"{SLEEP} (new)"
    ]
    assert baseline.check(tmp_path / "none", Counter(), shrink=True) == []
