#!/usr/bin/env python3
"""Finds sentences that a reader has to read twice, in comments, docstrings, pages and long strings.

    hack/check_plain.py               a sentence that hack/check_plain.baseline does not list is a failure
    hack/check_plain.py --shrink      the same; removes from the baseline the sentences that are gone
    hack/check_plain.py PATH...       shows every sentence found in these files and folders, with its line
    hack/check_plain.py --write-all   makes the baseline of everything found: only to begin

English is the third language of many readers. Each pattern is a phrase that costs them a second
reading, with a plain form beside it. The baseline lists the lines from before this check, by file, pattern
and text, and only becomes shorter: a line that changes has no row any more, so it has to become plain.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import baseline

ROOT = Path(__file__).resolve().parent.parent
BASELINE = ROOT / "hack" / "check_plain.baseline"
SOURCES = re.compile(r"\.(h|cc|py|pyi|md|thrift|sql|sh|cmake)$|CMakeLists\.txt$|Makefile$")
NOT_OURS = re.compile(r"^(\..*|build|corpus|gen|golden|third_party)$")  # of folders
COMMENT = re.compile(r"(?:^|\s)(?://+|#)\s?(.*)$")
SQL_COMMENT = re.compile(r"--\s?(.*)$")
LONG_STRING = re.compile(r'"((?:[^"\\]|\\.){24,})"')  # shorter ones are names and keys

VERBS = (
    "is|was|has|had|may|must|can|will|would|does|did|only|asks?|saves?|reads?|waits?|needs?|wants?|gets?"
    r"|comes?|goes|lends?|holds?|\w+s"
)
FOLLOW_WHAT = (
    "is|was|were|has|had|it|they|comes?|does|goes|the|no|an?|one|this|that|follows|came|lies|stands|can|could"
    "|may|must|will|would"
)
CLAUSES = "it|they|he|the|a|an|its|their|that|there|these|this|what|who|else|then|no|both|all|each"
RARE = (
    "anew",
    "once more",
    "all the same",
    "but for",
    "save for",
    "ere",
    "thereof",
    "whatsoever",
    "henceforth",
)
PATTERNS = {
    "who": (
        rf"(^|[.;:,(] ?)(Who|Whom|Whose|Whoever|who) ({VERBS})\b"
        r"|\b(for|to|of|by|and|that|than|from|with|as|like) who(ever)? \w+",
        "'who' as a noun: name the caller, the writer, the node",
    ),
    "what": (rf"(^|\. )What ({FOLLOW_WHAT})\b", "'What' as the subject: name the thing"),
    "of": (r"(^|\. )Of [a-z]", "a sentence that begins with 'Of'"),
    "is no": (r"\b(is|are|was|were) no [a-z]", "'no' before a noun: say 'is not a'"),
    "for": (rf", for ({CLAUSES})\b", "'for' in the place of 'because'"),
    "anew": (
        rf"\b({'|'.join(RARE)})\b",
        "a rare word: say 'again', 'anyway', 'except'",
    ),
    "he": (r"\b(his|him|he|himself)\b", "a man: say 'the user', 'the writer', 'it'"),
    "nobody": (
        r"\b([Nn]obody|[Ss]omebody|[Ee]verybody|[Aa]nybody)\b",
        "a nameless person: say which component does it, or does not",
    ),
    "hears": (
        r"\b(hears?|heard|tells?|told)\b",
        "speech: say 'receives', 'reports', 'is notified'",
    ),
}
COMPILED = {kind: re.compile(pattern) for kind, (pattern, _) in PATTERNS.items()}


@dataclasses.dataclass(frozen=True)
class Hit:
    path: str
    line: int
    kind: str
    text: str

    @property
    def key(self) -> str:
        return f"{self.path}:{self.kind}:{self.text}"


def sources(paths: Iterable[str]) -> list[str]:
    names = []
    for path in paths:
        if (ROOT / path).is_file():
            names.append(path)
        for folder, below, files in os.walk(ROOT / path):
            below[:] = [name for name in below if not NOT_OURS.search(name)]
            at = Path(folder).relative_to(ROOT)
            names += [(at / name).as_posix() for name in files if SOURCES.search(name)]
    return sorted(names)


def page_prose(text: str) -> Iterator[tuple[int, str]]:
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def source_prose(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Comments, docstrings, long strings."""
    python = name.endswith((".py", ".pyi"))
    comment = SQL_COMMENT if name.endswith(".sql") else COMMENT
    in_docstring = False
    for number, line in enumerate(text.splitlines(), 1):
        quotes = line.count('"""') if python else 0
        if in_docstring or quotes:
            yield number, line.strip().strip('"')
        if quotes % 2:
            in_docstring = not in_docstring
        if in_docstring or quotes:
            continue
        found = comment.search(line)
        if found:
            yield number, found.group(1)
        for words in LONG_STRING.findall(line):
            if " " in words:
                yield number, words


def find(root: Path, names: Iterable[str]) -> list[Hit]:
    hits = []
    for name in names:
        text = (root / name).read_text(encoding="utf-8")
        prose = page_prose(text) if name.endswith(".md") else source_prose(name, text)
        for number, words in prose:
            for kind, pattern in COMPILED.items():
                if pattern.search(words):
                    hits.append(Hit(name, number, kind, words.strip()))
    return hits


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--shrink", action="store_true", help="remove from the baseline what is gone")
    how.add_argument("--write-all", action="store_true", help="a first baseline: only to begin")
    how.add_argument("paths", nargs="*", default=[], metavar="PATH", help="show every hit in these")
    arguments = parser.parse_args()
    hits = find(ROOT, sources(arguments.paths or ["."]))
    if arguments.paths:
        for hit in hits:
            print(f"{hit.path}:{hit.line}: {hit.kind}: {hit.text}")
        return 0
    keys = collections.Counter(hit.key for hit in hits)
    if arguments.write_all:
        BASELINE.write_text(
            "".join(f"{key}\n" for key in sorted(keys.elements())), encoding="utf-8"
        )
    problems = baseline.check(BASELINE, keys, shrink=arguments.shrink)
    for problem in problems:
        print(problem)
    for kind, (_, plain) in PATTERNS.items():
        if any(f":{kind}:" in problem for problem in problems):
            print(f"{kind}: {plain}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
