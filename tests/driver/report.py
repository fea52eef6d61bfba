"""Test cases and their outcomes: read from JUnit files, counted, held against the list of expected skips.

The unit of counting is one test case: a gtest case, a pytest item, a check of hack/, a mutant.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import threading
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from driver.process import BUILD, ROOT, SHOWN_LAST

RESULTS = BUILD / "test-results"
EXPECTED_SKIPS = ROOT / "tests" / "expected_skips.txt"
MOST_RESULTS = 32 << 20  # bytes of a program


@dataclasses.dataclass
class Case:
    name: str
    outcome: str  # "passed", "failed", "skipped"
    reason: str = ""


@dataclasses.dataclass
class Time:
    """How long one program of a stage took, or its build."""

    program: str
    wall_s: float
    processor_s: float


class Report:
    """The cases counted so far, and how long programs took. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self.cases: list[Case] = []
        self.times: list[Time] = []

    def add(self, cases: list[Case]) -> None:
        with self._mutex:
            self.cases += cases

    def add_time(self, program: str, wall_s: float, processor_s: float) -> None:
        with self._mutex:
            self.times.append(Time(program, round(wall_s, 2), round(processor_s, 2)))

    def add_one(self, name: str, problem: str) -> None:
        """A case that passed when there is no problem."""
        self.add([Case(name, "failed" if problem else "passed", problem)])

    def of(self, outcome: str) -> list[Case]:
        return [case for case in self.cases if case.outcome == outcome]


def write_report(report: Report, output: Path) -> None:
    """The process of a stage hands this file to the one that started it."""
    values = {
        "cases": [dataclasses.asdict(case) for case in report.cases],
        "times": [dataclasses.asdict(one) for one in report.times],
    }
    output.write_text(json.dumps(values), encoding="utf-8")


def read_report(output: Path) -> tuple[list[Case], list[Time]]:
    values = json.loads(output.read_text(encoding="utf-8"))
    return [Case(**case) for case in values["cases"]], [Time(**one) for one in values["times"]]


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
            cases.append(
                Case(name, "failed", reason_of(node.get("message") or "", node.text or ""))
            )
        elif skipped is not None:
            message = (skipped.get("message") or skipped.text or "").strip()
            # gtest puts "file:line" on a line of its own before the words.
            cases.append(Case(name, "skipped", message.splitlines()[-1] if message else ""))
        elif case.get("status") == "notrun":
            cases.append(Case(name, "skipped", "disabled in the source"))
        else:
            cases.append(Case(name, "passed"))
    return cases


def reason_of(message: str, text: str) -> str:
    """The exception's message, then the text, of which pytest's begins with source code."""
    message, text = message.strip(), text.strip()
    return text if text.startswith(message) else f"{message}\n{text}".strip()


def shown(reason: str) -> list[str]:
    """The lines of a reason that a summary has room for: its first and its last."""
    lines = reason.splitlines() or [""]
    if len(lines) <= 2 * SHOWN_LAST:
        return lines
    return [*lines[:SHOWN_LAST], f"[{len(lines) - 2 * SHOWN_LAST} lines]", *lines[-SHOWN_LAST:]]


def read_cases(xml: Path, prefix: str, name: str) -> list[Case]:
    """Those of a file that a test program may or may not have written; none when it is absent."""
    if not xml.exists():
        return []
    # The parser's time grows with the square of a message.
    if (size := xml.stat().st_size) > MOST_RESULTS:
        reason = f"its results have {size} bytes: does it print what it compares?"
        return [Case(name, "failed", reason)]
    try:
        return parse_junit(xml, prefix)
    except ElementTree.ParseError as error:
        return [Case(name, "failed", f"{xml}: {error}")]


def fail_unexpected_skips(report: Report) -> None:
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
