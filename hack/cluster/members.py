"""The members of a ring on one machine: what each daemon is told, and its processes.

A member's folder holds its socket `s`, its log and its catalog. The socket is a file like any other, so a
client reaches it from outside the member's network, too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from network import Network

ROOT = Path(__file__).resolve().parent.parent.parent
CONTROL_PORT = 7400
STARTING_S, DRAINING_S = 30, 20


def binary(name: str) -> Path:
    """A built program: in the build that make made, or the one CAIRN_BIN names."""
    path = Path(os.environ.get("CAIRN_BIN", ROOT / "build" / "bin")) / name
    if not path.exists():
        raise FileNotFoundError(f"{path} was not built: make build")
    return path


def ring_options(
    addresses: Sequence[str], rank: int, *, replicas: int = 1, cluster: str = "ring"
) -> list[str]:
    """What makes a daemon the member of this rank. The members' network is their own, so they speak without
    TLS."""
    nodes = ",".join(f"{at}={address}:{CONTROL_PORT}" for at, address in enumerate(addresses))
    return [
        f"--ring.cluster={cluster}",
        f"--ring.rank={rank}",
        f"--ring.nodes={nodes}",
        f"--ring.replicas={replicas}",
        "--peers.insecure=true",
    ]


def catalog_ring_options(
    address: str, rank: int | None, size: int, *, replicas: int = 1, cluster: str = "ring"
) -> list[str]:
    """What makes a daemon one of a ring whose members stand in the catalog; without a rank a spare."""
    return [
        f"--ring.cluster={cluster}",
        "--ring.members=catalog",
        f"--ring.address={address}:{CONTROL_PORT}",
        f"--ring.rank={'auto' if rank is None else rank}",
        f"--ring.size={size}",
        f"--ring.replicas={replicas}",
        "--peers.insecure=true",
    ]


def without_cairn() -> dict[str, str]:
    """The environment, but for what would point a client elsewhere or be an option of a daemon."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CAIRN")}


class Member:
    def __init__(
        self,
        network: Network,
        rank: int,
        folder: Path,
        options: Sequence[str],
        log: Path | None = None,
    ) -> None:
        """`options`: of the daemon, besides its socket and its catalog."""
        folder.mkdir(parents=True, exist_ok=True)
        self.rank = rank
        self.socket = folder / "s"
        self.log = log or folder / "log"
        self.command = [
            *network.enter(rank),
            str(binary("cairnd")),
            f"--socket={self.socket}",
            f"--catalog.path={folder / 'catalog'}",
            *options,
        ]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Member:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=without_cairn(),
            )
        return self

    def answers(self) -> bool:
        """Once it does not: the daemon is starting, or (with an error) has ended."""
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(
                f"member {self.rank} ended; its log, {self.log}, says\n{self.tail()}"
            )
        asked = [str(binary("cairn")), f"--socket={self.socket}", "--timeout=2", "status"]
        return subprocess.run(asked, capture_output=True, check=False).returncode == 0

    def wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + STARTING_S
        while not self.answers():
            if time.monotonic() > deadline:
                raise RuntimeError(f"member {self.rank} does not answer; its log is {self.log}")
            time.sleep(0.05)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""

    def terminate(self) -> None:
        """It may write to storage what it still owes, for a while."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def wait(self, limit_s: float = DRAINING_S) -> None:
        if self.process is not None:
            try:
                self.process.wait(limit_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
