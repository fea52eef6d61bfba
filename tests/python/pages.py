"""What a page of the documentation shows, run as a reader would run it.

A page shows a session in fenced blocks:

- a block whose first line begins with "$ ": commands, and below each what it prints. `$ cat FILE` of a file
  that does not exist yet says what the reader writes into it.
- a block of Python whose first line is "# FILE.py": the reader writes that file.
- a block of Python whose first line begins with ">>> ": typed into one interpreter, by all such blocks of a
  session together.

What a command prints is compared with the page, once what differs from run to run has been replaced on both
sides (`VOLATILE`, and whatever a test adds).
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import doctest
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

import cairn
from node import ROOT, binary, held_port
from patience import patient

PATIENCE_S = 60
MARK = "\x1ecommand ended: "

# What differs from run to run, and what stands for it in the comparison. In this order.
VOLATILE: list[tuple[str, str]] = [
    (r"(Traceback \(most recent call last\):)\n(  .*\n)*", r"\1\n"),
    (r"\[default\d\]:", ""),  # torchrun's, before each line of a rank
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "<time>"),
    (r"\b\d{13}\b", "<attempt>"),
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<uuid>"),
    (r"\b(daemon|pid) \d+", r"\1 <pid>"),
    (r"\buid \d+", "uid <uid>"),
    (r"^node +\S+,", "node <host>,"),
    (r"\bversion \d+\.\d+\.\d+", "version <version>"),
    (r"\b\d+(\.\d+)? ?(ms|s|min|h|d)\b( \d+ (s|min|h))?( ago)?", "<age>"),
    (r"\[[#.]+\] +\d+ %", "<bar>"),
    # Which of several steps the daemon writes before the next one comes is a matter of time: the level of
    # each in a listing, and what is not in storage in the status.
    (r"^( *\d+ +)(CACHED|PERSISTED)\b", r"\1<level>"),
    (r" (-|\d+ checkpoints?, [\d.]+ \w+)(?= +(newest|every|on-demand))", " <unprotected>"),
    (r"\bused [\d.]+ \w+, free [\d.]+ \w+", "used <size>, free <size>"),
    (r"\b\d+ slabs\b", "<n> slabs"),
    (r"[ \t]+", " "),  # columns are as wide as what is in them
    (r" +$", ""),
]

# Commands that only look: what they show comes in its time, so they are repeated until it is there.
LOOKS = re.compile(r"^(cairn (ls|latest|status|stat)\b|tail |ls |python3 -c )")


@dataclasses.dataclass
class Block:
    page: str
    line: int  # of its first line of text
    text: str

    @property
    def is_session(self) -> bool:
        return self.text.startswith("$ ")

    @property
    def is_typed(self) -> bool:
        return self.text.startswith(">>> ")

    @property
    def file(self) -> str:
        """The file that it is the text of, or ""."""
        match = re.match(r"# ([\w.]+\.py)\n", self.text)
        return match.group(1) if match else ""


@dataclasses.dataclass
class Command:
    where: str
    command: str
    shown: str  # what the page says that it prints


def read_blocks(page: str, text: str) -> list[Block]:
    """The fenced blocks of a page."""
    blocks = []
    inside: list[str] | None = None
    begin = 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            if inside is None:
                inside, begin = [], number + 1
            else:
                blocks.append(Block(page, begin, "".join(f"{row}\n" for row in inside)))
                inside = None
        elif inside is not None:
            inside.append(line)
    assert inside is None, f"{page}:{begin}: a block without an end"
    return blocks


def read_page(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """From a heading to the next of its level; earlier lines are empty, so that line numbers stay."""
    level = heading.split(" ")[0]
    begin = text.index(f"\n{heading}\n") + 1
    end = text.find(f"\n{level} ", begin)
    return "\n" * text.count("\n", 0, begin) + text[begin : None if end < 0 else end]


def read_commands(block: Block) -> list[Command]:
    commands: list[Command] = []
    for number, line in enumerate(block.text.splitlines(), block.line):
        if line.startswith("$ "):
            commands.append(Command(f"{block.page}:{number}", line[2:], ""))
        else:
            commands[-1].shown += f"{line}\n"
    return commands


def normalize(text: str, volatile: Iterable[tuple[str, str]]) -> str:
    for pattern, replacement in volatile:
        text = re.sub(pattern, replacement, text, flags=re.M)
    return text.strip("\n")


class Reader:
    """Someone who reads a page and types what it shows, in a folder and a shell of their own."""

    def __init__(self, place: str, volatile: Iterable[tuple[str, str]] = ()) -> None:
        """`place`: the folder that the page works in, for which this reader takes another one."""
        # Short: the path of a socket has 107 bytes at most.
        self._home = Path(tempfile.mkdtemp(prefix="cairn-"))
        self._place = place
        self._volatile = [*volatile, *VOLATILE]
        # Members of a ring on this machine: other readers have theirs at other addresses.
        self._hosts = f"127.{os.getpid() // 250 % 250 + 1}.{os.getpid() % 250}"
        programs = self._home / "bin"
        programs.mkdir()
        self._work = self._home / "work"
        self._work.mkdir()
        # The page's python3 and torchrun are those that run the tests.
        for name, arguments in (("python3", ""), ("torchrun", "-m torch.distributed.run ")):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
            program.chmod(0o755)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("CAIRN", "RANK", "WORLD"))}
        environment = {
            **kept,
            "PATH": f"{programs}:{binary('cairnd').parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(cairn.__file__).resolve().parents[1]),
            "OMP_NUM_THREADS": "1",
        }
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=self._work,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    # --- what is on the page ---------------------------------------------------------------------------

    def follow(self, blocks: Iterable[Block]) -> int:
        """Does what the blocks show, in their order; returns how many commands were compared."""
        typed: list[Block] = []
        compared = 0
        for block in blocks:
            if block.is_typed:
                typed.append(block)
            elif typed:
                compared += self._type(typed)
                typed = []
            if block.file:
                (self._work / block.file).write_text(self._mine(block.text), encoding="utf-8")
            elif block.is_session:
                for command in read_commands(block):
                    compared += self._do(command)
        return compared + (self._type(typed) if typed else 0)

    def _do(self, command: Command) -> int:
        written = re.fullmatch(r"cat ([\w.]+)", command.command)
        if written and not (self._work / written.group(1)).exists():
            text = self._mine(command.shown)
            (self._work / written.group(1)).write_text(text, encoding="utf-8")
            return 0
        deadline = time.monotonic() + patient(PATIENCE_S)
        while True:
            printed = self.run(self._mine(command.command))
            if re.match(r"kill %\d", command.command):
                self.run("wait")  # what is typed next is typed later
            if self._agrees(command.shown, printed):
                return 1
            if not LOOKS.match(command.command) or time.monotonic() >= deadline:
                raise AssertionError(self._difference(command, printed))
            time.sleep(0.3)

    def _type(self, blocks: list[Block]) -> int:
        """Into one interpreter, which is started in the shell for what the shell exports."""
        examples = [
            (f"{block.page}:{block.line + example.lineno}", example)
            for block in blocks
            for example in doctest.DocTestParser().get_examples(block.text)
        ]
        sources = self._home / "typed.json"
        sources.write_text(json.dumps([self._mine(example.source) for _, example in examples]))
        (self._home / "interpreter.py").write_text(INTERPRETER)
        printed = self.run(f"python3 {self._home}/interpreter.py {sources}")
        answers = printed.split("\x1f")
        for (where, example), answer in zip(examples, answers, strict=False):
            command = Command(where, example.source.rstrip("\n"), example.want)
            if not self._agrees(command.shown, answer):
                raise AssertionError(self._difference(command, answer))
        assert len(answers) == len(examples) + 1, printed
        return len(examples)

    def _mine(self, text: str) -> str:
        """As this reader types it: with a place, addresses and free ports of its own."""
        endpoint = (
            f"--rdzv_backend c10d --rdzv_endpoint 127.0.0.1:{held_port()} --rdzv_id {uuid.uuid4()}"
        )
        text = text.replace(self._place, str(self._home / "d")).replace("--standalone", endpoint)
        text = re.sub(r"--master_port \d+", f"--master_port {held_port()}", text)
        return re.sub(r"\b127\.0\.0\.(\d+):7400\b", rf"{self._hosts}.\1:7400", text)

    def _normalize(self, text: str) -> str:
        return normalize(text.replace(str(self._home / "d"), self._place), self._volatile)

    def _agrees(self, shown: str, printed: str) -> bool:
        return self._normalize(shown) == self._normalize(printed)

    def _difference(self, command: Command, printed: str) -> str:
        lines = difflib.unified_diff(
            self._normalize(command.shown).splitlines(),
            self._normalize(printed).splitlines(),
            "the page",
            "printed",
            lineterm="",
        )
        said = [f"{command.where}: {command.command}", *lines, "all of it:", printed]
        for log in (self._home / "d").glob("log"):
            said.append(f"the daemon's log:\n{log.read_text(errors='replace')[-2000:]}")
        return "\n".join(said)

    # --- the shell -------------------------------------------------------------------------------------

    def _listen(self) -> None:
        assert self._shell.stdout is not None
        for line in self._shell.stdout:
            self._lines.put(line)

    def run(self, command: str) -> str:
        """What a command prints, on stdout and stderr together, until it ends or is in the background."""
        assert self._shell.stdin is not None
        # In braces, so that it does not read the commands that follow as its input.
        self._shell.stdin.write(f"{{ {command}\n}} </dev/null\nprintf '\\n{MARK}\\n'\n")
        self._shell.stdin.flush()
        printed: list[str] = []
        deadline = time.monotonic() + patient(3 * PATIENCE_S)
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"{command}: has not ended; {''.join(printed)}") from None
            if line.startswith(MARK):
                return "".join(printed)
            printed.append(line)

    def close(self) -> None:
        try:
            if self._shell.poll() is None:
                self.run("kill $(jobs -p) 2>&- && wait")
        except (AssertionError, OSError):
            # Whatever it started and still runs: the daemon below a keeper, too.
            for child in children(self._shell.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        finally:
            self._shell.kill()
            self._shell.wait()
            shutil.rmtree(self._home, ignore_errors=True)


def children(pid: int) -> list[int]:
    """Of a process, and theirs; the deepest first."""
    try:
        own = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [below for child in own for below in (*children(int(child)), int(child))]


# Prints what each of the sources prints, a unit separator after each.
INTERPRETER = r"""
import code, json, sys
console = code.InteractiveInterpreter()
sys.stderr = sys.stdout
sys.path.insert(0, "")
for source in json.load(open(sys.argv[1])):
    console.runsource(source, "<typed>", "single")
    print(end="\x1f", flush=True)
"""
