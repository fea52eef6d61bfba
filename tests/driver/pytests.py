"""Python's tests: files of several folders in three shards beside each other, because they mostly wait.

A shard takes the next job when it has none: a file that takes long, or some files of one folder that do not.
What needs the machine for itself (the marker `machine`, tests/cairn_tier.py) waits for other such tests.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from pathlib import Path

import patience

from driver import inputs
from driver.ledger import Ledger, describe
from driver.process import BUILD, ROOT, run_process, say, tail
from driver.report import RESULTS, Case, Report, read_cases

DEBIAN_PYTHON = "/usr/bin/python3"
TORCH2_PYTHON = str(BUILD / "venv" / "torch2" / "bin" / "python")
# Set for the second Python: only modules that need PyTorch run under it.
TORCH_ONLY = "CAIRN_TORCH_ONLY"
SHARDS = 3
JOB_S = 60  # short files of a folder are put together until they take so long
UNKNOWN_S = 20  # a file that no run has measured yet
# A file that runs under the first Python, too, has its turn under the second one in one run of so many.
SECOND_STRIDE = 2
# tests/[!r]*.py: the driver, tests/run.py, decides nothing in a test.
SHARED = ("client/python/**/*.py", "client/python/src/*", "tests/[!r]*.py", "tests/python/*.py")
NO_TESTS_COLLECTED = 5  # pytest's exit status
LIMIT_S, LIMIT_ORDINARY_S = 3000, 900


@dataclasses.dataclass
class Job:
    files: list[str]  # of one folder
    seconds: float  # as the last run took

    @property
    def name(self) -> str:
        folder = Path(self.files[0]).parent.name
        more = f"+{len(self.files) - 1}" if len(self.files) > 1 else ""
        return f"{folder}/{Path(self.files[0]).stem}{more}"


def jobs_of(files: Iterable[str], label: str, took: dict[str, float]) -> list[Job]:
    """What takes longest first."""
    seconds = {file: took.get(f"{label}:{file}", UNKNOWN_S) for file in files}
    jobs: list[Job] = []
    filled: dict[Path, Job] = {}  # by folder
    for file in sorted(seconds, key=lambda file: (-seconds[file], file)):
        job = filled.get(Path(file).parent)
        if job is None or job.seconds + seconds[file] > JOB_S:
            job = filled[Path(file).parent] = Job([], 0)
            jobs.append(job)
        job.files.append(file)
        job.seconds += seconds[file]
    return sorted(jobs, key=lambda job: -job.seconds)


def find_tests(folder: str) -> list[str]:
    found = (ROOT / "tests" / folder).rglob("test_*.py")
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def due_of(files: Iterable[str], label: str, ledger: Ledger) -> set[str]:
    """Those that have their turn, that changed, or that run under no other Python."""
    shared = {one for one in inputs.matching(SHARED) if not Path(one).name.startswith("test_")}
    both = [file for file in files if not wants_torch2(file)]
    digests = {file: inputs.digest(shared | {file}) for file in both}
    due = ledger.plan(label, digests, SECOND_STRIDE)
    say(f"  under both Pythons: {describe(due, len(digests))}")
    return {file for file in files if file not in digests} | {one.name for one in due}


def wants_torch2(file: str) -> bool:
    return "mark.torch2" in (ROOT / file).read_text(encoding="utf-8")


class Pytests:
    """The runs of one Python over some folders."""

    def __init__(self, report: Report, label: str, python: str, full: bool) -> None:
        self._report = report
        self._label = label
        self._python = python
        self._full = full
        self._ledger = Ledger()

    def run(self, folders: Iterable[str], again: Iterable[str]) -> None:
        """The files of `folders`, and those of `again`, which run under the first Python, too, in turns."""
        files = {file for folder in folders for file in find_tests(folder)}
        if second := [file for folder in again for file in find_tests(folder)]:
            files |= due_of(second, self._label, self._ledger)
        jobs = jobs_of(files, self._label, self._ledger.took_last())
        with concurrent.futures.ThreadPoolExecutor(SHARDS if self._full else 1) as pool:
            list(pool.map(self._run_job, jobs))

    def _run_job(self, job: Job) -> None:
        RESULTS.mkdir(parents=True, exist_ok=True)
        name = f"{self._label}:{job.name}"
        xml = RESULTS / f"{name.replace('/', '-').replace(':', '-')}.xml"
        xml.unlink(missing_ok=True)
        command = [self._python, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider"]
        command += ["-p", "cairn_tier", f"--junitxml={xml}", *job.files]
        limit_s = patience.patient(LIMIT_S if self._full else LIMIT_ORDINARY_S)
        ended = run_process(command, limit_s, self._env())
        cases = read_cases(xml, f"{self._label}:", name)
        failed = any(case.outcome == "failed" for case in cases)
        bad = ended.code not in (0, NO_TESTS_COLLECTED)
        if failed or bad:
            say("    " + tail(ended.output).replace("\n", "\n    "))
        if bad and not failed:
            cases.append(Case(name, "failed", f"exit status {ended.code}\n{tail(ended.output)}"))
        say(f"  {'FAIL' if bad else 'ok  '} {name}: {len(cases)} cases, {ended.wall_s:.1f} s")
        self._report.add(cases)
        self._report.add_time(name, ended.wall_s, ended.processor_s)
        for file in job.files:
            self._ledger.ended(self._label, file, not bad)
        if not bad:
            took = seconds_by_file(xml, job.files)
            self._ledger.took({f"{self._label}:{file}": s for file, s in took.items()})

    def _env(self) -> dict[str, str]:
        env = python_env("all" if self._full else "ordinary")
        return {**env, TORCH_ONLY: "1"} if self._python == TORCH2_PYTHON else env


def seconds_by_file(xml: Path, files: list[str]) -> dict[str, float]:
    """How long the tests of each file took, by pytest's JUnit file."""
    took = dict.fromkeys(files, 0.0)
    for case in ElementTree.parse(xml).getroot().iter("testcase"):
        module = re.match(r"tests\.\w+\.test_\w+", case.get("classname") or "")
        if module and (file := module[0].replace(".", "/") + ".py") in took:
            took[file] += float(case.get("time") or 0)
    return took


def python_env(tier: str) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {
        **inherited,
        # `import cairn` finds the package as hack/build leaves it.
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), str(BUILD / "main" / "python")]),
        "PYTHONPYCACHEPREFIX": str(BUILD / "pycache"),
        "CAIRN_TIER": tier,
        "CAIRN_BUILD": str(BUILD / "main"),
        "CAIRN_BIN": str(BUILD / "bin"),
    }
