#!/usr/bin/env python3
"""Runs the tests of a tier and ends with "N passed, N failed, N skipped" on a line of its own.

The unit of counting is one test case: a gtest case, a pytest item, a check of hack/, a mutant. A program
that dies counts as one failure, with its last output. Lanes of stages run side by side
(driver/schedule.py); the end shows how long each took, and a table is left (driver/table.py).

    tests/run.py --tier ordinary      what any user can run (make test)
    tests/run.py --tier all           also root, cgroups, another uid, torch 2, lint, the demos, a soak of
                                      two minutes, mutants, fuzzing, sanitizers; what did not change, in turns
                                      (driver/ledger.py)
    tests/run.py --record             what the ledger lacks, without an end; begun again, it goes on
    tests/run.py --only unit,python   some stages
    tests/run.py --filter REGEX       of the C++ programs, some
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

import patience
from driver import disk, ledger, pytests, sanitized, stages
from driver.flaky import Excuses, excuse
from driver.ledger import Ledger
from driver.process import LOWEST_PRIORITY, say
from driver.report import Report, fail_unexpected_skips, shown
from driver.schedule import Lane, Schedule, Stage, run_here, stage_command
from driver.table import write_table

# With more of them the summary names each in one line.
FAILURES_IN_FULL = 3
# Of disk, with the trees of the sanitizers and of two mutants side by side, and what a demo saves.
FULL_TIER_GIB = 20
ORDINARY_TIER_GIB = 6
FULL_TIER_PATIENCE = "2"
DEMO = [sys.executable, "hack/demo/run.py"]
DEMO_CLUSTER = [sys.executable, "hack/demo/cluster.py"]
DEMO_WEIGHTS = [sys.executable, "hack/demo/weights.py"]
LINT = [*LOWEST_PRIORITY, sys.executable, "hack/lint.py"]
SOAK = [sys.executable, "tests/soak/soak.py", "--minutes", "2"]


def command(name: str, lane: Lane, words: list[str], limit_s: float, **more: object) -> Stage:
    ordinary = lane == Lane.FIRST
    return Stage(name, lane, ordinary, stages.command_stage(name, words, limit_s), **more)


# In the order in which each lane runs them. The fuzzers, whose proof grows with the time that they get, go
# last. The minutes matter when ccache and clang-tidy know nothing of the tree: it would take longer than
# continuous integration waits.
STAGES = [
    command("build", Lane.FIRST, ["hack/build"], 3600),
    Stage("unit", Lane.FRONT, True, stages.unit_stage),
    Stage(
        "python",
        Lane.FRONT,
        True,
        stages.python_stage(
            "python", pytests.DEBIAN_PYTHON, ("hack", "python", "faults", "cluster")
        ),
    ),
    Stage(
        "torch2",
        Lane.FRONT,
        False,
        stages.python_stage("torch2", pytests.TORCH2_PYTHON, ("torch2",), again=("python",)),
    ),
    Stage("mutants", Lane.FRONT, False, stages.mutants_stage, until_min=70, leaves=("mutants",)),
    Stage("fuzz", Lane.FRONT, False, sanitized.fuzz_stage, until_min=77),
    Stage("guest", Lane.BESIDE, True, stages.guest_stage),
    command("soak", Lane.BESIDE, SOAK, 600),
    command("demo", Lane.BESIDE, DEMO, 900, leaves=("demo",)),
    command("demo-cluster", Lane.BESIDE, DEMO_CLUSTER, 900, leaves=("demo-cluster",)),
    Stage("bench", Lane.BESIDE, False, stages.bench_stage),
    command("demo-weights", Lane.BESIDE, DEMO_WEIGHTS, 300, leaves=("demo-weights",)),
    Stage("seeds", Lane.SEEDS, False, stages.seeds_stage, until_min=68),
    Stage(
        "asan",
        Lane.BEHIND,
        False,
        sanitized.sanitizer_stage("asan", "address,undefined", lambda _: True),
        until_min=60,
        leaves=("asan",),
    ),
    Stage(
        "tsan",
        Lane.BEHIND,
        False,
        sanitized.sanitizer_stage("tsan", "thread", sanitized.has_threads),
        until_min=70,
        leaves=("tsan",),
    ),
    command("lint", Lane.BEHIND, LINT, 3600, until_min=77),
]
# Those that the ledger has things of.
RECORDED = {"build", "guest", "torch2", "seeds", "asan", "tsan", "lint", "mutants", "fuzz"}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="runs the tests of a tier")
    parser.add_argument("--tier", choices=("ordinary", "all"), default="ordinary")
    parser.add_argument("--record", action="store_true", help="what the ledger lacks")
    parser.add_argument("--only", default="", help="stages, comma-separated")
    parser.add_argument("--filter", default="", help="regular expression on names of C++ programs")
    # How this script runs itself, once per stage.
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    unknown = set(filter(None, arguments.only.split(","))) - {stage.name for stage in STAGES}
    if unknown:
        parser.error(f"no such stage: {', '.join(sorted(unknown))}")
    if arguments.record:
        arguments.tier = "all"
    return arguments


def chosen_stages(arguments: argparse.Namespace) -> list[Stage]:
    wanted = set(filter(None, arguments.only.split(",")))
    if arguments.record and not wanted:
        wanted = RECORDED
    if wanted:
        return [stage for stage in STAGES if stage.name in wanted]
    return [stage for stage in STAGES if stage.in_ordinary_tier or arguments.tier == "all"]


def show_result(report: Report, left: list[str]) -> None:
    say("")
    for what in left:
        say(f"not reached in this run: {what}")
    for case in report.of("skipped"):
        say(f"skipped {case.name}: {case.reason or 'no reason given'}")
    failed = report.of("failed")
    for case in failed:
        first, *lines = shown(case.reason)
        say(f"FAILED {case.name}: {first}")
        if len(failed) <= FAILURES_IN_FULL:
            for line in lines:
                say(f"    {line}")


def show_debt(record: Ledger) -> None:
    """Things that were not due, or that the run did not reach."""
    lacking = {kind: names for kind, names in record.lacking().items() if names}
    counts = ", ".join(f"{len(names)} of {kind}" for kind, names in lacking.items())
    say(f"not passed yet with today's sources: {counts or 'nothing'}")


def main() -> int:
    arguments = parse_arguments()
    full = arguments.tier == "all"
    if arguments.stage:
        (stage,) = (stage for stage in STAGES if stage.name == arguments.stage)
        run_here(stage, stages.Settings(full, arguments.filter), arguments.output)
        return 0

    report = Report()
    if full and os.geteuid() != 0:
        say("make test TIER=all must run as root: cgroups, another uid and strace need it")
        report.add_one("uid 0", "the full tier runs as root")
    if disk.in_integration():
        disk.remove_remains(Path(tempfile.gettempdir()))
    needed = FULL_TIER_GIB if full else ORDINARY_TIER_GIB
    if disk.free_gib() < needed:
        say(f"  note: only {disk.free_gib():.1f} GiB of disk free; a run may need {needed}")

    if full:  # several lanes beside each other: each of them is slower than alone
        os.environ.setdefault(patience.VARIABLE, FULL_TIER_PATIENCE)
    whole = full and not arguments.only and not arguments.filter
    in_turns = whole and not arguments.record
    record = Ledger()
    if whole:
        os.environ[ledger.MODE] = ledger.TURNS if in_turns else ledger.LACKING
        record.begin_run()
    run = stage_command(Path(__file__).resolve(), arguments.tier, arguments.filter)
    schedule = Schedule(run, report, bounded=in_turns)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: schedule.stop())
    with disk.temporary_folder():
        schedule.run(chosen_stages(arguments))
    if schedule.stopped:
        say("stopped")
        return 1
    if whole:
        for name in record.overdue(schedule.left):
            report.add_one(name, "it has missed its turns, and this run did not reach it either")
    excuses = Excuses()
    if in_turns:
        fail_unexpected_skips(report)
        excuses = excuse(report)
    show_result(report, schedule.left)
    if whole:
        show_debt(record)
    schedule.show_times()
    table = write_table(schedule, report, record, excuses, arguments.tier, in_turns)
    say(f"each program: {table}")
    for name in excuses.cases:
        say(f"flaky: {name} failed, then passed each time under load")
    failed = len(report.of("failed"))
    say(f"{len(report.of('passed'))} passed, {failed} failed, {len(report.of('skipped'))} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
