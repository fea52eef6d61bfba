"""Child processes that save with their parent's connection, pickled to them."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cairn
import pytest
from node import Node
from patience import patient, until

PRELUDE = """
import os, pickle, signal, sys
import cairn
given = pickle.load(open(sys.argv[1], "rb"))
def say(*words):
    print(*words, flush=True)
def wait():
    sys.stdin.readline()
"""


class Child:
    """A process of its own that is given what was pickled; it says lines, and waits for `go`."""

    def __init__(self, given: Any, folder: Path, script: str, uid: int | None = None) -> None:
        path = folder / f"given-{time.monotonic_ns()}"
        path.write_bytes(pickle.dumps(given))
        path.chmod(0o600)
        become = f"import os\nos.setgid({uid})\nos.setuid({uid})\n" if uid else ""
        script = PRELUDE.lstrip() + become + textwrap.dedent(script)
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def ends(self) -> None:
        assert self.process.wait(timeout=patient(60)) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def save(c: cairn.Connection, step: int, what: Any = b"parent's") -> None:
    with c.step(step, strict=True) as s:
        s.save(what, "x")


@pytest.fixture
def c(node: Node, job: str) -> Iterator[cairn.Connection]:
    """One of two writers: what another process may not be."""
    with cairn.connect(job, rank=0, world_size=2, attempt=7) as connection:
        yield connection


SAVES = """
with given.step(int({step}), strict=True) as s:
    s.save(b"child's", "x")
say(given.attempt, s.revision)
"""


def commit_nothing(c: cairn.Connection, *steps: int) -> None:
    """As the other writer of the steps."""
    with cairn.connect(c.job, rank=1, world_size=2, attempt=7, socket=c.socket) as other:
        for step in steps:
            with other.step(step, strict=True):
                pass


def what_is_saved(c: cairn.Connection, *steps: int) -> list[bytes]:
    return [bytes(c.load(f"{step}/x")) for step in steps]


def wait_until_nothing_is_written(node: Node, job: str) -> None:
    with node.reader(job) as reader:
        until("what the dead writer held came back", lambda: not reader.status()["writing_bytes"])


# --- a connection --------------------------------------------------------------------------------------


def test_a_child_saves_again_what_its_parent_saved_with_some_of_the_ranks(
    node: Node, job: str, tmp_path: Path
) -> None:
    """There it is writer 1 of 2, and rank 0 of all."""
    with cairn.connect(job, rank=0, world_size=3, attempt=7) as c:
        with cairn.connect(job, rank=2, world_size=3, attempt=7, socket=c.socket) as other:

            def save_with_other(step: int) -> None:
                with c.step(step, writers=2, writer=1, strict=True) as s:
                    s.save(b"parent's", "x")
                with other.step(step, writers=2, writer=0, strict=True):
                    pass

            save_with_other(1)
            child = Child(
                c,
                tmp_path,
                """
                with given.step(1, writers=2, writer=1, strict=True) as s:
                    s.save(b"child's", "x")
                say(s.revision)
                """,
            )
            assert child.says() == "1", "it was entered before"
            child.ends()
            with other.step(1, writers=2, writer=0, strict=True):
                pass
            assert what_is_saved(c, 1) == [b"child's"]


def test_a_child_saves_as_the_same_writer_and_its_parent_goes_on(
    c: cairn.Connection, tmp_path: Path
) -> None:
    save(c, 1)
    child = Child(c, tmp_path, SAVES.format(step=2))
    assert child.says() == "7 0"
    child.ends()
    save(c, 3)
    commit_nothing(c, 1, 2, 3)
    assert c.latest().step == 3
    assert what_is_saved(c, 1, 2, 3) == [b"parent's", b"child's", b"parent's"]


def test_without_its_parents_secret_a_process_is_not_that_writer(
    c: cairn.Connection, tmp_path: Path
) -> None:
    """What only names the attempt and the rank, as anybody can."""
    save(c, 1)
    child = Child(
        (c.job, c.socket),
        tmp_path,
        """
        c = cairn.connect(given[0], rank=0, world_size=2, attempt=7, socket=given[1])
        try:
            with c.step(2) as s:
                s.save(b"stranger's", "x")
        except cairn.AlreadyExists as error:
            say(error)
        """,
    )
    assert f"another process, pid {os.getpid()}" in child.says()


def test_a_step_that_was_saved_before_is_saved_again_by_the_child(
    c: cairn.Connection, tmp_path: Path
) -> None:
    save(c, 1)
    save(c, 1, b"parent's second")
    child = Child(c, tmp_path, SAVES.format(step=1))
    assert child.says() == "7 2"
    child.ends()
    for _ in range(3):
        commit_nothing(c, 1)
    assert what_is_saved(c, 1) == [b"child's"]


def test_a_lone_writers_attempt_is_chosen_when_it_is_pickled(
    node: Node, job: str, tmp_path: Path
) -> None:
    with cairn.connect(job) as c:
        child = Child(c, tmp_path, SAVES.format(step=1))
        attempt, revision = child.says().split()
        child.ends()
        assert (int(attempt), revision) == (c.attempt, "0")
        save(c, 2)
        assert c.latest().step == 2
        assert what_is_saved(c, 1, 2) == [b"child's", b"parent's"]


def test_a_step_that_the_child_has_saved_the_parent_does_not_save_over(
    c: cairn.Connection, tmp_path: Path
) -> None:
    """It does not know of it, so what it saves comes too late."""
    child = Child(c, tmp_path, SAVES.format(step=1))
    assert child.says() == "7 0"
    with pytest.raises(cairn.AlreadyExists, match="revision: 0 .* was committed"):
        save(c, 1)
    commit_nothing(c, 1)
    assert what_is_saved(c, 1) == [b"child's"]


def test_the_secret_is_shown_nowhere(c: cairn.Connection) -> None:
    save(c, 1)
    copy = pickle.loads(pickle.dumps(c))
    with copy:
        secret = copy._options.process
        assert len(secret) == 16
        shown = [
            repr(copy),
            repr(copy._options),
            json.dumps(copy.status()),
            repr(vars(c)),
            repr(c.step(2)),
        ]
        shown += [repr(copy.ls(c.job)), str(copy.stat(1))]
    assert not any(secret.hex() in text or repr(secret) in text for text in shown)


def test_no_daemon_where_a_connection_was_pickled_to_is_told_at_its_first_use(
    c: cairn.Connection, tmp_path: Path
) -> None:
    child = Child(
        c,
        tmp_path,
        """
        given._options.socket = "/nowhere/socket"
        given._options.timeout = 0.2
        try:
            given.step(1, strict=True).begin()
        except cairn.Unavailable as error:
            say(error)
        """,
    )
    assert "no daemon listens at /nowhere/socket" in child.says()


@pytest.mark.root
def test_the_secret_is_of_no_use_to_another_user(
    node: Node, c: cairn.Connection, tmp_path: Path
) -> None:
    save(c, 1)
    child = Child(
        c,
        tmp_path,
        """
        try:
            with given.step(2, strict=True) as s:
                s.save(b"another user's", "x")
        except PermissionError as error:
            say(type(error).__name__, error)
        """,
        uid=65534,
    )
    assert child.says().startswith("PermissionDenied")
    with c.step(2, strict=True) as s:
        s.save(b"parent's", "x")
    assert s.revision == 0


# --- who dies ------------------------------------------------------------------------------------------

BEGINS = """
s = given.step(2, strict=True).begin()
s.save(bytes(4_000_000), "half")
say("begun")
wait()
s.save(b"child's", "x")
s.commit()
say("committed")
wait()
"""


def test_a_child_killed_while_it_saves_leaves_the_step_to_its_parent(
    node: Node, c: cairn.Connection, tmp_path: Path
) -> None:
    save(c, 1)
    child = Child(c, tmp_path, BEGINS)
    assert child.says() == "begun"
    child.kill()
    wait_until_nothing_is_written(node, c.job)
    save(c, 3)
    commit_nothing(c, 1, 2, 3)
    with pytest.raises(cairn.NotFound):
        c.load("2/x")
    assert c.latest().step == 3


PARENT = """
import os, pickle, subprocess, sys
import cairn
c = cairn.connect(sys.argv[1], attempt=7)
with c.step(1, strict=True) as s:
    s.save(b"parent's", "x")
open(sys.argv[2], "wb").write(pickle.dumps(c))
print("pickled", flush=True)
sys.stdin.readline()
"""


def test_a_child_outlives_its_parent_and_the_next_attempt_waits_for_both(
    node: Node, job: str, tmp_path: Path
) -> None:
    given = tmp_path / "given"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, job, str(given)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None and parent.stdout.readline() == "pickled\n"
    child = Child(pickle.loads(given.read_bytes()), tmp_path, BEGINS)
    assert child.says() == "begun"
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    with cairn.connect(job, attempt=8, timeout=patient(5)) as next_life:
        with pytest.raises(cairn.FailedPrecondition, match=f"pid {child.process.pid} still saves"):
            save(next_life, 9)
    child.go()
    assert child.says() == "committed"
    child.go()
    child.ends()
    with cairn.connect(job, attempt=8, timeout=patient(20)) as next_life:
        assert next_life.resume_latest().step == 2
        save(next_life, 3)
        assert what_is_saved(next_life, 1, 2, 3) == [b"parent's", b"child's", b"parent's"]


# --- a step --------------------------------------------------------------------------------------------


def begun(c: cairn.Connection, step: int) -> cairn.Step:
    s = c.step(step, strict=True, notes={"by": "parent"}).begin()
    s.save(b"parent's", "x")
    s.save(bytes(range(256)) * 8192, "y")
    return s


TAKES = """
with given as s:
    say(s.step, s.revision, s.bytes_written)
    wait()
    s.save(b"child's", "z")
say(s.ok)
"""


def test_a_child_commits_what_its_parent_began(
    node: Node, c: cairn.Connection, tmp_path: Path
) -> None:
    s = begun(c, 5)
    handed = s.hand_over()
    assert not s.ok and "handed over" in repr(s)
    with pytest.raises(cairn.FailedPrecondition):
        s.save(b"", "late")
    s.commit()  # nothing: it is the child's
    child = Child(handed, tmp_path, TAKES)
    assert child.says() == f"5 0 {8 + 256 * 8192}"
    save(c, 6)
    child.go()
    assert child.says() == "True"
    child.ends()
    commit_nothing(c, 5)
    assert what_is_saved(c, 5) == [b"parent's"]
    assert bytes(c.load("5/y")) == bytes(range(256)) * 8192
    assert bytes(c.load("5/z")) == b"child's"
    assert sorted(o.name for o in c.ls(f"{c.job}/5").objects) == ["x", "y", "z"]


def test_a_daemon_that_dies_in_between_costs_nothing(
    own_node: Node, job: str, tmp_path: Path
) -> None:
    with cairn.connect(job, rank=0, world_size=2, attempt=7) as c:
        handed = begun(c, 5).hand_over()
        own_node.kill_daemon()
        child = Child(handed, tmp_path, TAKES)
        assert child.says().startswith("5 0 ")
        own_node.kill_daemon()
        child.go()
        assert child.says() == "True"
        commit_nothing(c, 5)
        assert what_is_saved(c, 5) == [b"parent's"]
        assert bytes(c.load("5/z")) == b"child's"


@pytest.mark.parametrize("how", ["discarded", "killed"])
def test_what_the_child_does_not_commit_is_gone(
    node: Node, c: cairn.Connection, tmp_path: Path, how: str
) -> None:
    save(c, 1)
    handed = begun(c, 5).hand_over()
    script = "given.begin()\nsay('taken')\nwait()\ngiven.discard()\n"
    child = Child(handed, tmp_path, script)
    assert child.says() == "taken"
    if how == "killed":
        child.kill()
    else:
        child.go()
        child.ends()
    wait_until_nothing_is_written(node, c.job)
    with pytest.raises(cairn.Error):
        handed.begin()
    with c.step(5, strict=True) as s:
        s.save(b"again", "x")
    assert s.revision == 1


def test_the_parent_takes_back_what_no_child_took(node: Node, c: cairn.Connection) -> None:
    handed = begun(c, 5).hand_over()
    handed.begin().discard()
    wait_until_nothing_is_written(node, c.job)
    with begun(c, 6).hand_over() as s:
        s.save(b"more", "z")
    commit_nothing(c, 6)
    assert what_is_saved(c, 6) == [b"parent's"]


def test_what_was_handed_over_goes_with_the_session_that_wrote_it(
    node: Node, job: str, tmp_path: Path
) -> None:
    c = cairn.connect(job, rank=0, world_size=2, attempt=7)
    handed = begun(c, 5).hand_over()
    content = pickle.dumps(handed)
    c.close()
    wait_until_nothing_is_written(node, job)
    later = pickle.loads(content)
    with pytest.raises(cairn.Removed, match="its session ended"):
        later.begin()


def test_a_step_is_pickled_before_it_is_entered_or_handed_over(
    c: cairn.Connection, tmp_path: Path
) -> None:
    s = c.step(4, notes={"by": "child"})
    child = Child(s, tmp_path, "with given as s: s.save(b'', 'x')\nsay(s.ok)\n")
    assert child.says() == "True"
    s = begun(c, 5)
    with pytest.raises(cairn.FailedPrecondition, match="hand_over"):
        pickle.dumps(s)
    s.discard()
    with pytest.raises(cairn.FailedPrecondition, match="not open"):
        s.hand_over()
