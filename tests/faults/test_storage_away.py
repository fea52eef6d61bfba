"""R32, R41: storage that is away, broken or hanging when a daemon starts, and below one job alone.

Promise 4: it stops no start, no save, no load from memory and no other job. The file systems that fail and
hang are real ones, mounted over the root or over a job's directory.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cairn_daemon import MIB, Node, exit_status, file_bytes, node
from cairn_raw import PERSISTED, UNAVAILABLE, Raw, attempt_number, pattern, refuses
from patience import patient, until
from storage_faults import Spoilt

ERRORS = {
    "EIO": errno.EIO,
    "ESTALE": errno.ESTALE,
    "EACCES": errno.EACCES,
    "ENOTCONN": errno.ENOTCONN,
}


def save(writer: Raw, step: int) -> bytes:
    data = pattern(f"{writer.job}-{step}", MIB)
    writer.save(step, {"a": data})
    return data


def take_away(how: str, root: Path) -> Callable[[], None]:
    """The root is away; the way to bring it back."""
    if how in ("hangs", *ERRORS):
        return Spoilt(root, ERRORS.get(how, 0)).mend
    aside = root.with_name("aside")
    root.rename(aside)
    if how == "ENOTDIR":
        root.write_text("not a directory")
    if how == "not mounted":
        root.mkdir()

    def bring_back() -> None:
        if how == "ENOTDIR":
            root.unlink()
        if how == "not mounted":
            assert not list(root.iterdir()), "written to what is not storage"
            root.rmdir()
        aside.rename(root)

    return bring_back


@pytest.mark.root
@pytest.mark.parametrize("how", ["renamed", "not mounted", "ENOTDIR", *ERRORS, "hangs"])
def test_a_daemon_that_is_killed_while_its_root_is_away_comes_back(how: str) -> None:
    with node(persist="every") as instance, instance.writer("r", attempt_number()) as writer:
        first = save(writer, 1)
        writer.wait(1, PERSISTED)
        bring_back = take_away(how, instance.storage)
        try:
            for _ in range(2):
                instance.kill_daemon()
                writer.reconnect()
            problem = until("status says so", lambda: instance.status().storage_problem)
            assert {"hangs": "not answered", "not mounted": "mounted"}.get(how, "") in problem
            assert instance.status().state == "serving"
            assert writer.load(1, "a") == first, "what is in memory is served"
            assert not writer.checkpoint(1).facts.persisted
            second = save(writer, 2)
            assert writer.load(2, "a") == second
        finally:
            bring_back()
        for step, data in ((1, first), (2, second)):
            writer.wait(step, PERSISTED)
            assert file_bytes(instance, "r", step, "a") == data
        until("status says that it is back", lambda: not instance.status().storage_problem)


def test_a_first_start_without_a_root_serves_and_says_so() -> None:
    with node(persist="every", storage=False) as other:
        root = other.folder / "not there" / "files"
        options = (f"--storage.root={root}",)
        with (
            node(persist="every", storage=False, options=options) as instance,
            instance.writer("r", attempt_number()) as writer,
        ):
            until("status says so", lambda: "ENOENT" in instance.status().storage_problem)
            assert "storage is away" in instance.log.read_text()
            data = save(writer, 1)
            assert writer.load(1, "a") == data
            assert not root.parent.exists(), "the daemon makes no directory above its root"


def test_a_trainer_that_dies_again_and_again_while_storage_is_away_is_served_at_once() -> None:
    """Nobody knows where its lives come from: what each costs may not double with the next."""
    with node(
        persist="every", storage=False, options=("--storage.root=/nowhere/at/all",)
    ) as instance:
        for step in range(1, 61):
            with instance.writer("r", attempt_number()) as writer:
                began = time.monotonic()
                writer.save(step, {"a": b"x" * 4096})
                assert time.monotonic() - began < patient(30)


@contextmanager
def two_jobs() -> Iterator[tuple[Node, bytes, Spoilt]]:
    """A daemon without memory of the jobs `hangs` and `other`, of which storage has a step each."""
    with node(persist="every", options=("--drain.timeout_seconds=2",)) as instance:
        for job in ("hangs", "other"):
            with instance.writer(job, attempt_number()) as writer:
                data = save(writer, 1)
                writer.wait(1, PERSISTED)
        instance.kill_all()
        with Spoilt(instance.storage / "hangs") as spoilt:
            yield instance.start(), data, spoilt


@pytest.mark.root
def test_a_job_whose_files_hang_leaves_the_others_their_scans_deletes_and_persists() -> None:
    with two_jobs() as (instance, data, spoilt):
        ended = []

        def ask(session: Raw) -> None:
            ended.append(session.latest())

        askers = [threading.Thread(target=ask, args=(instance.session("hangs"),)) for _ in range(3)]
        for asker in askers:
            asker.start()
        with (
            instance.writer("hangs", attempt_number()) as stuck,
            instance.session("other") as reader,
        ):
            for step in range(2, 8):
                save(stuck, step)  # each owes files
            assert reader.latest().step == 1
            assert reader.load(1, "a") == data
            with instance.writer("other", attempt_number()) as writer:
                second = save(writer, 2)
                writer.wait(2, PERSISTED)
                assert file_bytes(instance, "other", 2, "a") == second
                reader.change("remove", reader.ref(1), False, True)
                until("the files are gone", lambda: not (instance.storage / "other" / "1").exists())
            assert stuck.load(7, "a") == pattern("hangs-7", MIB)
            assert not ended, "storage did not hang"
            spoilt.mend()
            stuck.wait(7, PERSISTED)
        for asker in askers:
            asker.join()


@pytest.mark.root
def test_opening_what_hangs_in_storage_ends_in_time_and_its_session_goes_on() -> None:
    with (
        node(persist="every", budget=24 * MIB) as instance,
        instance.writer("r", attempt_number()) as writer,
    ):
        for step in range(1, 30):
            save(writer, step)
            writer.wait(step, PERSISTED)
        assert not writer.checkpoint(1).facts.resident
        with Spoilt(instance.storage / "r"):
            for _ in range(6):  # more than the threads that a job may hold
                said = refuses(UNAVAILABLE, writer.open, 1, "a", timeout_ms=1_000)
                assert "not answered" in said, said
            assert writer.load(29, "a") == pattern("r-29", MIB)
            save(writer, 30)
        writer.wait(30, PERSISTED)
        assert writer.load(1, "a") == pattern("r-1", MIB)


@pytest.mark.root
@pytest.mark.parametrize("what", ["root", "job", "nothing is owed"])
def test_a_daemon_whose_storage_hangs_stops_in_time(what: str) -> None:
    # Only what is owed is worth waiting for.
    options = (f"--drain.timeout_seconds={600 if what == 'nothing is owed' else 1}",)
    with (
        node(persist="every", options=options) as instance,
        instance.writer("r", attempt_number()) as writer,
    ):
        save(writer, 1)
        writer.wait(1, PERSISTED)
        with Spoilt(instance.storage / ("r" if what == "job" else ".")):
            if what == "nothing is owed":
                until("a look hangs", lambda: "answered" in instance.status().storage_problem)
            else:
                save(writer, 2)
            process = instance.process
            assert process is not None
            os.kill(instance.keeper_pid, signal.SIGTERM)
            assert exit_status(process, 30) == 0
            assert "stopping took too long" in instance.log.read_text()
        instance.process = None
