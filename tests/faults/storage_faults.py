"""What can be wrong with a node's storage and its catalog for a while."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cairn_daemon import MIB, Node, until


class Throttle:
    """Writes of a node's processes to its disk go at this pace."""

    FOLDER = Path("/sys/fs/cgroup/blkio")
    PACE = 3 * MIB

    def __init__(self, folder: Path) -> None:
        device = os.stat(folder).st_dev
        self.device = f"{os.major(device)}:{os.minor(device)}"
        self.path = self.FOLDER / f"cairn-{os.getpid()}-slow"
        self.limit = self.path / "blkio.throttle.write_bps_device"

    def begin(self, pids: list[int]) -> None:
        try:
            self.path.mkdir()
            self.limit.write_text(f"{self.device} {self.PACE}")
        except OSError as error:
            self.remove()
            pytest.skip(f"the disk cannot be slowed down: {error}")
        for pid in pids:
            (self.path / "cgroup.procs").write_text(str(pid))

    def end(self) -> None:
        if self.limit.exists():
            self.limit.write_text(f"{self.device} 0")

    def remove(self) -> None:
        if not self.path.exists():
            return
        self.end()
        processes = self.path / "cgroup.procs"
        until("the cgroup is empty", lambda: not processes.read_text().strip())
        self.path.rmdir()


class Storage:
    """A root, and what is wrong with it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.root = folder / "storage"
        self.aside = folder / "aside"
        self.ballast = self.root / "ballast"
        self.throttle = Throttle(folder)
        self.root.mkdir()
        if kind == "full":
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=96m", "none", self.root], check=True
            )

    @property
    def place(self) -> Path:
        """Where the files are now: another node may still see them there."""
        return self.aside if self.aside.exists() else self.root

    def spoil(self, node: Node) -> None:
        if self.kind in ("away", "replaced"):
            self.root.rename(self.aside)
        if self.kind == "replaced":
            self.root.mkdir()
        if self.kind == "full":
            with open(self.ballast, "wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(MIB))
                except OSError:
                    pass
        if self.kind == "slow":
            self.throttle.begin([node.keeper_pid, node.daemon_pid()])

    def mend(self) -> None:
        if self.aside.exists():
            if self.root.exists():
                assert not list(self.root.iterdir()), "written to what is not storage"
                self.root.rmdir()
            self.aside.rename(self.root)
        self.ballast.unlink(missing_ok=True)
        self.throttle.end()

    def remove(self) -> None:
        self.throttle.remove()
        if self.kind == "full":
            subprocess.run(["umount", "-l", self.root], check=False)


def spoil_catalog(kind: str, folder: Path) -> None:
    if kind == "deleted":
        shutil.rmtree(folder)
    if kind == "garbled":
        for path in folder.iterdir():
            path.write_bytes(b"not a database, " * 4096)
