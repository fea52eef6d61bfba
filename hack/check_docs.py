#!/usr/bin/env python3
"""docs/operations.md lists exactly the daemon's options with their defaults, links between our pages lead
somewhere, and the tests that docs/bugs.md names are there.

    hack/check_docs.py [CAIRND]             with a daemon's program: the options too, as its --help tells them
    hack/check_docs.py CAIRND --write       mends the table: adds what is missing, with the help as its
                                            meaning, drops what is gone, sets the defaults
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPERATIONS = ROOT / "docs" / "operations.md"
BUGS = ROOT / "docs" / "bugs.md"
TEST = re.compile(r"\b(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)")
# `Suite.Name`, `Suite.Na*`, `*me*`; further ones of a suite named before, `Rule8*`, have none.
FILTER = re.compile(r"`([*A-Z][\w*]*(?:\.[\w*]+|\*))`|--gtest_filter=([^`\s]+)")
# "  --pool.threads TEXT   threads that fault memory in [2] (CAIRND_POOL_THREADS)"; a long name has the
# rest on the next line.
HELP = re.compile(r"^\s+--([a-z_.]+) TEXT\s+(\S.*?) \[([^\[\]]*)\] \(CAIRND_\w+\)$", re.M)
ROW = re.compile(r"^\| `([a-z_.]+)` \| (?:`([^`]*)` )?\| (.*) \|$", re.M)
LINK = re.compile(
    r"\]\(([^)#\s]+)(?:#[^)]*)?\)|`((?:docs|proto|hack|tests)/[\w./-]+\.(?:md|py|txt|json))`"
)


@dataclasses.dataclass
class Option:
    name: str
    default: str
    meaning: str

    def row(self) -> str:
        default = f"`{self.default}` " if self.default else ""
        return f"| `{self.name}` | {default}| {self.meaning} |"


def parse_help(text: str) -> list[Option]:
    return [Option(name, default, words) for name, words, default in HELP.findall(text)]


def parse_table(page: str) -> list[Option]:
    return [Option(name, default, words) for name, default, words in ROW.findall(options_of(page))]


def options_of(page: str) -> str:
    """The section that holds the table."""
    return page.split("\n## Options\n")[1].split("\n## ")[0]


def compare(real: list[Option], listed: list[Option]) -> list[str]:
    where = "docs/operations.md"
    defaults = {option.name: option.default for option in listed}
    names = {option.name for option in real}
    problems = []
    for option in real:
        if option.name not in defaults:
            problems.append(f"{where}: lacks the option {option.name}")
        elif defaults[option.name] != option.default:
            shown = defaults[option.name] or "nothing"
            problems.append(
                f'{where}: {option.name} has the default "{option.default}", not "{shown}"'
            )
    problems += [f"{where}: no option {name} exists" for name in defaults if name not in names]
    return problems


def with_options(page: str, real: list[Option]) -> str:
    """The page with the table in the daemon's order; meanings that somebody wrote are kept."""
    meanings = {option.name: option.meaning for option in parse_table(page)}
    rows = [
        dataclasses.replace(option, meaning=meanings.get(option.name, option.meaning)).row()
        for option in real
    ]
    section = options_of(page)
    old = "\n".join(match.group(0) for match in ROW.finditer(section))
    return page.replace(section, section.replace(old, "\n".join(rows)))


def dead_links() -> list[str]:
    problems = []
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "proto" / "README.md"]
    for page in [*pages, *(ROOT / "docs").glob("*.md")]:
        shown = page.relative_to(ROOT)
        if not page.exists():
            problems.append(f"{shown}: missing")
            continue
        for link, path in LINK.findall(page.read_text(encoding="utf-8")):
            target = page.parent / link if link else ROOT / path
            if "://" not in link and not target.exists():
                problems.append(f"{shown}: {link or path} does not exist")
    return problems


def registered_tests() -> set[str]:
    return {
        f"{suite}.{name}"
        for file in (ROOT / "tests").rglob("*_test.cc")
        for suite, name in TEST.findall(file.read_text(encoding="utf-8"))
    }


def stale_filters(page: str, tests: set[str]) -> list[str]:
    """Filters of gtest on the page that match none of the tests, whatever instantiates them."""
    names = tests | {test.split(".")[1] for test in tests}
    problems = []
    for word, option in FILTER.findall(page):
        for pattern in (word or option).split(":"):
            bare = pattern.rsplit("/", 1)[-1]
            if not any(fnmatch.fnmatchcase(name, bare) for name in names):
                problems.append(f"docs/bugs.md: no test is called {pattern}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description="checks what the pages say")
    parser.add_argument("cairnd", nargs="?", help="the daemon's program")
    parser.add_argument("--write", action="store_true", help="mend the table of options")
    arguments = parser.parse_args()
    problems = dead_links() + stale_filters(BUGS.read_text(encoding="utf-8"), registered_tests())
    if arguments.cairnd:
        command = [arguments.cairnd, "--help"]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        real = parse_help(told)
        if not real:
            problems.append(f"{arguments.cairnd} --help names no option")
        page = OPERATIONS.read_text(encoding="utf-8")
        if arguments.write:
            page = with_options(page, real)
            OPERATIONS.write_text(page, encoding="utf-8")
        problems += compare(real, parse_table(page))
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
