"""What the stages of tests/run.py do. Each adds its cases to a report; which run when is schedule.py's."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from driver.budget import in_turn, leave, seconds_left
from driver.disk import TMPDIR
from driver.process import (
    BUILD,
    ROOT,
    finding,
    run_process,
    run_shown,
    say,
    tail,
    with_own_ids,
)
from driver.programs import (
    GPU_LABEL,
    GUEST_LABEL,
    THREADS_LABEL,
    Program,
    Runner,
    how_it_ended,
    list_programs,
    results_of,
    run_programs,
    show,
)
from driver.report import RESULTS, Case, Report, read_cases

DEBIAN_PYTHON = "/usr/bin/python3"
TORCH2_PYTHON = str(BUILD / "venv" / "torch2" / "bin" / "python")
FUZZ_SECONDS = 60
# One mutant in so many, others each day; `make mutants` plants them all.
MUTANTS_SHARE = 3
# One allocation, and the whole process with what AddressSanitizer keeps of freed memory: an input that makes
# ours allocate what it only announces is a finding.
FUZZ_LIMITS = ["-malloc_limit_mb=32", "-rss_limit_mb=384", "-timeout=10"]
# With all of the daemon or libcairn in them, libFuzzer's bookkeeping of rare features, and its names of
# functions, would take most of their minute.
WHOLE_ROOMS = {"thrift_socket_fuzz", "fd_socket_fuzz", "client_reads_fuzz"}
NO_TESTS_COLLECTED = 5  # pytest's exit status
PREPARE_GUEST_S = 300  # its kernel has 70 MB
GUEST_SUITE_S = 600
BENCH_LIMIT_S = 1800  # it took 744 s where 25 others wanted the two processors
XML = "@XML@"
SANITIZER_PATIENCE = 6
BUILD_LIMIT_S = 3600
# Of the time of a stage that has an end; the rest is for running what was built.
BUILD_SHARE = 0.6
# The simulator's 10,000, and its 24 for each pair of faults, are the unit stage's.
SANITIZER_SEEDS = "500"
SANITIZER_PAIR_SEEDS = "6"
# Its engine is the simulator's, for three minutes more.
NOT_SANITIZED = {"engine_year_test"}


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
        report.add_one(name, run_shown(command, timeout_s))

    return run


def unit_stage(settings: Settings, report: Report) -> None:
    build = BUILD / "main"
    runner = Runner(results_of(build), {"CAIRN_TIER": settings.tier})

    def wanted(program: Program) -> bool:
        elsewhere = program.labels & {GUEST_LABEL, GPU_LABEL}
        return not elsewhere and bool(re.search(settings.pattern, program.name))

    run_programs(report, build, wanted, settings.full, runner)


# --- in a guest with RDMA devices ------------------------------------------------------------------


def guest_stage(settings: Settings, report: Report) -> None:
    """The C++ programs that need such devices, each in a guest of its own, so that none hangs another."""
    code, output = run_process(["hack/guest", "--prepare"], PREPARE_GUEST_S)

    def run(name: str, limit_s: float, command: list[str]) -> None:
        if code != 0:
            report.add([Case(name, "skipped", output.strip())])
        else:
            run_in_guest(name, limit_s, command, report)

    for program in list_programs(BUILD / "main"):
        if GUEST_LABEL in program.labels and re.search(settings.pattern, program.name):
            run(program.name, program.timeout_s, [*program.command, f"--gtest_output=xml:{XML}"])
    if not settings.pattern:
        command = [
            DEBIAN_PYTHON,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "cairn_tier",
        ]
        command += [f"--junitxml={XML}", "tests/guest"]
        run("guest", GUEST_SUITE_S, command)


def run_in_guest(name: str, limit_s: float, command: list[str], report: Report) -> None:
    """`command` has XML where its results go."""
    results = results_of(BUILD / "guest")
    results.mkdir(parents=True, exist_ok=True)
    xml = results / f"{name}.xml"
    xml.unlink(missing_ok=True)
    words = shlex.join(command).replace(XML, f'"$OUT/{xml.name}"')
    limit = ["--limit", str(limit_s), "--bring", str(results)]
    begin = time.monotonic()
    run = ["hack/guest", *limit, "bash", "-c", f"exec {words}"]
    env = {**python_env(Settings(full=True, pattern="")), "PYTHONPYCACHEPREFIX": "/tmp/pycache"}
    env.pop(TMPDIR, None)  # its /tmp is its own
    code, output = run_process(run, limit_s + 60, env)
    cases = read_cases(xml, f"{name}:", name)
    if code != 0 and not any(case.outcome == "failed" for case in cases):
        cases.append(Case(name, "failed", f"{how_it_ended(code, output)}\n{tail(output)}"))
    show(name, cases, time.monotonic() - begin)
    report.add(cases)


# --- Python ----------------------------------------------------------------------------------------


def pytest_folders(names: tuple[str, ...]) -> list[str]:
    """Those of them that hold tests."""
    folders = [ROOT / "tests" / name for name in names]
    return [f"tests/{folder.name}" for folder in folders if any(folder.rglob("test_*.py"))]


def python_stage(label: str, python: str, names: tuple[str, ...]) -> Callable[..., None]:
    """One folder at a time, so that what takes long is seen to go on."""

    def run(settings: Settings, report: Report) -> None:
        for folder in pytest_folders(names):
            run_pytest(report, python, label, folder, settings)

    return run


def run_pytest(report: Report, python: str, label: str, folder: str, settings: Settings) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    name = f"{label}:{Path(folder).name}"
    xml = RESULTS / f"{label}-{Path(folder).name}.xml"
    xml.unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", "-p", "cairn_tier"]
    command += [f"--junitxml={xml}", "--durations=5", folder]
    begin = time.monotonic()
    code, output = run_process(command, 3000 if settings.full else 900, python_env(settings))
    took = time.monotonic() - begin
    cases = read_cases(xml, f"{label}:", name)
    failed = any(case.outcome == "failed" for case in cases)
    bad = code not in (0, NO_TESTS_COLLECTED)
    if failed or bad:
        say("    " + tail(output).replace("\n", "\n    "))
    if bad and not failed:
        cases.append(Case(name, "failed", f"exit status {code}"))
    say(f"  {'FAIL' if bad else 'ok  '} {name}: {len(cases)} cases, {took:.1f} s")
    report.add(cases)


def python_env(settings: Settings) -> dict[str, str]:
    return {
        **os.environ,
        # `import cairn` finds the package as hack/build leaves it.
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), str(BUILD / "main" / "python")]),
        "PYTHONPYCACHEPREFIX": str(BUILD / "pycache"),
        "CAIRN_TIER": settings.tier,
        "CAIRN_BUILD": str(BUILD / "main"),
        "CAIRN_BIN": str(BUILD / "bin"),
    }


# --- benches ---------------------------------------------------------------------------------------


def bench_stage(settings: Settings, report: Report) -> None:
    """Each row once, as small as it can be: it must run, and its bytes be right. The figures say nothing."""
    output = RESULTS / "bench.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.unlink(missing_ok=True)
    command = [sys.executable, "tests/bench/run.py", "--tiny", "--json", str(output)]
    problem = run_shown(command, BENCH_LIMIT_S)
    rows = json.loads(output.read_text(encoding="utf-8")) if output.exists() else []
    report.add([Case(f"bench:{row['name']}", row["outcome"], row["reason"]) for row in rows])
    if problem and not any(row["outcome"] == "failed" for row in rows):
        report.add_one("bench", problem)


# --- sanitizers ------------------------------------------------------------------------------------


def has_threads(program: Program) -> bool:
    """What only one thread ever enters tells ThreadSanitizer nothing."""
    return THREADS_LABEL in program.labels


def build_some(prefix: str, build: list[str], names: list[str], report: Report) -> list[str]:
    """Builds one program after the other and returns those that are built. What is not when most of the
    stage's time is up is left for another run."""
    ends = time.monotonic() + BUILD_SHARE * seconds_left()
    built = []
    for name in names:
        limit_s = min(BUILD_LIMIT_S, ends - time.monotonic())
        problem = run_shown([*build, "--configured", name], limit_s) if limit_s > 0 else ""
        if limit_s <= 0 or (problem and time.monotonic() >= ends):
            leave(f"{prefix}{name}")
            continue
        report.add_one(f"{prefix}build:{name}", problem)
        if not problem:
            built.append(name)
    return built


def sanitizer_stage(
    name: str, sanitizer: str, wanted: Callable[[Program], bool]
) -> Callable[..., None]:
    """The unit tests, and what they need, built and run under a sanitizer."""

    def run(settings: Settings, report: Report) -> None:
        def chosen(program: Program) -> bool:
            # A program that somebody asks for by name runs whatever its labels are.
            matches = re.search(settings.pattern, program.name)
            due = wanted(program) and program.name not in NOT_SANITIZED
            return program.is_unit_test() and bool(matches if settings.pattern else due)

        build = ["hack/build", "--sanitizer", sanitizer]
        code, output = run_process([*build, "--configure"], 300)
        if code:
            report.add_one(f"{name}:configure", tail(output))
            return
        names = in_turn([program.name for program in filter(chosen, list_programs(BUILD / name))])
        built = build_some(f"{name}:", build, names, report)
        runner = Runner(
            results_of(BUILD / name),
            sanitizer_env(name),
            prefix=f"{name}:",
            patience=SANITIZER_PATIENCE,
        )
        run_programs(report, BUILD / name, lambda program: program.name in built, False, runner)

    return run


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


# --- fuzzing and mutants ---------------------------------------------------------------------------


def fuzz_stage(settings: Settings, report: Report) -> None:
    """Each fuzzer for a minute, from clang's libFuzzer with AddressSanitizer and UBSan."""
    build = BUILD / "fuzz"
    targets = sorted(path.stem for path in (ROOT / "tests" / "fuzz").glob("*_fuzz.cc"))
    code, output = run_process(["hack/build", "--fuzz", "--configure"], 300)
    if code:
        report.add_one("fuzz:configure", tail(output))
        return

    def fuzz(name: str) -> None:
        if seconds_left() <= 0:
            leave(f"fuzz:{name}")
            return
        program = next(path for path in build.rglob(name) if path.is_file())
        corpus = build / "corpus" / name
        corpus.mkdir(parents=True, exist_ok=True)
        limits = [f"-max_total_time={FUZZ_SECONDS}", *FUZZ_LIMITS]
        if name in WHOLE_ROOMS:
            limits += ["-entropic=0", "-print_funcs=0"]
        seeds = ROOT / "tests" / "fuzz" / "corpus" / name.removesuffix("_fuzz")
        command = [str(program), *limits, str(corpus), *([str(seeds)] if seeds.is_dir() else [])]
        code, output = run_process(with_own_ids(command), FUZZ_SECONDS + 120, fuzz_env(), cwd=build)
        report.add_one(f"fuzz:{name}", (finding(output) or f"exit status {code}") if code else "")
        say(f"  {'FAIL' if code else 'ok  '} {name}: {FUZZ_SECONDS} s")

    built = build_some("fuzz:", ["hack/build", "--fuzz"], in_turn(targets), report)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        list(pool.map(fuzz, built))


def fuzz_env() -> dict[str, str]:
    env = sanitizer_env("fuzz")
    suppressions = ROOT / "hack" / "sanitizers" / "ubsan.supp"
    return {
        **os.environ,
        **env,
        "ASAN_OPTIONS": env["ASAN_OPTIONS"] + ":quarantine_size_mb=16",
        "UBSAN_OPTIONS": env["UBSAN_OPTIONS"] + f":suppressions='{suppressions}'",
    }


def mutants_stage(settings: Settings, report: Report) -> None:
    output = RESULTS / "mutants.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.unlink(missing_ok=True)
    code = subprocess.run(
        [sys.executable, "hack/mutants.py", "--share", str(MUTANTS_SHARE), "--json", str(output)],
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
    if code and all(row["caught"] for row in rows):
        report.add_one("mutants", f"exit status {code}")
