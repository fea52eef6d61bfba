#!/usr/bin/env python3
"""pytest collects only test_*.py: a file that holds tests under another name would silently never run.

The same for C++ is an error when CMake configures the tree (tests/CMakeLists.txt).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOLDS_TESTS = re.compile(r"^(async )?def test_|^class Test", re.M)


def main() -> int:
    problems = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if HOLDS_TESTS.search(path.read_text(encoding="utf-8")) and not path.name.startswith(
            "test_"
        ):
            problems.append(
                f"{path.relative_to(ROOT)}: holds tests, but pytest collects only test_*.py"
            )
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
