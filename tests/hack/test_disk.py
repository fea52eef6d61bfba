"""tests/driver/disk.py: what a run leaves on the disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from driver import disk, schedule
from driver.report import Report
from driver.schedule import Lane, Schedule, Stage


def test_temporary_files_of_a_run_go_with_it() -> None:
    before = os.environ.get(disk.TMPDIR)
    with disk.temporary_folder() as folder:
        ask = "import tempfile; print(tempfile.mkdtemp())"
        made = subprocess.run(
            [sys.executable, "-c", ask], capture_output=True, text=True, check=True
        )
        assert Path(made.stdout.strip()).parent == folder
        assert folder.stat().st_mode & 0o7777 == 0o1777
    assert not folder.exists()
    assert os.environ.get(disk.TMPDIR) == before


def test_only_old_remains_are_removed(tmp_path: Path) -> None:
    old = time.time() - 2 * disk.OLD_S
    for name in ("cairn-run-old", "pytest-of-root", "cairn-young", "somebodys"):
        (tmp_path / name / "deep").mkdir(parents=True)
        if name != "cairn-young":
            os.utime(tmp_path / name, (old, old))
    (tmp_path / "cairn-link").symlink_to(tmp_path / "somebodys")
    os.utime(tmp_path / "cairn-link", (old, old), follow_symlinks=False)
    disk.remove_remains(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cairn-young", "somebodys"]
    assert (tmp_path / "somebodys" / "deep").is_dir()


@pytest.mark.parametrize(
    ("integration", "outcome", "stays"),
    [("1", "passed", False), ("1", "failed", True), ("", "passed", True)],
)
def test_what_a_stage_built_goes_in_integration_when_it_passed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    integration: str,
    outcome: str,
    stays: bool,
) -> None:
    monkeypatch.setenv("CI", integration)
    monkeypatch.setattr(schedule, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(disk.remove_built, "__defaults__", (tmp_path,))
    (tmp_path / "asan" / "objects").mkdir(parents=True)
    case = {"name": "asan", "outcome": outcome, "reason": ""}
    written = json.dumps({"cases": [case], "times": []})

    def command(stage: Stage, output: Path) -> list[str]:
        text = f"import pathlib, sys; pathlib.Path(sys.argv[1]).write_text({written!r})"
        return [sys.executable, "-c", text, str(output)]

    asan = Stage("asan", Lane.BEHIND, False, lambda settings, report: None, leaves=("asan",))
    Schedule(command, Report()).run([asan])
    assert (tmp_path / "asan").exists() == stays


def test_the_disk_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    there = disk.free_gib(Path(tempfile.gettempdir()))
    assert disk.free_gib(tmp_path / "build" / "asan") == pytest.approx(there, rel=0.2)
