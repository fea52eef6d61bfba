"""The errors of Cairn: one class per status code that a caller can act on.

Every one is a `cairn.Error` with `.code`, gRPC's number, and also the built-in exception that a program
without Cairn would have got, so `except FileNotFoundError` and `except cairn.NotFound` both work. The
message names the field, the value and the limit.
"""

from __future__ import annotations

import re

__all__ = [
    "AlreadyExists",
    "CairnWarning",
    "Corrupt",
    "Error",
    "FailedPrecondition",
    "Full",
    "InvalidArgument",
    "MissingObject",
    "NotFound",
    "PermissionDenied",
    "Removed",
    "Superseded",
    "Timeout",
    "Unavailable",
]

UNKNOWN = 2
INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
NOT_FOUND = 5
ALREADY_EXISTS = 6
PERMISSION_DENIED = 7
RESOURCE_EXHAUSTED = 8
FAILED_PRECONDITION = 9
OUT_OF_RANGE = 11
UNIMPLEMENTED = 12
UNAVAILABLE = 14
DATA_LOSS = 15


class CairnWarning(RuntimeWarning):
    """A save that did not happen, a file's path that may have been meant for Cairn, or a save that copies
    more than it need. Of one kind the first comes every ten minutes at most, the others once."""


class Error(Exception):
    """What any call of Cairn raises. `code`: gRPC's status code number."""

    code: int = UNKNOWN


class InvalidArgument(Error, ValueError):
    """An argument outside its limits: the caller's own mistake."""

    code = INVALID_ARGUMENT


class Timeout(Error, TimeoutError):
    """Not done by the deadline. What was asked for may still happen."""

    code = DEADLINE_EXCEEDED


class NotFound(Error, FileNotFoundError):
    """No such job, checkpoint or object; for `latest`, nothing complete yet."""

    code = NOT_FOUND


class MissingObject(Error, LookupError):
    """The checkpoint is there, and no object of it has this name; names those that are near. No
    `cairn.NotFound`: a program that begins from nothing where there is no checkpoint must not do so here."""

    code = NOT_FOUND


class AlreadyExists(Error, FileExistsError):
    """The name is another writer's, or this (attempt, writer) is another process."""

    code = ALREADY_EXISTS


class PermissionDenied(Error, PermissionError):
    """The job belongs to another user."""

    code = PERMISSION_DENIED


class Full(Error):
    """No room within the budget; the message has the arithmetic."""

    code = RESOURCE_EXHAUSTED


class FailedPrecondition(Error, RuntimeError):
    """Right call, wrong time: a forked child with its parent's connection, a step not this writer's."""

    code = FAILED_PRECONDITION


class Superseded(FailedPrecondition):
    """A newer attempt of this job has begun; this one may no longer save. `by`: its number, 0 if unknown."""

    by: int = 0


class Removed(FailedPrecondition):
    """The step is no more: somebody removed it, before or while it was saved, or the daemon has dropped what
    was saved of it. Later steps of this attempt are saved."""


class Unavailable(Error, ConnectionError):
    """No daemon answers, or it cannot answer truly now; worth repeating."""

    code = UNAVAILABLE


class Corrupt(Error):
    """The bytes do not match their checksums and no copy that does is left; names the block."""

    code = DATA_LOSS


_CLASSES: dict[int, type[Error]] = {
    kind.code: kind
    for kind in (
        InvalidArgument,
        Timeout,
        NotFound,
        AlreadyExists,
        PermissionDenied,
        Full,
        FailedPrecondition,
        Unavailable,
        Corrupt,
    )
}
_SUPERSEDED = re.compile(r"superseded by (\d+)")
# Of a step that was removed before this call, and while this call waited; and of a part that is not held.
_REMOVED = re.compile(
    r"step: \d+ of job \S+ was removed; |(create|commit): .* was dropped$|part: .* was dropped with its "
)


def from_status(code: int, message: str) -> Error:
    """The exception of a status; the native module raises what this returns."""
    if code == FAILED_PRECONDITION and "superseded" in message:
        superseded = Superseded(message)
        match = _SUPERSEDED.search(message)
        superseded.by = int(match.group(1)) if match else 0
        return superseded
    if code == FAILED_PRECONDITION and _REMOVED.match(message):
        return Removed(message)
    error = _CLASSES.get(code, Error)(message)
    error.code = code
    return error


def to_plain(error: Exception) -> tuple[int, str, str]:
    """What `from_plain` makes the same exception of, in another process: code, class, message."""
    if isinstance(error, Error):
        return error.code, type(error).__name__, str(error)
    return UNKNOWN, "Error", f"{type(error).__name__}: {error}"


def from_plain(code: int, kind: str, message: str) -> Error:
    for other in (MissingObject, Removed):  # of whose code there are others, too
        if kind == other.__name__:
            return other(message)
    return from_status(code, message)


def is_callers_own(error: Error) -> bool:
    """True when `step()` must raise it: a mistake in the call, or an attempt that is over. All else (full,
    unreachable, slow, broken, a step that somebody removed) is no reason for a training job to die."""
    return not isinstance(error, Removed) and error.code in (
        INVALID_ARGUMENT,
        ALREADY_EXISTS,
        PERMISSION_DENIED,
        FAILED_PRECONDITION,
        OUT_OF_RANGE,
        UNIMPLEMENTED,
    )
