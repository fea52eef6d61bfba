"""tests/driver/pytests.py: which files stand together in a job, and how long each took."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from driver import inputs, pytests
from driver.ledger import MODE, TURNS, Ledger


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pytests, "ROOT", tmp_path)
    made = tmp_path / "tests" / "python"
    made.mkdir(parents=True)
    return made


def test_short_files_stand_together_and_the_longest_job_begins(folder: Path) -> None:
    took = {"a": 25.0, "b": 200.0, "c": 30.0, "d": 1.0}
    for name in took:
        (folder / f"test_{name}.py").touch()
    seconds = {f"python:tests/python/test_{name}.py": value for name, value in took.items()}
    jobs = pytests.jobs_of(pytests.find_tests("python"), "python", seconds)
    assert [job.files for job in jobs] == [
        ["tests/python/test_b.py"],
        [f"tests/python/test_{name}.py" for name in ("c", "a", "d")],
    ]
    assert [job.name for job in jobs] == ["python/test_b", "python/test_c+2"]


def test_every_file_of_every_folder_is_in_one_job() -> None:
    found = [file for one in ("python", "faults", "hack") for file in pytests.find_tests(one)]
    jobs = pytests.jobs_of(found, "python", {})
    files = [file for job in jobs for file in job.files]
    assert len(files) == len(set(files))
    assert {"tests/hack/test_pytests.py", "tests/faults/test_pairs.py"} < set(files)
    assert all(len({Path(file).parent for file in job.files}) == 1 for job in jobs)


def test_the_time_of_a_file_is_that_of_its_cases(tmp_path: Path) -> None:
    xml = tmp_path / "result.xml"
    xml.write_text(
        """<testsuites><testsuite>
        <testcase classname="tests.python.test_a" name="one" time="1.5"/>
        <testcase classname="tests.python.test_a.TestB" name="two" time="2"/>
        <testcase classname="tests.python.test_c" name="three" time="4"/>
        </testsuite></testsuites>"""
    )
    files = ["tests/python/test_a.py", "tests/python/test_c.py"]
    assert pytests.seconds_by_file(xml, files) == dict(zip(files, (3.5, 4.0), strict=True))


def test_what_runs_under_both_pythons_takes_turns_under_the_second(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "ROOT", tmp_path)
    monkeypatch.setenv(MODE, TURNS)
    ledger = Ledger(tmp_path / "ledger.json")
    for name in ("a", "b", "c", "d"):
        (folder / f"test_{name}.py").write_text(name)
    (folder / "test_only.py").write_text("@pytest.mark.torch2")

    def runs() -> set[str]:
        ledger.begin_run()
        inputs.digest_of.cache_clear()
        due = pytests.due_of(pytests.find_tests("python"), "torch2", ledger)
        for file in due:
            ledger.ended("torch2", file, passed=True)
        return {Path(file).stem.removeprefix("test_") for file in due}

    first, second = runs(), runs()
    assert first & second == {"only"}, "it runs under no other Python"
    assert first | second == {"a", "b", "c", "d", "only"}
    for change in ("a", "b", "c", "d"):
        (folder / f"test_{change}.py").write_text("changed")
        assert change in runs()


def test_bytecode_is_kept_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large.py").write_text("x = 1\n")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    env = pytests.python_env("all") | {"PYTHONPYCACHEPREFIX": str(tmp_path / "kept")}
    subprocess.run([sys.executable, "-c", "import large"], env=env, cwd=tmp_path, check=True)
    assert list((tmp_path / "kept").rglob("large.*.pyc"))
