#!/usr/bin/env python3
"""Runs the tests of a tier and ends with "N passed, N failed, N skipped" on a line of its own.

The unit of counting is one test case: a gtest case, a pytest item, a check of hack/, a mutant. A program
that dies counts as one failure, with its last output. Every stage prints its time.

    tests/run.py --tier ordinary      what any user can run (make test)
    tests/run.py --tier all           also root, cgroups, another uid, torch 2, lint, demo, mutants,
                                      fuzzing, sanitizers
    tests/run.py --only unit,python   some stages
    tests/run.py --filter REGEX       of the unit stage, some programs
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import fnmatch
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
RESULTS = BUILD / "test-results"
DEBIAN_PYTHON = "/usr/bin/python3"
TORCH2_PYTHON = BUILD / "venv" / "torch2" / "bin" / "python"
EXPECTED_SKIPS = ROOT / "tests" / "expected_skips.txt"
# Labels of cairn_test() that keep a program out of the ordinary tier.
FULL_LABELS = {"root", "full"}
TAIL_LINES = 60
FUZZ_SECONDS = 60
NO_TESTS_COLLECTED = 5  # pytest's exit status


@dataclasses.dataclass
class Case:
    name: str
    outcome: str  # "passed", "failed", "skipped"
    reason: str = ""


class Report:
    """What has been counted so far. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self.cases: list[Case] = []
        self.times: list[tuple[str, float]] = []

    def add(self, cases: list[Case]) -> None:
        with self._mutex:
            self.cases += cases

    def of(self, outcome: str) -> list[Case]:
        return [case for case in self.cases if case.outcome == outcome]


def say(text: str) -> None:
    print(text, flush=True)


def tail(text: str) -> str:
    lines = text.rstrip().splitlines()
    return "\n".join((["…"] if len(lines) > TAIL_LINES else []) + lines[-TAIL_LINES:])


def run_process(
    command: list[str], timeout_s: float, env: dict[str, str] | None = None, cwd: Path | str = ROOT
) -> tuple[int, str]:
    """Exit status and output; -SIGKILL and a note when it ran past the time. Its whole group is killed,
    because a test that hangs usually hangs in a daemon it started."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        try:
            output, _ = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:  # a child outside the group holds the pipe
            output = ""
        return -signal.SIGKILL, f"{output}\n(ran past {timeout_s:.0f} s and was killed)"


# --- C++ -------------------------------------------------------------------------------------------


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


def parse_junit(path: Path, prefix: str) -> list[Case]:
    """Cases of a gtest or pytest JUnit file."""
    cases = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{prefix}{case.get('classname')}.{case.get('name')}"
        skipped = case.find("skipped")
        failure = case.find("failure")
        error = case.find("error")
        if failure is not None or error is not None:
            node = failure if failure is not None else error
            text = (node.text or node.get("message") or "").strip()
            cases.append(Case(name, "failed", text))
        elif skipped is not None:
            message = (skipped.get("message") or skipped.text or "").strip()
            # gtest puts "file:line" on a line of its own before the words.
            cases.append(Case(name, "skipped", message.splitlines()[-1] if message else ""))
        elif case.get("status") == "notrun":
            cases.append(Case(name, "skipped", "disabled in the source"))
        else:
            cases.append(Case(name, "passed"))
    return cases


def run_program(
    program: Program,
    results: Path,
    extra_env: dict[str, str],
    prefix: str,
    scale: float,
    quiet: bool = False,
) -> list[Case]:
    xml = results / f"{program.name}.xml"
    xml.unlink(missing_ok=True)
    env = {**os.environ, **extra_env, "GTEST_OUTPUT": f"xml:{xml}", "GTEST_COLOR": "no"}
    for setting in program.environment:
        key, _, value = setting.partition("=")
        env[key] = value
    begin = time.monotonic()
    code, output = run_process(program.command, program.timeout_s * scale, env, program.directory)
    took = time.monotonic() - begin
    cases: list[Case] = []
    if xml.exists():
        try:
            cases = parse_junit(xml, f"{prefix}{program.name}:")
        except ElementTree.ParseError as error:
            cases = [Case(f"{prefix}{program.name}", "failed", f"{xml}: {error}")]
    failed = [case for case in cases if case.outcome == "failed"]
    if code != 0 and not failed:
        how = f"died of {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        cases.append(Case(f"{prefix}{program.name}", "failed", f"{how}\n{tail(output)}"))
    elif not cases and xml.exists():
        cases = [Case(f"{prefix}{program.name}", "failed", "no test ran")]
    elif not cases:
        cases = [Case(f"{prefix}{program.name}", "passed")]
    if quiet:
        return cases
    bad = any(case.outcome == "failed" for case in cases)
    say(f"  {'FAIL' if bad else 'ok  '} {prefix}{program.name}: {len(cases)} cases, {took:.1f} s")
    for case in cases:
        if case.outcome == "failed":
            say(f"    {case.name}\n      " + tail(case.reason).replace("\n", "\n      "))
    return cases


def run_programs(
    report: Report,
    build: Path,
    full: bool,
    pattern: str,
    extra_env: dict[str, str],
    prefix: str = "",
    scale: float = 1,
    only_unit: bool = False,
) -> None:
    results = RESULTS / (build.name)
    results.mkdir(parents=True, exist_ok=True)
    parallel, alone = [], []
    for program in list_programs(build):
        if pattern and not re.search(pattern, program.name):
            continue
        held_back = program.labels & FULL_LABELS
        if only_unit and not is_unit_test(program):
            continue
        if held_back and not full:
            label = " and ".join(sorted(held_back))
            reason = f"labelled {label}: make test TIER=all"
            report.add([Case(f"{prefix}{program.name}", "skipped", reason)])
            continue
        if not program.is_built():
            report.add([Case(f"{prefix}{program.name}", "failed", "it was not built")])
            continue
        (alone if program.alone or held_back else parallel).append(program)

    def run(program: Program) -> None:
        report.add(run_program(program, results, extra_env, prefix, scale))

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        list(pool.map(run, parallel))
    for program in alone:  # faults and whole processes: timing and memory are theirs alone
        run(program)


# --- Python ----------------------------------------------------------------------------------------


def pytest_folders() -> list[str]:
    folders = []
    for name in ("python", "faults", "e2e"):
        folder = ROOT / "tests" / name
        if any(folder.rglob("test_*.py")):
            folders.append(f"tests/{name}")
    return folders


def run_pytest(report: Report, python: str, label: str, full: bool) -> None:
    """One folder at a time, so that what takes long is seen to go on."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    for folder in pytest_folders():
        name = f"{label}:{Path(folder).name}"
        xml = RESULTS / f"{label}-{Path(folder).name}.xml"
        xml.unlink(missing_ok=True)
        command = [
            python,
            "-m",
            "pytest",
            "-q",
            "-ra",
            "-p",
            "no:cacheprovider",
            "-p",
            "cairn_tier",
        ]
        command += [f"--junitxml={xml}", "--durations=5", folder]
        begin = time.monotonic()
        code, output = run_process(command, 3000 if full else 900, python_env(full))
        try:
            cases = parse_junit(xml, f"{label}:") if xml.exists() else []
        except ElementTree.ParseError as error:
            cases = [Case(name, "failed", f"{xml}: {error}")]
        failed = any(case.outcome == "failed" for case in cases)
        bad = code not in (0, NO_TESTS_COLLECTED)
        if failed or bad:
            say("    " + tail(output).replace("\n", "\n    "))
        if bad and not failed:
            cases.append(Case(name, "failed", f"exit status {code}"))
        took = time.monotonic() - begin
        say(f"  {'FAIL' if bad else 'ok  '} {name}: {len(cases)} cases, {took:.1f} s")
        report.add(cases)


def python_env(full: bool) -> dict[str, str]:
    env = dict(os.environ)
    paths = [ROOT / "tests", *cairn_python_path()]
    env["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    env["PYTHONPYCACHEPREFIX"] = str(BUILD / "pycache")
    env["CAIRN_TIER"] = "all" if full else "ordinary"
    env["CAIRN_BUILD"] = str(BUILD / "main")
    env["CAIRN_BIN"] = str(BUILD / "bin")
    return env


def cairn_python_path() -> list[Path]:
    """Where `import cairn` finds the package: as hack/build leaves it."""
    return [BUILD / "main" / "python"]


# --- stages ----------------------------------------------------------------------------------------


def command_stage(report: Report, name: str, command: list[str], timeout_s: float) -> bool:
    """A command that is one test; its output is shown as it comes."""
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        code = process.wait(timeout=timeout_s)
        reason = f"exit status {code}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        code, reason = 1, f"ran past {timeout_s:.0f} s"
    report.add([Case(name, "failed" if code else "passed", reason if code else "")])
    return code == 0


def require_space() -> None:
    free = shutil.disk_usage(ROOT).free
    if free < 2 << 30:
        say(f"  note: only {free >> 20} MiB free on this disk")


def check_skips(report: Report) -> None:
    """In the full tier a skip that nobody wrote down is a failure."""
    patterns = []
    for line in EXPECTED_SKIPS.read_text(encoding="utf-8").splitlines():
        pattern = line.split("#")[0].strip()
        if pattern:
            patterns.append(pattern)
    for case in report.of("skipped"):
        if not any(fnmatch.fnmatch(case.name, pattern) for pattern in patterns):
            case.outcome = "failed"
            case.reason = f"skipped, but tests/expected_skips.txt does not list it: {case.reason}"


# What only one thread ever enters tells ThreadSanitizer nothing.
THREADED = r"^(cache|slab_users|journal|keeper|catalog|storage|node|rpc|client|session)_test$"


def sanitizer_stage(report: Report, name: str, sanitizer: str, pattern: str) -> None:
    """The unit tests, and what they need, built and run under a sanitizer."""
    build = ["hack/build", "--sanitizer", sanitizer]
    code, output = run_process([*build, "--configure"], 300)
    if code:
        report.add([Case(f"{name}:configure", "failed", tail(output))])
        return
    programs = [
        program.name
        for program in list_programs(BUILD / name)
        if re.search(pattern, program.name) and is_unit_test(program)
    ]
    if not command_stage(report, f"{name}:build", [*build, *programs], 3600):
        return

    def suppressions(file: str) -> str:  # quoted: the folder's name may have a space in it
        return f"suppressions='{ROOT / 'hack' / 'sanitizers' / file}'"

    env = {
        "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0:detect_stack_use_after_return=1:"
        + suppressions("asan.supp"),
        "LSAN_OPTIONS": suppressions("lsan.supp") + ":print_suppressions=0",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "TSAN_OPTIONS": suppressions("tsan.supp")
        + ":halt_on_error=0:exitcode=66:second_deadlock_stack=1",
        "CAIRN_SANITIZED": name,
        "CAIRN_SIM_SEEDS": "500",  # the simulator's 10,000 are the unit stage's
    }
    run_programs(report, BUILD / name, False, pattern, env, f"{name}:", scale=6, only_unit=True)


def is_unit_test(program: Program) -> bool:
    """Not a script, nor a program that the ordinary tier leaves out."""
    script = bool(program.command) and "python" in program.command[0]
    return not script and not program.labels & FULL_LABELS


def fuzz_stage(report: Report) -> None:
    """Each parser for a minute, from clang's libFuzzer with AddressSanitizer and UBSan."""
    build = BUILD / "fuzz"
    configure = ["cmake", "-S", ".", "-B", str(build), "-G", "Ninja", "-DCAIRN_FUZZ=ON"]
    configure += [
        "-DCAIRN_ROOMS=common;server/facts",
        "-DCMAKE_C_COMPILER=clang",
        "-DCMAKE_CXX_COMPILER=clang++",
    ]
    targets = sorted(path.stem for path in (ROOT / "tests" / "fuzz").glob("*_fuzz.cc"))
    for command in (configure, ["cmake", "--build", str(build), "--target", *targets]):
        code, output = run_process(command, 1800)
        if code:
            report.add([Case("fuzz:build", "failed", tail(output))])
            return

    def fuzz(name: str) -> None:
        program = next(path for path in build.rglob(name) if path.is_file())
        corpus = build / "corpus" / name
        corpus.mkdir(parents=True, exist_ok=True)
        limits = [f"-max_total_time={FUZZ_SECONDS}", "-rss_limit_mb=2048", "-timeout=10"]
        seeds = ROOT / "tests" / "fuzz" / "corpus" / name.removesuffix("_fuzz")
        command = [str(program), *limits, str(corpus), *([str(seeds)] if seeds.is_dir() else [])]
        code, output = run_process(command, FUZZ_SECONDS + 120, cwd=build)
        report.add(
            [Case(f"fuzz:{name}", "failed" if code else "passed", tail(output) if code else "")]
        )
        say(f"  {'FAIL' if code else 'ok  '} {name}: {FUZZ_SECONDS} s")

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        list(pool.map(fuzz, targets))


def main() -> int:
    parser = argparse.ArgumentParser(description="runs the tests of a tier")
    parser.add_argument("--tier", choices=("ordinary", "all"), default="ordinary")
    parser.add_argument("--only", default="", help="stages, comma-separated")
    parser.add_argument(
        "--filter", default="", help="regular expression on programs of the unit stage"
    )
    arguments = parser.parse_args()
    full = arguments.tier == "all"
    report = Report()
    wanted = set(filter(None, arguments.only.split(",")))
    begin = time.monotonic()
    if full and os.geteuid() != 0:
        say("make test TIER=all must run as root: cgroups, another uid and strace need it")
        report.add([Case("uid 0", "failed", "the full tier runs as root")])

    def build() -> None:
        command_stage(report, "build", ["hack/build"], 3600)

    def unit() -> None:
        run_programs(report, BUILD / "main", full, arguments.filter, {"CAIRN_TIER": arguments.tier})

    stages: list[tuple[str, bool, Callable[[], object]]] = [
        ("build", True, build),
        ("unit", True, unit),
        ("python", True, lambda: run_pytest(report, DEBIAN_PYTHON, "python", full)),
        ("torch2", full, lambda: run_pytest(report, str(TORCH2_PYTHON), "torch2", full)),
        (
            "lint",
            full,
            lambda: command_stage(report, "lint", [sys.executable, "hack/lint.py"], 1800),
        ),
        (
            "demo",
            full,
            lambda: command_stage(report, "demo", [sys.executable, "hack/demo/run.py"], 900),
        ),
        ("mutants", full, lambda: mutants(report)),
        ("fuzz", full, lambda: fuzz_stage(report)),
        (
            "asan",
            full,
            lambda: sanitizer_stage(report, "asan", "address,undefined", arguments.filter),
        ),
        (
            "tsan",
            full,
            lambda: sanitizer_stage(report, "tsan", "thread", arguments.filter or THREADED),
        ),
    ]
    unknown = wanted - {name for name, _, _ in stages}
    if unknown:
        parser.error(f"no such stage: {', '.join(sorted(unknown))}")
    require_space()
    for name, in_tier, stage in stages:
        if name not in wanted and (wanted or not in_tier):
            continue
        say(f"== {name}")
        stage_begin = time.monotonic()
        failed_before = len(report.of("failed"))
        try:
            stage()
        except Exception as error:
            report.add([Case(name, "failed", f"the stage itself failed: {error!r}")])
        took = time.monotonic() - stage_begin
        report.times.append((name, took))
        failed = len(report.of("failed")) - failed_before
        say(f"== {name}: {took:.0f} s" + (f", {failed} failed" if failed else ""))
        if name == "build" and failed:
            break

    if full and not wanted:
        check_skips(report)
    say("")
    for case in report.of("skipped"):
        say(f"skipped {case.name}: {case.reason or 'no reason given'}")
    for case in report.of("failed"):
        say(f"FAILED {case.name}: {case.reason.splitlines()[0] if case.reason else ''}")
    say(
        "time per stage: "
        + ", ".join(f"{name} {took:.0f} s" for name, took in report.times)
        + f"; {(time.monotonic() - begin) / 60:.1f} min in all"
    )
    failed = len(report.of("failed"))
    say(f"{len(report.of('passed'))} passed, {failed} failed, {len(report.of('skipped'))} skipped")
    return 1 if failed else 0


def mutants(report: Report) -> None:
    output = RESULTS / "mutants.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.unlink(missing_ok=True)
    code = subprocess.run(
        [sys.executable, "hack/mutants.py", "--json", str(output)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        check=False,
    ).returncode
    if output.exists():
        cases = [
            Case(f"mutants:{row['name']}", "passed" if row["caught"] else "failed", row["how"])
            for row in json.loads(output.read_text())
        ]
        report.add(cases)
        if code and all(case.outcome == "passed" for case in cases):
            report.add([Case("mutants", "failed", f"exit status {code}")])
    else:
        report.add([Case("mutants", "failed", f"exit status {code}, no result")])


if __name__ == "__main__":
    sys.exit(main())
