"""Each status code has its class, which is also the built-in exception a caller expects."""

from __future__ import annotations

import pickle

import cairn
import pytest
from cairn import errors


@pytest.mark.parametrize(
    ("code", "kind", "builtin"),
    [
        (3, cairn.InvalidArgument, ValueError),
        (4, cairn.Timeout, TimeoutError),
        (5, cairn.NotFound, FileNotFoundError),
        (6, cairn.AlreadyExists, FileExistsError),
        (7, cairn.PermissionDenied, PermissionError),
        (8, cairn.Full, Exception),
        (9, cairn.FailedPrecondition, RuntimeError),
        (14, cairn.Unavailable, ConnectionError),
        (15, cairn.Corrupt, Exception),
        (1, cairn.Error, Exception),
        (2, cairn.Error, Exception),
        (12, cairn.Error, Exception),
        (13, cairn.Error, Exception),
    ],
)
def test_a_status_is_its_class_and_a_builtin(
    code: int, kind: type[cairn.Error], builtin: type[Exception]
) -> None:
    error = errors.from_status(code, "step: -1 is below 0")
    assert type(error) is kind
    assert isinstance(error, cairn.Error) and isinstance(error, builtin)
    assert error.code == code
    assert str(error) == "step: -1 is below 0"


def test_superseded_names_the_newer_attempt() -> None:
    error = errors.from_status(9, "attempt 4 of job a: superseded by 17")
    assert type(error) is cairn.Superseded and error.by == 17
    assert isinstance(error, cairn.FailedPrecondition)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("step: 2 of job a was removed; attempts up to 7 do not bring it back", cairn.Removed),
        ("create: a/2 attempt=7 revision=0 was dropped", cairn.Removed),
        ("commit: a/2 attempt=7 revision=0 writer=0 was dropped", cairn.Removed),
        (
            'part: a/2 writer=0 was dropped with its objects, "x" among them: its session',
            cairn.Removed,
        ),
        ("attempt: 7 of job was-removed is superseded by 8", cairn.Superseded),
        (
            "attempt: 8 of job a is newer than 7, in which pid 1 still saves",
            cairn.FailedPrecondition,
        ),
        ("step: 2 of job a is not above what attempt 7 goes on from, 4", cairn.FailedPrecondition),
    ],
)
def test_a_removed_step_is_told_from_an_attempt_that_may_not_save(
    message: str, kind: type[cairn.Error]
) -> None:
    error = errors.from_status(9, message)
    assert type(error) is kind and error.code == 9
    assert errors.is_callers_own(error) == (kind is not cairn.Removed)
    for said in ("", "rank 0: "):
        code, name, text = errors.to_plain(error)
        copy = errors.from_plain(code, name, said + text)
        assert errors.is_callers_own(copy) == errors.is_callers_own(error)
    copy = errors.from_plain(*errors.to_plain(error))
    assert type(copy) is kind
    assert type(errors.from_status(14, message)) is cairn.Unavailable


@pytest.mark.parametrize("code", [5, 8, 9, 13])
def test_errors_travel_between_processes(code: int) -> None:
    error = errors.from_status(code, "superseded by 17")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and str(copy) == str(error) and copy.code == error.code
    assert getattr(copy, "by", None) == getattr(error, "by", None)


def test_only_the_callers_own_mistakes_stop_a_step() -> None:
    own = {code for code in range(1, 17) if errors.is_callers_own(errors.from_status(code, ""))}
    assert own == {3, 6, 7, 9, 11, 12}


def test_native_errors_arrive_as_these() -> None:
    with pytest.raises(cairn.InvalidArgument) as error:
        cairn._native.validate_name("..")
    assert error.value.code == 3 and "name" in str(error.value)
    with pytest.raises(cairn.Corrupt):
        region = cairn._native.Region(100)
        cairn._native.zip_directory(region)
