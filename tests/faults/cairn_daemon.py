"""A cairnd of a test's own: keeper and daemon as real processes, killed and looked at from outside."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cairn_raw import ROOT, CairnError, Raw, TTransportException
from patience import patient, until

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def binary(name: str) -> Path:
    """A built program: in the build that make made, or the one CAIRN_BIN names."""
    folder = Path(os.environ.get("CAIRN_BIN", ROOT / "build" / "bin"))
    path = folder / name
    assert path.exists(), f"{path} was not built"
    return path


def all_failpoints() -> list[str]:
    """The names in common/failpoint.h, so that a new one is a case of a test or a failure."""
    header = (ROOT / "common" / "failpoint.h").read_text(encoding="utf-8")
    names = re.findall(r'X\(\w+,\s*"([a-z._]+)"\)', header)
    assert len(names) >= 20, "the header was not understood"
    return names


def exit_status(process: subprocess.Popen[bytes], limit_s: float = 20) -> int:
    try:
        return process.wait(patient(limit_s))
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"pid {process.pid} still runs after {error.timeout:.0f} s") from None


class Node:
    """One node's cairnd in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        *,
        budget: int = 64 * MIB,
        storage: bool = True,
        persist: str = "on-demand",
        journal: int = 16 * MIB,
        failpoints: str = "",
        options: tuple[str, ...] = (),
        wrapper: tuple[str, ...] = (),
        program: Path | None = None,
    ) -> None:
        self.folder = folder
        self.socket = str(folder / "cairn.sock")
        self.log = folder / "cairnd.log"
        self.storage = folder / "storage"
        if storage:
            self.storage.mkdir(exist_ok=True)
        self.program = program or binary("cairnd")
        self.command = [
            *wrapper,
            str(self.program),
            f"--socket={self.socket}",
            f"--memory.budget={budget}",
            f"--persist.mode={persist}",
            f"--catalog.path={folder / 'catalog.db'}",
            f"--journal.bytes={journal}",
            *([f"--storage.root={self.storage}"] if storage else []),
            *([f"--test.failpoints={failpoints}"] if failpoints else []),
            *options,
        ]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True, log_to: int | None = None) -> Node:
        """`log_to`: a descriptor for its log, instead of the file."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log if log_to is None else log_to,
                start_new_session=True,
                env={
                    key: value for key, value in os.environ.items() if not key.startswith("CAIRN")
                },
            )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, limit_s: float = 30) -> None:
        def answers() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, f"cairnd ended: {self.tail()}"
            try:
                with Raw(self.socket, attach=False, timeout_s=patient(5)) as session:
                    session.do("ping")
                return True
            except (CairnError, TTransportException, OSError, EOFError):
                return False

        until("cairnd answers", answers, limit_s)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""

    def session(self, job: str = "", **options: Any) -> Raw:
        return Raw(self.socket, job, **options)

    def writer(
        self, job: str, attempt: int, writer: int = 0, world_size: int = 1, **options: Any
    ) -> Raw:
        return Raw(self.socket, job, attempt, writer, world_size, **options)

    def status(self) -> Any:
        with Raw(self.socket, attach=False) as session:
            return session.status()

    # --- who is who ------------------------------------------------------------------------------------

    @property
    def keeper_pid(self) -> int:
        """The process that was started, or its only child where a wrapper stands before it."""
        assert self.process is not None
        pid = self.process.pid
        while not Path(f"/proc/{pid}/exe").resolve().name.startswith("cairnd"):
            (pid,) = children(pid)
        return pid

    def daemon_pid(self) -> int:
        """0 while there is none."""
        daemons = children(self.keeper_pid)
        return daemons[0] if daemons else 0

    def kill_daemon(self, number: int = signal.SIGKILL) -> int:
        """Kills the daemon under its keeper; returns once another one serves."""
        old = until("there is a daemon", self.daemon_pid)
        os.kill(old, number)
        until("the keeper started another", lambda: self.daemon_pid() not in (0, old))
        self.wait_ready()
        return old

    def stop(self, limit_s: float = 30) -> int:
        assert self.process is not None
        os.kill(self.keeper_pid, signal.SIGTERM)
        code = exit_status(self.process, limit_s)
        self.process = None
        return code

    def kill_all(self) -> None:
        """Keeper and daemon at once: what was in memory is gone."""
        if self.process is None:
            return
        pids = []
        try:
            keeper = self.keeper_pid
            pids = [keeper, *children(keeper)]
        except (ValueError, OSError):
            pass
        for pid in (*pids, self.process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        self.process = None
        # Not our child: its sockets are free when it is gone, not when it is killed.
        until("the killed are gone", lambda: not any(map(lives, pids)))


def lives(pid: int) -> bool:
    """Until the last thread has ended: before, a first thread that is a zombie means nothing."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return state not in "ZX" or len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


def children(pid: int) -> list[int]:
    try:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except OSError:
        return []


@contextmanager
def node(**options: Any) -> Iterator[Node]:
    """A running node; nothing of it is left behind. Short paths: a socket's has 107 bytes at most."""
    folder = Path(tempfile.mkdtemp(prefix="cairn-"))
    folder.chmod(0o755)  # other uids are let in to try
    instance = Node(folder, **options)
    try:
        yield instance.start()
    except BaseException:
        print(f"--- {instance.log}\n{instance.tail()}")
        raise
    finally:
        instance.kill_all()
        shutil.rmtree(folder, ignore_errors=True)


def file_bytes(node: Node, job: str, step: int, name: str) -> bytes:
    return (node.storage / job / str(step) / name).read_bytes()
