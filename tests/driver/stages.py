"""What the stages of tests/run.py do. Each adds its cases to a report; which run when is schedule.py's."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import patience

from driver import inputs
from driver.disk import TMPDIR
from driver.ledger import Ledger, begin_first, describe
from driver.process import (
    BUILD,
    LOWEST_PRIORITY,
    ROOT,
    forget_settings,
    run_process,
    run_shown,
    say,
    tail,
)
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
from driver.pytests import DEBIAN_PYTHON, SHARED, Pytests, python_env
from driver.report import RESULTS, Case, Report, read_cases

# Their time is injected. All seeds of rings are due when one of RING_SOURCES changes, else some windows of
# them, others in each run.
SIMULATORS = ("engine_simulator_test", "engine_year_test")
RING_SIMULATOR = "ring_sim_test"
RING_SOURCES = (
    *("server/engine/**/*.h", "server/engine/**/*.cc", "server/facts/*"),
    *("tests/ring/*", "tests/sim/*", "tests/world/*", "tests/engine/membership_database.h"),
)
RING_SEEDS, SEEDS_WINDOW = 10_000, 500
SEEDS_STRIDE = 4  # where nothing of them changed: some 2,500 seeds
EVERY_SEED = "RingSimulator.EveryPromiseHoldsForEverySeed"
SEEDS_LIMIT_S = 3600  # of one that gets what the tests leave of a processor
# What starts the guest; what its suite is made from, and the programs that it runs.
GUEST = ("hack/guest*",)
GUEST_SOURCES = (
    *("tests/guest/*.py", "tests/cluster/*.py", "tests/faults/*.py"),
    *("hack/cluster/*", "hack/demo/*.py", *GUEST, *SHARED),
)
GUEST_PROGRAMS = ("cairnd", "cairn", "cairn_python")
GUEST_STRIDE = 2
PREPARE_GUEST_S = 300  # its kernel has 70 MB
GUEST_SUITE, GUEST_SUITE_S = "guest", 600
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
        simulates = program.name in (*SIMULATORS, RING_SIMULATOR)
        has_stage = simulates and settings.full and not settings.pattern
        if has_stage:
            say(f"  {program.name}: in the stage seeds")
        elif not elsewhere and re.search(settings.pattern, program.name):
            programs.append(program)

    env = {"CAIRN_TIER": settings.tier}
    runner = Runner(results_of(build), env, took_last=Ledger().took_last(), report=report)
    run_programs(runner, programs, settings.full)


def seeds_stage(settings: Settings, report: Report) -> None:
    """The simulators. Their time is injected, so they may run at the lowest priority. One that is asked for
    by its name runs in the stage unit."""
    if settings.pattern:
        return
    forget_settings()
    build = BUILD / "main"
    programs = {
        p.name: dataclasses.replace(p, timeout_s=SEEDS_LIMIT_S)
        for p in list_programs(build)
        if p.name in (*SIMULATORS, RING_SIMULATOR)
    }
    windows = seed_windows(programs[RING_SIMULATOR])
    digests = {name: inputs.of_program(build, name) for name in SIMULATORS}
    digests |= dict.fromkeys(windows, inputs.digest(inputs.matching(RING_SOURCES)))
    ledger = Ledger()
    due = ledger.plan("seeds", digests, SEEDS_STRIDE)
    say(f"  simulators, and seeds of rings: {describe(due, len(digests))}")
    runner = Runner(
        results_of(build),
        {"CAIRN_TIER": "all"},
        prefix="seeds:",
        before=LOWEST_PRIORITY,
        done=lambda program, passed: ledger.ended("seeds", program.name, passed),
        first=begin_first(due) | {RING_SIMULATOR},
        may_be_cut=True,
        report=report,
    )
    chosen = [(programs | windows)[one.name] for one in due]
    run_programs(runner, [failed_once(programs[RING_SIMULATOR]), *chosen], settings.full)


def failed_once(program: Program) -> Program:
    """The simulator of rings with the seeds that failed once, and the tests of its checks."""
    environment = [*program.environment, f"GTEST_FILTER=-{EVERY_SEED}"]
    return dataclasses.replace(program, environment=environment)


def seed_windows(program: Program) -> dict[str, Program]:
    """The simulator of rings by its name in the ledger, once for each window of its seeds."""
    windows: dict[str, Program] = {}
    for first in range(1, RING_SEEDS, SEEDS_WINDOW):
        name, seeds = f"{program.name}@{first}", f"CAIRN_SIM_SEEDS={SEEDS_WINDOW}"
        more = [f"CAIRN_SIM_FIRST={first}", seeds, f"GTEST_FILTER={EVERY_SEED}"]
        environment = [*program.environment, *more]
        windows[name] = dataclasses.replace(program, name=name, environment=environment)
    return windows


# --- in a guest with RDMA devices ------------------------------------------------------------------


def guest_stage(settings: Settings, report: Report) -> None:
    """The C++ programs that need such devices, each in a guest of its own, so that none hangs another; then
    tests/guest."""
    build = BUILD / "main"
    pytest = [DEBIAN_PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "cairn_tier"]
    found = {
        p.name: (p.timeout_s, [*p.command, f"--gtest_output=xml:{XML}"])
        for p in list_programs(build)
        if GUEST_LABEL in p.labels and re.search(settings.pattern, p.name)
    }
    starts = inputs.digest(inputs.matching(GUEST))
    digests = {name: f"{inputs.of_program(build, name)} {starts}" for name in found}
    ledger = Ledger()
    due = list(found)
    if not settings.pattern:
        forget_settings()
        found[GUEST_SUITE] = (GUEST_SUITE_S, [*pytest, f"--junitxml={XML}", "tests/guest"])
        programs = [inputs.of_program(build, name) for name in GUEST_PROGRAMS]
        digests[GUEST_SUITE] = inputs.digest(guest_sources(), " ".join(programs))
        planned = ledger.plan("guest", digests, GUEST_STRIDE)
        say(f"  {describe(planned, len(digests))}")
        due = [one.name for one in planned]
    prepared = run_process(["hack/guest", "--prepare"], PREPARE_GUEST_S)
    for name in due:
        if prepared.code != 0:
            report.add([Case(name, "skipped", prepared.output.strip())])
        else:
            passed = run_in_guest(name, *found[name], report)
            ledger.ended("guest", name, passed)


def guest_sources() -> list[str]:
    """Those of the guest's suite, without the tests that stand beside what it borrows."""
    found = inputs.matching(GUEST_SOURCES)
    return [one for one in found if "guest" in one or not Path(one).name.startswith("test_")]


def run_in_guest(name: str, limit_s: float, command: list[str], report: Report) -> bool:
    """Whether nothing failed. `command` has XML where its results go."""
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
    elif not cases:
        cases.append(Case(name, "failed", "no test ran"))
    show(name, cases, ended.wall_s)
    report.add(cases)
    return not any(case.outcome == "failed" for case in cases)


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
