"""R34: a job whose files end each daemon that reads them is not read again by itself.

The daemon dies, as by SIGKILL, whenever it enters the directory of the job "poison". Promises 4, 7 and 8.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cairn_daemon import MIB, Node, children, node
from cairn_raw import (
    PERSISTED,
    UNAVAILABLE,
    CairnError,
    TTransportException,
    attempt_number,
    pattern,
)
from patience import patient, until

LIVES = 12


def poisoned() -> str:
    return ",".join(f"storage.use(poison)@{life}" for life in range(LIVES))


@contextmanager
def configured() -> Iterator[tuple[Node, Path]]:
    """A node whose file of options is empty."""
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        with node(options=(f"--config={file.name}",)) as instance:
            yield instance, Path(file.name)


def reload(instance: Node) -> None:
    old = instance.daemon_pid()
    os.kill(instance.keeper_pid, signal.SIGHUP)
    until("another daemon", lambda: instance.daemon_pid() not in (0, old))


@contextmanager
def started_again(instance: Node, failpoints: str) -> Iterator[Node]:
    """Memory is lost; what is in storage is there."""
    instance.kill_all()
    again = Node(instance.folder, failpoints=failpoints)
    try:
        yield again.start()
    finally:
        again.kill_all()


def log_of(instance: Node) -> str:
    return instance.log.read_text(errors="replace")


def repeated(instance: Node, job: str, method: str, *arguments: Any) -> Any:
    """What the first daemon answers that lives long enough, the error included."""
    deadline = time.monotonic() + patient(40)
    while True:
        try:
            with instance.session(job, timeout_s=patient(10)) as session:
                return session.do(method, *arguments)
        except CairnError as error:
            if error.code == UNAVAILABLE and "ended the daemon" in error.message:
                return error
            # The daemon that began the session is gone before the session was attached.
            if error.code != UNAVAILABLE and error.message != "attach refused":
                raise
        except (TTransportException, OSError, EOFError):
            pass
        assert time.monotonic() < deadline


def with_one_set_aside(instance: Node) -> Any:
    try:
        status = instance.status()
        return status if status.counters["jobs_set_aside"] == 1 else None
    except (CairnError, TTransportException, OSError, EOFError):
        return None


def is_set_aside(instance: Node, deaths: int) -> str:
    """The reason, as its owner reads it."""
    error = repeated(instance, "poison", "latest", "poison")
    assert isinstance(error, CairnError), error
    assert "job poison" in error.message and f"ended the daemon {deaths} times" in error.message
    return error.message


def works(instance: Node, job: str) -> None:
    with instance.writer(job, attempt_number()) as writer:
        data = pattern(job, MIB)
        writer.save(1, {"a": data})
        assert writer.load(1, "a") == data
        writer.persist(1)


def test_a_job_that_ends_every_daemon_is_set_aside_and_all_else_goes_on() -> None:
    data = pattern("poison", MIB)
    with configured() as (instance, config):
        with instance.writer("poison", attempt_number()) as writer:
            writer.save(1, {"a": data})
            writer.persist(1)
            writer.save(2, {"a": data})
        works(instance, "before")
        keeper = instance.keeper_pid
        config.write_text(f'[test]\nfailpoints = "{poisoned()}"\n')
        reload(instance)
        # A daemon that has something of it in storage reads it when it starts.
        status = until("it is set aside", lambda: with_one_set_aside(instance))
        assert status.restarts == 2 and instance.keeper_pid == keeper
        assert status.state.startswith("serving; not read from storage: job poison: "), status.state
        job = next(job for job in status.jobs if job.job == "poison")
        assert "(scanning) ended the daemon 2 times" in job.persist_problem, job
        said = [line for line in log_of(instance).splitlines() if "daemon.cc" in line]
        assert sum("so it is not read again until" in line for line in said) == 1, said
        with instance.session("poison") as asks:
            assert asks.latest().step == 2
            assert asks.load(2, "a") == data
            assert asks.load(1, "a") == data
        with instance.writer("poison", attempt_number()) as writer:
            assert writer.save(3, {"a": data}).complete
            assert writer.load(3, "a") == data
            writer.change("persist", writer.ref(3))
            with pytest.raises(CairnError) as waited:
                writer.wait(3, PERSISTED, 3_000)
            assert "ended the daemon" in waited.value.message, waited.value
        works(instance, "other")
        works(instance, "before")
        assert instance.status().restarts == 2, "it is read no more"
        assert (instance.storage / "poison" / "1" / "a").read_bytes() == data


def test_what_only_storage_has_of_it_is_refused_in_words_and_the_daemon_lives() -> None:
    with node(persist="every") as instance:
        works(instance, "poison")
        works(instance, "sane")
        with started_again(instance, poisoned()) as again:
            is_set_aside(again, 2)
            with again.session("sane") as reader:
                assert reader.load(1, "a") == pattern("sane", MIB)
            status = again.status()
            assert status.restarts == 2 and not status.state.startswith("safe mode"), status.state
            # Memory has nothing of it, so it has no row; whoever runs the node is told all the same.
            assert "job poison" in status.state
            is_set_aside(again, 2)
            assert again.stop() == 0


def test_those_read_beside_it_are_cleared_and_not_set_aside() -> None:
    with node() as instance:
        for job in ("poison", "a", "b", "c"):
            works(instance, job)
        with started_again(instance, poisoned()) as again:
            is_set_aside(again, 2)
            for job in ("a", "b", "c"):
                latest = repeated(again, job, "latest", job)
                assert latest.step == 1
            assert again.status().counters["jobs_set_aside"] == 1


def test_sighup_says_to_read_it_again() -> None:
    with node() as instance:
        works(instance, "poison")
        # Whoever mended it, or brought a binary that can read it, says so. Lives are counted by deaths.
        with started_again(instance, "storage.use(poison)@0,storage.use(poison)@1") as again:
            is_set_aside(again, 2)
            again.kill_daemon()
            is_set_aside(again, 2)
            reload(again)
            again.wait_ready()
            latest = repeated(again, "poison", "latest", "poison")
            assert latest.step == 1
            with again.session("poison") as reader:
                assert reader.load(1, "a") == pattern("poison", MIB)
            assert again.status().state == "serving"


def test_a_hand_over_and_a_stop_in_order_blame_nobody() -> None:
    with node(persist="every") as instance:
        with instance.writer("busy", attempt_number()) as writer:
            for step in range(1, 8):
                writer.save(step, {"a": pattern(f"busy-{step}", 4 * MIB)})
                reload(instance)
                writer.reconnect()
        assert "is suspected" not in log_of(instance)
        assert instance.status().counters["jobs_set_aside"] == 0
        assert children(instance.keeper_pid)
        assert instance.stop() == 0


def test_daemons_that_are_killed_all_the_time_set_nobody_aside_that_is_read_well() -> None:
    with node(persist="every") as instance:
        for death in range(2):
            works(instance, f"fine{death}")
            instance.kill_daemon()
            works(instance, "fine")
        assert instance.status().counters["jobs_set_aside"] == 0
