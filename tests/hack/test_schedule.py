"""tests/driver/schedule.py: what runs beside what, and that no failure is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from driver import schedule, table
from driver.flaky import Excuses
from driver.ledger import Ledger
from driver.report import Report
from driver.schedule import Lane, Schedule, Stage
from patience import patient, until

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
case = {"name": name, "outcome": outcome, "reason": ""}
took = {"program": name, "wall_s": 1.0, "processor_s": 0.5}
pathlib.Path(output).write_text(json.dumps({"cases": [case], "times": [took]}))
"""


def stage(name: str, lane: Lane) -> Stage:
    return Stage(name, lane, True, lambda settings, report: None)


@pytest.fixture(autouse=True)
def own_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(table, "RESULTS", tmp_path / "results")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def run_two_lanes(tmp_path: Path) -> tuple[Schedule, Report]:
    """Each of the two stages ends only when the other has begun."""
    waits_for = {"front": "behind", "behind": "front"}

    def command(stage: Stage, output: Path) -> list[str]:
        other = waits_for.get(stage.name, "")
        return [sys.executable, "-c", WAIT, str(tmp_path), stage.name, other, str(output)]

    report = Report()
    ran = Schedule(command, report)
    ran.run([stage("front", Lane.FRONT), stage("behind", Lane.BEHIND)])
    return ran, report


def test_the_lanes_run_side_by_side_at_ordinary_priority(tmp_path: Path) -> None:
    ran, report = run_two_lanes(tmp_path)
    assert sorted(case.name for case in report.of("passed")) == ["behind", "front"]
    for name in ("front", "behind"):
        assert int((tmp_path / name).read_text()) == os.nice(0)
    assert all(one.processor_s > 0 for one in ran.times)


def test_a_run_leaves_a_table_of_stages_and_programs(tmp_path: Path) -> None:
    ran, report = run_two_lanes(tmp_path)
    ran.left.append("asan:engine_test")
    table.write_table(ran, report, Ledger(), Excuses(["one"]), "all", whole=True)
    written = json.loads((tmp_path / "results" / "run.json").read_text())
    assert sorted(row["stage"] for row in written["stages"]) == ["behind", "front"]
    row = {"stage": "front", "program": "front", "wall_s": 1.0, "processor_s": 0.5}
    assert row in written["programs"]
    assert written["counts"] == {"passed": 2, "failed": 0, "skipped": 0}
    assert written["excused"] == ["one"]
    assert written["left"] == ["asan:engine_test"]
    (kept,) = (tmp_path / "cache" / "cairn" / "runs").iterdir()
    assert json.loads(kept.read_text()) == written
    assert Ledger().took_last() == {"front": 1.0, "behind": 1.0}


def test_a_failure_in_the_first_lane_ends_the_run(tmp_path: Path) -> None:
    def command(stage: Stage, output: Path) -> list[str]:
        cases = [{"name": stage.name, "outcome": "failed", "reason": "it does not compile"}]
        written = json.dumps({"cases": cases, "times": []})
        text = f"import pathlib, sys; pathlib.Path(sys.argv[1]).write_text({written!r})"
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


def test_a_run_that_is_stopped_ends_its_stages_and_begins_no_other(tmp_path: Path) -> None:
    begun = []

    def command(stage: Stage, output: Path) -> list[str]:
        begun.append(stage.name)
        return ["sh", "-c", 'touch "$0"; sleep 1000', str(tmp_path / stage.name)]

    stopped = Schedule(command, Report())
    stages = [stage("unit", Lane.FRONT), stage("python", Lane.FRONT)]
    runs = threading.Thread(target=stopped.run, args=[stages])
    runs.start()
    until("it has begun", (tmp_path / "unit").exists)
    stopped.stop()
    runs.join(patient(20))
    assert not runs.is_alive()
    assert begun == ["unit"]


def test_the_work_of_a_process_that_nothing_waited_for_counts() -> None:
    def worked_s(pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = schedule.busy_seconds()
    burns = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        until("it has worked", lambda: worked_s(burns.pid) >= 0.5)
        assert schedule.busy_seconds() - before >= 0.4
    finally:
        burns.kill()
        burns.wait()
