"""Failures that a slow machine may have caused: the case runs three times more under load, and is excused if
it passes each time.

Only a case is excused that failed because the harness's own wait ended (tests/patience.py `until`,
tests/support/await.h). Never excused are tests of tests/faults, tests that cite a promise, sanitizers,
fuzzers, mutants, simulators, and tests in a file that changed since the last green run. More than two in a
run, or the same one twice in twenty runs, stay red.

tests/quarantine.txt names cases that may fail for a known cause until it is mended: at most ten, each for
ten green runs.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys

from driver import cache
from driver.changed import Item, bodies
from driver.process import ROOT, run_process, say
from driver.report import RESULTS, Case, Report

WAIT_ENDED = re.compile(r"\bnot within \d+ s: |Value of: .*\bAwait\(")
PROMISE = re.compile(r"promise", re.IGNORECASE)
PYTHON_CASE = re.compile(r"^(?:python|torch2):(tests\.(?!faults\.)\w+\.test_\w+)\.([\w.]+)")
CPP_CASE = re.compile(r"^(?!.*sim)\w+_test:(?:[\w]+/)?(\w+)\.(\w+)")
TIMES = 3
LIMIT_S = 1200
AT_MOST = 2  # in a run
MEMORY = 20  # runs in which the same case is not excused again
QUARANTINE = ROOT / "tests" / "quarantine.txt"
QUARANTINED_AT_MOST = 10
GREEN_RUNS = 10


@dataclasses.dataclass
class Excuses:
    cases: list[str] = dataclasses.field(default_factory=list)
    quarantined: list[str] = dataclasses.field(default_factory=list)


def tables() -> list[dict]:
    """The tables of earlier full runs, the newest first (table.py)."""
    found = []
    for path in sorted((cache.folder() / "runs").glob("*.json"), reverse=True):
        table = json.loads(path.read_text(encoding="utf-8"))
        if table.get("whole"):
            found.append(table)
    return found


def git(*words: str) -> str | None:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def changed_since_green(earlier: list[dict]) -> set[str] | None:
    """Files; None where no green run of an ancestor is known, so that each may have changed."""
    for table in earlier:
        if not table["failed"]:
            ancestor = git("merge-base", "--is-ancestor", table["commit"], "HEAD")
            listed = git("diff", "--name-only", table["commit"]) if ancestor is not None else None
            if listed is not None:
                return set(listed.splitlines())
    return None


def item_of(case: Case) -> tuple[Item, str] | None:
    """The test that a case is of, and its text; None for cases that are never excused."""
    if python := PYTHON_CASE.match(case.name):
        path = python[1].replace(".", "/") + ".py"
        name = python[2].replace(".", "::")
        return next(((Item(path, n), t) for n, t in texts(path) if n == name), None)
    if cpp := CPP_CASE.match(case.name):
        name = f"{cpp[1]}.{cpp[2]}"
        for source in sorted((ROOT / "tests").rglob("*_test.cc")):
            path = source.relative_to(ROOT).as_posix()
            for one, text in texts(path):
                if one == name:
                    return Item(path, name), text
    return None


def texts(path: str) -> list[tuple[str, str]]:
    """Name and text of each test of a file, with how the file begins: it may cite a promise for all."""
    text = (ROOT / path).read_text(encoding="utf-8")
    head = text.partition("\n\n")[0]
    return [(name, f"{head}\n{body}") for name, body in bodies(path, text)]


def refusal(case: Case, earlier: list[dict], changed: set[str] | None) -> str:
    """Why a failed case is not even tried again; "" if it is."""
    found = item_of(case)
    if not WAIT_ENDED.search(case.reason) or found is None:
        return "not the end of a wait"
    item, text = found
    if PROMISE.search(text):
        return "it cites a promise"
    if changed is None or item.path in changed:
        return "its file may have changed since a green run"
    if any(case.name in table.get("excused", []) for table in earlier[:MEMORY]):
        return f"it was excused in one of the last {MEMORY} runs"
    return ""


def excuse(report: Report) -> Excuses:
    """Changes the outcome of failed cases that are excused to "passed"."""
    excuses = Excuses(quarantined=quarantine(report))
    failed = report.of("failed")
    if not 0 < len(failed) <= AT_MOST:
        return excuses
    earlier = tables()
    changed = changed_since_green(earlier)
    for case in failed:
        why_not = refusal(case, earlier, changed)
        if why_not:
            say(f"  {case.name} is not tried again: {why_not}")
            continue
        item, _ = item_of(case)
        command = [sys.executable, "hack/stress", f"--times={TIMES}", str(item)]
        if run_process(command, LIMIT_S).code == 0:
            kept = RESULTS / f"flaky-{re.sub(r'[^0-9A-Za-z]+', '-', case.name)}.log"
            kept.write_text(case.reason, encoding="utf-8")
            case.outcome, case.reason = "passed", f"{TIMES} times of {TIMES} under load; {kept}"
            excuses.cases.append(case.name)
    return excuses


def quarantine(report: Report) -> list[str]:
    """The cases of tests/quarantine.txt ("name  # cause" a line), whose failures do not count."""
    rows = [line for line in QUARANTINE.read_text(encoding="utf-8").splitlines() if line]
    rows = [line for line in rows if not line.startswith("#")]
    if len(rows) > QUARANTINED_AT_MOST:
        report.add_one("quarantine", f"{len(rows)} rows, at most {QUARANTINED_AT_MOST}")
    names = []
    for row in rows:
        name, _, cause = (part.strip() for part in row.partition("#"))
        green = sum(not t["failed"] and name in t.get("quarantined", []) for t in tables())
        if not cause or green >= GREEN_RUNS:
            problem = f"after {green} green runs" if cause else "without a cause"
            report.add_one(f"quarantine:{name}", f"its row must go: {problem}")
            continue
        names.append(name)
        for case in report.of("failed"):
            if case.name == name:
                case.outcome, case.reason = "passed", f"in quarantine: {cause}"
    return names
