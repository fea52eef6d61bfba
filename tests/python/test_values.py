"""Values that Python shares with libcairn are libcairn's, and the wheel's version is the project's."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import cairn
import pytest
from cairn import _native
from cairn.connection import READER, Connection, Options

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_wheel_has_the_projects_version() -> None:
    text = (ROOT / "client" / "python" / "pyproject.toml").read_text(encoding="utf-8")
    version = re.search(r'^version = "(.*)"$', text, re.M)
    assert version is not None
    assert version.group(1) == _native.VERSION == cairn.__version__


def test_connects_defaults_are_libcairns() -> None:
    parameters = inspect.signature(cairn.connect).parameters
    assert parameters["timeout"].default == _native.DEFAULT_TIMEOUT_S > 0
    assert parameters["copy_threads"].default == _native.DEFAULT_COPY_THREADS >= 1


@pytest.mark.parametrize("mode", ["sometimes", "on_demand", ""])
def test_a_persist_mode_that_is_none_is_refused_with_those_there_are(mode: str) -> None:
    policy = dataclasses.asdict(cairn.JobPolicy())
    options = Options(
        job="j", rank=READER, world_size=0, attempt=0, policy={**policy, "mode": mode}
    )
    with pytest.raises(
        ValueError, match=rf'policy\.mode: "{mode}" is none of on-demand, every, newest'
    ):
        Connection(options)._session()
