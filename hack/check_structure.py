#!/usr/bin/env python3
"""What keeps the house readable, measured and printed as a table (make lint).

    circles      rooms, the headers of one room, and Python modules include or import each other in one
                 direction only. (Who may include whom is hack/check_includes.py's.)
    functions    one over 70 lines has a reason, in the comment above it (or its docstring):
                 "One function: ..."
    files        one over 500 lines has a reason, in the comment at its top: "One file: ..."
    components   the private data of each class of server/engine is touched by one source, and the class
                 declares no friends

Exits 1, and names the place, where one of these does not hold.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import check_includes
import cpp_source

ROOT = Path(__file__).resolve().parent.parent
FUNCTION_LINES = 70
FILE_LINES = 500
TOP_LINES = 40  # a file's reason stands within these
CPP_TOPS = ("common", "server", "client", "tests")
PYTHON_TOPS = ("client", "docker", "hack", "tests")
# Where `import x` looks, besides the file's own folder: what the test driver and pytest put on sys.path.
PYTHON_PATHS = ("client/python", "tests", "hack")
COMPONENTS = "server/engine"
REASON_LENGTH = 15  # characters; fewer are no reason


@dataclasses.dataclass
class Long:
    """A function or file over its limit."""

    lines: int
    where: str
    reason: str  # empty: none is given


def reason_in(text: str, marker: str) -> str:
    """The sentence after "One file:" or "One function:" in a comment or docstring."""
    words = re.sub(r"\n\s*(?://|#)?\s*", " ", text)
    found = re.search(rf"\b{marker}:\s+(.*?\.)(?:\s|$)", words) or re.search(
        rf"\b{marker}:\s+(.*)", words
    )
    reason = found.group(1).strip() if found else ""
    return reason if len(reason) >= REASON_LENGTH else ""


# --- circles ---------------------------------------------------------------------------------------


def find_circles(arrows: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The strongly connected components of more than one node (Tarjan), each sorted."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    circles = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in arrows.get(node, ()):
            if target not in index:
                visit(target)
            if target in stack:
                low[node] = min(low[node], low[target])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                circles.append(sorted(stack[at:]))
            del stack[at:]

    for node in arrows:
        if node not in index:
            visit(node)
    return circles


def include_arrows(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """File → files of ours that it includes."""
    arrows: dict[str, set[str]] = {}
    for path, text in sources.items():
        found = (check_includes.INCLUDE.match(line) for line in text.splitlines())
        arrows[path] = {m.group(1) for m in found if m and m.group(1) in sources}
    return arrows


def room_arrows(files: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    arrows: dict[str, set[str]] = {}
    for path, targets in files.items():
        room = check_includes.room_of(path) or path
        arrows.setdefault(room, set())
        for target in targets:
            other = check_includes.room_of(target) or target
            if other != room:
                arrows[room].add(other)
    return arrows


def import_arrows(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Python file → files of ours that it imports: also inside a function, or only for its types."""
    arrows: dict[str, set[str]] = {}
    for path, text in sources.items():
        folder = path.rsplit("/", 1)[0]
        targets = arrows.setdefault(path, set())
        for node in ast.walk(ast.parse(text)):
            for module in imported_modules(node, folder):
                found = module_file(module, (folder, *PYTHON_PATHS), sources)
                if found and found != path:
                    targets.add(found)
    return arrows


def imported_modules(node: ast.AST, folder: str) -> list[str]:
    """Dotted names, the most specific first for each "from x import y", which may be module x.y."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:  # "from . import x"
        package = folder.split("/")[: len(folder.split("/")) - (node.level - 1)]
        base = ".".join(["/".join(package), base]).rstrip(".")
    return [f"{base}.{alias.name}" for alias in node.names]


def module_file(module: str, paths: Iterable[str], sources: Mapping[str, str]) -> str | None:
    """ "cairn.step.encode" → "client/python/cairn/step.py"."""
    parts = module.split(".")
    for base in ("", *paths):
        whole, inside = ("/".join(filter(None, [base, *parts[:n]])) for n in (None, -1))
        for candidate in (f"{whole}.py", f"{whole}/__init__.py"):
            if candidate in sources:
                return candidate
        if len(parts) > 1 and f"{inside}.py" in sources:
            return f"{inside}.py"
        package = f"{inside}/__init__.py"
        if len(parts) > 1 and package in sources:
            # The native module is part of the package and none of its names.
            return package if re.search(rf"\b{parts[-1]}\b", sources[package]) else None
    return None


# --- long functions and files ----------------------------------------------------------------------


def comment_above(lines: list[str], line: int) -> str:
    """The comment that ends just above a line (counted from 1)."""
    begin = line - 1
    while begin > 0 and lines[begin - 1].lstrip().startswith(("//", "#", "@")):
        begin -= 1
    return "\n".join(lines[begin : line - 1])


def long_cpp_functions(path: str, text: str) -> list[Long]:
    lines = text.splitlines()
    return [
        Long(
            function.lines,
            f"{path}:{function.first_line} {function.name}",
            reason_in(comment_above(lines, function.first_line), "One function"),
        )
        for function in cpp_source.read(text).functions
        if function.lines > FUNCTION_LINES
    ]


def long_python_functions(path: str, text: str) -> list[Long]:
    lines = text.splitlines()
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                words = comment_above(lines, node.lineno) + "\n" + (ast.get_docstring(node) or "")
                reason = reason_in(words, "One function")
                found.append(Long(length, f"{path}:{node.lineno} {node.name}", reason))
    return found


def long_file(path: str, text: str) -> list[Long]:
    lines = text.splitlines()
    if len(lines) <= FILE_LINES:
        return []
    return [Long(len(lines), path, reason_in("\n".join(lines[:TOP_LINES]), "One file"))]


# --- components ------------------------------------------------------------------------------------


@dataclasses.dataclass
class Component:
    name: str
    header: str
    sources: set[str]  # that define members of it
    friends: list[str]

    @property
    def touching(self) -> int:
        return max(1, len(self.sources)) + len(self.friends)  # 1: all of it stands in its header


def find_components(sources: Mapping[str, str], room: str) -> list[Component]:
    """The classes with private data of a room's headers."""
    inside = {path: text for path, text in sources.items() if path.startswith(f"{room}/")}
    read = {path: cpp_source.read(text) for path, text in inside.items()}
    members: dict[str, set[str]] = {}  # class → sources
    for path, contents in read.items():
        if path.endswith(".cc"):
            for function in contents.functions:
                owner, _, _ = function.name.rpartition("::")
                members.setdefault(owner, set()).add(path)
    return [
        Component(
            found.name,
            path,
            {
                source
                for owner, files in members.items()
                if owner == found.name or owner.endswith("::" + found.name)
                for source in files
            },
            # A template's parameter (`friend Owner;`) names one owner wherever the template is used.
            [friend for friend in found.friends if not re.fullmatch(r"friend \w+", friend)],
        )
        for path, contents in read.items()
        if path.endswith(".h")
        for found in contents.classes
        if found.has_private_data
    ]


# --- the table -------------------------------------------------------------------------------------


def read_sources(tops: Iterable[str], suffixes: set[str]) -> dict[str, str]:
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for top in tops
        for path in sorted((ROOT / top).rglob("*"))
        if path.suffix in suffixes
    }


def show_long(title: str, limit: int, found: list[Long]) -> list[str]:
    """Prints them and returns the problems."""
    print(f"{title} over {limit} lines: {len(found)}")
    for one in sorted(found, key=lambda one: (-one.lines, one.where)):
        print(f"  {one.lines:5}  {one.where}")
        if one.reason:
            print(f"         {one.reason}")
    marker = "One function:" if title == "functions" else "One file:"
    return [
        f'{one.where}: {one.lines} lines and no reason ("{marker} ...")'
        for one in found
        if not one.reason
    ]


def show_circles(cpp: Mapping[str, str], python: Mapping[str, str]) -> list[str]:
    files = include_arrows(cpp)
    upward = [
        problem for path, text in cpp.items() for problem in check_includes.check_file(path, text)
    ]
    rows = [
        ("rooms", room_arrows(files)),
        ("headers and sources", files),
        ("Python modules", import_arrows(python)),
    ]
    problems = upward
    print(f"includes against the arrows of the house: {len(upward)}")
    for name, arrows in rows:
        circles = find_circles(arrows)
        count = sum(len(set(targets)) for targets in arrows.values())
        print(f"circles of {name}: {len(circles)} ({len(arrows)} with {count} arrows)")
        problems += [f"circle: {' ⇄ '.join(circle)}" for circle in circles]
    return problems


def show_components(components: list[Component]) -> list[str]:
    print(f"components of {COMPONENTS}, and the sources that touch their private data")
    for one in sorted(components, key=lambda one: one.name):
        print(f"  {one.touching:5}  {one.name} ({Path(one.header).name})")
    problems = []
    for one in components:
        # What the journal is told of a component, how it comes back and what always holds of it may
        # stand in a file of its own.
        sources = {
            source for source in one.sources if not source.endswith(("_recovery.cc", "_checks.cc"))
        }
        if len(sources) > 1:
            names = ", ".join(sorted(Path(source).name for source in sources))
            problems.append(f"{one.header}: {one.name} is defined in {len(sources)}: {names}")
        problems += [f"{one.header}: {one.name} has a {friend}" for friend in one.friends]
    return problems


def gather(check: Callable[[str, str], list[Long]], sources: Mapping[str, str]) -> list[Long]:
    return [found for path, text in sources.items() for found in check(path, text)]


def main() -> int:
    cpp = read_sources(CPP_TOPS, check_includes.SOURCES)
    python = read_sources(PYTHON_TOPS, {".py"})
    problems = show_circles(cpp, python)
    functions = gather(long_cpp_functions, cpp) + gather(long_python_functions, python)
    problems += show_long("functions", FUNCTION_LINES, functions)
    problems += show_long("files", FILE_LINES, gather(long_file, {**cpp, **python}))
    problems += show_components(find_components(cpp, COMPONENTS))
    for problem in problems:
        print(f"WRONG {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
