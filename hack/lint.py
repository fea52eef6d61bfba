#!/usr/bin/env python3
"""make lint and make format: clang-format, clang-tidy, the house's rules, its structure, ruff.

clang-tidy reads the sources of a room in batches (hack/cmake/CairnRoom.cmake), in a third of the time that
they take one by one. A batch in which it found nothing is remembered in the ledger (tests/driver/ledger.py),
by a digest of its sources, the headers of the repository that they see, the configuration and clang-tidy's
version: the second run is quick, in another clone too.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from driver import inputs
from driver.budget import leave, seconds_left
from driver.ledger import Ledger

ROOT = Path(__file__).resolve().parent.parent
# A configuration of its own: clang reads the compile commands, but not gcc's precompiled headers.
BUILD = ROOT / "build" / "lint" / "cmake"
# On a machine that has no ledger yet, one in so many is read in each run of the full tier.
TIDY_STRIDE = 4
GENERATED = ("proto/gen/Cairn.h", "proto/gen-peer/Peer.h")
TIDY = (
    "clang-tidy",
    "--quiet",
    f"-p={BUILD}",
    "--extra-arg=-Wno-unknown-warning-option",
    "--extra-arg=-Wno-ignored-optimization-argument",
    "--extra-arg=-Wthread-safety",  # cairn::Mutex is annotated; gcc cannot check it
)
CPP_TOPS = ("common", "server", "client", "tests")
# What ships. A test's slips show when it runs, and reading gtest's headers costs seconds a file.
TIDY_TOPS = ("common/", "server/", "client/")
PYTHON_TOPS = ("client/python", "docker", "tests", "hack")
TIDY_FINDING = re.compile(r": (error|warning): ")
FINDINGS: set[str] = set()  # of clang-tidy: one in a header is found in each file that includes it
SHOWN_FINDINGS = 10


def sources(suffixes: tuple[str, ...]) -> list[str]:
    found = []
    for top in CPP_TOPS:
        for path in (ROOT / top).rglob("*"):
            if path.suffix in suffixes:
                found.append(path.relative_to(ROOT).as_posix())
    return sorted(found)


def run(command: list[str], **kwargs) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False, **kwargs)


def clang_format(fix: bool) -> list[str]:
    files = sources((".h", ".cc"))
    if not files:
        return []
    result = run(
        ["clang-format", "-i", *files] if fix else ["clang-format", "--dry-run", "--Werror", *files]
    )
    bad = {line.split(":")[0] for line in result.stderr.splitlines() if "error:" in line}
    problems = [f"{name}: not formatted; make format" for name in sorted(bad)]
    if result.returncode and not problems:
        problems.append(result.stderr.strip())
    return problems


def clang_tidy() -> list[str]:
    configured = run(
        ["cmake", "-S", ".", "-B", str(BUILD), "-G", "Ninja"]
        + ["-DCAIRN_PRECOMPILED=OFF", "-DCAIRN_UNITY=ON"]
    )
    if configured.returncode:
        return [configured.stdout + configured.stderr]
    # The generated Thrift headers, without which half of the files do not parse.
    made = run(["cmake", "--build", str(BUILD), "--target", *GENERATED])
    if made.returncode:
        return [made.stdout + made.stderr]
    version = run(["clang-tidy", "--version"]).stdout
    common = hashlib.sha256((version + " ".join(TIDY).replace(str(ROOT), "")).encode())
    for name in (".clang-tidy", "proto/cairn.thrift", "proto/peer.thrift"):
        common.update((ROOT / name).read_bytes())
    digests = {}
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        path = Path(entry["file"])
        read = inputs.sources_of(path)
        if read and all(name.startswith(TIDY_TOPS) for name in read):
            name = path.relative_to(BUILD if path.is_relative_to(BUILD) else ROOT).as_posix()
            digests[name] = inputs.digest(inputs.with_headers(read), common.hexdigest())
    ledger = Ledger()
    todo = [one.name for one in ledger.plan("tidy", digests, TIDY_STRIDE, repeat=False)]

    def tidy(name: str) -> str | None:
        if seconds_left() <= 0:
            leave(f"tidy:{name}")
            return None
        result = run([*TIDY, str(ROOT / name if (ROOT / name).exists() else BUILD / name)])
        ledger.ended("tidy", name, result.returncode == 0)
        if result.returncode == 0:
            return None
        return (result.stdout or result.stderr).strip().replace(f"{ROOT}/", "")

    print(f"  clang-tidy on {len(todo)} batches", flush=True)
    found = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        for problem in pool.map(tidy, todo):
            if problem:  # shown at once: all of them together take minutes
                print("  " + problem.replace("\n", "\n  "), flush=True)
                FINDINGS.update(line for line in problem.splitlines() if TIDY_FINDING.search(line))
                found += 1
    return [f"{found} batches with findings, above"] if found else []


def ruff(fix: bool) -> list[str]:
    binary = ROOT / "build" / "venv" / "lint" / "bin" / "ruff"
    tops = [top for top in PYTHON_TOPS if (ROOT / top).is_dir()]
    cache = ["--cache-dir", "build/lint/ruff"]
    problems = []
    commands = (
        [[str(binary), "check", "--fix", *cache, *tops], [str(binary), "format", *cache, *tops]]
        if fix
        else [
            [str(binary), "check", "--output-format=concise", *cache, *tops],
            [str(binary), "format", "--check", "--quiet", *cache, *tops],
        ]
    )
    for command in commands:
        result = run(command)
        if result.returncode:
            problems.append((result.stdout + result.stderr).strip())
    return problems


def python_syntax() -> list[str]:
    problems = []
    for top in PYTHON_TOPS:
        for path in sorted((ROOT / top).rglob("*.py")):
            try:
                compile(path.read_bytes(), str(path.relative_to(ROOT)), "exec", dont_inherit=True)
            except SyntaxError as error:
                problems.append(f"{path.relative_to(ROOT)}:{error.lineno}: {error.msg}")
    return problems


def script(name: str, *options: str, show: bool = False) -> list[str]:
    """The problems that a check of hack/ prints. `show`: it prints a table too, with or without problems."""
    result = run([sys.executable, f"hack/{name}", *options])
    lines = (result.stdout + result.stderr).splitlines()
    if show:
        print("  " + "\n  ".join(lines), flush=True)
        return ["what is WRONG stands above"] if result.returncode else []
    return lines if result.returncode else []


def main() -> int:
    parser = argparse.ArgumentParser(description="make lint and make format")
    parser.add_argument("--format", action="store_true", help="format in place, check nothing")
    arguments = parser.parse_args()
    if arguments.format:
        stages = [
            ("clang-format", lambda: clang_format(fix=True)),
            ("ruff", lambda: ruff(fix=True)),
        ]
    else:
        stages = [
            ("house arrows", lambda: script("check_includes.py")),
            ("structure", lambda: script("check_structure.py", show=True)),
            ("registered tests", lambda: script("check_tests.py")),
            ("plain English", lambda: script("check_plain.py")),
            ("tests that hope for time", lambda: script("check_waits.py")),
            ("mutants apply", lambda: script("mutants.py", "--check")),
            ("clang-format", lambda: clang_format(fix=False)),
            ("python syntax", python_syntax),
            ("ruff", lambda: ruff(fix=False)),
            ("clang-tidy", clang_tidy),
        ]
    failed = []
    for name, stage in stages:
        begin = time.monotonic()
        problems = stage()
        print(
            f"{'FAIL' if problems else 'ok  '} {name} ({time.monotonic() - begin:.1f} s)",
            flush=True,
        )
        for problem in problems:
            print("  " + problem.replace("\n", "\n  "))
        if problems:
            failed.append(name)
    # Once more where it is seen, however long the output has become.
    for finding in sorted(FINDINGS)[:SHOWN_FINDINGS]:
        print(finding)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
