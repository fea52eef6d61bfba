"""tests/driver/ledger.py: turns go by run, what changed or failed comes at once, and what missed two of its
turns is overdue."""

from __future__ import annotations

from pathlib import Path

import pytest
from driver import ledger
from driver.ledger import Due, Ledger

NAMES = [f"program{i}" for i in range(9)]
AS_IT_WAS = dict.fromkeys(NAMES, "one")


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv(ledger.MODE, ledger.TURNS)
    return Ledger(tmp_path / "ledger.json")


def run_once(book: Ledger, digests: dict[str, str], reached: bool = True) -> list[Due]:
    """One run of the tier, in which all that is due passes or nothing is reached."""
    book.begin_run()
    due = book.plan("asan", digests, stride=3)
    for one in due if reached else []:
        book.ended("asan", one.name, passed=True)
    return due


def names(due: list[Due], why: str) -> list[str]:
    return [one.name for one in due if one.why == why]


def test_in_as_many_runs_as_the_stride_everything_has_its_turn_once(book: Ledger) -> None:
    had = [name for _ in range(3) for name in names(run_once(book, AS_IT_WAS), "turn")]
    assert sorted(had) == NAMES
    assert sorted(one.name for one in run_once(book, AS_IT_WAS)) == sorted(had[:3])


def test_on_a_new_machine_the_commit_says_which_are_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ledger.MODE, ledger.TURNS)
    firsts = set()
    for commit in ("a1", "b2", "c3", "d4"):
        monkeypatch.setattr(ledger, "head", lambda commit=commit: commit)
        new = Ledger(tmp_path / f"{commit}.json")
        firsts.add(tuple(names(run_once(new, AS_IT_WAS), "turn")))
    assert len(firsts) > 1


def test_what_changed_is_due_until_it_passed(book: Ledger) -> None:
    run_once(book, AS_IT_WAS)
    changed = {**AS_IT_WAS, "program4": "two"}
    assert names(run_once(book, changed, reached=False), "changed") == ["program4"]
    assert names(run_once(book, changed), "changed") == ["program4"]
    assert names(run_once(book, changed), "changed") == []


def test_a_new_thing_counts_as_changed_and_a_thing_that_is_gone_is_forgotten(book: Ledger) -> None:
    run_once(book, AS_IT_WAS)
    later = {name: "one" for name in [*NAMES[1:], "another"]}
    assert names(run_once(book, later), "changed") == ["another"]
    assert "program0" not in book.lacking()["asan"]


def test_what_failed_comes_first_in_the_next_run(book: Ledger) -> None:
    run_once(book, AS_IT_WAS)
    book.ended("asan", "program7", passed=False)
    assert run_once(book, AS_IT_WAS)[0] == Due("program7", "changed")


def test_what_missed_two_turns_is_first_and_red_if_not_reached(book: Ledger) -> None:
    run_once(book, AS_IT_WAS)
    changed = {**AS_IT_WAS, "program4": "two"}
    for _ in range(ledger.OVERDUE_AFTER):
        run_once(book, changed, reached=False)
        assert book.overdue(["asan:program4"]) == []
    assert "program4" in names(run_once(book, changed, reached=False), "overdue")
    assert book.overdue(["asan:program4"]) == ["asan:program4"]
    due = run_once(book, changed)
    assert due[0].why == "overdue"
    assert "program4" in names(due, "overdue")
    assert names(run_once(book, changed), "overdue") == []
    assert book.overdue(["asan:program4"]) == []


def test_record_takes_what_has_not_passed_as_it_is(
    book: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = {one.name for one in run_once(book, AS_IT_WAS)}
    monkeypatch.setenv(ledger.MODE, ledger.LACKING)
    todo = book.plan("asan", AS_IT_WAS, stride=3)
    assert {one.name for one in todo} == set(NAMES) - passed
    book.ended("asan", todo[0].name, passed=True)
    assert {one.name for one in book.plan("asan", AS_IT_WAS, stride=3)} == {
        one.name for one in todo[1:]
    }
    assert len(book.lacking()["asan"]) == len(todo) - 1


def test_outside_the_tier_everything_runs_but_what_gives_the_same_answer_again(
    book: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_once(book, AS_IT_WAS)
    monkeypatch.delenv(ledger.MODE)
    assert len(book.plan("asan", AS_IT_WAS, stride=3)) == len(NAMES)
    assert len(book.plan("asan", AS_IT_WAS, stride=3, repeat=False)) == len(NAMES) - 3


def test_a_ledger_of_another_format_is_a_new_one(book: Ledger, tmp_path: Path) -> None:
    run_once(book, AS_IT_WAS)
    (tmp_path / "ledger.json").write_text('{"format": 0}')
    assert book.lacking() == {}
    assert book.begin_run() == 1


def test_a_pass_counts_with_the_inputs_of_its_own_plan(book: Ledger, tmp_path: Path) -> None:
    """Two clones share the ledger; the sources of the other one have changed meanwhile."""
    other = Ledger(tmp_path / "ledger.json")
    book.plan("asan", {"keys_test": "before"}, stride=1)
    other.plan("asan", {"keys_test": "after"}, stride=1)
    book.ended("asan", "keys_test", True)
    assert book.lacking() == {"asan": ["keys_test"]}
    other.ended("asan", "keys_test", True)
    assert book.lacking() == {"asan": []}


def test_what_was_not_planned_fails_but_does_not_pass(book: Ledger, tmp_path: Path) -> None:
    book.plan("asan", {"keys_test": "it"}, stride=1)
    by_name = Ledger(tmp_path / "ledger.json")
    by_name.ended("asan", "keys_test", True)
    assert book.lacking() == {"asan": ["keys_test"]}
    book.ended("asan", "keys_test", True)
    by_name.ended("asan", "keys_test", False)
    assert book.lacking() == {"asan": ["keys_test"]}
