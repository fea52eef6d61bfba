#!/usr/bin/env python3
"""Lays out the root file system of Cairn's image: docker/rootfs.py PROGRAMS FOLDER

PROGRAMS is the folder with the built cairnd and cairn, FOLDER is made. In it are the programs, the libraries
that they load, and a user of their own; no shell and no package manager. The Dockerfile and the test of the
image both use this script, so what is in the image is said here alone.

Run as root the folders of the user `cairn` belong to it; anybody else leaves them to the caller.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
PROGRAMS = ("cairnd", "cairn")
USER, UID = "cairn", 10001
# What no program names and libraries open by themselves: RDMA devices' drivers, and how a user logs in
# to MySQL 8 (its default is caching_sha2_password). Left out where it is not installed.
LOADED_LATER = (
    "/usr/lib/*/libibverbs/*.so",
    "/etc/libibverbs.d/*.driver",
    "/usr/lib/*/libmariadb3/plugin/caching_sha2_password.so",
    "/usr/lib/*/libmariadb3/plugin/sha256_password.so",
    "/usr/lib/*/libmariadb3/plugin/client_ed25519.so",
)
# Debian 12 has these as links.
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
# Mode, and whether it is the user's: what an operator puts there, the socket, a catalog, storage.
FOLDERS = {
    "etc/cairn": (0o755, False),
    "run/cairn": (0o755, True),
    "var/lib/cairn": (0o755, True),
    "mnt/checkpoints": (0o755, True),
    "tmp": (0o1777, False),
    "proc": (0o555, False),
    "sys": (0o555, False),
    "dev": (0o755, False),
}
FILES = {
    "etc/passwd": f"root:x:0:0:root:/:/nonexistent\n{USER}:x:{UID}:{UID}::/var/lib/cairn:/nonexistent\n",
    "etc/group": f"root:x:0:\n{USER}:x:{UID}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


def libraries(of: Iterable[Path]) -> set[Path]:
    """What the loader would map for them, itself among it, by the names that they use."""
    found: set[Path] = set()
    for program in of:
        # A driver without further needs is "statically linked" to ldd, with exit status 0 or 1.
        told = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        if "not found" in told:
            raise SystemExit(f"{program}: a library is missing:\n{told}")
        found |= {Path(path) for path in re.findall(r"(?:=> |^\s*)(/\S+) \(0x", told, re.MULTILINE)}
    return found


def loaded_later() -> list[Path]:
    return sorted(path for pattern in LOADED_LATER for path in Path("/").glob(pattern[1:]))


def licences(of: Iterable[Path]) -> list[Path]:
    """Of the Debian packages that these files are from; nothing where there is no Debian."""
    if not shutil.which("dpkg-query"):
        return []
    patterns = [f"*/{path.name}" for path in of]
    told = subprocess.run(
        ["dpkg-query", "--search", *patterns], capture_output=True, text=True, check=False
    ).stdout
    packages = set(re.findall(r"^([\w.+-]+)(?::\w+)?: ", told, re.MULTILINE))
    found = [Path("/usr/share/doc") / package / "copyright" for package in sorted(packages)]
    return [path for path in found if path.exists()]


def within(root: Path, path: Path) -> Path:
    """Where this machine's file goes; /lib and /usr/lib are one folder there, as here."""
    return root / path.parent.resolve().relative_to("/") / path.name


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)  # of a link what it leads to
    target.chmod(0o755 if os.access(source, os.X_OK) else 0o644)


def lay_out(programs: Path, root: Path, *, strip: bool) -> None:
    for name, leads_to in LINKS.items():
        (root / leads_to).mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(leads_to)
    built = [programs / name for name in PROGRAMS]
    for program in built:
        copy(program, root / "usr/bin" / program.name)
        if strip:
            subprocess.run(["strip", "--strip-debug", root / "usr/bin" / program.name], check=True)
    later = loaded_later()
    needed = libraries([*built, *(path for path in later if path.suffix == ".so")])
    for path in sorted(needed) + later:
        copy(path, within(root, path))
    for path in licences(needed):
        copy(path, root / path.relative_to("/"))
    for name in ("LICENSE", "NOTICE"):
        copy(TOP / name, root / "usr/share/doc/cairn" / name)
    for name, text in FILES.items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        target.chmod(0o644)
    for name, (mode, of_user) in FOLDERS.items():
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(mode)
        if of_user and os.geteuid() == 0:
            os.chown(folder, UID, UID)


def main() -> int:
    parser = argparse.ArgumentParser(
        "docker/rootfs.py", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("programs", metavar="PROGRAMS", type=Path, help="with cairnd and cairn")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="is made")
    parser.add_argument("--strip", action="store_true", help="without what only a debugger reads")
    arguments = parser.parse_args()
    for name in PROGRAMS:
        if not (arguments.programs / name).is_file():
            parser.error(f"PROGRAMS: {arguments.programs / name} is not there: make build")
    try:
        arguments.folder.mkdir(parents=True)
    except FileExistsError:
        parser.error(f"FOLDER: {arguments.folder} is there already")
    os.umask(0o022)
    lay_out(arguments.programs, arguments.folder, strip=arguments.strip)
    return 0


if __name__ == "__main__":
    sys.exit(main())
