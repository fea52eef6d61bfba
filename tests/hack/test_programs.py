"""What the driver says of a C++ program that did not end well."""

import os
import time
from pathlib import Path

import pytest
from driver import budget
from driver.process import run_process
from driver.programs import Program, Runner, how_it_ended
from patience import patient


def test_a_program_that_hangs_is_named_with_the_test_that_it_hung_in():
    script = "echo '[ RUN      ] Well.Ends'; echo '[ RUN      ] One.Hangs'; sleep 60"
    limit_s = patient(3)
    ended = run_process(["sh", "-c", script], limit_s)
    said = f"(ran past {limit_s:g} s and was killed), in One.Hangs"
    assert how_it_ended(ended.code, ended.output) == said


def test_a_program_that_dies_is_told_by_its_signal():
    ended = run_process(["sh", "-c", "echo '[ RUN      ] One.Dies'; kill -SEGV $$"], 10)
    assert how_it_ended(ended.code, ended.output) == "died of SIGSEGV, in One.Dies"
    assert how_it_ended(3, "") == "exit status 3"


def test_an_overdue_program_begins_before_longer_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(name: str) -> Program:
        command = ["sh", "-c", f"echo {name} >> order"]
        return Program(name, command, set(), patient(10), [], str(tmp_path), alone=False)

    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    took = {"asan:short": 1.0, "asan:long": 9.0, "asan:late": 0.5}
    runner = Runner(tmp_path, prefix="asan:", took_last=took, first=frozenset({"late"}))
    runner.run_all([program(name) for name in ("short", "long", "new", "late")])
    order = (tmp_path / "order").read_text(encoding="utf-8").split()
    assert order == ["late", "new", "long", "short"]


def test_what_the_end_of_the_run_cuts_off_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(budget.RUN_ENDS, str(time.monotonic() + patient(3)))
    monkeypatch.setenv(budget.LEFT, str(tmp_path / "left"))
    command = ["sh", "-c", "touch begun; exec sleep 600"]
    program = Program("long", command, set(), 600, [], str(tmp_path), alone=False)
    ended: list[str] = []
    runner = Runner(
        tmp_path, prefix="seeds:", may_be_cut=True, done=lambda one, _: ended.append(one.name)
    )
    runner.run_all([program])
    assert (tmp_path / "begun").exists()
    assert (tmp_path / "left").read_text(encoding="utf-8") == "seeds:long\n"
    assert not ended
    assert not runner.report.cases
