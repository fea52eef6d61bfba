"""The tests that are new or changed since a revision. One that only moved is neither."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from driver.process import ROOT

# clang-format puts the brace that ends a test, and no other one of it, at the beginning of a line.
CPP_TEST = re.compile(
    r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\) \{.*?^\}", re.DOTALL | re.MULTILINE
)
PARENTS = ("@{upstream}", "origin/HEAD", "main")


@dataclasses.dataclass(frozen=True)
class Item:
    """A test: "test_x" or "Class::test_x" of a Python file, "Suite.Name" of a C++ source."""

    path: str
    name: str

    def __str__(self) -> str:
        return f"{self.path}::{self.name}"


def git(*arguments: str, root: Path = ROOT) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout


def default_base(root: Path = ROOT) -> str:
    """Where this branch left another one; of what has left none, the commit before."""
    head = git("rev-parse", "HEAD", root=root).strip()
    for parent in PARENTS:
        try:
            base = git("merge-base", "HEAD", parent, root=root).strip()
        except subprocess.CalledProcessError:
            continue  # that branch does not exist
        if base != head:
            return base
    return head if git("status", "--porcelain", "tests", root=root) else "HEAD~1"


def bodies(path: str, text: str) -> Iterator[tuple[str, str]]:
    """Name and text, without blanks, of each test of a file."""
    if path.endswith(".cc"):
        for test in CPP_TEST.finditer(text):
            yield f"{test[1]}.{test[2]}", "".join(test[0].split())
        return
    lines = text.splitlines()
    scopes = [("", ast.parse(text).body)]
    for prefix, body in scopes:
        for node in body:
            if isinstance(node, ast.ClassDef):
                scopes.append((f"{prefix}{node.name}::", node.body))
            elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                found = "\n".join(lines[first - 1 : node.end_lineno])
                yield f"{prefix}{node.name}", "".join(found.split())


def is_test_file(path: str) -> bool:
    if path.startswith("tests/guest/"):
        return False  # they run in an emulated machine only
    return bool(re.search(r"/test_\w+\.py$|_test\.cc$", path))


def changed_tests(since: str, root: Path = ROOT) -> list[Item]:
    """The tests of the working tree, whether committed or not."""
    listed = git("diff", "--name-only", "--no-renames", since, "--", "tests", root=root)
    new = git("ls-files", "--others", "--exclude-standard", "tests", root=root)
    paths = sorted(filter(is_test_file, {*listed.splitlines(), *new.splitlines()}))
    before = set()
    for path in paths:
        try:
            old = git("show", f"{since}:{path}", root=root)
        except subprocess.CalledProcessError:
            continue  # the file is new
        before.update(body for _, body in bodies(path, old))
    return [
        Item(path, name)
        for path in paths
        if (root / path).exists()
        for name, body in bodies(path, (root / path).read_text(encoding="utf-8"))
        if body not in before
    ]


def program_of(path: str, build: Path) -> str:
    """The program that a C++ source is compiled into, as CMake configured it."""
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        if entry["file"] == str(ROOT / path):
            found = re.search(r"-o \S*CMakeFiles/(\w+)\.dir/", entry["command"])
            assert found, entry
            return found[1]
    raise SystemExit(f"{path}: no program has it")
