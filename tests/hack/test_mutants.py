"""hack/mutants.py finds the one place of a mutant's text, wherever it has moved, and says what it found."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "hack"))

import mutants
import patience
from driver import budget
from driver.ledger import Ledger

MUTANT = mutants.Mutant(
    name="lease_ignored",
    bug="memory under a lease is freed",
    under="server/engine",
    find="return !readers.empty() || pins > 0;",
    replace="return pins > 0;",
    tests=("engine_test",),
)


def write(tree: Path, name: str, text: str) -> None:
    path = tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_text_is_found_in_whatever_file_it_moved_to(tmp_path: Path) -> None:
    write(tmp_path, "server/engine/line.cc", "int x;\n")
    text = "bool Held() {\n  return !readers.empty() ||\n         pins > 0;\n}\n"
    write(tmp_path, "server/engine/memory/held.cc", text)
    path, begin, end = mutants.find_place(tmp_path, MUTANT)
    assert path == tmp_path / "server/engine/memory/held.cc"
    assert text[begin:end].split() == MUTANT.find.split()


def test_a_text_that_changed_is_refused_with_the_line_it_became(tmp_path: Path) -> None:
    write(tmp_path, "server/engine/held.cc", "int x;\nreturn !leases.empty() || pins > 0;\n")
    with pytest.raises(
        mutants.Unusable, match="nowhere under server/engine.*held.cc:2: return !leases"
    ):
        mutants.find_place(tmp_path, MUTANT)


def test_a_text_that_occurs_twice_is_refused_with_both_places(tmp_path: Path) -> None:
    write(tmp_path, "server/engine/a.cc", MUTANT.find)
    write(tmp_path, "server/engine/b.cc", "\n" + MUTANT.find)
    with pytest.raises(mutants.Unusable, match=r"occurs 2 times .* server/engine/a.cc:1, .*b.cc:2"):
        mutants.find_place(tmp_path, MUTANT)


def test_a_text_outside_its_room_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, "server/node/a.cc", MUTANT.find)
    with pytest.raises(mutants.Unusable, match="nowhere under server/engine$"):
        mutants.find_place(tmp_path, MUTANT)


def test_the_check_names_every_mutant_that_does_not_apply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "server/engine/a.cc", MUTANT.find)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "DEFINITIONS", tmp_path / "mutants.json")
    assert mutants.check([MUTANT]) == 0
    moved = dataclasses.replace(MUTANT, name="gone", find="if (gone) return;")
    assert mutants.check([MUTANT, moved]) == 1
    assert capsys.readouterr().out.startswith("mutants.json: gone: its text is nowhere")


def digest(tree: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(mutants, "ROOT", tree)
    mutants.functions_of.cache_clear()
    mutant = dataclasses.replace(MUTANT, filter="Held.*")
    return mutants.digest_of(mutant, mutants.TestSources())


def test_a_mutant_changes_with_its_function_and_its_tests_but_not_when_it_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = "bool Held() {\n  Count();\n  return !readers.empty() || pins > 0;\n}\n"
    write(tmp_path, "server/engine/held.cc", f"void Before() {{ Rest(); }}\n{function}")
    write(tmp_path, "tests/engine/held_test.cc", "TEST(Held, WhileRead) {}\n")
    first = digest(tmp_path, monkeypatch)

    (tmp_path / "server/engine/held.cc").unlink()
    moved = function.replace("  return", "      return")
    write(tmp_path, "server/engine/memory/leases.cc", f"{moved}void Behind() {{ Other(); }}\n")
    assert digest(tmp_path, monkeypatch) == first

    write(tmp_path, "server/engine/memory/leases.cc", function.replace("Count", "Recount"))
    changed = digest(tmp_path, monkeypatch)
    assert changed != first

    write(tmp_path, "tests/engine/held_test.cc", "TEST(Held, WhileRead) { Look(); }\n")
    assert digest(tmp_path, monkeypatch) != changed


def test_a_mutant_whose_build_the_end_of_the_run_cuts_off_has_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "server/engine/held.cc", MUTANT.find)
    write(tmp_path, "hack/build", "#!/bin/sh\ntouch ../begun\nexec sleep 600\n")
    (tmp_path / "hack/build").chmod(0o755)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "TREES", tmp_path / "trees")
    left = tmp_path / "left"
    monkeypatch.setenv(budget.LEFT, str(left))
    monkeypatch.setenv(budget.RUN_ENDS, str(time.monotonic() + patience.patient(5)))
    workshops = mutants.Workshops(Ledger(tmp_path / "ledger.json"))
    workshops.judge_all([dataclasses.replace(MUTANT, tests=(), targets=("engine_test",))])
    assert (tmp_path / "trees" / "begun").exists()
    assert not workshops.verdicts
    assert left.read_text() == "mutants:lease_ignored\n"


def test_a_mutant_that_asks_for_all_memory_gets_none() -> None:
    asks = [*mutants.WITHIN_MEMORY, sys.executable, "-c", "bytearray(9 << 30)"]
    ended = subprocess.run(asks, capture_output=True, text=True)
    assert ended.returncode != 0 and "MemoryError" in ended.stderr, ended
