#!/usr/bin/env python3
"""make mutants: plants named bugs one at a time; the tests named beside each must catch it.

tests/mutants/mutants.json holds the bugs:

    name, bug      what an engineer would really do wrong
    under          the file or folder that holds the text; code may move within it
    find           the text that is replaced. It must occur exactly once. Blanks and line breaks do not
                   count, so that formatting does not matter
    replace        the text that replaces it
    tests          test programs of which one must fail (with a gtest "filter"), or
    pytest         items of pytest
    unproven       true: no run has shown yet that it is caught. `make mutants` plants it all the same

Each bug is planted in a copy of the tree under build/mutants, alone. As many copies are worked on side by
side as there are processors. A bug whose text is not there any more, or that does not compile, is an error:
it proves nothing.

    hack/mutants.py [NAME...] [--json FILE]
    hack/mutants.py --share N           one proven mutant in N, others each day, as the full tier does
    hack/mutants.py --check             only whether each text is there, in a second
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import difflib
import json
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from driver.budget import leave, seconds_left
from driver.process import ROOT, run_process, say, tail
from driver.programs import Runner, list_programs
from driver.report import Case

TREES = ROOT / "build" / "mutants"
DEFINITIONS = ROOT / "tests" / "mutants" / "mutants.json"
TOPS = ("CMakeLists.txt", "common", "server", "client", "proto", "sql", "hack", "tests")
SOURCES = (".h", ".cc", ".py", ".sql")
TEST_LIMIT_S = 240
BUILD_LIMIT_S = 1200  # of all that a program needs, when ccache has nothing of it
NO_TESTS_COLLECTED = 5  # pytest's exit status


class Unusable(Exception):
    """The mutant proves nothing; the message says why."""


class Sick(Exception):
    """A test fails, or the tree does not build, without any bug: it would catch everything."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    bug: str
    under: str
    find: str
    replace: str
    tests: tuple[str, ...] = ()
    filter: str = ""
    pytest: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    unproven: bool = False

    @property
    def programs(self) -> list[str]:
        """What must be built."""
        built = ["cairnd", "cairn", "cairn_python", "cairn_fault_saver"] if self.pytest else []
        return [*self.tests, *self.targets, *built]

    @property
    def proof(self) -> tuple[object, ...]:
        """What must be green without the bug; equal for mutants that share it."""
        return self.tests, self.filter, self.pytest


def read_mutants() -> list[Mutant]:
    rows = json.loads(DEFINITIONS.read_text(encoding="utf-8"))
    return [
        Mutant(**{key: tuple(v) if isinstance(v, list) else v for key, v in row.items()})
        for row in rows
    ]


# --- planting --------------------------------------------------------------------------------------


def pattern_of(text: str) -> re.Pattern[str]:
    """Matches `text` whatever blanks stand between its tokens."""
    tokens = re.findall(r"\w+|[^\w\s]", text)
    return re.compile(r"\s*".join(re.escape(token) for token in tokens))


def sources_under(tree: Path, under: str) -> Iterator[Path]:
    top = tree / under
    if top.is_file():
        yield top
    else:
        yield from sorted(path for path in top.rglob("*") if path.suffix in SOURCES)


def find_place(tree: Path, mutant: Mutant) -> tuple[Path, int, int]:
    """The one file that has the text, and where in it."""
    pattern = pattern_of(mutant.find)
    places = []
    for path in sources_under(tree, mutant.under):
        source = path.read_text(encoding="utf-8")
        places += [(path, *match.span()) for match in pattern.finditer(source)]
    if len(places) == 1:
        return places[0]
    if not places:
        raise Unusable(f"its text is nowhere under {mutant.under}{nearest(tree, mutant)}")
    shown = ", ".join(f"{place_of(path, begin, tree)}" for path, begin, _ in places)
    raise Unusable(f"its text occurs {len(places)} times under {mutant.under}: {shown}")


def place_of(path: Path, offset: int, tree: Path) -> str:
    line = path.read_text(encoding="utf-8").count("\n", 0, offset) + 1
    return f"{path.relative_to(tree)}:{line}"


def nearest(tree: Path, mutant: Mutant) -> str:
    """The line that looks most like the text: usually what it was changed into."""
    wanted = mutant.find.strip()
    matcher = difflib.SequenceMatcher(b=wanted, autojunk=False)
    best = (0.6, "")
    for path in sources_under(tree, mutant.under):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            matcher.set_seq1(line.strip())
            if matcher.real_quick_ratio() > best[0] and matcher.quick_ratio() > best[0]:
                place = f"{path.relative_to(tree)}:{number}: {line.strip()}"
                best = max(best, (matcher.ratio(), place))
    return f"; the nearest is {best[1]}" if best[1] else ""


def check(mutants: list[Mutant]) -> int:
    """Whether each mutant applies to the working tree."""
    bad = 0
    for mutant in mutants:
        try:
            find_place(ROOT, mutant)
        except Unusable as problem:
            print(f"{DEFINITIONS.relative_to(ROOT)}: {mutant.name}: {problem}")
            bad += 1
    return 1 if bad else 0


# --- a copy of the tree ----------------------------------------------------------------------------


def copy_tree(tree: Path) -> None:
    """The working tree as it is, without build folders. Files that did not change keep their times, so
    that a second run rebuilds little."""
    for top in TOPS:
        source = ROOT / top
        if not source.exists():
            continue
        if source.is_file():
            copy_if_new(source, tree / top)
            continue
        wanted = set()
        for path in source.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                relative = path.relative_to(ROOT)
                wanted.add(relative)
                copy_if_new(path, tree / relative)
        for path in (tree / top).rglob("*"):
            if path.is_file() and path.relative_to(tree) not in wanted:
                path.unlink()


def copy_if_new(source: Path, target: Path) -> None:
    if target.exists() and target.read_bytes() == source.read_bytes():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(source.stat().st_mode)


class Workshop:
    """One copy of the tree, in which one thread plants bugs."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._healthy: set[tuple[object, ...]] = set()  # proofs that are green without a bug
        copy_tree(tree)

    def prove(self, mutant: Mutant) -> str:
        """Which test caught it, or an empty string."""
        path, begin, end = find_place(self._tree, mutant)
        self._require_health(mutant)
        original = path.read_text(encoding="utf-8")
        try:
            path.write_text(original[:begin] + mutant.replace + original[end:], encoding="utf-8")
            problem = self._build(mutant.programs)
            if problem:
                raise Unusable(f"it does not compile:\n{problem}")
            failed = self._failures(mutant)
            return failed[0].name if failed else ""
        finally:
            path.write_text(original, encoding="utf-8")

    def _require_health(self, mutant: Mutant) -> None:
        if mutant.proof in self._healthy:
            return
        problem = self._build(mutant.programs)
        if problem:
            raise Sick(f"{', '.join(mutant.programs)} cannot be built:\n{problem}")
        failed = self._failures(mutant)
        if failed:
            raise Sick(f"{failed[0].name} fails without a bug:\n{failed[0].reason}")
        self._healthy.add(mutant.proof)

    def _build(self, programs: list[str]) -> str:
        """What went wrong, or an empty string."""
        code, output = run_process(["hack/build", *programs], BUILD_LIMIT_S, cwd=self._tree)
        return output[-3000:] if code else ""

    def _failures(self, mutant: Mutant) -> list[Case]:
        """The failed cases among the tests that must catch it; one is enough, so the first ends a program."""
        env = {"GTEST_FAIL_FAST": "1", "GTEST_FILTER": mutant.filter or "*"}
        runner = Runner(self._tree / "build" / "results", env, quiet=True)
        registered = {p.name: p for p in list_programs(self._tree / "build" / "main")}
        failed = []
        for name in mutant.tests:
            if name not in registered:
                raise Unusable(f"there is no test {name}")
            program = registered[name]
            program.timeout_s = min(program.timeout_s, TEST_LIMIT_S)
            failed += [case for case in runner.run(program) if case.outcome == "failed"]
        return failed + [case for item in mutant.pytest for case in self._pytest_failures(item)]

    def _pytest_failures(self, item: str) -> list[Case]:
        build = self._tree / "build"
        env = {
            **os.environ,
            "PYTHONPATH": f"{self._tree / 'tests'}:{build / 'main' / 'python'}",
            "CAIRN_BIN": str(build / "bin"),
            "CAIRN_TIER": "all",
        }
        command = ["/usr/bin/python3", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        command += ["-p", "cairn_tier", item]
        code, output = run_process(command, TEST_LIMIT_S, env, self._tree)
        if code == NO_TESTS_COLLECTED or "no tests ran" in output:
            raise Unusable(f"there is no test {item}: {output[-500:]}")
        return [Case(item, "failed", tail(output))] if code else []


# --- all of them -----------------------------------------------------------------------------------


@dataclasses.dataclass
class Verdict:
    name: str
    caught: bool
    how: str


def judge(workshop: Workshop, mutant: Mutant) -> Verdict:
    try:
        caught_by = workshop.prove(mutant)
    except Unusable as problem:
        return Verdict(mutant.name, False, f"UNUSABLE: {problem}")
    except Sick as problem:
        return Verdict(mutant.name, False, f"SICK: {problem}")
    if caught_by:
        return Verdict(mutant.name, True, f"caught by {caught_by}")
    return Verdict(mutant.name, False, f"NOT CAUGHT: {mutant.bug}")


def judge_all(mutants: list[Mutant]) -> list[Verdict]:
    """Mutants of one test program stand together, and two workshops begin at opposite ends, so that each
    needs few of the programs."""
    queue = collections.deque(sorted(mutants, key=lambda mutant: mutant.proof))
    verdicts: list[Verdict] = []
    mutex = threading.Lock()

    def work(number: int) -> None:
        workshop = None
        while True:
            with mutex:
                if not queue:
                    return
                mutant = queue.pop() if number % 2 else queue.popleft()
            if seconds_left() <= 0:
                leave(f"mutants:{mutant.name}")
                continue
            workshop = workshop or Workshop(TREES / f"tree{number}")
            begin = time.monotonic()
            verdict = judge(workshop, mutant)
            say(f"  {verdict.name}: {verdict.how} ({time.monotonic() - begin:.0f} s)")
            with mutex:
                verdicts.append(verdict)

    threads = [
        threading.Thread(target=work, args=[number])
        for number in range(min(os.cpu_count() or 1, len(mutants)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description="plants bugs; the tests must catch each")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--check", action="store_true", help="only whether each one applies")
    parser.add_argument("--share", type=int, metavar="N", help="one proven mutant in N")
    arguments = parser.parse_args()
    mutants = read_mutants()
    unknown = set(arguments.names) - {mutant.name for mutant in mutants}
    if unknown:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    if arguments.names:
        mutants = [mutant for mutant in mutants if mutant.name in arguments.names]
    if arguments.check:
        return check(mutants)
    if arguments.share:
        today = int(time.time()) // 86_400 % arguments.share
        proven = [mutant for mutant in mutants if not mutant.unproven]
        mutants = proven[today :: arguments.share]

    verdicts = judge_all(mutants)
    if arguments.json:
        rows = [dataclasses.asdict(verdict) for verdict in verdicts]
        arguments.json.write_text(json.dumps(rows, indent=1))
    caught = sum(verdict.caught for verdict in verdicts)
    print(f"{caught} of {len(verdicts)} mutants caught")
    return 0 if mutants and caught == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
