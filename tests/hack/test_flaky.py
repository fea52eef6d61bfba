"""tests/driver/flaky.py: which failures are tried again, and which stay red."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from driver import flaky
from driver.process import Ended
from driver.report import Case, Report

HELD_TEST = """
TEST(Held, ComesBack) {
  EXPECT_TRUE(Await(back));
}

TEST(Held, KeepsPromise) {
  EXPECT_TRUE(Await(kept)) << "promise 4";
}
"""
LINK_TEST = """
def test_heals() -> None:
    until("it heals", healed)
"""
WAIT_ENDED = "AssertionError: not within 20 s: it heals"
CPP_WAIT_ENDED = "held_test.cc:3: Failure\nValue of: Await(back)\n  Actual: false\nExpected: true"


class World:
    """A tree, a cache folder with earlier runs, and a hack/stress that passes or fails."""

    def __init__(self, top: Path) -> None:
        self._runs = top / "cache" / "cairn" / "runs"
        self._runs.mkdir(parents=True)
        self.stressed: list[str] = []
        self.stress_passes = True
        self.changed: set[str] = set()

    def ran(self, number: int, **values: object) -> None:
        row = {"whole": True, "failed": [], "excused": [], "quarantined": [], "commit": "c"}
        (self._runs / f"{number:03}.json").write_text(json.dumps({**row, **values}))

    def run_process(self, command: list[str], limit_s: float) -> Ended:
        self.stressed.append(command[-1])
        return Ended(0 if self.stress_passes else 1, "", 1, 1)

    def git(self, *words: str) -> str:
        return "\n".join(self.changed) if words[0] == "diff" else ""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    for path, text in (
        ("tests/client/held_test.cc", HELD_TEST),
        ("tests/cluster/test_links.py", LINK_TEST),
        ("tests/faults/test_links.py", LINK_TEST),
        ("tests/quarantine.txt", "# a comment\n"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    made = World(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(flaky, "ROOT", tmp_path)
    monkeypatch.setattr(flaky, "RESULTS", tmp_path)
    monkeypatch.setattr(flaky, "QUARANTINE", tmp_path / "tests/quarantine.txt")
    monkeypatch.setattr(flaky, "run_process", made.run_process)
    monkeypatch.setattr(flaky, "git", made.git)
    made.ran(1)
    return made


def report(*names: str, reason: str = WAIT_ENDED) -> Report:
    made = Report()
    made.add([Case("unit:fine", "passed"), *(Case(name, "failed", reason) for name in names)])
    return made


LINK = "python:tests.cluster.test_links.test_heals"


def test_a_wait_that_ended_is_excused_when_it_passes_under_load(world: World, tmp_path: Path):
    counted = report(LINK)
    assert flaky.excuse(counted).cases == [LINK]
    assert world.stressed == ["tests/cluster/test_links.py::test_heals"]
    assert counted.of("failed") == []
    (log,) = tmp_path.glob("flaky-*.log")
    assert log.read_text() == WAIT_ENDED


def test_one_of_cpp_too(world: World):
    assert flaky.excuse(report("client_test:Held.ComesBack", reason=CPP_WAIT_ENDED)).cases
    assert world.stressed == ["tests/client/held_test.cc::Held.ComesBack"]


def test_it_stays_red_when_it_fails_again(world: World):
    world.stress_passes = False
    counted = report(LINK)
    assert flaky.excuse(counted).cases == []
    assert len(counted.of("failed")) == 1


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (LINK, "AssertionError: assert 3 == 4"),
        ("python:tests.faults.test_links.test_heals", WAIT_ENDED),
        ("client_test:Held.KeepsPromise", CPP_WAIT_ENDED),
        ("asan:client_test:Held.ComesBack", CPP_WAIT_ENDED),
        ("ring_sim_test@1:Held.ComesBack", CPP_WAIT_ENDED),
        ("mutants:held", WAIT_ENDED),
        ("fuzz:keys_fuzz", WAIT_ENDED),
        ("client_test", "died of SIGSEGV, in Held.ComesBack"),
    ],
)
def test_no_other_failure_is_tried_again(world: World, name: str, reason: str):
    assert flaky.excuse(report(name, reason=reason)).cases == []
    assert world.stressed == []


def test_a_file_that_changed_since_a_green_run_is_not_excused(world: World):
    world.changed = {"tests/cluster/test_links.py"}
    assert flaky.excuse(report(LINK)).cases == []


def test_without_an_earlier_green_run_nothing_is_excused(world: World):
    world.ran(1, failed=["something"])
    assert flaky.excuse(report(LINK)).cases == []


def test_the_same_one_is_excused_once_in_twenty_runs(world: World):
    world.ran(2, excused=[LINK])
    assert flaky.excuse(report(LINK)).cases == []
    for number in range(3, 3 + flaky.MEMORY):
        world.ran(number)
    assert flaky.excuse(report(LINK)).cases == [LINK]


def test_more_than_two_in_a_run_stay_red(world: World):
    names = ["client_test:Held.ComesBack", LINK, LINK.replace("python", "torch2", 1)]
    assert flaky.excuse(report(*names)).cases == []
    assert world.stressed == []


def test_what_is_in_quarantine_may_fail_for_ten_green_runs(world: World, tmp_path: Path):
    (tmp_path / "tests/quarantine.txt").write_text(f"{LINK}  # the bridge answers late\n")
    counted = report(LINK, reason="anything")
    assert flaky.excuse(counted).quarantined == [LINK]
    assert counted.of("failed") == []
    for number in range(2, 2 + flaky.GREEN_RUNS):
        world.ran(number, quarantined=[LINK])
    counted = report(LINK, reason="anything")
    flaky.excuse(counted)
    assert [case.name for case in counted.of("failed")] == [LINK, f"quarantine:{LINK}"]


@pytest.mark.parametrize("rows", ["a:b\n", "".join(f"a:{n}  # cause\n" for n in range(11))])
def test_a_row_has_a_cause_and_there_are_at_most_ten(world: World, tmp_path: Path, rows: str):
    (tmp_path / "tests/quarantine.txt").write_text(rows)
    counted = report()
    flaky.excuse(counted)
    assert len(counted.of("failed")) == 1
