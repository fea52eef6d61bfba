"""The summary of a run says what was raised, however long the traceback that stands before it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from driver.process import SHOWN_LAST
from driver.report import MOST_RESULTS, parse_junit, read_cases, reason_of, shown

LINES = [*(f"x = {i}" for i in range(100)), "assert x == 0, 'what broke'"]
LONG = "\n    ".join(["def test_long():", *LINES]) + "\n"


def test_of_a_long_traceback_what_was_raised_is_shown_first(tmp_path: Path) -> None:
    (tmp_path / "test_long.py").write_text(LONG, encoding="utf-8")
    xml = tmp_path / "long.xml"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={xml}", "."]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 1
    [case] = parse_junit(xml, "")
    lines = shown(case.reason)
    assert lines[0] == "AssertionError: what broke"
    assert len(lines) == 2 * SHOWN_LAST + 1
    assert lines[-1].endswith("test_long.py:102: AssertionError")


def test_what_a_text_begins_with_is_not_said_twice() -> None:
    assert reason_of("a.cc:5\nExpected: 1", "a.cc:5\nExpected: 1\nActual: 2\n") == (
        "a.cc:5\nExpected: 1\nActual: 2"
    )
    assert reason_of("", "text") == "text"
    assert reason_of("died", "") == "died"


def test_results_that_are_too_long_to_read_are_a_failure(tmp_path: Path) -> None:
    xml = tmp_path / "long.xml"
    with open(xml, "wb") as file:
        file.truncate(MOST_RESULTS + 1)
    [case] = read_cases(xml, "", "transport_test")
    assert (case.name, case.outcome) == ("transport_test", "failed")
    assert str(MOST_RESULTS + 1) in case.reason
