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
