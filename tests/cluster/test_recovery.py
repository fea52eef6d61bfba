"""Daemons and nodes that come back: R15 and R30 across nodes, and what a replacement fetches."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from patience import patient
from ring import MIB, SOON_S, Ring, attempt_number, ring, until

pytestmark = pytest.mark.full

JOB = "run"


def copies_on(r: Ring, rank: int) -> int:
    """Bytes that this node keeps for others."""
    return int(r[rank].ring_status()["replica_bytes"])


def test_an_empty_replacement_fetches_its_parts_back() -> None:
    with ring(3) as r:
        writer = r[0].writer(JOB, attempt_number())
        for step in (1, 2):
            r[0].save(writer, step)
        r[0].wait_replicated(JOB, 2)
        before = r[0].incarnation_of(0)
        r[0].replace()
        r.await_met()
        r.await_same_latest(JOB, 2)
        until("two copies again", lambda: r[0].replicated(JOB, 2), 60)
        assert r[0].incarnation_of(0) > before
        # Now the node that had helped out may go.
        r[1].kill()
        assert r[0].latest(JOB) == (2, writer.attempt)
        assert r[0].loads(JOB, 2), "promise 1: the replacement has it, too"


def test_a_replacement_also_keeps_again_what_it_kept_for_its_neighbours() -> None:
    with ring(3) as r:
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1)
        r[0].wait_replicated(JOB, 1)
        r[1].replace()  # rank 1 keeps the replicas of rank 0
        r.await_met()
        until("two copies again", lambda: r[0].replicated(JOB, 1), 60)
        r[0].kill()
        r.await_same_latest(JOB, 1, (1, 2))
        assert r[1].loads(JOB, 1)


def test_saving_goes_on_while_a_replacement_restores() -> None:
    with ring(3) as r:
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1)
        r[0].wait_replicated(JOB, 1)
        r.rate(1, 20)  # 2.5 MB/s: what comes back takes seconds
        r[1].replace()
        for step in (2, 3, 4):
            assert r[0].save(writer, step) < patient(3 * SOON_S)
        r.rate(1, 0)
        until("it is replicated again", lambda: r[0].replicated(JOB, 4), 60)


def test_replicas_outlive_the_daemon_that_keeps_them() -> None:
    """R15: the keeper has the memory; nothing is fetched again."""
    with ring(2) as r:
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1)
        r[0].wait_replicated(JOB, 1)
        incarnation = r[1].incarnation_of(1)
        r.rate(0, 0.1)  # so slow that a second copy would not come in time
        r[1].kill_daemon()
        until("they have met again", lambda: r[1].states().get(0) == "up", 60)
        assert copies_on(r, 1) >= 3 * MIB
        until("it counts again", lambda: r[0].replicated(JOB, 1))
        assert r[1].incarnation_of(1) == incarnation, "the same keeper, the same life"
        r[0].kill()
        until("node 1 answers alone", lambda: r[1].latest(JOB) == (1, writer.attempt), 60)
        assert r[1].loads(JOB, 1)


def test_the_owners_daemon_dies_and_its_writer_goes_on() -> None:
    """R15 on the other side: promise 7, and the replica still counts."""
    with ring(2) as r:
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1)
        r[0].wait_replicated(JOB, 1)
        r[0].kill_daemon()
        writer.reconnect()
        r.await_met()
        until("it counts again", lambda: r[0].replicated(JOB, 1))
        r[0].save(writer, 2)
        r[0].wait_replicated(JOB, 2)


def test_two_neighbours_lost_the_job_goes_on_from_storage() -> None:
    """Step 1 is in storage, step 2 in the memory of ranks 0 and 1 only; both die."""
    with ring(3, storage=True) as r:
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1)
        with r[0].session(JOB) as reader:
            reader.persist(1)
        r[0].save(writer, 2)
        r[0].wait_replicated(JOB, 2)
        until("node 2 knows of step 2", lambda: r[2].replicated(JOB, 2))
        r.await_same_latest(JOB, 2)
        r[0].kill()
        r[1].kill()
        r.await_same_latest(JOB, 1, (2,))
        assert r[2].loads(JOB, 1)
        job = r[2].json(f"status {JOB}")
        assert job["ring"]["why"], "it says why latest moved back"
        # And on: a new life on the node that is left, then on the replacements.
        with r[2].session(JOB) as reader:
            assert reader.checkpoint(1).facts.persisted
        successor = r[2].writer(JOB, attempt_number())
        r[2].save(successor, 2)
        r[0].replace()
        r[1].replace()
        r.await_met()
        r.await_same_latest(JOB, 2)
        r[2].wait_replicated(JOB, 2)
        assert all(member.loads(JOB, 2) for member in r)


def test_without_storage_two_neighbours_lost_are_said_and_not_guessed() -> None:
    with ring(3, lost_after_s=3) as r:
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1)
        r[0].wait_replicated(JOB, 1)
        r[2].wait_replicated(JOB, 1)  # the one that is left has heard of it
        r[0].kill()
        r[1].kill()
        # A death counts once it is noticed, some seconds later.
        until("nothing can be had", lambda: r[2].latest(JOB) is None, 20)
        said = r[2].cairn(f"latest {JOB}", code=4)
        assert "step 1 " in said and "was safe once" in said
        assert not r[2].loads(JOB, 1)
        r[0].replace()
        r[1].replace()
        r.await_met()
        fresh = r[0].writer(JOB, attempt_number())
        r[0].save(fresh, 5)
        r.await_same_latest(JOB, 5)


def test_all_daemons_die_at_once_and_nothing_is_lost() -> None:
    with ring(3) as r:
        attempt = attempt_number()
        ranks = [r[rank].writer(JOB, attempt, rank, 3) for rank in range(3)]
        for rank, writer in enumerate(ranks):
            r[rank].save(writer, 1)
        r[0].wait_replicated(JOB, 1)
        for member in r:
            member.kill_daemon()
        r.await_met()
        r.await_same_latest(JOB, 1)
        assert all(member.loads(JOB, 1, 3) for member in r)
        until("it is replicated as before", lambda: r[1].replicated(JOB, 1), 60)


def replicated_soon(r: Ring, save: Callable[[int], None], last: int) -> int:
    """The step that is, of `last` and the two after it. What a writer keeps mapped and does not use it gives
    back when it saves again."""
    for step in (last, last + 1, last + 2):
        if step > last:
            save(step)
        end = time.monotonic() + patient(SOON_S)
        while time.monotonic() < end:
            if r[0].replicated(JOB, step):
                return step
            time.sleep(0.1)
    raise AssertionError(f"step {last} has no replica, nor have the two after it")


@pytest.mark.parametrize("slow", [False, True])
def test_memory_of_two_steps_on_each_node_is_enough_to_go_on(slow: bool) -> None:
    """R30: each node has room for its own two steps, the one being written and its neighbour's two; also
    where a step takes longer to be replicated than many take to be saved."""
    part = 3 * MIB
    with ring(2, budget=6 * 4 * MIB, options=("--memory.replicas=9MiB",)) as r:
        attempt = attempt_number()
        ranks = [r[rank].writer(JOB, attempt, rank, 2) for rank in range(2)]

        def save(step: int) -> None:
            for rank, writer in enumerate(ranks):
                r[rank].save(writer, step, part_bytes=part, timeout_ms=int(patient(60_000)))

        save(1)
        save(2)
        r[0].wait_replicated(JOB, 2)
        for rank in range(2):
            r.rate(rank, 1 if slow else 0)
        for step in range(3, 9):
            save(step)
        for rank in range(2):
            r.rate(rank, 0)
        step = replicated_soon(r, save, 8)
        assert r[0].loads(JOB, step, 2, part_bytes=part)
