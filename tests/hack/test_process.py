"""How the driver runs commands, and what it keeps of those that fail."""

from __future__ import annotations

import sys

from driver.process import SHOWN_LAST, TAIL_LINES, finding, run_shown
from patience import patient


def test_of_a_command_that_failed_the_last_lines_are_kept() -> None:
    program = "import sys; [print(f'line {i}') for i in range(100)]; sys.exit(3)"
    lines = run_shown([sys.executable, "-c", program], 60).splitlines()
    assert lines[0] == "exit status 3"
    assert lines[1:] == [f"line {i}" for i in range(100 - SHOWN_LAST, 100)]


def test_of_one_that_went_well_nothing_is() -> None:
    assert run_shown([sys.executable, "-c", "print('fine')"], 60) == ""


def test_one_that_does_not_end_is_killed_with_what_it_started() -> None:
    program = (
        "import subprocess, sys; subprocess.Popen(['sleep', '1000']); print('started', flush=True);"
        " import time; time.sleep(1000)"
    )
    limit_s = patient(5)
    lines = run_shown([sys.executable, "-c", program], limit_s).splitlines()
    assert lines == [f"ran past {limit_s:.0f} s", "started"]


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
