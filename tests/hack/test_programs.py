"""What the driver says of a C++ program that did not end well."""

import os
from pathlib import Path

import pytest
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
