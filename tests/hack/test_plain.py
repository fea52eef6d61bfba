"""hack/check_plain.py finds what it says, where people write sentences, and nowhere else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "hack"))

import check_plain

ROOT = check_plain.ROOT
RARE = "anew"


# The sentences below are shorter than the strings that the check reads.
def kinds(folder: Path, name: str, *lines: str) -> list[tuple[int, str]]:
    (folder / name).write_text("\n".join(lines), encoding="utf-8")
    return [(hit.line, hit.kind) for hit in check_plain.find(folder, [name])]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("Who saves it waits.", "who"),
        ("Given to who asks.", "who"),
        ("What is lent stays.", "what"),
        ("Of a part, its size.", "of"),
        ("It is no multiple.", "is no"),
        ("It waits, for it can.", "for"),
        ("It is made anew.", "anew"),
        ("He may read it.".lower(), "he"),
        ("Nobody has it.", "nobody"),
        ("It tells the node.", "hears"),
    ],
)
def test_each_turn_of_phrase_is_found(tmp_path: Path, words: str, kind: str) -> None:
    assert kinds(tmp_path, "a.cc", f"// {words}") == [(1, kind)]


def test_a_plain_sentence_is_not_found(tmp_path: Path) -> None:
    plain = "// The writer waits until the node has the part, because it may be lent."
    assert kinds(tmp_path, "a.h", plain) == []


def test_comments_docstrings_and_long_strings_are_read(tmp_path: Path) -> None:
    assert kinds(tmp_path, "a.cc", f"int x;  // {RARE}") == [(1, RARE)]
    assert kinds(tmp_path, "a.py", '"""Of', f"{RARE}.", '"""', f"x = 1  # {RARE}") == [
        (2, RARE),
        (4, RARE),
    ]
    assert kinds(tmp_path, "a.sql", f"SELECT 1 -- {RARE}") == [(1, RARE)]
    assert kinds(tmp_path, "a.cc", f'Say("the step is written {RARE}");') == [(1, RARE)]


def test_code_names_and_short_strings_are_not_read(tmp_path: Path) -> None:
    assert kinds(tmp_path, "a.cc", "int anew = 0;", 'Say("anew");') == []
    assert kinds(tmp_path, "a.py", "anew = told(his)") == []


def test_pages_are_read_except_for_what_is_typed(tmp_path: Path) -> None:
    page = ("Saved anew.", "```", "saved anew", "```", "", "- It is told.")
    assert kinds(tmp_path, "a.md", *page) == [(1, RARE), (6, "hears")]


def test_a_hit_keeps_its_key_when_its_line_moves(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text("// Saved anew.\n", encoding="utf-8")
    (before,) = check_plain.find(tmp_path, ["a.h"])
    (tmp_path / "a.h").write_text(f"int x;\n\n  // Saved {RARE}.\n", encoding="utf-8")
    (after,) = check_plain.find(tmp_path, ["a.h"])
    assert (before.line, after.line) == (1, 3)
    assert before.key == after.key == "a.h:anew:Saved anew."


def test_the_check_itself_is_plain() -> None:
    own = ["hack/check_plain.py", Path(__file__).relative_to(ROOT).as_posix()]
    assert check_plain.find(ROOT, own) == []
