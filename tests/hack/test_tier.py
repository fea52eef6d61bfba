"""What tests/cairn_tier.py promises of its markers."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from driver.process import ROOT
from patience import patient, until

TEST = """
import pathlib, pytest

@pytest.mark.machine
def test_it():
    pathlib.Path({ran!r}).touch()
"""


def waits_for_a_lock(pid: int) -> bool:
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and str(pid) in line.split() for line in lines)


def test_what_needs_the_machine_waits_until_no_other_one_has_it(tmp_path: Path) -> None:
    lock, ran = tmp_path / "lock", tmp_path / "ran"
    (tmp_path / "test_it.py").write_text(TEST.format(ran=str(ran)))
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        options = ["-q", "-p", "no:cacheprovider", "-p", "cairn_tier", str(tmp_path)]
        other = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options],
            cwd=tmp_path,
            env={
                **os.environ,
                "CAIRN_MACHINE_LOCK": str(lock),
                "PYTHONPATH": str(ROOT / "tests"),
            },
        )
        until("it waits", lambda: other.poll() is not None or waits_for_a_lock(other.pid), 60)
        assert other.poll() is None and not ran.exists()
    assert other.wait(patient(30)) == 0
    assert ran.exists()


def test_the_lock_is_the_users_and_not_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of one run may have temporary folders of their own."""
    import cairn_tier

    opened: list[str] = []

    def noted(path: str, *arguments: int) -> int:
        opened.append(path)
        return real(os.devnull, os.O_RDWR)

    real = os.open
    monkeypatch.delenv("CAIRN_MACHINE_LOCK", raising=False)
    monkeypatch.setenv("TMPDIR", "/nowhere")
    monkeypatch.setattr(os, "open", noted)
    with cairn_tier.whole_machine():
        pass
    assert opened == [f"/tmp/cairn-machine-{os.getuid()}.lock"]
