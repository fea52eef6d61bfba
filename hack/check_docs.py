#!/usr/bin/env python3
"""docs/operations.md lists exactly the daemon's options, and links between our pages lead somewhere."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPTION = re.compile(r'(?:Text|Bytes|Number|PolicyNumber)\(\s*"([a-z_.]+)"|\{"([a-z_]+\.[a-z_]+)",')
ROW = re.compile(r"^\| `([a-z_.]+)` \|", re.M)
LINK = re.compile(
    r"\]\(([^)#\s]+)(?:#[^)]*)?\)|`((?:docs|proto|hack|tests)/[\w./-]+\.(?:md|py|txt|json))`"
)


def main() -> int:
    problems = []
    options = ROOT / "server" / "daemon" / "options.cc"
    if options.exists():
        found = OPTION.findall(options.read_text(encoding="utf-8"))
        written = {first or second for first, second in found}
        section = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
        section = section.split("## Options")[1].split("\n## ")[0]
        listed = set(ROW.findall(section))
        problems += [
            f"docs/operations.md: lacks the option {name}" for name in sorted(written - listed)
        ]
        problems += [
            f"docs/operations.md: no option {name} exists" for name in sorted(listed - written)
        ]
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "proto" / "README.md"]:
        if not page.exists():
            problems.append(f"{page.relative_to(ROOT)}: missing")
            continue
        for link, path in LINK.findall(page.read_text(encoding="utf-8")):
            target = page.parent / link if link else ROOT / path
            if "://" not in link and not target.exists():
                problems.append(f"{page.relative_to(ROOT)}: {link or path} does not exist")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
