#!/usr/bin/env python3
"""make mutants: plants named bugs one at a time; the tests named beside each must catch it.

tests/mutants/mutants.json holds the bugs: what they are, the text that is replaced (it must occur exactly
once; blanks and line breaks do not count, so that formatting does not matter), the text that replaces it,
and who must fail: test programs ("tests", with a gtest "filter") or pytest items ("pytest"). Each bug is
planted in a copy of the tree under build/, alone. One whose text is no longer there, or that does not
compile, is an error: it proves nothing.

    hack/mutants.py [NAME...] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import run as driver  # noqa: E402  (tests/run.py: lists and runs test programs)

TREE = ROOT / "build" / "mutants" / "tree"
DEFINITIONS = ROOT / "tests" / "mutants" / "mutants.json"
TOPS = ("CMakeLists.txt", "common", "server", "client", "proto", "sql", "hack", "tests")
TEST_LIMIT_S = 240


class Unusable(Exception):
    """The mutant proves nothing; the message says why."""


def pattern_of(text: str) -> re.Pattern[str]:
    """Matches `text` whatever blanks stand between its tokens."""
    tokens = re.findall(r"\w+|[^\w\s]", text)
    return re.compile(r"\s*".join(re.escape(token) for token in tokens))


def plant(source: str, mutant: dict) -> str:
    found = list(pattern_of(mutant["find"]).finditer(source))
    if len(found) != 1:
        raise Unusable(f"its text occurs {len(found)} times in {mutant['file']}")
    begin, end = found[0].span()
    return source[:begin] + mutant["replace"] + source[end:]


def copy_tree() -> None:
    """The working tree as it is, without build folders. Files that did not change keep their times, so
    that a second run rebuilds little."""
    for top in TOPS:
        source = ROOT / top
        if not source.exists():
            continue
        if source.is_file():
            copy_if_new(source, TREE / top)
            continue
        wanted = set()
        for path in source.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                relative = path.relative_to(ROOT)
                wanted.add(relative)
                copy_if_new(path, TREE / relative)
        for path in (TREE / top).rglob("*"):
            if path.is_file() and path.relative_to(TREE) not in wanted:
                path.unlink()


def copy_if_new(source: Path, target: Path) -> None:
    if target.exists() and target.read_bytes() == source.read_bytes():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(source.stat().st_mode)


def build(targets: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["hack/build", *targets],
        cwd=TREE,
        text=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def run_tests(mutant: dict) -> list[driver.Case]:
    """The failed cases among the tests that must catch it."""
    results = TREE / "build" / "results"
    results.mkdir(parents=True, exist_ok=True)
    failed = []
    programs = {program.name: program for program in driver.list_programs(TREE / "build" / "main")}
    for name in mutant.get("tests", []):
        if name not in programs:
            raise Unusable(f"there is no test {name}")
        program = programs[name]
        program.timeout_s = min(program.timeout_s, TEST_LIMIT_S)
        env = {"GTEST_FILTER": mutant["filter"]} if "filter" in mutant else {}
        cases = driver.run_program(program, results, env, "", 1, quiet=True)
        failed += [case for case in cases if case.outcome == "failed"]
    for item in mutant.get("pytest", []):
        env = {
            **os.environ,
            "PYTHONPATH": f"{TREE / 'tests'}:{TREE / 'build' / 'main' / 'python'}",
            "CAIRN_BIN": str(TREE / "build" / "bin"),
            "CAIRN_TIER": "all",
        }
        command = ["/usr/bin/python3", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        command += ["-p", "cairn_tier", item]
        code, output = driver.run_process(command, TEST_LIMIT_S, env, TREE)
        if code == driver.NO_TESTS_COLLECTED or "no tests ran" in output:
            raise Unusable(f"there is no test {item}: {output[-500:]}")
        if code != 0:
            failed.append(driver.Case(item, "failed", driver.tail(output)))
    return failed


def targets_of(mutant: dict) -> list[str]:
    programs = [*mutant.get("tests", []), *mutant.get("targets", [])]
    return programs + (
        ["cairnd", "cairn_python", "cairn_fault_saver"] if "pytest" in mutant else []
    )


def prove(mutant: dict) -> str:
    """Which test caught it, or an empty string."""
    path = TREE / mutant["file"]
    original = path.read_text(encoding="utf-8")
    try:
        path.write_text(plant(original, mutant), encoding="utf-8")
        built = build(targets_of(mutant))
        if built.returncode:
            raise Unusable(f"it does not compile:\n{built.stdout[-3000:]}")
        failed = run_tests(mutant)
        return failed[0].name if failed else ""
    finally:
        path.write_text(original, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="plants bugs; the tests must catch each")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", type=Path, help="write the results here")
    arguments = parser.parse_args()
    mutants = json.loads(DEFINITIONS.read_text(encoding="utf-8"))
    unknown = set(arguments.names) - {mutant["name"] for mutant in mutants}
    if unknown:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    if arguments.names:
        mutants = [mutant for mutant in mutants if mutant["name"] in arguments.names]

    copy_tree()
    os.environ.pop("GTEST_FILTER", None)
    begin = time.monotonic()
    built = build(sorted({target for mutant in mutants for target in targets_of(mutant)}))
    if built.returncode:
        print(built.stdout[-5000:] + built.stderr[-2000:])
        return 1
    # Healthy first: a test that fails without any bug would catch everything.
    for mutant in mutants:
        failed = run_tests(mutant)
        if failed:
            print(f"{failed[0].name} fails without a bug:\n{failed[0].reason}")
            return 1
    print(f"  healthy: built and green in {time.monotonic() - begin:.0f} s", flush=True)

    rows = []
    for mutant in mutants:
        begin = time.monotonic()
        try:
            caught_by = prove(mutant)
            how = f"caught by {caught_by}" if caught_by else f"NOT CAUGHT: {mutant['bug']}"
        except Unusable as problem:
            caught_by, how = "", f"UNUSABLE: {problem}"
        print(f"  {mutant['name']}: {how} ({time.monotonic() - begin:.0f} s)", flush=True)
        rows.append({"name": mutant["name"], "caught": bool(caught_by), "how": how})
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    caught = sum(row["caught"] for row in rows)
    print(f"{caught} of {len(rows)} mutants caught")
    return 0 if rows and caught == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
