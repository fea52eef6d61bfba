"""What a run may leave on the disk: of its temporary files nothing, and in continuous integration nothing of
what a stage built that no other stage needs. There the machine stays, with a small disk; a demo leaves 5 GB
of checkpoints and a sanitizer's tree 3 GB, which ccache can give back.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from driver.process import BUILD, say

# Which folder the temporary files of tests, tools and compilers go to (tempfile, mkstemp(3), gcc(1)).
TMPDIR = "TMPDIR"
# Short, because paths of sockets are.
PREFIX = "cairn-run-"
# What runs that were killed leave.
REMAINS = ("cairn-*", "pytest-of-*", "torchelastic_*")
OLD_S = 3 * 3600.0


def in_integration() -> bool:
    return bool(os.environ.get("CI"))


def free_gib(path: Path = BUILD) -> float:
    """Of the disk on which `path` is, or will be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free / (1 << 30)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Everything below this process puts its temporary files there. Other users may too, as in /tmp."""
    before = os.environ.get(TMPDIR)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    folder.chmod(0o1777)
    os.environ[TMPDIR] = str(folder)
    try:
        yield folder
    finally:
        if before is None:
            del os.environ[TMPDIR]
        else:
            os.environ[TMPDIR] = before
        shutil.rmtree(folder, ignore_errors=True)


def remove_remains(top: Path, older_than_s: float = OLD_S) -> None:
    """What earlier runs left there when they were killed. Only this user's, and only what is old: another
    run may be going on."""
    for pattern in REMAINS:
        for path in top.glob(pattern):
            with contextlib.suppress(OSError):
                status = path.lstat()
                own = status.st_uid == os.geteuid()
                if own and time.time() - status.st_mtime > older_than_s:
                    remove(path)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_built(names: tuple[str, ...], build: Path = BUILD) -> None:
    """Folders of the build folder that a stage has no use for any more."""
    for name in names:
        if (build / name).exists():
            say(f"  removes {(build / name)}: {free_gib(build):.1f} GiB free before")
            remove(build / name)
