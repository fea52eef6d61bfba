#!/usr/bin/env python3
"""The house's arrows, as docs/architecture.md draws them, checked on every #include line; and every lock is
one that the thread-safety analysis can see.

Prints one line per violation and exits 1 if there is any. Runs in well under a second, as a test and in
`make lint`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# What each room may include, besides itself. `common` is open to all, `server/facts` to every room of the
# server.
UNDER_NODE = {
    "server/engine",
    "server/cache",
    "server/journal",
    "server/catalog",
    "server/storage",
    "server/transport",
}
NODE = UNDER_NODE | {"server/node"}
ALLOWED: dict[str, set[str]] = {
    "common": set(),
    "proto": set(),
    "server/facts": set(),
    "server/tls": set(),
    **{room: {"server/facts"} for room in UNDER_NODE},
    "server/transport": {"server/facts", "server/tls"},
    "server/node": UNDER_NODE | {"server/facts"},
    "server/rpc": {"server/node", "server/engine", "server/facts", "server/tls", "proto"},
    "server/keeper": {"server/node", "server/cache", "server/journal"},
    "server/daemon": NODE | {"server/facts", "server/tls", "server/keeper", "server/rpc", "proto"},
    "client/cpp": {"proto"},
    "client/gpu": {"client/cpp", "proto"},
    "client/cli": {"client/cpp", "proto"},
    "client/python": {"client/cpp", "client/gpu", "proto"},
}
# Only these may touch the generated Thrift types (docs/architecture.md, "The house").
MAY_USE_THRIFT = ("proto/", "server/rpc/", "server/daemon/", "client/cpp/", "tests/")
# Nothing under these may know a GPU or a framework.
NO_ACCELERATORS = ("common/", "server/")
ACCELERATOR = re.compile(r"^(cuda|nccl|torch/|ATen/|c10/)")
GENERATED = re.compile(r"^(Cairn\.h|Peer\.h|(cairn|peer)_(types|constants)\.h|thrift/)")
# clang's thread-safety analysis sees only what common/mutex.h annotates.
ANNOTATED = "common/mutex.h"
UNANNOTATED = re.compile(
    r"\bstd::(\w*mutex|lock_guard|unique_lock|scoped_lock|shared_lock|condition_variable\w*)\b"
)
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
SOURCES = {".h", ".cc", ".hpp", ".cpp"}


def room_of(path: str) -> str | None:
    """ "server/cache/pool.h" → "server/cache"; None for what is no room of ours."""
    parts = path.split("/")
    if parts[0] in ("common", "proto", "tests"):
        return parts[0]
    if parts[0] in ("server", "client") and len(parts) > 2:
        return "/".join(parts[:2])
    return None


def check_file(relative: str, text: str) -> list[str]:
    problems = []
    room = room_of(relative)
    if room is None:
        return [f"{relative}: stands in no room of the house"]
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        included = match.group(1) or match.group(2)
        where = f"{relative}:{number}"
        if GENERATED.match(included) and not relative.startswith(MAY_USE_THRIFT):
            problems.append(f"{where}: {included} is for {', '.join(MAY_USE_THRIFT)} only")
        if ACCELERATOR.match(included) and relative.startswith(NO_ACCELERATORS):
            problems.append(f"{where}: {included} never appears below {', '.join(NO_ACCELERATORS)}")
        if match.group(1) is None or room == "tests":
            continue  # <outside>, or a test, which may look into any room
        target = room_of(included)
        if included.startswith("../"):
            problems.append(f"{where}: include from the root of the repository, not {included}")
        elif target == "tests":
            problems.append(f"{where}: {relative} includes a test's header, {included}")
        elif target not in {None, room, "common"} | ALLOWED.get(room, set()):
            problems.append(f"{where}: {room} may not include {target} ({included})")
    return problems


def check_pragma_once(relative: str, text: str) -> list[str]:
    if relative.endswith(".h") and "#pragma once" not in text:
        return [f"{relative}: has no #pragma once"]
    return []


def check_locks(relative: str, text: str) -> list[str]:
    if relative == ANNOTATED:
        return []
    return [
        f"{relative}:{number}: {match.group(0)} is not annotated; {ANNOTATED} has what is"
        for number, line in enumerate(text.splitlines(), 1)
        if (match := UNANNOTATED.search(line.split("//")[0]))
    ]


def main() -> int:
    problems: list[str] = []
    for top in ("common", "proto", "server", "client", "tests"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in SOURCES:
                relative = path.relative_to(ROOT).as_posix()
                text = path.read_text(encoding="utf-8")
                problems += check_file(relative, text) + check_pragma_once(relative, text)
                problems += check_locks(relative, text)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
