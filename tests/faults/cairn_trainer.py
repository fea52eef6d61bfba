"""A trainer as a process of its own, saving through the Python package; a test tells it what to do.

One line of JSON in, one out: {"do": …} is answered with {"took": seconds, "error": class or null, …}. The
name of an error that is not Cairn's begins with "!". Run with the socket, the job, the rank (-1 only
reads) and the seconds that a call may take.
"""

from __future__ import annotations

import json
import queue
import random
import subprocess
import sys
import threading
import time
import warnings
from types import TracebackType
from typing import Any

import stopped
from patience import patient

OBJECT_BYTES = 3 << 20
OBJECTS = ("first", "second")
PYTHON = "/usr/bin/python3"
# Entering a step, copying, sealing and committing may each take the limit of one call; and what does not hang
# may take its time.
CALLS, PATIENCE_S = 4, 30


class Trainer:
    """The test's side."""

    def __init__(self, socket: str, job: str, rank: int = 0, limit_s: float = 5) -> None:
        limit_s = patient(limit_s)
        self.deadline_s = CALLS * limit_s + patient(PATIENCE_S)
        self.killed = False
        self.process = subprocess.Popen(
            [PYTHON, __file__, socket, job, str(rank), str(limit_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.lines: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.hear("connecting")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(b"")

    def tell(self, **what: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, what: Any) -> dict[str, Any]:
        try:
            line = self.lines.get(timeout=self.deadline_s)
        except queue.Empty:
            raise AssertionError(f"promise 4: {what} hangs for {self.deadline_s} s") from None
        assert line, f"promise 4: the trainer died of {what}: {self.process.wait(patient(10))}"
        answer: dict[str, Any] = json.loads(line)
        error = answer.get("error") or ""
        assert not error.startswith("!"), f"promise 4: {what} raised {error}: {answer}"
        took = answer.get("took", 0)
        assert took < self.deadline_s, f"promise 4: {what} took {took:.1f} s"
        return answer

    def do(self, what: str, **arguments: Any) -> dict[str, Any]:
        self.tell(do=what, **arguments)
        return self.hear((what, arguments))

    def stop(self) -> None:
        stopped.stop(self.process.pid)

    def go_on(self) -> None:
        stopped.go_on(self.process.pid)

    def kill(self) -> None:
        if not self.killed:
            assert self.process.poll() is None, f"the trainer died: {self.process.returncode}"
        self.end()

    def end(self) -> None:
        self.killed = True
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


# --- the process ---------------------------------------------------------------------------------------


def answer(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def told() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    command: dict[str, Any] = json.loads(line)
    return command


class Commands:
    """What can be told. `tag` names the bytes of a checkpoint."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.mapped: dict[str, memoryview] = {}

    def attempt(self) -> dict[str, Any]:
        return {"attempt": self.connection.attempt}

    def save(self, step: int, tag: str, pause: bool = False) -> dict[str, Any]:
        with self.connection.step(step, strict=True) as part:
            for name in OBJECTS:
                part.save(content(tag, name), name)
                if pause and name == OBJECTS[0]:
                    answer(half=True)
                    told()
        return {"complete": part.complete}

    def wait(self, step: int, timeout: float) -> dict[str, Any]:
        found = self.connection.wait(step, "PERSISTED", timeout=timeout)
        return {"attempt": found.attempt, "persisted": found.facts.persisted}

    def latest(self) -> dict[str, Any]:
        found = self.connection.latest()
        return {"step": found.step, "attempt": found.attempt}

    def resume(self, step: int) -> dict[str, Any]:
        found = self.connection.resume(step)
        return {"step": found.step, "attempt": found.attempt}

    def use(self, step: int, attempt: int) -> dict[str, Any]:
        return {"head": self.connection.use(step, attempt).head}

    def map(self, step: int) -> dict[str, Any]:
        for name in OBJECTS:
            self.mapped[name] = self.connection.load(f"{step}/{name}", mmap=True)
        return {}

    def compare(self, tag: str) -> dict[str, Any]:
        same = [name for name, data in self.mapped.items() if bytes(data) == content(tag, name)]
        return {"same": same}


def content(tag: str, name: str) -> bytes:
    return random.Random(f"{tag}-{name}").randbytes(OBJECT_BYTES)


def main() -> None:
    import cairn

    warnings.simplefilter("ignore")
    socket, job, rank, limit_s = sys.argv[1:]
    reads = {} if int(rank) >= 0 else {"rank": -1}
    writes = {"rank": int(rank), "world_size": 1} if int(rank) >= 0 else {}
    connection = cairn.connect(job, socket=socket, timeout=float(limit_s), **reads, **writes)
    commands = Commands(connection)
    answer(connected=True)
    while True:
        command = told()
        begin = time.monotonic()
        try:
            result = getattr(commands, command.pop("do"))(**command)
            answer(error=None, took=time.monotonic() - begin, **result)
        except cairn.Error as error:
            kind = type(error).__name__
            answer(error=kind, said=str(error), took=time.monotonic() - begin)
        except Exception as error:
            answer(error=f"!{type(error).__name__}", said=str(error))


if __name__ == "__main__":
    main()
