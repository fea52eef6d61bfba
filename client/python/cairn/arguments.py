"""Checks of what a caller passes: each names the argument, what was given and what is wanted."""

from __future__ import annotations

import math
import operator
import os
import reprlib
from typing import Any

from cairn.errors import InvalidArgument

_MAX_STEP = 2**63 - 1


def _refuse(field: str, value: Any, wanted: str) -> InvalidArgument:
    return InvalidArgument(
        f"{field}: {reprlib.repr(value)} is of type {type(value).__name__}, wanted is {wanted}"
    )


def integer(field: str, value: Any) -> int:
    """An int, or what stands for one (a numpy integer); True is none."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise _refuse(field, value, "an integer") from None


def integer_of_32_bits(field: str, value: Any) -> int:
    number = integer(field, value)
    if not -(2**31) <= number < 2**31:
        raise InvalidArgument(f"{field}: {number} is not in -2^31 … 2^31-1")
    return number


def integer_of_64_bits(field: str, value: Any) -> int:
    number = integer(field, value)
    if not -(2**63) <= number < 2**63:
        raise InvalidArgument(f"{field}: {number} is not in -2^63 … 2^63-1")
    return number


def step_number(field: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{field}: {reprlib.repr(value)} is not an integer") from None
    if not 0 <= number <= _MAX_STEP:
        raise InvalidArgument(f"{field}: {number} is not in 0 … 2^63-1")
    return number


def texts(field: str, value: Any) -> dict[str, str]:
    """A mapping of strings to strings."""
    try:
        found = dict(value)
    except (TypeError, ValueError):
        raise _refuse(field, value, "a mapping of strings") from None
    for each in (*found, *found.values()):
        if not isinstance(each, str):
            raise _refuse(field, each, "a string")
    return found


def seconds(field: str, value: Any) -> float:
    """A number above 0 and not without end."""
    if isinstance(value, (bool, str, bytes)):
        raise _refuse(field, value, "a number of seconds")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise _refuse(field, value, "a number of seconds") from None
    if number <= 0 or not math.isfinite(number):
        raise InvalidArgument(f"{field}: {value} is not a positive number of seconds")
    return number


def patience(field: str, value: Any) -> float | None:
    """A number of seconds, or None."""
    if value is None:
        return None
    if isinstance(value, (bool, str, bytes)):
        raise _refuse(field, value, "a number of seconds")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise _refuse(field, value, "a number of seconds") from None
    if math.isnan(number):
        raise InvalidArgument(f"{field}: {value} is not a number of seconds")
    return number


def boolean(field: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _refuse(field, value, "True or False")
    return value


def text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _refuse(field, value, "a str")
    return value


def file_path(field: str, value: Any) -> str:
    """A str or an os.PathLike of one."""
    path = value
    if isinstance(value, os.PathLike):
        path = os.fspath(value)
    if not isinstance(path, str):
        raise _refuse(field, value, "a str or an os.PathLike")
    return path
