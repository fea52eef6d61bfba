"""Starting commands, with a limit on how long they may take."""

from __future__ import annotations

import collections
import os
import re
import signal
import subprocess
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
TAIL_LINES = 60
SHOWN_LAST = 20  # lines of a failure, in the summary; of a long reason as many of its beginning


def say(text: str) -> None:
    print(text, flush=True)


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


def run_process(
    command: list[str], timeout_s: float, env: dict[str, str] | None = None, cwd: Path | str = ROOT
) -> tuple[int, str]:
    """Exit status and output; -SIGKILL and a note when it ran past the time. Its whole group is killed,
    because a test that hangs usually hangs in a daemon it started. A group, not a session: Linux shares
    processors out between sessions, so that the low priority of a stage would be one inside its own alone
    (sched(7), "The autogroup feature")."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        process_group=0,
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
        return -signal.SIGKILL, f"{output}\n(ran past {timeout_s:g} s{PAST_ITS_TIME}"


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


def run_shown(command: list[str], timeout_s: float) -> str:
    """Runs a command whose output is shown as it comes. Returns what went wrong, then the last lines of the
    output; or an empty string."""
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
    last: collections.deque[str] = collections.deque(maxlen=SHOWN_LAST)

    def show() -> None:
        for line in process.stdout:
            say(line.rstrip("\n"))
            last.append(line.rstrip())

    shower = threading.Thread(target=show, daemon=True)
    shower.start()
    try:
        code = process.wait(timeout=timeout_s)
        problem = f"exit status {code}" if code else ""
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        problem = f"ran past {timeout_s:.0f} s"
    shower.join(timeout=10)  # a child outside the group may hold the pipe
    return "\n".join([problem, *last]) if problem else ""
