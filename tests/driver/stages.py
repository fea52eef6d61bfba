"""What the stages of tests/run.py do. Each adds its cases to a report; which run when is schedule.py's."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable

import patience

from driver import inputs
from driver.disk import TMPDIR
from driver.ledger import Due, Ledger, begin_first, describe
from driver.process import BUILD, LOWEST_PRIORITY, ROOT, run_process, run_shown, say, tail
from driver.programs import (
    GPU_LABEL,
    GUEST_LABEL,
    Program,
    Runner,
    how_it_ended,
    list_programs,
    results_of,
    run_programs,
    show,
)
from driver.pytests import DEBIAN_PYTHON, Pytests, python_env
from driver.report import RESULTS, Case, Report, read_cases

# All seeds of rings are due when one of these changes, else a window, another in each run.
RING_SIMULATOR = "ring_sim_test"
RING_SOURCES = ("server/engine/**/*.h", "server/engine/**/*.cc", "server/facts/*", "tests/ring/*")
RING_SEEDS, SEEDS_WINDOW = 10_000, 2_500
EVERY_SEED = "RingSimulator.EveryPromiseHoldsForEverySeed"
SEEDS_LIMIT_S = 3600
PREPARE_GUEST_S = 300  # its kernel has 70 MB
GUEST_SUITE_S = 600
BENCH_LIMIT_S = 1800  # it took 744 s where 25 others wanted the two processors
XML = "@XML@"


@dataclasses.dataclass
class Settings:
    full: bool  # the tier
    pattern: str  # of the names of C++ programs; empty: all

    @property
    def tier(self) -> str:
        return "all" if self.full else "ordinary"


def command_stage(name: str, command: list[str], timeout_s: float) -> Callable[..., None]:
    """A command that is one test."""

    def run(settings: Settings, report: Report) -> None:
        shown = run_shown(command, patience.patient(timeout_s))
        report.add_one(name, shown.problem)
        report.add_time(name, shown.wall_s, shown.processor_s)

    return run


def unit_stage(settings: Settings, report: Report) -> None:
    build = BUILD / "main"
    programs = []
    for program in list_programs(build):
        elsewhere = program.labels & {GUEST_LABEL, GPU_LABEL}
        in_windows = settings.full and program.name == RING_SIMULATOR and not settings.pattern
        if not elsewhere and not in_windows and re.search(settings.pattern, program.name):
            programs.append(program)

    env = {"CAIRN_TIER": settings.tier}
    runner = Runner(results_of(build), env, took_last=Ledger().took_last(), report=report)
    run_programs(runner, programs, settings.full)


def seeds_stage(settings: Settings, report: Report) -> None:
    """The simulator of rings. Its time is injected, so it may run at the lowest priority."""
    build = BUILD / "main"
    (simulator,) = (p for p in list_programs(build) if p.name == RING_SIMULATOR)
    ledger = Ledger()
    digest = inputs.digest(inputs.matching(RING_SOURCES))
    firsts = {f"{simulator.name}@{first}": first for first in range(1, RING_SEEDS, SEEDS_WINDOW)}
    due = ledger.plan("seeds", dict.fromkeys(firsts, digest), stride=len(firsts))
    say(f"  seeds of rings: {describe(due, len(firsts))}")
    runner = Runner(
        results_of(build),
        {"CAIRN_TIER": settings.tier},
        prefix="seeds:",
        before=LOWEST_PRIORITY,
        done=lambda program, passed: ledger.ended("seeds", program.name, passed),
        first=begin_first(due),
        report=report,
    )
    run_programs(runner, seed_windows(simulator, firsts, due), settings.full)


def seed_windows(program: Program, firsts: dict[str, int], due: list[Due]) -> list[Program]:
    """The simulator of rings, once for each window of its seeds that is due."""
    windows: list[Program] = []
    for name in (one.name for one in due):
        seeds = [f"CAIRN_SIM_FIRST={firsts[name]}", f"CAIRN_SIM_SEEDS={SEEDS_WINDOW}"]
        # The seeds that failed once, and the tests of the checks, run with the first window.
        seeds += [f"GTEST_FILTER={EVERY_SEED}"] if windows else []
        environment = [*program.environment, *seeds]
        windows.append(
            dataclasses.replace(
                program, name=name, environment=environment, timeout_s=SEEDS_LIMIT_S
            )
        )
    return windows


# --- in a guest with RDMA devices ------------------------------------------------------------------


def guest_stage(settings: Settings, report: Report) -> None:
    """The C++ programs that need such devices, each in a guest of its own, so that none hangs another."""
    prepared = run_process(["hack/guest", "--prepare"], PREPARE_GUEST_S)

    def run(name: str, limit_s: float, command: list[str]) -> None:
        if prepared.code != 0:
            report.add([Case(name, "skipped", prepared.output.strip())])
        else:
            run_in_guest(name, limit_s, command, report)

    for program in list_programs(BUILD / "main"):
        if GUEST_LABEL in program.labels and re.search(settings.pattern, program.name):
            run(program.name, program.timeout_s, [*program.command, f"--gtest_output=xml:{XML}"])
    if not settings.pattern:
        command = [DEBIAN_PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-p", "cairn_tier", f"--junitxml={XML}", "tests/guest"]
        run("guest", GUEST_SUITE_S, command)


def run_in_guest(name: str, limit_s: float, command: list[str], report: Report) -> None:
    """`command` has XML where its results go."""
    results = results_of(BUILD / "guest")
    results.mkdir(parents=True, exist_ok=True)
    xml = results / f"{name}.xml"
    xml.unlink(missing_ok=True)
    words = shlex.join(command).replace(XML, f'"$OUT/{xml.name}"')
    limit_s = patience.patient(limit_s)
    limit = ["--limit", str(limit_s), "--bring", str(results)]
    run = ["hack/guest", *limit, "bash", "-c", f"exec {words}"]
    env = {**python_env("all"), "PYTHONPYCACHEPREFIX": "/tmp/pycache"}
    env.pop(TMPDIR, None)  # its /tmp is its own
    ended = run_process(run, limit_s + 60, env)
    code, output = ended.code, ended.output
    report.add_time(f"guest:{name}", ended.wall_s, ended.processor_s)
    cases = read_cases(xml, f"{name}:", name)
    if code != 0 and not any(case.outcome == "failed" for case in cases):
        cases.append(Case(name, "failed", f"{how_it_ended(code, output)}\n{tail(output)}"))
    show(name, cases, ended.wall_s)
    report.add(cases)


# --- Python ----------------------------------------------------------------------------------------


def python_stage(
    label: str, python: str, folders: tuple[str, ...], again: tuple[str, ...] = ()
) -> Callable[..., None]:
    def run(settings: Settings, report: Report) -> None:
        Pytests(report, label, python, settings.full).run(folders, again)

    return run


def bench_stage(settings: Settings, report: Report) -> None:
    """Each row once, as small as it can be: it must run, and its bytes be right. The figures say nothing."""
    output = RESULTS / "bench.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.unlink(missing_ok=True)
    command = [sys.executable, "tests/bench/run.py", "--tiny", "--json", str(output)]
    shown = run_shown(command, patience.patient(BENCH_LIMIT_S))
    rows = json.loads(output.read_text(encoding="utf-8")) if output.exists() else []
    report.add([Case(f"bench:{row['name']}", row["outcome"], row["reason"]) for row in rows])
    report.add_time("bench", shown.wall_s, shown.processor_s)
    if shown.problem and not any(row["outcome"] == "failed" for row in rows):
        report.add_one("bench", shown.problem)


# --- mutants --------------------------------------------------------------------------------------


def mutants_stage(settings: Settings, report: Report) -> None:
    output = RESULTS / "mutants.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.unlink(missing_ok=True)
    code = subprocess.run(
        [sys.executable, "hack/mutants.py", "--json", str(output)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        check=False,
    ).returncode
    if not output.exists():
        report.add_one("mutants", f"exit status {code}, no result")
        return
    rows = json.loads(output.read_text(encoding="utf-8"))
    for row in rows:
        report.add_one(f"mutants:{row['name']}", "" if row["caught"] else row["how"])
        report.add_time(f"mutants:{row['name']}", row["wall_s"], row["processor_s"])
    if code and all(row["caught"] for row in rows):
        report.add_one("mutants", f"exit status {code}")
