"""Starting commands, with a limit on how long they may take."""

from __future__ import annotations

import collections
import contextlib
import os
import re
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from driver.budget import run_seconds_left

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
TAIL_LINES = 60
SHOWN_LAST = 20  # lines of a failure, in the summary; of a long reason as many of its beginning


def say(text: str) -> None:
    print(f"{text}\n", end="", flush=True)  # in one piece, because lanes are threads


def tail(text: str) -> str:
    lines = text.rstrip().splitlines()
    return "\n".join((["…"] if len(lines) > TAIL_LINES else []) + lines[-TAIL_LINES:])


# Where libFuzzer, a sanitizer or a fuzzer of ours begins to say what is wrong.
FINDING = re.compile(r"^FINDING: |ERROR: | runtime error: ")


def finding(text: str) -> str:
    """What a fuzzer found: its output from there on. All a stack says is of no use without its first line."""
    lines = text.rstrip().splitlines()
    for i, line in enumerate(lines):
        if FINDING.search(line):
            return "\n".join(lines[i : i + TAIL_LINES])
    return tail(text)


PAST_ITS_TIME = " and was killed)"
# Before a command: what only needs processor time, in the time that the tests leave.
LOWEST_PRIORITY = ("nice", "-n", "19")
STACKS_S = 60


# Variables by which a developer narrows what a test program does.
SETTINGS = ("GTEST_", "CAIRN_SIM_", "CAIRN_YEAR_")


def forget_settings() -> None:
    """Whatever the shell has set: what passes from now on counts as proved whole (ledger.py)."""
    for name in [name for name in os.environ if name.startswith(SETTINGS)]:
        del os.environ[name]


# Groups of processes that run now.
_groups: set[int] = set()


def end_with_all_that_runs() -> None:
    """From now on SIGTERM and SIGINT also end the groups of all that this process has started: tests start
    daemons in sessions of their own."""

    def end(number: int, _: object) -> None:
        kill(_groups | groups_below(os.getpid()))
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)


def kill(groups: Iterable[int]) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def kill_with_descendants(leader: int) -> None:
    """The group, and those that its processes have made: ninja starts each compiler in one of its own."""
    kill({leader} | groups_below(leader))


def groups_below(pid: int) -> set[int]:
    """The groups of all that descends from it, except its own. A group is killed whole: of its processes one
    by one, a child that is just being made would be missed."""
    found = set()
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # what ends meanwhile
            for child in map(int, children.read_text().split()):
                found |= {os.getpgid(child)} | groups_below(child)
    return found - {os.getpgrp()}


class Ended(NamedTuple):
    code: int  # exit status, or -SIGKILL past the time
    output: str
    wall_s: float
    processor_s: float  # of the process and all that it waited for


def run_process(
    command: Sequence[str],
    timeout_s: float,
    env: dict[str, str] | None = None,
    cwd: Path | str = ROOT,
) -> Ended:
    """Past its time, or when the run's time is up, the stacks of its threads are added to the output, and it
    is killed with its whole group and those below: a test that hangs usually hangs in a daemon it started. A
    group, not a session: Linux shares processors out between sessions, so that the low priority of a compiler
    would be one inside its own alone (sched(7), "The autogroup feature")."""
    begin = time.monotonic()
    limit_s = max(0.0, min(timeout_s, run_seconds_left()))
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        _groups.add(process.pid)
        note = ""
        if not ends_within(process.pid, limit_s):
            note = f"{stacks(process.pid)}\n(ran past {limit_s:g} s{PAST_ITS_TIME}"
            kill_with_descendants(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        _groups.discard(process.pid)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode(errors="replace") + note
    code = -signal.SIGKILL if note else process.returncode
    return Ended(code, text, time.monotonic() - begin, usage.ru_utime + usage.ru_stime)


def ends_within(pid: int, seconds: float) -> bool:
    """Whether a child ends in that time; it still has to be waited for."""
    descriptor = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(None if seconds == float("inf") else seconds * 1000))
    finally:
        os.close(descriptor)


def stacks(group: int) -> str:
    """Where the threads of a group of processes are. Python writes its own to the output (faulthandler, which
    pytest enables); of the others gdb says it."""
    said = ""
    for pid in members(group):
        program = Path(os.path.realpath(f"/proc/{pid}/exe")).name
        if program.startswith("python"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGABRT)
            if pid == group:
                ends_within(pid, STACKS_S)  # it is writing
        elif program not in ("sh", "bash", "unshare", "nice"):
            said += f"\n{program}, process {pid}:\n{gdb_stacks(pid)}"
    return said


def members(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if os.getpgid(int(entry.name)) == group:
                found.append(int(entry.name))
    return sorted(found)


def gdb_stacks(pid: int) -> str:
    command = ["gdb", "-nx", "-batch", "-p", str(pid), "-ex", "thread apply all backtrace 40"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=STACKS_S, check=False
        )
        return done.stdout or done.stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no stacks: {error}"


OWN_IDS = [
    "unshare",
    "--user",
    "--map-current-user",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
]


def with_own_ids(command: list[str]) -> list[str]:
    """The command in a PID namespace of its own, where the system allows one. LeakSanitizer looks a thread up
    by the system's id and may find one that has ended and had the same id (LLVM 16, GCC 12): what only the
    living thread holds is then called a leak. Ids come around when programs beside start threads by the
    thousand; in a namespace only the program's own count."""
    if subprocess.run([*OWN_IDS, "true"], capture_output=True, check=False).returncode != 0:
        return command
    # A shell is the first process: signals that have no handler do not end that one (pid_namespaces(7)).
    return [*OWN_IDS, "sh", "-c", '"$@"; exit $?', "sh", *command]


class Shown(NamedTuple):
    problem: str  # what went wrong, then the last lines of the output; or ""
    wall_s: float
    processor_s: float


def run_shown(command: Sequence[str], timeout_s: float) -> Shown:
    """Runs a command whose output is shown as it comes."""
    begin = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        process_group=0,
    )
    _groups.add(process.pid)
    last: collections.deque[str] = collections.deque(maxlen=SHOWN_LAST)

    def show() -> None:
        for line in process.stdout:
            say(line.rstrip("\n"))
            last.append(line.rstrip())

    shower = threading.Thread(target=show, daemon=True)
    shower.start()
    limit_s = min(timeout_s, run_seconds_left())
    ended = ends_within(process.pid, max(0.0, limit_s))
    if not ended:
        kill_with_descendants(process.pid)
    _, status, usage = os.wait4(process.pid, 0)
    _groups.discard(process.pid)
    process.returncode = code = os.waitstatus_to_exitcode(status)
    shower.join(timeout=10)  # a child outside the group may hold the pipe
    failed = f"exit status {code}" if code else ""
    problem = failed if ended else f"ran past {limit_s:.0f} s"
    problem = "\n".join([problem, *last]) if problem else ""
    return Shown(problem, time.monotonic() - begin, usage.ru_utime + usage.ru_stime)
