"""When step() raises and when it only says so (promise 4: training never dies of us). The session here is
made up, so that it fails where and how a test wants; test_saving.py uses the real one."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import cairn
import pytest
from cairn import errors


class MadeUpStep:
    def __init__(self, session: MadeUpSession) -> None:
        self.session = session
        self.bytes_written = 0
        self.revision = 0

    def write(self, name: str, kind: str, sources: list[Any]) -> None:
        self.session.meet("write")
        self.bytes_written += sum(length for _, length in sources)

    def commit(self, notes: dict[str, str]) -> tuple[str, bool]:
        self.session.meet("commit")
        self.session.notes = notes
        return "digest", True

    def abort(self) -> None:
        self.session.meet("abort")

    def drop(self) -> None:
        self.session.calls.append("drop")


class MadeUpSession:
    socket = "/made/up"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.notes: dict[str, str] = {}
        self.began: tuple[Any, ...] = ()

    def meet(self, call: str) -> None:
        self.calls.append(call)
        if call in self.fails:
            raise self.fails[call]

    def begin_step(self, *arguments: Any) -> MadeUpStep:
        self.began = arguments
        self.meet("begin")
        return MadeUpStep(self)

    def close(self) -> None:
        pass


@pytest.fixture
def session() -> MadeUpSession:
    return MadeUpSession()


@pytest.fixture
def c(session: MadeUpSession) -> cairn.Connection:
    options = cairn.connection.Options(
        job="made-up",
        rank=1,
        world_size=4,
        attempt=7,
        socket="",
        local_writers=1,
        timeout=1.0,
        copy_threads=1,
        takes_fds=True,
        policy=None,
    )
    connection = cairn.Connection(options)
    connection._native = session  # type: ignore[assignment]
    return connection


SOFT = [4, 8, 13, 14, 15, 2]
HARD = [3, 6, 7, 9]
PLACES = ["begin", "write", "commit"]


def save_once(c: cairn.Connection, **options: Any) -> cairn.Step:
    with c.step(3, **options) as s:
        s.save(b"bytes", "a")
    return s


def test_a_clean_exit_commits(c: cairn.Connection, session: MadeUpSession) -> None:
    step = save_once(c, notes={"loss": "0.1"})
    assert session.calls == ["begin", "write", "commit"]
    assert step.ok and step.complete and step.digest == "digest" and step.error is None
    assert session.notes == {"loss": "0.1"}
    assert session.began == (3, None, 0.0, False)


def test_an_exception_discards(c: cairn.Connection, session: MadeUpSession) -> None:
    with pytest.raises(KeyError):
        with c.step(3) as s:
            s.save(b"bytes", "a")
            raise KeyError("mine")
    assert session.calls == ["begin", "write", "abort"]
    assert not s.ok


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("code", SOFT)
def test_full_and_unreachable_do_not_raise(
    c: cairn.Connection, session: MadeUpSession, code: int, place: str
) -> None:
    session.fails[place] = errors.from_status(code, "the budget has 3 bytes")
    with pytest.warns(cairn.CairnWarning, match="the budget has 3 bytes") as warned:
        step = save_once(c)
    assert len(warned) == 1
    assert warned[0].filename == __file__
    assert not step.ok and step.error is session.fails[place]
    assert c.failures == {type(step.error).__name__: 1}
    assert ("commit" in session.calls) == (place == "commit")
    assert place == "begin" or session.calls[-1] in ("drop", "commit")


def test_each_kind_warns_once_and_is_counted(c: cairn.Connection, session: MadeUpSession) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(3):
            session.fails["write"] = cairn.Full("full")
            assert not save_once(c).ok
        for _ in range(2):
            session.fails["write"] = cairn.Unavailable("gone")
            assert not save_once(c).ok
    assert len(warned) == 2 and all("more since" not in str(w.message) for w in warned)
    assert c.failures == {"Full": 3, "Unavailable": 2}
    session.fails.clear()
    assert save_once(c).ok


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("code", SOFT)
def test_strict_raises_them(
    c: cairn.Connection, session: MadeUpSession, code: int, place: str
) -> None:
    session.fails[place] = errors.from_status(code, "so it is")
    with pytest.raises(cairn.Error, match="so it is") as error:
        save_once(c, strict=True)
    assert error.value.code == code
    assert c.failures == {}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("code", HARD)
def test_the_callers_own_mistakes_raise(
    c: cairn.Connection, session: MadeUpSession, code: int, place: str
) -> None:
    session.fails[place] = errors.from_status(code, "wrong")
    with pytest.raises(cairn.Error, match="wrong") as error:
        save_once(c)
    assert error.value.code == code


def test_superseded_raises(c: cairn.Connection, session: MadeUpSession) -> None:
    session.fails["write"] = errors.from_status(9, "superseded by 8")
    with pytest.raises(cairn.Superseded) as error:
        save_once(c)
    assert error.value.by == 8


def test_after_a_soft_failure_the_rest_is_not_copied(
    c: cairn.Connection, session: MadeUpSession
) -> None:
    session.fails["write"] = cairn.Full("full")
    with pytest.warns(cairn.CairnWarning), c.step(3) as s:
        s.save(b"1", "a")
        s.save(b"2", "b")
        with pytest.raises(ValueError):
            s.save(b"3", "..")
    assert session.calls == ["begin", "write", "drop"]


def test_an_object_that_cannot_be_saved_raises_and_discards(
    c: cairn.Connection, session: MadeUpSession
) -> None:
    pytest.importorskip("torch")
    with pytest.raises(Exception, match="lambda|pickle"):
        with c.step(3) as s:
            s.save(lambda: None, "f")
    assert session.calls == ["begin", "abort"]


@pytest.mark.parametrize("step", [-1, 2**63, 1.5, "3", None])
def test_a_step_that_is_none_raises(c: cairn.Connection, step: Any) -> None:
    with pytest.raises(ValueError, match="step"):
        c.step(step)


def test_some_ranks_save_a_step(c: cairn.Connection, session: MadeUpSession) -> None:
    save_once(c, writers=1)
    assert session.began == (3, (1, 0), 0.0, False)
    save_once(c, writers=4)
    assert session.began == (3, None, 0.0, False)
    save_once(c, writers=4, writer=1)
    assert session.began == (3, None, 0.0, False)
    save_once(c, writers=2, writer=0)
    assert session.began == (3, (2, 0), 0.0, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"writers": 2}, "writer: 2 of 4 ranks save the step; say which of them this is, 0 … 1"),
        ({"writers": 2, "writer": 2}, "writer: 2 is not in 0 … 1"),
        ({"writers": 1, "writer": 1}, "writer: 1 is not in 0 … 0"),
        (
            {"writers": 4, "writer": 2},
            "writer: all 4 ranks save the step, and this is rank 1, not 2",
        ),
        ({"writers": 5, "writer": 1}, "writers: 5 is not in 1 … 4, the world size"),
        ({"writers": 0}, "writers: 0 is not in 1 … 4"),
        ({"writer": 0}, "writer: 0 of how many"),
    ],
)
def test_which_ranks_save_is_said_in_full(
    c: cairn.Connection, options: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        c.step(3, **options)
    with pytest.raises(ValueError, match=message):
        c.save_async(3, {"a": b"bytes"}, **options)


def test_some_ranks_cannot_agree_to_skip(c: cairn.Connection) -> None:
    with pytest.raises(ValueError, match='busy: all ranks agree on "skip"'):
        c.save_async(3, {"a": b"bytes"}, writers=2, writer=0, busy="skip")


@pytest.mark.parametrize(
    "name", ["", "..", "a/../b", "/a", "a\0", "n" * 513, "c" * 201, ".cairn/x", "a//b", "\udc80"]
)
def test_a_name_that_is_none_raises(c: cairn.Connection, name: str) -> None:
    with pytest.raises(ValueError, match="name"), c.step(3) as s:
        s.save(b"", name)


def test_a_step_is_used_with_with_and_once(c: cairn.Connection) -> None:
    step = c.step(3)
    with pytest.raises(cairn.FailedPrecondition, match="with"):
        step.save(b"", "a")
    with step:
        pass
    with pytest.raises(cairn.FailedPrecondition, match="ended"):
        step.save(b"", "a")
    with pytest.raises(cairn.FailedPrecondition, match="once"), step:
        pass


def test_failing_to_abort_does_not_hide_why(c: cairn.Connection, session: MadeUpSession) -> None:
    session.fails["abort"] = cairn.Unavailable("gone")
    with pytest.raises(KeyError), c.step(3) as s:
        s.save(b"1", "a")
        raise KeyError("mine")
    assert session.calls[-1] == "abort"


def test_a_soft_failure_keeps_nothing_that_was_being_saved(
    c: cairn.Connection, session: MadeUpSession
) -> None:
    session.fails["write"] = cairn.Full("full")
    content = bytearray(1000)
    before = sys.getrefcount(content)
    with pytest.warns(cairn.CairnWarning), c.step(3) as s:
        s.save(content, "a")
    assert s.error is not None and sys.getrefcount(content) == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"job": "bad/job"}, "job"),
        ({"job": "a" * 129}, "job"),
        ({"job": "j", "rank": 4, "world_size": 4, "attempt": 1}, "rank: 4"),
        ({"job": "j", "rank": 1}, "rank: 1 is not in 0 … 0"),
        ({"job": "j", "rank": -2}, "rank"),
        ({"job": "j", "attempt": 0}, "attempt: 0"),
        ({"job": "j", "timeout": 0.0}, "timeout"),
        ({"job": "j", "timeout": float("nan")}, "timeout"),
        ({"job": "j", "copy_threads": 0}, "copy_threads"),
        ({}, "CAIRN_JOB"),
    ],
)
def test_connect_names_what_is_wrong(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        cairn.connect(**arguments, socket="/nowhere")


def test_several_writers_without_an_attempt_are_told_the_options() -> None:
    with pytest.raises(ValueError, match=r"attempt=.*CAIRN_ATTEMPT.*init_process_group"):
        cairn.connect("j", rank=0, world_size=2, socket="/nowhere")


def test_the_environment_fills_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in {
        "CAIRN_JOB": "envjob",
        "RANK": "2",
        "WORLD_SIZE": "8",
        "CAIRN_ATTEMPT": "77",
        "CAIRN_SOCKET": "/env/socket",
        "LOCAL_WORLD_SIZE": "4",
    }.items():
        monkeypatch.setenv(variable, value)
    made: list[Any] = []
    pretend: Callable[..., Any] = lambda **options: made.append(options)  # noqa: E731
    monkeypatch.setattr(cairn.connection._native, "Session", pretend)
    c = cairn.connect()
    cairn.api._current = None
    assert (c.job, c.rank, c.world_size) == ("envjob", 2, 8)
    assert made[0] == {
        "socket": "/env/socket",
        "job": "envjob",
        "attempt": 77,
        "writer": 2,
        "world_size": 8,
        "local_writers": 4,
        "takes_fds": True,
        "copy_threads": 2,
        "timeout": 30.0,
        "client": made[0]["client"],
        "policy": None,
        "fence": False,
        "run": "",
        "restart": -1,
        "process": b"",
    }


@pytest.mark.parametrize("variable", ["RANK", "WORLD_SIZE", "CAIRN_ATTEMPT"])
def test_a_bad_variable_is_named(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "seven")
    with pytest.raises(ValueError, match=variable):
        cairn.connect("j", socket="/nowhere")
