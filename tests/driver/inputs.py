"""Digests of what a thing is made from: sources with all the headers of ours that they include, however
indirectly. clang-tidy's cache, the sanitizers, the fuzzers and the mutants ask here."""

from __future__ import annotations

import functools
import hashlib
import re
import shlex
import subprocess
from collections.abc import Iterable
from pathlib import Path

from driver.process import ROOT

# All of ours are written from the root; hack/check_includes.py sees to that.
OUR_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
BATCH = re.compile(r"_batch_\d+\.cc$")  # cairn_batches in hack/cmake/CairnRoom.cmake
# What every compilation depends on, and the data that tests read.
ALWAYS = ("hack/cmake/*.cmake", "hack/build", "tests/golden/**/*", "sql/**/*.sql")
SOURCES = (".h", ".cc", ".cu", ".thrift")


@functools.cache
def includes(source: str) -> tuple[str, ...]:
    """The headers of ours that a file names itself."""
    found = OUR_INCLUDE.findall((ROOT / source).read_text(encoding="utf-8"))
    return tuple(name for name in found if (ROOT / name).is_file())


@functools.cache
def digest_of(path: str) -> bytes:
    return hashlib.sha256((ROOT / path).read_bytes()).digest()


def with_headers(sources: Iterable[str]) -> list[str]:
    """The files, by their paths from the root, and every header of ours that they include."""
    seen = set(sources)
    todo = list(seen)
    while todo:
        for included in includes(todo.pop()):
            if included not in seen:
                seen.add(included)
                todo.append(included)
    return sorted(seen)


def digest(files: Iterable[str], also: str = "") -> str:
    made = hashlib.sha256(also.encode())
    for name in sorted(files):
        made.update(name.encode() + b"\0" + digest_of(name))
    return made.hexdigest()[:24]


def matching(patterns: Iterable[str]) -> list[str]:
    found = (path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file())
    return sorted({path.relative_to(ROOT).as_posix() for path in found})


@functools.cache
def always() -> str:
    return digest(matching(ALWAYS))


def of_program(build: Path, target: str) -> str:
    """A target of a build folder that is configured: all of ours that it is compiled from."""
    command = ["ninja", "-C", str(build), "-t", "inputs", target]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    sources = []
    for line in listed.splitlines():
        # A path with a blank is quoted.
        sources += sources_of((build / shlex.split(line)[0]).resolve())
    return digest(with_headers(sources), always())


def sources_of(path: Path) -> list[str]:
    """By their paths from the root, the sources of ours that a compiler reads when it is given this file:
    itself, or those of a batch; none if it is generated, or not ours."""
    if BATCH.search(path.name):
        return OUR_INCLUDE.findall(path.read_text(encoding="utf-8"))
    ours = path.is_relative_to(ROOT) and not path.is_relative_to(ROOT / "build")
    known = ours and path.suffix in SOURCES and path.is_file()
    return [path.relative_to(ROOT).as_posix()] if known else []
