"""When which stage runs, on how few processors ever.

A stage is a process of its own, so that its output and its processor time are its own. There are five lanes:

    first    what the others need; nothing runs beside it
    front    the tests, then mutants and fuzzers: one stage after another
    beside   what mostly waits for processes, machines or clocks of its own, beside the tests
    behind   what compiles first: one stage after another, the compilers at the lowest priority, in the time
             that the tests leave
    seeds    the simulators, at the lowest priority: their time is injected

Tests run at ordinary priority in every lane, because a test that the system does not let run misses its
deadlines.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from driver import budget, disk
from driver.ledger import Ledger
from driver.process import end_with_all_that_runs, say
from driver.report import RESULTS, Case, Report, Time, read_report, write_report
from driver.stages import Settings

# A process that a stage left behind may hold its output open.
LAST_WORDS_S = 5
# In which minute a bounded run is over: CI stops it in its 90th.
RUN_ENDS_MIN = 82


class Lane(enum.Enum):
    FIRST = "first"
    FRONT = "front"
    BESIDE = "beside"
    BEHIND = "behind"
    SEEDS = "seeds"


@dataclasses.dataclass(frozen=True)
class Stage:
    name: str
    lane: Lane
    in_ordinary_tier: bool
    run: Callable[[Settings, Report], None]
    # Of the full tier: in which of its minutes the stage begins nothing new (budget.py).
    until_min: float | None = None
    # Folders under build/ that only this stage needs; continuous integration removes them when it passed.
    leaves: tuple[str, ...] = ()


@dataclasses.dataclass
class StageTime:
    stage: str
    began_s: float  # since the run began
    wall_s: float
    processor_s: float  # of the stage and everything that it started and waited for
    programs: list[Time]


def run_here(stage: Stage, settings: Settings, output: Path) -> None:
    """The body of a stage's process: writes its cases to a file."""
    end_with_all_that_runs()
    report = Report()
    try:
        stage.run(settings, report)
    except Exception as error:
        report.add_one(stage.name, f"the stage itself failed: {error!r}")
    write_report(report, output)


class Schedule:
    """Runs stages, each by the command that `command` gives for it and a file for its cases. `bounded`:
    stages end in their minutes."""

    def __init__(
        self, command: Callable[[Stage, Path], list[str]], report: Report, *, bounded: bool = False
    ) -> None:
        self._command = command
        self._report = report
        self._bounded = bounded
        self._begin = time.monotonic()
        self._busy_before = busy_seconds()
        self.times: list[StageTime] = []
        self.left: list[str] = []  # for another run, for want of time
        self.stopped = False
        self._running: set[int] = set()

    def stop(self) -> None:
        """No stage begins any more, and those that run end with all that they have started."""
        self.stopped = True
        for group in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)

    def run(self, stages: list[Stage]) -> None:
        """A failure in the first lane ends the run."""
        for stage in stages:
            if stage.lane == Lane.FIRST and not self._run_stage(stage):
                return

        def run_lane(lane: Lane) -> None:
            for stage in stages:
                if stage.lane == lane and not self.stopped:
                    self._run_stage(stage)

        lanes = [lane for lane in Lane if lane != Lane.FIRST]
        threads = [threading.Thread(target=run_lane, args=[lane]) for lane in lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _run_stage(self, stage: Stage) -> bool:
        """Whether nothing in it failed."""
        RESULTS.mkdir(parents=True, exist_ok=True)
        output = RESULTS / f"{stage.name}.stage.json"
        output.unlink(missing_ok=True)
        say(f"== {stage.name} begins")
        begin = time.monotonic()
        command = self._command(stage, output)
        left = RESULTS / f"{stage.name}.left"
        left.unlink(missing_ok=True)
        env = {**os.environ, budget.LEFT: str(left)}
        if self._bounded:
            env[budget.RUN_ENDS] = str(self._begin + 60 * RUN_ENDS_MIN)
            if stage.until_min is not None:
                env[budget.ENDS] = str(self._begin + 60 * stage.until_min)
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            process_group=0,
        )
        self._running.add(process.pid)
        if self.stopped:
            self.stop()  # it began meanwhile
        reader = threading.Thread(target=relay, args=[process.stdout, stage.name], daemon=True)
        reader.start()
        _, status, usage = os.wait4(process.pid, 0)
        self._running.discard(process.pid)
        process.returncode = code = os.waitstatus_to_exitcode(status)
        reader.join(LAST_WORDS_S)
        cases, programs = read_output(stage, output, code)
        self._report.add(cases)
        self.left += budget.read_left(left)
        took = time.monotonic() - begin
        used = usage.ru_utime + usage.ru_stime
        began = begin - self._begin
        Ledger().took({program.program: program.wall_s for program in programs})
        self.times.append(StageTime(stage.name, began, took, used, programs))
        failed = sum(case.outcome == "failed" for case in cases)
        outcome = f", {failed} failed" if failed else ""
        say(f"== {stage.name}: {took:.0f} s{outcome}; {disk.free_gib():.1f} GiB of disk free")
        if disk.in_integration() and not failed:
            disk.remove_built(stage.leaves)
        return not failed

    def show_times(self) -> None:
        """The table at the end of a run."""
        say(f"{'stage':12} {'began':>6} {'took':>6} {'processor':>10}   (seconds)")
        for one in sorted(self.times, key=lambda one: one.began_s):
            row = f"{one.began_s:6.0f} {one.wall_s:6.0f} {one.processor_s:10.0f}"
            say(f"{one.stage:12} {row}")
        total, processors = self.seconds(), os.cpu_count() or 1
        minutes = f"{total / 60:.1f} min, {processors} processors"
        say(f"{'all':12} {'':6} {total:6.0f} {self.busy_s():10.0f}   {minutes}")

    def seconds(self) -> float:
        return time.monotonic() - self._begin

    def busy_s(self) -> float:
        """How long the machine's processors have worked since the run began. The sum over the stages is
        less: it lacks compilers that were killed."""
        return busy_seconds() - self._busy_before


def busy_seconds() -> float:
    """How long all processors have worked since the machine began (proc_stat(5))."""
    first = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
    user, nice, system = map(int, first.split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def relay(lines: Iterable[str], name: str) -> None:
    for line in lines:
        say(f"{name} | {line.rstrip()}" if line.strip() else "")


def read_output(stage: Stage, output: Path, code: int) -> tuple[list[Case], list[Time]]:
    try:
        return read_report(output)
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = f"exit status {code}, no result: {error}"
        return [Case(stage.name, "failed", reason)], []


def stage_command(script: Path, tier: str, pattern: str) -> Callable[[Stage, Path], list[str]]:
    """How tests/run.py runs one stage: itself, once more."""

    def command(stage: Stage, output: Path) -> list[str]:
        words = [sys.executable, str(script), "--tier", tier, "--filter", pattern]
        return [*words, "--stage", stage.name, "--output", str(output)]

    return command
