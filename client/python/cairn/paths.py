"""Which paths are Cairn's.

A Cairn path is a `str`: "cairn://JOB/STEP/NAME" from anywhere, STEP a number or "latest", and once
connected also "STEP/NAME" with an all-digit STEP. Everything else (other strings, every os.PathLike, file
objects) is a file.
"""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

from cairn import _native, arguments
from cairn.errors import InvalidArgument

SCHEME = "cairn://"
_STEP_NAME = re.compile(r"[0-9]+/.", re.DOTALL)


# What somebody who means Cairn might have written: [JOB/]STEP/NAME.
_NEARLY = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,127}/)?([0-9]+|latest)/[^/]", re.DOTALL)


def _must_be_utf8(field: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{field}: {text!r} is not UTF-8") from None


def check_name(name: str) -> None:
    """An object's name: 1 to 512 bytes of UTF-8, components of 1 to 200 bytes joined by "/".

    Raises:
      ValueError: it is not, naming what is wrong.
    """
    arguments.text("name", name)
    _must_be_utf8("name", name)
    _native.validate_name(name)


def looks_like_cairn(path: Any) -> bool:
    """Whether a path that is a file's may have been meant for Cairn: a relative one of the form STEP/NAME or
    JOB/STEP/NAME. "model.pt", "./12/model.pt" and what begins with / are plainly files."""
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    return isinstance(path, str) and _NEARLY.match(path) is not None


class CairnPath(NamedTuple):
    job: str
    step: int  # _native.NO_STEP: latest
    name: str


def parse(path: str, default_job: str, *, needs_name: bool = True) -> CairnPath:
    """Of a path that must be Cairn's and, with `needs_name`, name an object. Without a name `name` is "".

    Raises:
      ValueError: it is not, naming the part that is wrong.
    """
    if not isinstance(path, str):
        raise InvalidArgument(f"path: {path!r} is of type {type(path).__name__}, wanted is a str")
    _must_be_utf8("path", path)
    parsed = CairnPath(*_native.parse_path(path, default_job))
    if needs_name and not parsed.name:
        raise InvalidArgument(f"path: {path!r} names a step but no object in it")
    return parsed


def recognize(path: Any, default_job: str) -> CairnPath | None:
    """The Cairn path that `path` is; None when it is a file's. `default_job`: the connection's, or "".

    Raises:
      ValueError: it begins like a Cairn path and is none, or it is a PathLike that was one once
        (pathlib turns "cairn://job" into "cairn:/job").
    """
    if isinstance(path, str):
        if path.startswith(SCHEME) or (default_job and _STEP_NAME.match(path)):
            return parse(path, default_job)
        if path.startswith("cairn:/"):
            raise InvalidArgument(f"path: {path!r} begins cairn:/ with one slash; write {SCHEME}…")
        return None
    if isinstance(path, os.PathLike) and os.fsdecode(path).startswith("cairn:/"):
        raise InvalidArgument(
            f"path: {path!r} was a Cairn path before it became a {type(path).__name__}, which drops a "
            f"slash; pass the string {SCHEME}JOB/STEP/NAME itself"
        )
    return None
