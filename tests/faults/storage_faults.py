"""What can be wrong with a node's storage and its catalog for a while."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
import threading
from pathlib import Path

import pytest
from cairn_daemon import MIB, Node
from patience import until


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


class Spoilt:
    """A file system mounted over a directory, as a server that is away looks like: without `error` every
    call below it hangs, in the kernel, until the mount goes; with one every call fails so."""

    INIT, FORGETS, INTERRUPT = 26, (2, 42), 36

    def __init__(self, path: Path, error: int = 0) -> None:
        self.path, self.error = path, error
        self.fd = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self.fd},rootmode=40000,user_id=0,group_id=0,allow_other"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"cairn-test", os.fsencode(path), b"fuse", 0, options.encode()) != 0:
            number = ctypes.get_errno()
            os.close(self.fd)
            pytest.skip(f"FUSE cannot be mounted: {os.strerror(number)}")
        if error:
            threading.Thread(target=self.refuse, daemon=True).start()

    def refuse(self) -> None:
        while True:
            try:
                request = os.read(self.fd, 1 << 20)
            except OSError:  # it was unmounted
                return
            _, opcode, unique = struct.unpack_from("<IIQ", request)
            if opcode in self.FORGETS or opcode == self.INTERRUPT:
                continue
            body = b""
            if opcode == self.INIT:  # version 7.31, no capabilities, 128 KiB at once
                body = struct.pack("<IIIIHHI", 7, 31, 0, 0, 1, 1, 1 << 17).ljust(64, b"\0")
            error = 0 if opcode == self.INIT else -self.error
            os.write(self.fd, struct.pack("<IiQ", 16 + len(body), error, unique) + body)

    def mend(self) -> None:
        """What hung fails now, and the directory below is there again."""
        if self.fd < 0:
            return
        subprocess.run(["umount", "-l", self.path], check=True)
        if not self.error:
            os.close(self.fd)
        self.fd = -1

    def __enter__(self) -> Spoilt:
        return self

    def __exit__(self, *_: object) -> None:
        self.mend()
