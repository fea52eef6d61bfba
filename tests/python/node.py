"""A real cairnd for one test or one file of tests: keeper and daemon as processes of their own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import cairn
from patience import patient, until

MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[2]


def binary(name: str) -> Path:
    """In CAIRN_BIN_DIR or CAIRN_BIN, else where make puts it."""
    folder = (
        os.environ.get("CAIRN_BIN_DIR") or os.environ.get("CAIRN_BIN") or ROOT / "build" / "bin"
    )
    path = Path(folder) / name
    assert path.exists(), f"{path} was not built"
    return path


_held: list[socket.socket] = []


def held_port() -> int:
    """A TCP port of this machine for a rendezvous of ranks. It stays bound here, so that the kernel gives it
    to no other process. A rank that names it and sets SO_REUSEADDR gets it."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    _held.append(holder)
    return int(holder.getsockname()[1])


class Node:
    """cairnd in a folder of its own; persists what it is asked to."""

    def __init__(
        self, budget: int = 256 * MIB, storage: bool = True, options: tuple[str, ...] = ()
    ) -> None:
        # Short: a socket's path has 107 bytes at most.
        self.folder = Path(tempfile.mkdtemp(prefix="cairn-"))
        self.socket = str(self.folder / "s")
        self.storage = self.folder / "storage"
        self.log = self.folder / "log"
        self.storage.mkdir()
        self._command = [
            str(binary("cairnd")),
            f"--socket={self.socket}",
            f"--memory.budget={budget}",
            "--persist.mode=on-demand",
            "--journal.bytes=16MiB",
            f"--catalog.path={self.folder / 'catalog'}",
            *([f"--storage.root={self.storage}"] if storage else []),
            *options,
        ]
        self._keeper: subprocess.Popen[bytes] | None = None

    def start(self) -> Node:
        with open(self.log, "ab") as log:
            # In the group of the tests: who ends them for taking too long ends it too.
            self._keeper = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.wait_until_it_answers()
        return self

    def wait_until_it_answers(self) -> None:
        def answers() -> bool:
            assert self._keeper is not None and self._keeper.poll() is None, self.tail()
            try:
                self.reader("probe").close()
            except cairn.Unavailable:
                return False
            return True

        until("cairnd answers", answers, 30)

    def reader(self, job: str) -> cairn.Connection:
        before = cairn.current()
        connection = cairn.connect(job, rank=-1, socket=self.socket, timeout=patient(5))
        cairn.api._current = before
        return connection

    def daemon_pid(self) -> int:
        assert self._keeper is not None
        keeper = self._keeper.pid
        children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
        return int(children[0]) if children else 0

    def kill_daemon(self) -> None:
        """SIGKILL to the daemon; the keeper starts another, which is awaited."""
        old = self.daemon_pid()
        os.kill(old, signal.SIGKILL)
        until("the keeper started another", lambda: self.daemon_pid() not in (0, old))
        self.wait_until_it_answers()

    def kill(self) -> None:
        """Keeper and daemon at once: memory is gone."""
        if self._keeper is None:
            return
        pids = [self._keeper.pid]
        if self._keeper.poll() is None:
            pids.append(self.daemon_pid())
        for pid in filter(None, pids):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._keeper.wait()
        self._keeper = None

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
