"""Several lives of a job in a ring (R28), and where its reports meet (R40): fencing, decisions, homes that
are lost."""

from __future__ import annotations

import os
import time

import pytest
from cairn_raw import (
    FAILED_PRECONDITION,
    MAP,
    NOT_FOUND,
    RESOURCE_EXHAUSTED,
    CairnError,
    TTransportException,
    refuses,
)
from patience import stays
from ring import MIB, Member, Ring, attempt_number, content, names, ring, until

pytestmark = pytest.mark.full

JOB = "run"


def fenced(r: Ring, writer, rank: int, step: int) -> bool:
    """The writer hears of a newer attempt; until it does, its saves are as good as before."""
    try:
        r[rank].save(writer, step)
    except CairnError as error:
        assert error.code == FAILED_PRECONDITION and "superseded" in error.message, error
        return True
    return False


def keeps_last(member: Member, job: str, keeps: int) -> bool:
    return member.json(f"policy {job}")["keep_last"] == keeps


def await_keep_last(member: Member, job: str, keeps: int) -> None:
    until(f"the policy of {job} on node {member.rank}", lambda: keeps_last(member, job, keeps))


def test_a_newer_life_on_another_node_fences_the_older_one() -> None:
    with ring(3) as r:
        old = r[0].writer(JOB, attempt_number())
        r[0].save(old, 1)
        r[0].wait_replicated(JOB, 1)
        newer = r[1].writer(JOB, attempt_number(), fence=True)
        r[1].save(newer, 2)
        steps = iter(range(3, 1000))
        until("node 0 has heard of it", lambda: fenced(r, old, 0, next(steps)))
        r.await_same_latest(JOB, 2)
        assert {member.latest(JOB) for member in r} == {(2, newer.attempt)}


def test_a_life_waits_for_writers_of_an_older_one_on_another_node_and_names_them() -> None:
    """Two copies started by mistake do not kill the one that trains."""
    with ring(2) as r:
        old = r[0].writer(JOB, attempt_number())
        r[0].save(old, 1)
        r[0].wait_replicated(JOB, 1)
        copy = r[1].writer(JOB, attempt_number(), fence=False)
        said = refuses(FAILED_PRECONDITION, copy.create, 2, {"a": 1000}, timeout_ms=3000)
        assert "still saves" in said, said
        r[0].save(old, 2)
        r.await_same_latest(JOB, 2)


def test_half_a_step_of_each_of_two_lives_never_makes_one() -> None:
    with ring(3) as r:
        first, second = attempt_number(), attempt_number()
        whole = [r[0].writer(JOB, first, 0, 2), r[1].writer(JOB, first, 1, 2)]
        for rank, writer in enumerate(whole):
            r[rank].save(writer, 1)
        r.await_same_latest(JOB, 1)
        r[0].save(whole[0], 2)
        # The next life saves the other half of step 2, on the other node.
        half = r[1].writer(JOB, second, 1, 2)
        r[1].save(half, 2)
        r.await_met()
        assert {member.latest(JOB) for member in r} == {(1, first)}, "promise 3"


def test_one_name_of_two_writers_on_two_nodes_is_a_conflict_and_never_complete() -> None:
    with ring(3) as r:
        attempt = attempt_number()
        ranks = [r[0].writer(JOB, attempt, 0, 2), r[1].writer(JOB, attempt, 1, 2)]
        # Both before either commits: a name that has come as a replica is refused to the other's create.
        written = [writer.write(1, {"same": b"x" * (writer.writer + 1)}) for writer in ranks]
        for writer, seals in zip(ranks, written, strict=True):
            writer.commit(1, seals)
        for member in r:
            until(
                f"node {member.rank} says so",
                lambda member=member: member.json(f"stat {JOB}/1")["facts"]["in_conflict"],
            )
            assert member.latest(JOB) is None, f"node {member.rank}: {member.json(f'stat {JOB}/1')}"


def test_a_decision_that_was_acknowledged_outlives_any_one_node() -> None:
    """R40: of several jobs, so that each node is the home of some; the node that decided dies at once."""
    jobs = [f"job{i}" for i in range(6)]
    with ring(3, lost_after_s=3) as r:
        for job in jobs:
            writer = r[0].writer(job, attempt_number())
            for step in (1, 2):
                r[0].save(writer, step, part_bytes=MIB)
            r[0].wait_replicated(job, 2)
        for lost in (2, 1):
            removed = [job for job in jobs if jobs.index(job) % 2 == lost % 2]
            for job in removed:
                r[lost].cairn(f"rm {job}/2 --yes")
            for job in jobs:
                r[lost].cairn(f"policy {job} --keep-last {100 + lost}")
            r[lost].replace()
            r.await_met()
            for job in removed:
                r.await_same_latest(job, 1)
                for member in r:
                    with member.session(job) as reader:
                        refuses(NOT_FOUND, reader.checkpoint, 2)
            for job in jobs:
                for member in r:
                    await_keep_last(member, job, 100 + lost)


def test_the_policy_that_was_said_last_counts_on_whatever_node_it_was_said() -> None:
    with ring(5) as r:
        r[0].save(r[0].writer(JOB, attempt_number()), 1)
        r[0].wait_replicated(JOB, 1)
        for keeps in (70, 71, 72):
            r[0].cairn(f"policy {JOB} --keep-last {keeps}")
        # Node 3 has no part of the job.
        r[3].cairn(f"policy {JOB} --keep-last 3")
        for member in r:
            await_keep_last(member, JOB, 3)
        # Every ten seconds each member sends all its records to the others, the older policies too.
        stays(
            "each node has the policy that was said last",
            lambda: all(keeps_last(member, JOB, 3) for member in r),
            for_s=11,
        )


def test_latest_is_the_newest_on_a_node_that_heard_of_the_job_long_ago() -> None:
    with ring(3) as r:
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1)
        r[0].wait_replicated(JOB, 1)
        r[2].cairn(f"pin {JOB}/1")
        time.sleep(35)  # its home tells it no more
        r[0].save(writer, 2)
        r[0].wait_replicated(JOB, 2)
        r[2].cairn(f"pin {JOB}/latest")
        until("step 2 is pinned", lambda: r[0].json(f"stat {JOB}/2")["facts"]["pinned"])


def test_whoever_is_home_says_the_same_and_its_loss_delays_no_save() -> None:
    """R40: each node in turn is gone, for many jobs; the others answer for all of them."""
    jobs = [f"job{i}" for i in range(6)]
    with ring(3, lost_after_s=3) as r:
        attempt = attempt_number()
        for job in jobs:
            ranks = [r[0].writer(job, attempt, 0, 2), r[1].writer(job, attempt, 1, 2)]
            for rank, writer in enumerate(ranks):
                r[rank].save(writer, 1, part_bytes=MIB)
            r[0].wait_replicated(job, 1)
        for lost in range(3):
            r[lost].kill()
            rest = tuple(rank for rank in range(3) if rank != lost)
            mine = r[rest[0]].writer(f"alone{lost}", attempt_number())
            assert r[rest[0]].save(mine, 1, part_bytes=MIB) < 3
            for job in jobs:
                r.await_same_latest(job, 1, rest)
            r[lost].replace()
            r.await_met()
            for job in jobs:
                until("two copies", lambda job=job, at=rest[0]: r[at].replicated(job, 1))


def test_a_stopped_reader_keeps_what_it_has_loaded_from_another_node() -> None:
    """R14 across nodes: the bytes came over the network, and memory on the reader's node becomes short."""
    with ring(2, budget=48 * MIB) as r:
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1)
        r[0].wait_replicated(JOB, 1)
        name = names(0)[0]
        with r[1].session(JOB) as reader:
            held = reader.open(1, name, MAP)
            filler = r[1].writer("filler", attempt_number())
            for step in range(1, 12):
                try:
                    r[1].save(filler, step, part_bytes=8 * MIB, timeout_ms=2000)
                except CairnError as error:
                    assert error.code == RESOURCE_EXHAUSTED, error
                try:
                    r[0].save(writer, step + 1, timeout_ms=2000)
                except (CairnError, TTransportException) as error:
                    r.say(f"save {step + 1}: {error}")
            length = held.object.length
            data = b""
            while len(data) < length:
                at = held.offset + len(data)
                data += os.pread(reader.leases[held.lease], length - len(data), at)
            assert data == content(JOB, 1, name), "promise 2: leased bytes were reused"
            reader.release(held)
