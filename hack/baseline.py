"""What a check of hack/ still lets pass: a file of known findings, which can only become shorter.

One finding a row, "path:kind:text of the line", sorted, without line numbers: code that only moves within its
file changes nothing. Two equal lines of one file are two rows.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path


def read(path: Path) -> Counter[str]:
    """The rows of a baseline. A missing file has none."""
    if not path.exists():
        return Counter()
    return Counter(line for line in path.read_text(encoding="utf-8").splitlines() if line)


def check(path: Path, hits: Counter[str], *, shrink: bool) -> list[str]:
    """The problems: each hit that has no row, and each row that has no hit.

    `shrink` removes the rows without a hit from the file, and reports only the hits without a row. It adds
    no row.
    """
    known = read(path)
    problems = [f"{hit} (new)" for hit in sorted((hits - known).elements())]
    stale = known - hits
    if shrink:
        if stale:
            rows = sorted((known - stale).elements())
            path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    else:
        problems += [
            f"{row} (gone; remove its row from {path.name})" for row in sorted(stale.elements())
        ]
    return problems
