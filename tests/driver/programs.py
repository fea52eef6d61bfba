"""The C++ test programs, as CMake registered them (cairn_test(), add_test())."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import patience

from driver.budget import leave, run_seconds_left, seconds_left
from driver.process import PAST_ITS_TIME, run_process, say, tail
from driver.report import RESULTS, Case, Report, read_cases

# Labels of cairn_test() that keep a program out of the ordinary tier.
FULL_LABELS = {"root", "full"}
# The labels of programs that need a machine with RDMA devices, or with a GPU.
GUEST_LABEL, GPU_LABEL = "guest", "gpu"
# The label of a program that ThreadSanitizer can tell something about.
THREADS_LABEL = "threads"


@dataclasses.dataclass
class Program:
    """One test as CMake registered it."""

    name: str
    command: list[str]  # empty: not built yet
    labels: set[str]
    timeout_s: float
    environment: list[str]
    directory: str
    alone: bool

    def is_built(self) -> bool:
        return bool(self.command) and Path(self.command[0]).exists()

    def is_unit_test(self) -> bool:
        """Not a script, nor a program that the ordinary tier or this machine leaves out."""
        script = bool(self.command) and "python" in self.command[0]
        return not script and not self.labels & {*FULL_LABELS, GUEST_LABEL, GPU_LABEL}


def list_programs(build: Path) -> list[Program]:
    listing = subprocess.run(
        ["ctest", "--test-dir", str(build), "--show-only=json-v1"],
        check=True,
        capture_output=True,
        text=True,
    )
    programs = []
    for test in json.loads(listing.stdout)["tests"]:
        properties = {p["name"]: p["value"] for p in test.get("properties", [])}
        programs.append(
            Program(
                name=test["name"],
                command=test.get("command", []),
                labels=set(properties.get("LABELS", [])),
                timeout_s=float(properties.get("TIMEOUT", 300)),
                environment=properties.get("ENVIRONMENT", []),
                directory=properties.get("WORKING_DIRECTORY", str(build)),
                alone=bool(properties.get("RUN_SERIAL", False)),
            )
        )
    return programs


@dataclasses.dataclass
class Runner:
    """How programs are run: under which name, with what in the environment, how patiently."""

    results: Path  # a folder for JUnit files
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    prefix: str = ""  # of the names of cases
    before: Sequence[str] = ()  # words before each command
    patience: float = 1  # a further factor on every bound, the program's and those of its tests
    quiet: bool = False
    done: Callable[[Program, bool], None] = lambda program, passed: None
    took_last: dict[str, float] = dataclasses.field(default_factory=dict)  # seconds, by case name
    first: frozenset[str] = frozenset()  # programs that begin before all others
    may_be_cut: bool = False  # by the end of the run, which then leaves them
    report: Report = dataclasses.field(default_factory=Report)

    def run(self, program: Program) -> list[Case]:
        self.results.mkdir(parents=True, exist_ok=True)
        name = f"{self.prefix}{program.name}"
        xml = self.results / f"{program.name}.xml"
        xml.unlink(missing_ok=True)
        env = {**os.environ, **self.env, "GTEST_OUTPUT": f"xml:{xml}", "GTEST_COLOR": "no"}
        for setting in program.environment:
            key, _, value = setting.partition("=")
            env[key] = value
        factor = patience.FACTOR * self.patience
        env[patience.VARIABLE] = f"{factor:g}"
        command = [*self.before, *program.command]
        ended = run_process(command, program.timeout_s * factor, env, program.directory)
        code, output = ended.code, ended.output
        self.report.add_time(name, ended.wall_s, ended.processor_s)
        if self.may_be_cut and run_seconds_left() <= 0:
            leave(name)
            return []
        cases = read_cases(xml, f"{name}:", name)
        failed = any(case.outcome == "failed" for case in cases)
        if code != 0 and not failed:
            cases.append(Case(name, "failed", f"{how_it_ended(code, output)}\n{tail(output)}"))
        elif not cases and xml.exists():
            cases = [Case(name, "failed", "no test ran")]
        elif not cases:  # not a program of gtest: one case as a whole
            cases = [Case(name, "passed")]
        if not self.quiet:
            show(name, cases, ended.wall_s)
        self.done(program, not any(case.outcome == "failed" for case in cases))
        return cases

    def run_all(self, programs: list[Program]) -> None:
        """Side by side, as many as there are processors; those that must be alone, afterwards."""

        def run(program: Program) -> None:
            if seconds_left() <= 0:
                leave(f"{self.prefix}{program.name}")
                return
            self.report.add(self.run(program))

        def rank(program: Program) -> tuple[bool, float]:
            took = self.took_last.get(f"{self.prefix}{program.name}", float("inf"))
            return program.name in self.first, took

        longest_first = sorted(programs, key=rank, reverse=True)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2) as pool:
            list(pool.map(run, (p for p in longest_first if not needs_machine(p))))
        for program in filter(needs_machine, programs):  # its timing and memory are its own
            run(program)


def how_it_ended(code: int, output: str) -> str:
    """One line, with the test of gtest that it was in."""
    how = f"died of {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    if output.endswith(PAST_ITS_TIME):
        how = output.rstrip().splitlines()[-1]
    begun = re.findall(r"^\[ RUN +\] (\S+)", output, re.MULTILINE)
    return f"{how}, in {begun[-1]}" if begun else how


def needs_machine(program: Program) -> bool:
    return program.alone or bool(program.labels & FULL_LABELS)


def show(name: str, cases: list[Case], took: float) -> None:
    bad = [case for case in cases if case.outcome == "failed"]
    say(f"  {'FAIL' if bad else 'ok  '} {name}: {len(cases)} cases, {took:.1f} s")
    for case in bad:
        say(f"    {case.name}\n      " + tail(case.reason).replace("\n", "\n      "))


def run_programs(runner: Runner, programs: list[Program], full: bool) -> None:
    """In the ordinary tier the ones labelled for the full tier count as skipped."""
    chosen = []
    report = runner.report
    for program in programs:
        held_back = program.labels & FULL_LABELS
        name = f"{runner.prefix}{program.name}"
        if held_back and not full:
            label = " and ".join(sorted(held_back))
            report.add([Case(name, "skipped", f"labelled {label}: make test TIER=all")])
        elif not program.is_built():
            report.add([Case(name, "failed", "it was not built")])
        else:
            chosen.append(program)
    runner.run_all(chosen)


def results_of(build: Path) -> Path:
    return RESULTS / build.name
