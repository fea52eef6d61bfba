"""tests/driver/budget.py: a stage whose time is up begins nothing new, and what it left is said."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from driver import budget, schedule, stages
from driver.programs import Program, Runner
from driver.report import Report
from driver.schedule import Lane, Schedule, Stage
from patience import patient

# Leaves what the second argument says when its end has come.
ASK = """
import sys
from driver.budget import leave, seconds_left
if seconds_left() <= 0:
    leave(sys.argv[2])
open(sys.argv[1], "w").write("[]")
"""


def build_three(tmp_path: Path, compiler: str) -> tuple[Report, list[str]]:
    """What was counted, and which programs were built."""
    script = tmp_path / "build"
    script.write_text(f"#!/bin/sh\n{compiler}\n")
    script.chmod(0o755)
    report = Report()
    return report, stages.build_some("asan:", [str(script)], ["a", "b", "c"], report)


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(budget.ENDS, raising=False)
    monkeypatch.setenv(budget.LEFT, str(tmp_path / "left"))
    return tmp_path / "left"


def test_without_an_end_nothing_is_left(tmp_path: Path, left: Path) -> None:
    report, built = build_three(tmp_path, "exit 0")
    assert built == ["a", "b", "c"]
    assert len(report.of("passed")) == 3
    assert budget.read_left(left) == []


def test_what_does_not_compile_is_a_failure_and_does_not_run(tmp_path: Path, left: Path) -> None:
    report, built = build_three(tmp_path, '[ "$2" != b ]')
    assert built == ["a", "c"]
    assert [case.name for case in report.of("failed")] == ["asan:build:b"]
    assert budget.read_left(left) == []


def test_after_its_end_a_stage_builds_nothing(
    tmp_path: Path, left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(budget.ENDS, str(time.monotonic() - 1))
    report, built = build_three(tmp_path, "exit 0")
    assert (report.cases, built) == ([], [])
    assert budget.read_left(left) == ["asan:a", "asan:b", "asan:c"]


def test_a_build_that_the_end_cuts_short_is_left_and_is_no_failure(
    tmp_path: Path, left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(budget.ENDS, str(time.monotonic() + patient(10)))
    report, built = build_three(tmp_path, '[ "$2" = a ] || sleep 60')
    assert built == ["a"]
    assert report.of("failed") == []
    assert budget.read_left(left) == ["asan:b", "asan:c"]


@pytest.mark.parametrize("seconds", [-1, 60])
def test_after_its_end_a_stage_runs_no_program(
    tmp_path: Path, left: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    monkeypatch.setenv(budget.ENDS, str(time.monotonic() + seconds))
    program = Program("a", ["true"], set(), 10, [], str(tmp_path), False)
    report = Report()
    Runner(tmp_path, prefix="asan:").run_all([program], report)
    assert [case.name for case in report.of("passed")] == (["asan:a"] if seconds > 0 else [])
    assert budget.read_left(left) == ([] if seconds > 0 else ["asan:a"])


def test_a_bounded_run_tells_each_stage_its_end_and_hears_what_it_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "RESULTS", tmp_path)
    monkeypatch.delenv(budget.ENDS, raising=False)

    def command(stage: Stage, output: Path) -> list[str]:
        return [sys.executable, "-c", ASK, str(output), f"some of {stage.name}"]

    def stage(name: str, until_min: float | None) -> Stage:
        return Stage(name, Lane.BEHIND, False, lambda settings, report: None, until_min)

    ran = [stage("late", 0), stage("early", 60), stage("endless", None)]
    for bounded, expected in ((True, ["some of late"]), (False, [])):
        one = Schedule(command, Report(), bounded=bounded)
        one.run(ran)
        assert one.left == expected


def test_each_day_another_one_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    firsts = set()
    for day in range(3):
        monkeypatch.setattr(time, "time", lambda day=day: day * budget.DAY_S)
        turn = budget.in_turn(["a", "b", "c"])
        assert sorted(turn) == ["a", "b", "c"]
        firsts.add(turn[0])
    assert firsts == {"a", "b", "c"}
    assert budget.in_turn([]) == []
