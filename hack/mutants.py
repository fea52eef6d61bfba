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

Each bug is planted in a copy of the tree under build/mutants, alone; without it the same tests must pass, as
the working tree has built them. As many copies are worked on side by side as there are processors. A bug
whose text is not there any more, or that does not compile, is an error: it proves nothing.
    unproven       true: no run has shown yet that it is caught; the full tier leaves it out

    hack/mutants.py [NAME...] [--json FILE]     all, or some; in the full tier those that are due (the ledger,
                                                tests/driver/ledger.py)
    hack/mutants.py --check                     only whether each text is there, in a second

A mutant counts as changed when the function that its text lies in changed, or a source of the tests that must
catch it, or the mutant itself; not when its text only moved.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import difflib
import fnmatch
import functools
import hashlib
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

import cpp_source
import patience
from driver.budget import leave, run_seconds_left, seconds_left
from driver.ledger import MODE, TURNS, Due, Ledger, describe
from driver.process import (
    LOWEST_PRIORITY,
    ROOT,
    Ended,
    end_with_all_that_runs,
    forget_settings,
    run_process,
    say,
    tail,
)
from driver.programs import Runner, list_programs
from driver.pytests import DEBIAN_PYTHON, NO_TESTS_COLLECTED, TORCH2_PYTHON
from driver.report import Case, Report

TREES = ROOT / "build" / "mutants"
DEFINITIONS = ROOT / "tests" / "mutants" / "mutants.json"
NOT_COPIED = {".git", "build"}
SOURCES = (".h", ".cc", ".py", ".sql")
TEST_LIMIT_S = 240
# A bug may make a program ask for all the memory of the machine; no test needs half as much.
WITHIN_MEMORY = ("prlimit", f"--data={8 << 30}")
BUILD_LIMIT_S = 3600  # of all that a program needs, when ccache has nothing of it
# One in so many of those that did not change has its turn in a run of the full tier.
STRIDE = 4
# Lines on each side of a text that lies in no function that hack/cpp_source.py finds.
AROUND = 8
TEST = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\((\w+),\s*(\w+)", re.MULTILINE)
PARAMETERS = re.compile(r"^[\w*]+/(?=\w+\.)|/[\w*]+$")


class Unusable(Exception):
    """The mutant proves nothing; the message says why."""


class Sick(Exception):
    """A test fails without any bug: it would catch everything."""


class OutOfTime(Exception):
    """The run was over before there was a verdict."""


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


# --- what it is made from --------------------------------------------------------------------------


def squeezed(text: str) -> str:
    return "".join(text.split())


def digest_of(mutant: Mutant, tests: TestSources) -> str:
    """A digest of the mutant, of the text around its place, and of the tests that must catch it."""
    try:
        path, begin, _ = find_place(ROOT, mutant)
        around = surroundings(path, begin)
    except Unusable as problem:
        around = str(problem)
    itself = (mutant.find, mutant.replace, *map(repr, mutant.proof))
    parts = [*itself, squeezed(around), *tests.of(mutant)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def surroundings(path: Path, offset: int) -> str:
    """The function that the offset lies in, else some lines."""
    text, functions = functions_of(path)
    line = text.count("\n", 0, offset) + 1
    inside = [f for f in functions if f.first_line <= line <= f.last_line]
    smallest = min(inside, key=lambda f: f.lines, default=None)
    first, last = line - AROUND, line + AROUND
    if smallest:
        first, last = smallest.first_line, smallest.last_line
    return "\n".join(text.splitlines()[max(0, first - 1) : last])


@functools.cache
def functions_of(path: Path) -> tuple[str, list[cpp_source.Function]]:
    text = path.read_text(encoding="utf-8")
    return text, cpp_source.read(text).functions if path.suffix in (".h", ".cc") else []


class TestSources:
    """Which source holds which suite of gtest."""

    def __init__(self) -> None:
        self._tests: list[tuple[str, Path]] = []  # "Suite.Test" and where it stands
        for path in sorted((ROOT / "tests").rglob("*.cc")):
            found = TEST.findall(path.read_text(encoding="utf-8"))
            self._tests += [(f"{suite}.{test}", path) for suite, test in found]

    def of(self, mutant: Mutant) -> list[str]:
        """The texts of the sources that hold the mutant's tests; none where a whole program must catch it,
        because nothing says which of its tests does."""
        positive = mutant.filter.partition("-")[0]
        # The source of "Prefix/Suite.Test/0" says "Suite.Test".
        wanted = [PARAMETERS.sub("", one) for one in positive.split(":") if one]
        paths = {path for name, path in self._tests for one in wanted if fnmatch.fnmatch(name, one)}
        paths |= {ROOT / item.partition("::")[0] for item in mutant.pytest}
        return [
            squeezed(path.read_text(encoding="utf-8")) for path in sorted(paths) if path.is_file()
        ]


# --- a copy of the tree ----------------------------------------------------------------------------


def copy_tree(tree: Path) -> None:
    """The working tree as it is, without build folders. Files that did not change keep their times, so
    that a second run rebuilds little."""
    for top in sorted({path.name for path in ROOT.iterdir()} - NOT_COPIED):
        source = ROOT / top
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


def build(tree: Path, words: list[str]) -> Ended:
    return run_process([*LOWEST_PRIORITY, "hack/build", *words], BUILD_LIMIT_S, cwd=tree)


class Workshop:
    """One copy of the tree, in which one thread plants bugs."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self.processor_s = 0.0  # that builds and tests have used
        self._healthy: set[tuple[object, ...]] = set()  # proofs that are green without a bug
        self._configured = False
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
            failed = self._failures(mutant, self._tree)
            return failed[0].name if failed else ""
        finally:
            path.write_text(original, encoding="utf-8")

    def _require_health(self, mutant: Mutant) -> None:
        """The programs that the working tree has built pass."""
        if mutant.proof in self._healthy:
            return
        failed = self._failures(mutant, ROOT)
        if failed:
            raise Sick(f"{failed[0].name} fails without a bug:\n{failed[0].reason}")
        self._healthy.add(mutant.proof)

    def _build(self, programs: list[str]) -> str:
        """What went wrong, or an empty string."""
        ended = build(self._tree, ["--configured", *programs] if self._configured else programs)
        self._configured = ended.code == 0 or self._configured
        self.processor_s += ended.processor_s
        require_time()
        return ended.output[-3000:] if ended.code else ""

    def _failures(self, mutant: Mutant, tree: Path) -> list[Case]:
        """The failed cases among the tests that must catch it; one is enough, so the first ends a program."""
        env = {"GTEST_FAIL_FAST": "1", "GTEST_FILTER": mutant.filter or "*"}
        counted = Report()
        results = self._tree / "build" / "results"
        runner = Runner(results, env, before=WITHIN_MEMORY, quiet=True, report=counted)
        listed = list_programs(tree / "build" / "main") if mutant.tests else []
        registered = {program.name: program for program in listed}
        failed = []
        for name in mutant.tests:
            if name not in registered:
                raise Unusable(f"there is no test {name}")
            program = registered[name]
            program.timeout_s = min(program.timeout_s, TEST_LIMIT_S)
            failed += [case for case in runner.run(program) if case.outcome == "failed"]
        self.processor_s += sum(one.processor_s for one in counted.times)
        for item in mutant.pytest:
            failed += self._pytest_failures(item, tree)
        require_time()
        return failed

    def _pytest_failures(self, item: str, tree: Path) -> list[Case]:
        built = tree / "build"
        env = {
            **os.environ,
            "PYTHONPATH": f"{tree / 'tests'}:{built / 'main' / 'python'}",
            "CAIRN_BIN": str(built / "bin"),
            "CAIRN_TIER": "all",
        }
        python = TORCH2_PYTHON if item.startswith("tests/torch2/") else DEBIAN_PYTHON
        if not Path(python).exists():
            raise Unusable(f"{item} needs {python}, which `hack/setup full` makes")
        command = [*WITHIN_MEMORY, python, "-m", "pytest", "-q", "-x"]
        command += ["-p", "no:cacheprovider"]
        command += ["-p", "cairn_tier", item]
        ended = run_process(command, patience.patient(TEST_LIMIT_S), env, tree)
        self.processor_s += ended.processor_s
        if ended.code == NO_TESTS_COLLECTED or "no tests ran" in ended.output:
            raise Unusable(f"no test matches {item}: {ended.output[-500:]}")
        return [Case(item, "failed", tail(ended.output))] if ended.code else []


# --- all of them -----------------------------------------------------------------------------------


@dataclasses.dataclass
class Verdict:
    name: str
    caught: bool
    how: str
    wall_s: float = 0
    processor_s: float = 0


def require_time() -> None:
    """A command that the end of the run cuts off seems to fail."""
    if run_seconds_left() <= 0:
        raise OutOfTime


def judge(workshop: Workshop, mutant: Mutant) -> Verdict:
    begin, used = time.monotonic(), workshop.processor_s
    try:
        caught_by = workshop.prove(mutant)
        how = f"caught by {caught_by}" if caught_by else f"NOT CAUGHT: {mutant.bug}"
    except Unusable as problem:
        caught_by, how = "", f"UNUSABLE: {problem}"
    except Sick as problem:
        caught_by, how = "", f"SICK: {problem}"
    took = time.monotonic() - begin
    return Verdict(mutant.name, bool(caught_by), how, took, workshop.processor_s - used)


class Workshops:
    """As many copies of the tree as there are processors, each made when it is first needed."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._made: dict[int, Workshop] = {}
        self._mutex = threading.Lock()
        self.verdicts: list[Verdict] = []

    def judge_all(self, mutants: list[Mutant]) -> None:
        """Mutants of one test program stand together, and two workshops begin at opposite ends, so that each
        needs few of the programs."""
        queue = collections.deque(sorted(mutants, key=lambda mutant: mutant.proof))
        threads = [
            threading.Thread(target=self._work, args=[number, queue])
            for number in range(min(os.cpu_count() or 1, len(mutants)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self, number: int, queue: collections.deque[Mutant]) -> None:
        while True:
            with self._mutex:
                if not queue:
                    return
                mutant = queue.pop() if number % 2 else queue.popleft()
            if seconds_left() <= 0:
                leave(f"mutants:{mutant.name}")
                continue
            if number not in self._made:
                self._made[number] = Workshop(TREES / f"tree{number}")
            try:
                verdict = judge(self._made[number], mutant)
            except OutOfTime:
                leave(f"mutants:{mutant.name}")
                continue
            say(f"  {verdict.name}: {verdict.how} ({verdict.wall_s:.0f} s)")
            self._ledger.ended("mutants", verdict.name, verdict.caught)
            with self._mutex:
                self.verdicts.append(verdict)


def plan(mutants: list[Mutant], ledger: Ledger) -> list[Due]:
    tests = TestSources()
    in_turns = os.environ.get(MODE) == TURNS
    chosen = [mutant for mutant in mutants if not (in_turns and mutant.unproven)]
    digests = {mutant.name: digest_of(mutant, tests) for mutant in chosen}
    due = ledger.plan("mutants", digests, STRIDE)
    say(f"  {describe(due, len(mutants))}")
    return due


def main() -> int:
    parser = argparse.ArgumentParser(description="plants bugs; the tests must catch each")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--check", action="store_true", help="only whether each one applies")
    arguments = parser.parse_args()
    mutants = read_mutants()
    by_name = {mutant.name: mutant for mutant in mutants}
    unknown = set(arguments.names) - set(by_name)
    if unknown:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    if arguments.check:
        return check([by_name[name] for name in arguments.names] or mutants)

    end_with_all_that_runs()
    forget_settings()
    ledger = Ledger()
    due = [Due(name, "asked") for name in arguments.names] or plan(mutants, ledger)
    programs = {program for one in due for program in by_name[one.name].programs}
    if programs and (built := build(ROOT, sorted(programs))).code:
        print(f"the working tree cannot be built:\n{built.output[-3000:]}")
        return 1
    workshops = Workshops(ledger)
    # What waits longest first: the time may be up before the last ones.
    for why in dict.fromkeys(one.why for one in due):
        workshops.judge_all([by_name[one.name] for one in due if one.why == why])
    verdicts = workshops.verdicts
    if arguments.json:
        rows = [dataclasses.asdict(verdict) for verdict in verdicts]
        arguments.json.write_text(json.dumps(rows, indent=1))
    caught = sum(verdict.caught for verdict in verdicts)
    print(f"{caught} of {len(verdicts)} mutants caught")
    return 0 if caught == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
