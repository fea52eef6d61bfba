"""The stages whose builds are their own: the unit tests under a sanitizer, and the fuzzers.

Compilers run at the lowest priority, in the time that tests leave; what they built runs at the ordinary one.
"""

from __future__ import annotations

import concurrent.futures
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import patience

from driver import inputs
from driver.budget import leave, seconds_left
from driver.ledger import Ledger, begin_first, describe
from driver.process import (
    BUILD,
    LOWEST_PRIORITY,
    ROOT,
    finding,
    forget_settings,
    run_process,
    run_shown,
    say,
    tail,
    with_own_ids,
)
from driver.programs import THREADS_LABEL, Program, Runner, list_programs, results_of, run_programs
from driver.report import Report
from driver.stages import RING_SEEDS, RING_SIMULATOR, Settings

CONFIGURE_LIMIT_S, BUILD_LIMIT_S = 300, 3600
# The share of the time of a stage that has an end; the rest is for running the programs. Compilers get little
# of it before the tests are over.
BUILD_SHARE = 0.75
# A program whose sources did not change has its turn in one run of so many.
SANITIZED_STRIDE = 3
SANITIZER_PATIENCE = 6
# The simulators' 10,000, and the 24 for each pair of faults, are the stages' without a sanitizer.
SANITIZER_SEEDS = "500"
SANITIZER_RING_SEEDS = 125  # others in each run: there a life of a ring takes seconds
SANITIZER_PAIR_SEEDS = "6"
# Its engine is the simulator's, for three minutes more.
NOT_SANITIZED = {"engine_year_test"}
FUZZ_SECONDS = 60
FUZZ_AGAIN_SECONDS = 30  # a fuzzer whose code is the one that passed last
# One allocation, and the whole process with what AddressSanitizer keeps of freed memory: an input that makes
# ours allocate what it only announces is a finding.
FUZZ_LIMITS = ["-malloc_limit_mb=32", "-rss_limit_mb=384", "-timeout=10"]
# With all of the daemon or libcairn in them, libFuzzer's bookkeeping of rare features, and its names of
# functions, would take most of their minute.
WHOLE_ROOMS = {"thrift_socket_fuzz", "fd_socket_fuzz", "client_reads_fuzz"}


def configured(kind: str, build: list[str], report: Report) -> bool:
    ended = run_process([*build, "--configure"], CONFIGURE_LIMIT_S)
    if ended.code:
        report.add_one(f"{kind}:configure", tail(ended.output))
    return ended.code == 0


def build_some(prefix: str, build: list[str], names: list[str], report: Report) -> list[str]:
    """Builds one program after the other and returns those that are built. It leaves the others when most of
    the stage's time is up."""
    ends = time.monotonic() + BUILD_SHARE * seconds_left()
    built = []
    for name in names:
        limit_s = min(BUILD_LIMIT_S, ends - time.monotonic())
        if limit_s <= 0:
            leave(f"{prefix}{name}")
            continue
        shown = run_shown([*LOWEST_PRIORITY, *build, "--configured", name], limit_s)
        report.add_time(f"{prefix}build:{name}", shown.wall_s, shown.processor_s)
        if shown.problem and time.monotonic() >= ends:
            leave(f"{prefix}{name}")
            continue
        report.add_one(f"{prefix}build:{name}", shown.problem)
        if not shown.problem:
            built.append(name)
    return built


# --- sanitizers ------------------------------------------------------------------------------------


def has_threads(program: Program) -> bool:
    """ThreadSanitizer finds nothing in a program with one thread."""
    return THREADS_LABEL in program.labels


def sanitizer_stage(
    name: str, sanitizer: str, wanted: Callable[[Program], bool]
) -> Callable[..., None]:
    """The unit tests, and what they need, built and run under a sanitizer."""

    def run(settings: Settings, report: Report) -> None:
        build = ["hack/build", "--sanitizer", sanitizer]
        if not configured(name, build, report):
            return
        folder = BUILD / name
        programs = {p.name: p for p in list_programs(folder) if p.is_unit_test()}
        ledger = Ledger()
        if settings.pattern:  # a program asked for by its name runs whatever its labels are
            names = [one for one in programs if re.search(settings.pattern, one)]
            due = []
        else:
            chosen = [
                p.name for p in programs.values() if wanted(p) and p.name not in NOT_SANITIZED
            ]
            forget_settings()
            digests = {one: inputs.of_program(folder, one) for one in chosen}
            due = ledger.plan(name, digests, SANITIZED_STRIDE)
            say(f"  {describe(due, len(chosen))}")
            names = [one.name for one in due]
        built = build_some(f"{name}:", build, names, report)
        runner = Runner(
            results_of(folder),
            sanitizer_env(name),
            prefix=f"{name}:",
            patience=SANITIZER_PATIENCE,
            done=lambda program, passed: ledger.ended(name, program.name, passed),
            took_last=ledger.took_last(),
            first=begin_first(due),
            report=report,
        )
        # Listed again: a program that was not built has no command.
        again = {program.name: program for program in list_programs(folder)}
        if ring := again.get(RING_SIMULATOR):
            ring.environment += some_ring_seeds(ledger.run_number())
        run_programs(runner, [again[one] for one in built], full=False)

    return run


def some_ring_seeds(run: int) -> list[str]:
    first = 1 + run * SANITIZER_RING_SEEDS % RING_SEEDS
    return [f"CAIRN_SIM_FIRST={first}", f"CAIRN_SIM_SEEDS={SANITIZER_RING_SEEDS}"]


def sanitizer_env(name: str) -> dict[str, str]:
    def suppressions(file: str) -> str:  # quoted: the folder's name may have a space in it
        return f"suppressions='{ROOT / 'hack' / 'sanitizers' / file}'"

    return {
        "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0:detect_stack_use_after_return=1:"
        + suppressions("asan.supp"),
        "LSAN_OPTIONS": suppressions("lsan.supp") + ":print_suppressions=0",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "TSAN_OPTIONS": suppressions("tsan.supp")
        + ":halt_on_error=0:exitcode=66:second_deadlock_stack=1",
        "CAIRN_SANITIZED": name,
        "CAIRN_SIM_SEEDS": SANITIZER_SEEDS,
        "CAIRN_SIM_PAIR_SEEDS": SANITIZER_PAIR_SEEDS,
    }


# --- fuzzers ---------------------------------------------------------------------------------------


def fuzz_stage(settings: Settings, report: Report) -> None:
    """Each fuzzer, from clang's libFuzzer with AddressSanitizer and UBSan; half as long where nothing of its
    code changed."""
    folder = BUILD / "fuzz"
    build = ["hack/build", "--fuzz"]
    if not configured("fuzz", build, report):
        return
    targets = sorted(path.stem for path in (ROOT / "tests" / "fuzz").glob("*_fuzz.cc"))
    ledger = Ledger()
    due = ledger.plan("fuzz", {one: inputs.of_program(folder, one) for one in targets}, stride=1)
    say(f"  {describe(due, len(targets))}")
    seconds = {one.name: FUZZ_AGAIN_SECONDS if one.why == "turn" else FUZZ_SECONDS for one in due}

    def fuzz(name: str) -> None:
        if seconds_left() <= 0:
            leave(f"fuzz:{name}")
            return
        command = fuzz_command(folder, name, seconds[name])
        limit_s = seconds[name] + patience.patient(120)
        ended = run_process(with_own_ids(command), limit_s, fuzz_env(), cwd=folder)
        problem = finding(ended.output) or f"exit status {ended.code}"
        report.add_one(f"fuzz:{name}", problem if ended.code else "")
        report.add_time(f"fuzz:{name}", ended.wall_s, ended.processor_s)
        ledger.ended("fuzz", name, ended.code == 0)
        say(f"  {'FAIL' if ended.code else 'ok  '} {name}: {seconds[name]} s")

    built = build_some("fuzz:", build, [one.name for one in due], report)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        list(pool.map(fuzz, built))


def fuzz_command(folder: Path, name: str, seconds: int) -> list[str]:
    program = next(path for path in folder.rglob(name) if path.is_file())
    corpus = folder / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_total_time={seconds}", *FUZZ_LIMITS]
    if name in WHOLE_ROOMS:
        limits += ["-entropic=0", "-print_funcs=0"]
    seeds = ROOT / "tests" / "fuzz" / "corpus" / name.removesuffix("_fuzz")
    return [str(program), *limits, str(corpus), *([str(seeds)] if seeds.is_dir() else [])]


def fuzz_env() -> dict[str, str]:
    env = sanitizer_env("fuzz")
    suppressions = ROOT / "hack" / "sanitizers" / "ubsan.supp"
    return {
        **os.environ,
        **env,
        "ASAN_OPTIONS": env["ASAN_OPTIONS"] + ":quarantine_size_mb=16",
        "UBSAN_OPTIONS": env["UBSAN_OPTIONS"] + f":suppressions='{suppressions}'",
    }
