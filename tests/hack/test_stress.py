"""hack/stress: which tests it takes for new or changed, and what it says of those that fail."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from driver.changed import changed_tests, default_base
from driver.process import ROOT
from patience import patient

BEFORE = """
def helper():
    return 1


@pytest.mark.full
def test_stays():
    assert helper()


def test_changes():
    assert 1


class TestAll:
    def test_moves(self):
        for one in (1, 2):
            assert one
"""
AFTER = """
def helper():
    return 2


class TestAll:
    def test_is_new(self):
        assert 3


@pytest.mark.full
def test_stays():
    assert helper()


@pytest.mark.root
def test_changes():
    assert 1
"""
MOVED = """
def test_moves(self):
    for one in (1,
                2):
        assert one
"""
CPP_BEFORE = """
TEST_F(Suite, Stays) {
  if (true) {
    EXPECT_TRUE(true);
  }
}

TEST(Suite, Changes) {
  EXPECT_EQ(1, 1);
}
"""
CPP_AFTER = CPP_BEFORE.replace("EXPECT_EQ(1, 1)", "EXPECT_EQ(2, 2)").replace("  if", "    if")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one commit on its main branch, and a branch that has left it."""
    for folder in ("python", "room"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
    (tmp_path / "tests/python/test_a.py").write_text(BEFORE)
    (tmp_path / "tests/room/a_test.cc").write_text(CPP_BEFORE)
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    commit(tmp_path)
    git(tmp_path, "switch", "--quiet", "--create=branch")
    return tmp_path


def git(tree: Path, *arguments: str) -> str:
    user = ["-c", "user.name=n", "-c", "user.email=e"]
    command = ["git", *user, *arguments]
    done = subprocess.run(command, cwd=tree, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(tree: Path) -> None:
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message=one")


def test_new_and_changed_tests_are_found_and_moved_ones_are_not(tree: Path) -> None:
    (tree / "tests/python/test_a.py").write_text(AFTER)
    (tree / "tests/python/test_b.py").write_text(MOVED)
    (tree / "tests/room/a_test.cc").write_text(CPP_AFTER)
    found = {str(item) for item in changed_tests("main", tree)}
    assert found == {
        "tests/python/test_a.py::TestAll::test_is_new",
        "tests/python/test_a.py::test_changes",
        "tests/room/a_test.cc::Suite.Changes",
    }
    commit(tree)
    assert {str(item) for item in changed_tests("main", tree)} == found


def test_the_base_is_where_the_branch_left_the_main_one(tree: Path) -> None:
    main = git(tree, "rev-parse", "main")
    assert default_base(tree) == "HEAD~1"
    (tree / "tests/python/test_a.py").write_text(AFTER)
    assert default_base(tree) == main, "what is not committed has not left it, and counts"
    for _ in range(2):
        (tree / "tests/python/test_b.py").write_text(f"# {_}")
        commit(tree)
    assert default_base(tree) == main


def stress(tmp_path: Path, body: str) -> tuple[int, str]:
    folder = tmp_path / "hack"
    folder.mkdir()
    path = folder / "test_it.py"
    path.write_text(f"import pathlib\n\ndef test_it():\n    {body}\n")
    command = [sys.executable, str(ROOT / "hack/stress"), "--times=3", f"{path}::test_it"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_one_that_fails_once_is_named_with_its_output(tmp_path: Path) -> None:
    times = tmp_path / "times"
    body = f"p = pathlib.Path({str(times)!r}); p.open('a').write('x'); assert len(p.read_text()) != 2, 'oh'"
    code, said = stress(tmp_path, body)
    assert code == 1 and times.read_text() == "xxx"
    assert "test_it, round 2: exit status 1" in said and "AssertionError: oh" in said
    assert "   3 rounds, 1 failed: " in said


def test_what_burns_processor_time_ends_with_the_process_that_started_it() -> None:
    burn = runpy.run_path(str(ROOT / "hack/stress"))["BURN"]
    starts = "import os, subprocess, sys; subprocess.Popen([*sys.argv[1:], str(os.getpid())])"
    command = [sys.executable, "-c", starts, sys.executable, "-c", burn]
    # Its output ends when no process has it open any more.
    subprocess.run(command, check=True, capture_output=True, timeout=patient(60))


def test_one_that_never_fails_is_counted(tmp_path: Path) -> None:
    code, said = stress(tmp_path, "pass")
    assert (code, "   3 rounds, 0 failed: " in said) == (0, True), said
