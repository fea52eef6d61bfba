#!/usr/bin/env python3
"""Names the tests that hope for time (make lint), except those that hack/check_waits.baseline lists.

    sleep    a sleep outside a polling helper (a function whose name begins with "until", "await",
             "wait_until" or "stays"): a test awaits a state, with tests/support/await.h or `until`
    bound    a bound on elapsed time that does not grow with the patience factor (tests/support/patience.h,
             tests/patience.py)
    stop     a SIGSTOP; stopped.py and support/stopped.h also await that all threads stand

A script that a test has as a string is not read. The baseline only becomes shorter: --write removes the rows
that match nothing any more.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import baseline
import cpp_source

ROOT = Path(__file__).resolve().parent.parent
BASELINE = ROOT / "hack" / "check_waits.baseline"
# They measure, or run on injected time.
LEFT_OUT = ("bench", "ring", "sim", "soak", "year")
WAITS_FOR_STOPS = ("stopped.py", "support/stopped.h")
HELPER = re.compile(r"_?(until|await|wait_?until|stays)", re.IGNORECASE)
PATIENT = re.compile(r"patien(t|ce)", re.IGNORECASE)

CPP_SLEEP = re.compile(r"\b(?:sleep_for|sleep_until|SleepFor|u?sleep|nanosleep)\s*\(")
CPP_BOUND = re.compile(r"\b(?:EXPECT|ASSERT)_L[TE]\s*\(.*?;[ \t]*$", re.DOTALL | re.MULTILINE)
CPP_STOP = re.compile(r"\bkill\s*\([^;]*\bSIGSTOP\b")
CPP_ELAPSED = re.compile(r"\b[nN]ow\(\)(?:\))?\s*-|\b(?:took|elapsed\w*)\b|\bSeconds\(\[")
SENDERS = {"kill", "killpg", "send_signal", "pidfd_send_signal"}
PYTHON_CLOCKS = {"monotonic", "perf_counter", "process_time", "time"}


def cpp_hits(text: str) -> Iterator[tuple[int, str]]:
    """(line, kind)."""
    code = cpp_source.blank(text)
    helpers = [
        (function.first_line, function.last_line)
        for function in cpp_source.read(text).functions
        if HELPER.match(function.name.rpartition("::")[2])
    ]
    for found in CPP_SLEEP.finditer(code):
        line = code.count("\n", 0, found.start()) + 1
        if not any(first <= line <= last for first, last in helpers):
            yield line, "sleep"
    for found in CPP_STOP.finditer(code):
        yield code.count("\n", 0, found.start()) + 1, "stop"
    for found in CPP_BOUND.finditer(code):
        if CPP_ELAPSED.search(found.group(0)) and not PATIENT.search(found.group(0)):
            yield code.count("\n", 0, found.start()) + 1, "bound"


def called(node: ast.AST) -> str:
    """The last part of what a call calls: "sleep" of time.sleep(1)."""
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "attr", None) or getattr(node.func, "id", "")


def is_elapsed(node: ast.AST) -> bool:
    """A clock, less something."""
    return any(
        isinstance(part, ast.BinOp)
        and isinstance(part.op, ast.Sub)
        and any(called(inner) in PYTHON_CLOCKS for inner in ast.walk(part))
        for part in ast.walk(node)
    )


def python_hits(text: str) -> Iterator[tuple[int, str]]:
    elapsed: set[str] = set()  # names of the function that hold a difference of clocks

    def is_bound(node: ast.AST) -> bool:
        if not isinstance(node, ast.Compare) or PATIENT.search(ast.unparse(node)):
            return False
        sides = [node.left, *node.comparators]
        return any(
            isinstance(op, ast.Lt | ast.LtE)
            and (is_elapsed(left) or (isinstance(left, ast.Name) and left.id in elapsed))
            for op, left in zip(node.ops, sides, strict=False)
        )

    def visit(node: ast.AST, helper: bool) -> Iterator[tuple[int, str]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            helper = bool(HELPER.match(node.name))
            elapsed.clear()
        if isinstance(node, ast.Assign) and is_elapsed(node.value):
            elapsed.update(target.id for target in node.targets if isinstance(target, ast.Name))
        if called(node) == "sleep" and not helper:
            yield node.lineno, "sleep"
        if called(node) in SENDERS and any(
            isinstance(part, ast.Attribute) and part.attr == "SIGSTOP" for part in ast.walk(node)
        ):
            yield node.lineno, "stop"
        if isinstance(node, ast.Assert) and any(is_bound(part) for part in ast.walk(node.test)):
            yield node.lineno, "bound"
        for child in ast.iter_child_nodes(node):
            yield from visit(child, helper)

    yield from visit(ast.parse(text), helper=False)


READERS: dict[str, Callable[[str], Iterator[tuple[int, str]]]] = {
    ".cc": cpp_hits,
    ".h": cpp_hits,
    ".py": python_hits,
}


def gather(tests: Path) -> Counter[str]:
    hits: Counter[str] = Counter()
    for path in sorted(tests.rglob("*")):
        inside = path.relative_to(tests)
        if inside.parts[0] in LEFT_OUT or inside.as_posix() in WAITS_FOR_STOPS:
            continue
        if path.suffix in READERS:
            text = path.read_text(encoding="utf-8")
            lines = text.splitlines()
            for line, kind in READERS[path.suffix](text):
                hits[f"tests/{inside.as_posix()}:{kind}:{lines[line - 1].strip()}"] += 1
    return hits


def main() -> int:
    parser = argparse.ArgumentParser(description="tests that hope for time")
    parser.add_argument("--write", action="store_true", help="shorten the baseline")
    arguments = parser.parse_args()
    problems = baseline.check(BASELINE, gather(ROOT / "tests"), shrink=arguments.write)
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
