"""tests/driver/schedule.py: what runs beside what, and that no failure is lost."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from driver import schedule
from driver.report import Report
from driver.schedule import Lane, Schedule, Stage
from patience import patient

WAIT = """
import json, os, pathlib, sys, time
folder, name, other, output = sys.argv[1:]
(pathlib.Path(folder) / name).write_text(str(os.nice(0)))
from patience import patient
end = time.monotonic() + patient(30)
while other and not (pathlib.Path(folder) / other).exists() and time.monotonic() < end:
    time.sleep(0.01)
met = not other or (pathlib.Path(folder) / other).exists()
outcome = "passed" if met else "failed"
pathlib.Path(output).write_text(json.dumps([{"name": name, "outcome": outcome, "reason": ""}]))
"""


def stage(name: str, lane: Lane) -> Stage:
    return Stage(name, lane, True, lambda settings, report: None)


@pytest.fixture(autouse=True)
def own_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "RESULTS", tmp_path / "results")


def test_the_lanes_run_side_by_side_and_the_one_behind_at_the_lowest_priority(
    tmp_path: Path,
) -> None:
    """Each of the two ends only when the other has begun."""
    waits_for = {"front": "behind", "behind": "front"}

    def command(stage: Stage, output: Path) -> list[str]:
        other = waits_for.get(stage.name, "")
        return [sys.executable, "-c", WAIT, str(tmp_path), stage.name, other, str(output)]

    report = Report()
    ran = Schedule(command, report)
    ran.run([stage("front", Lane.FRONT), stage("behind", Lane.BEHIND)])
    assert sorted(case.name for case in report.of("passed")) == ["behind", "front"]
    assert int((tmp_path / "front").read_text()) == os.nice(0)
    assert int((tmp_path / "behind").read_text()) == schedule.LOWEST_PRIORITY
    assert all(one.processor_s > 0 for one in ran.times)


def test_a_failure_in_the_first_lane_ends_the_run(tmp_path: Path) -> None:
    def command(stage: Stage, output: Path) -> list[str]:
        cases = [{"name": stage.name, "outcome": "failed", "reason": "it does not compile"}]
        text = f"import pathlib, sys; pathlib.Path(sys.argv[1]).write_text({json.dumps(cases)!r})"
        return [sys.executable, "-c", text, str(output)]

    report = Report()
    Schedule(command, report).run([stage("build", Lane.FIRST), stage("unit", Lane.FRONT)])
    assert [case.name for case in report.cases] == ["build"]


def test_a_stage_that_dies_without_a_result_has_failed() -> None:
    report = Report()
    died = Schedule(lambda stage, output: ["sh", "-c", "exit 3"], report)
    died.run([stage("unit", Lane.FRONT), stage("demo", Lane.FRONT)])
    assert [case.reason[:13] for case in report.of("failed")] == ["exit status 3"] * 2


def test_a_process_that_a_stage_leaves_behind_does_not_hold_up_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "LAST_WORDS_S", 0.1)
    report = Report()
    command = ["sh", "-c", 'sleep 10000 & echo $! > "$0"', str(tmp_path / "pid")]
    left = Schedule(lambda stage, output: command, report)
    left.run([stage("demo", Lane.FRONT)])
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # it is still there
    assert left.times[0].wall_s < patient(30)
