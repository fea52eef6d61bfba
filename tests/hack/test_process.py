"""How the driver runs commands, and what it keeps of those that fail."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from driver.process import (
    SHOWN_LAST,
    TAIL_LINES,
    finding,
    forget_settings,
    run_process,
    run_shown,
)
from patience import patient, until


def test_of_a_command_that_failed_the_last_lines_are_kept() -> None:
    program = "import sys; [print(f'line {i}') for i in range(100)]; sys.exit(3)"
    shown = run_shown([sys.executable, "-c", program], 60)
    lines = shown.problem.splitlines()
    assert lines[0] == "exit status 3"
    assert lines[1:] == [f"line {i}" for i in range(100 - SHOWN_LAST, 100)]


def test_of_one_that_went_well_nothing_is() -> None:
    shown = run_shown([sys.executable, "-c", "print('fine')"], 60)
    assert shown.problem == ""
    assert shown.wall_s >= 0 < shown.processor_s


def test_one_that_does_not_end_is_killed_with_what_it_started() -> None:
    program = (
        "import subprocess, sys; subprocess.Popen(['sleep', '1000']); print('started', flush=True);"
        " import time; time.sleep(1000)"
    )
    limit_s = patient(5)
    lines = run_shown([sys.executable, "-c", program], limit_s).problem.splitlines()
    assert lines == [f"ran past {limit_s:.0f} s", "started"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_is_stopped_ends_what_it_has_started(tmp_path: Path, number: int) -> None:
    program = (
        "import sys; from driver.process import end_with_all_that_runs, run_process\n"
        "end_with_all_that_runs()\n"
        "daemon = 'echo $$ > $0.new; mv $0.new $0; sleep 1000'\n"
        "run_process(['sh', '-c', 'setsid sh -c \"$1\" $0 & wait', sys.argv[1], daemon], 1000)"
    )
    group = tmp_path / "group"
    runs = subprocess.Popen([sys.executable, "-c", program, str(group)])
    until("it has started a daemon in a session of its own", group.exists)
    runs.send_signal(number)
    assert runs.wait(patient(20)) == 128 + number
    until("that is gone", lambda: not runs_still(int(group.read_text())))


def runs_still(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_process_says_what_it_used() -> None:
    ended = run_process([sys.executable, "-c", "sum(range(3_000_000)); print('fine')"], 60)
    assert (ended.code, ended.output) == (0, "fine\n")
    assert 0 < ended.processor_s < 60


def test_one_that_hangs_shows_where_its_threads_are() -> None:
    program = (
        "import faulthandler, time; faulthandler.enable()\n"
        "def stuck():\n    time.sleep(1000)\nprint('begun', flush=True); stuck()"
    )
    output = run_process([sys.executable, "-c", program], patient(3)).output
    assert output.startswith("begun")
    assert "in stuck" in output


@pytest.mark.skipif(shutil.which("gdb") is None, reason="no gdb: make test TIER=all installs it")
def test_one_that_is_not_python_shows_its_stack_too() -> None:
    assert "nanosleep" in run_process(["sleep", "1000"], 0.5).output


def test_of_a_fuzzer_its_finding_is_kept() -> None:
    before = [f"#{i}\tNEW cov: 1" for i in range(100)]
    stack = [f"    #{i} 0x0 in f" for i in range(100)]
    for first in (
        "FINDING: a reply that is none",
        "==7== ERROR: libFuzzer: out-of-memory (used: 390Mb; limit: 384Mb)",
        "==7==ERROR: AddressSanitizer: heap-use-after-free on address 0x1",
        "a.cc:5:9: runtime error: load of value 99",
    ):
        lines = finding("\n".join([*before, first, *stack])).splitlines()
        assert lines == [first, *stack[: TAIL_LINES - 1]]
    assert finding("exit\nwithout a word") == "exit\nwithout a word"


def test_settings_of_the_shell_are_forgotten_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("GTEST_FILTER", "CAIRN_SIM_SEED", "CAIRN_YEAR_STEPS", "CAIRN_PATIENCE"):
        monkeypatch.setenv(name, "7")
    forget_settings()
    assert os.environ.get("CAIRN_PATIENCE") == "7"
    assert not [name for name in os.environ if name.startswith(("GTEST_", "CAIRN_SIM_"))]
    assert "CAIRN_YEAR_STEPS" not in os.environ


@pytest.mark.parametrize("run", [run_process, run_shown])
def test_past_its_time_a_command_ends_with_the_groups_that_it_has_made(
    tmp_path: Path, run: Callable[..., object]
) -> None:
    """So does a build: ninja starts each compiler in a group of its own."""
    made = tmp_path / "group"
    run(["sh", "-c", f"setsid sleep 1000 & echo $! > {made}; wait"], patient(3))
    until("that is gone", lambda: not runs_still(int(made.read_text())))
