"""R28: two attempts of one job meet. Never mixed, never stuck; `latest` follows the line. Promise 3."""

from __future__ import annotations

import os
import threading

import pytest
from cairn_daemon import Node, node
from cairn_raw import (
    ALREADY_EXISTS,
    CACHED,
    FAILED_PRECONDITION,
    NOT_FOUND,
    PERSISTED,
    RESOURCE_EXHAUSTED,
    CairnError,
    attempt_number,
    refuses,
    ttypes,
)
from patience import until


def save_all(node: Node, job: str, attempt: int, step: int, world: int, tag: bytes) -> None:
    for rank in range(world):
        with node.writer(
            job, attempt, rank, world, process=process_of(job, attempt, rank)
        ) as writer:
            writer.save(step, {f"r{rank}": tag + bytes([rank])})


def process_of(job: str, attempt: int, rank: int) -> bytes:
    return f"{job}:{attempt}:{rank}".encode()[-16:].ljust(16, b"\0")


def test_half_a_step_from_each_life_never_adds_up(daemon: Node) -> None:
    old, new = attempt_number(), attempt_number()
    with daemon.writer("half", old, 0, 2) as first:
        first.save(1, {"r0": b"old"})
    with daemon.writer("half", new, 1, 2) as second:
        second.save(1, {"r1": b"new"})
        info = second.checkpoint(1, attempt=new)
        assert not info.facts.complete and info.missing_writers == [0]
        refuses(NOT_FOUND, second.latest)
        refuses(NOT_FOUND, second.open, 1, "r1")
        refuses(NOT_FOUND, second.open, 1, "r0")
    with daemon.writer("half", new, 0, 2) as first:
        reply = first.save(1, {"r0": b"new"})
        assert reply.complete
        latest = first.latest()
        assert (latest.step, latest.attempt) == (1, new)
        assert first.load(1, "r0") == b"new" and first.load(1, "r1") == b"new"


def test_a_zombie_hears_that_its_job_moved_to_another_node() -> None:
    """The scheduler gave a job up that still runs on node A, and started it on node B. Who asks A hears of
    B's steps while A's writer lives, and that writer saves nothing more."""
    with (
        node(persist="every") as a,
        node(persist="every", storage=False, options=(f"--storage.root={a.storage}",)) as b,
    ):
        old, new = attempt_number(), attempt_number()
        with a.writer("moved", old, 0, 1) as zombie, b.writer("moved", new, 0, 1) as writer:
            zombie.save(1, {"a": b"one"})
            zombie.wait(1, PERSISTED)
            writer.save(2, {"a": b"two"})
            writer.wait(2, PERSISTED)
            until("A has looked", lambda: zombie.latest().step == 2)
            assert zombie.load(2, "a") == b"two"
            with pytest.raises(CairnError) as error:
                zombie.save(3, {"a": b"three"})
            assert error.value.superseded_by == new


def test_a_zombie_rank_of_the_old_life_cannot_complete_or_disturb_the_new_one(daemon: Node) -> None:
    old, new = attempt_number(), attempt_number()
    save_all(daemon, "zombie", old, 1, 2, b"one")
    zombie = daemon.writer("zombie", old, 1, 2, process=process_of("zombie", old, 1))
    seals = zombie.write(2, {"r1": b"late"})
    save_all(daemon, "zombie", new, 2, 2, b"two")
    with pytest.raises(CairnError) as error:
        zombie.commit(2, seals)
    assert error.value.code == FAILED_PRECONDITION and error.value.superseded_by == new
    with daemon.session("zombie") as reader:
        assert reader.latest().attempt == new
        assert reader.load(2, "r1") == b"two\x01"
    zombie.vanish()


def test_a_rollback_abandons_what_came_after_and_latest_follows_the_line(daemon: Node) -> None:
    """The job went to 30, diverged, and is resumed from 10."""
    old, new = attempt_number(), attempt_number()
    with daemon.writer("rollback", old) as writer:
        for step in (10, 20, 30):
            writer.save(step, {"a": b"old%d" % step})
    with daemon.writer("rollback", new) as writer:
        assert writer.latest().step == 30, "an attempt that has nothing to show changes nothing"
        writer.change("resume", new, 10, writer.fence, 0)
        assert writer.latest().step == 10, "its owner said so"
        writer.create(11, {"a": 4})
        assert writer.latest().step == 10
        writer.commit(11, writer.write(11, {"a": b"new!"}, revision=1), revision=1)
        latest = writer.latest()
        assert (latest.step, latest.attempt) == (11, new)
        assert writer.load(10, "a") == b"old10"
    with daemon.session("rollback") as reader:
        listed = {c.step: c for c in reader.do("ls", "rollback", "", 100).checkpoints}
        for step in (20, 30):
            assert step not in listed or listed[step].facts.abandoned or not listed[step].on_line


@pytest.mark.parametrize("end", ["killed", "aborted", "refused"])
def test_a_life_that_completes_nothing_moves_nothing(daemon: Node, end: str) -> None:
    """R31, line rules 8, 12; also after the death of the daemon, and after that of all memory."""
    job = f"nothing-{end}"
    with daemon.writer(job, attempt_number()) as writer:
        for step in range(3):
            writer.save(step, {"a": b"step%d" % step})
        writer.persist(2)
    for _ in range(2):
        with daemon.writer(job, attempt_number()) as writer:
            if end == "refused":
                refuses(RESOURCE_EXHAUSTED, writer.create, 0, {"a": 1 << 40})
            else:
                writer.create(0, {"a": 4})
            if end == "aborted":
                writer.change("abort", ttypes.AbortRequest(0, writer.attempt, 0, 0))
            latest = writer.latest()
            assert latest.step == 2
            if end == "killed":
                writer.vanish()
    for lose in (daemon.kill_daemon, lambda: (daemon.kill_all(), daemon.start())):
        lose()
        with daemon.session(job) as reader:
            assert reader.latest().step == 2
    with daemon.writer(job, attempt_number()) as writer:
        writer.save(3, {"a": b"step3"})
        assert writer.latest().step == 3
        assert not writer.checkpoint(2).facts.abandoned


def test_the_attempt_after_a_rollback_goes_on_from_the_line_not_from_what_was_abandoned(
    daemon: Node,
) -> None:
    first, second, third = attempt_number(), attempt_number(), attempt_number()
    with daemon.writer("line", first) as writer:
        for step in (1, 2, 3):
            writer.save(step, {"a": b"first"})
    with daemon.writer("line", second) as writer:
        writer.change("resume", second, 1, writer.fence, 0)
        writer.save(2, {"a": b"second"})
    with daemon.writer("line", third) as writer:
        assert (writer.latest().step, writer.latest().attempt) == (2, second)
        writer.save(3, {"a": b"third"})
        assert (writer.latest().step, writer.latest().attempt) == (3, third)
        assert writer.load(2, "a") == b"second"


def test_an_attempt_with_another_world_size_replaces_the_step_whole(daemon: Node) -> None:
    old, new = attempt_number(), attempt_number()
    save_all(daemon, "world", old, 5, 4, b"four")
    with daemon.writer("world", new, 0, 2) as first:
        first.save(5, {"r0": b"two0"})
        # Not complete yet: the step of the old life is whole, and is to be had by its name.
        refuses(NOT_FOUND, first.open, 5, "r0", attempt=new)
        assert first.checkpoint(5, attempt=old).facts.complete
        assert first.load(5, "r3", attempt=old) == b"four\x03"
        with daemon.writer("world", new, 1, 2) as second:
            assert second.save(5, {"r1": b"two1"}).complete
        assert (first.latest().attempt, first.latest().world_size) == (new, 2)
        refuses(NOT_FOUND, first.open, 5, "r3")
        assert first.load(5, "r0") == b"two0"


def test_the_same_name_from_two_writers_of_two_attempts_is_no_conflict(daemon: Node) -> None:
    old, new = attempt_number(), attempt_number()
    save_all(daemon, "names", old, 1, 2, b"old")
    with daemon.writer("names", new, 0, 2) as first, daemon.writer("names", new, 1, 2) as second:
        first.save(1, {"r1": b"moved"})  # rank 1's name of the life before
        refuses(ALREADY_EXISTS, second.create, 1, {"r1": 1})
        second.save(1, {"r0": b"swapped"})
        assert first.load(1, "r1") == b"moved" and first.load(1, "r0") == b"swapped"


def test_a_step_saved_again_is_replaced_only_when_the_new_revision_is_complete(
    daemon: Node,
) -> None:
    attempt = attempt_number()
    with (
        daemon.writer("again", attempt, 0, 2) as first,
        daemon.writer("again", attempt, 1, 2) as second,
    ):
        first.save(1, {"r0": b"rev0"})
        second.save(1, {"r1": b"rev0"})
        first.save(1, {"r0": b"rev1"}, revision=1)
        assert first.load(1, "r0") == b"rev0" and first.load(1, "r1") == b"rev0"
        assert first.latest().revision == 0
        second.save(1, {"r1": b"rev1"}, revision=1)
        assert first.latest().revision == 1
        assert first.load(1, "r0") == b"rev1" and first.load(1, "r1") == b"rev1"


@pytest.mark.parametrize("world", [1, 2])
def test_a_copy_started_by_mistake_does_not_end_the_one_that_trains(
    daemon: Node, world: int
) -> None:
    """Promise 6. Its first create waits, is refused at its deadline, and begins nothing."""
    with daemon.writer("twice", attempt_number(), 0, world) as training:
        training.save(1, {"r0": b"x"})
        with daemon.writer("twice", attempt_number(), 0, world, fence=False) as copy:
            for step in (2, 3):
                with pytest.raises(CairnError) as error:
                    copy.create(step, {"a": 1}, timeout_ms=1000)
                assert error.value.code == FAILED_PRECONDITION
                assert f"pid {os.getpid()}" in error.value.message
                training.save(step, {"r0": b"still mine"})
            copy.fence = True  # its user insists
            copy.save(4, {"r0": b"the copy's"})
        with pytest.raises(CairnError, match="superseded"):
            training.save(4, {"r0": b"too late"})


def test_a_copy_that_resumes_does_not_take_the_line_from_the_one_that_trains(daemon: Node) -> None:
    """Else the steps that it goes on to save would be abandoned, and nobody would tell it so."""
    with daemon.writer("taken", attempt_number(), 0, 1) as training:
        for step in (1, 2):
            training.save(step, {"r0": b"x"})
        second = attempt_number()
        with daemon.writer("taken", second, 0, 1, fence=False) as copy:
            with pytest.raises(CairnError) as error:
                copy.change("resume", second, 1, copy.fence, 500)
            assert error.value.code == FAILED_PRECONDITION
            assert f"pid {os.getpid()}" in error.value.message
            training.save(3, {"r0": b"counts"})
            assert training.latest().step == 3
            copy.change("resume", second, 1, True, 0)  # its user insists
            assert training.latest().step == 1


def test_a_new_life_waits_for_the_end_of_the_last_one(daemon: Node) -> None:
    old = daemon.writer("next", attempt_number(), 0, 1)
    old.save(1, {"r0": b"x"})
    with daemon.writer("next", attempt_number(), 0, 1, fence=False) as heir:
        ends = threading.Timer(1.0, old.vanish)
        ends.start()
        heir.save(2, {"r0": b"y"})
        ends.join()
        assert heir.latest().step == 2


def test_two_attempts_at_once_neither_is_stuck(daemon: Node) -> None:
    """The old life's ranks keep trying while the new one saves; every call of theirs is answered at once."""
    old, new = attempt_number(), attempt_number()
    zombies = [daemon.writer("race", old, rank, 2) for rank in range(2)]
    for rank, zombie in enumerate(zombies):
        zombie.save(1, {f"r{rank}": b"old"})
    fresh = [daemon.writer("race", new, rank, 2) for rank in range(2)]
    for step in range(2, 6):
        for rank, (zombie, writer) in enumerate(zip(zombies, fresh, strict=True)):
            writer.save(step, {f"r{rank}": b"new%d" % step})
            with pytest.raises(CairnError) as error:
                zombie.create(step, {f"r{rank}": 10})
            assert error.value.superseded_by == new
        assert fresh[0].wait(step, CACHED, 1000).facts.complete
        assert fresh[0].latest().step == step
    for session in (*zombies, *fresh):
        session.vanish()


def test_the_line_is_the_same_after_a_restart_and_after_memory_is_lost(daemon: Node) -> None:
    old, new = attempt_number(), attempt_number()
    with daemon.writer("same", old) as writer:
        for step in (1, 2, 3):
            writer.save(step, {"a": b"old%d" % step})
            writer.persist(step)
    with daemon.writer("same", new) as writer:
        writer.change("resume", new, 1, writer.fence, 0)
        writer.save(2, {"a": b"new2"})
        writer.persist(2)
    for lose in (daemon.kill_daemon, lambda: (daemon.kill_all(), daemon.start())):
        lose()
        with daemon.session("same") as reader:
            latest = reader.latest()
            assert (latest.step, latest.attempt) == (2, new), (
                "step 3 of the abandoned life must not come back"
            )
            reply = reader.open(2, "a")
            assert os.pread(reader.leases[reply.lease], 4, reply.offset) == b"new2"
            reader.release(reply)


def test_chosen_attempts_only_grow_across_restarts(daemon: Node) -> None:
    seen = []
    for _ in range(3):
        with daemon.session("chosen", writer=0, world_size=1) as session:
            seen.append(session.change("chooseAttempt"))
            session.attempt = seen[-1]
            session.save(len(seen), {"a": b"x"})
        daemon.kill_daemon()
    daemon.kill_all()
    assert seen == sorted(set(seen))


def test_wait_after_sees_the_first_complete_step_of_the_line(daemon: Node) -> None:
    attempt = attempt_number()
    with daemon.writer("after", attempt) as writer:
        writer.save(4, {"a": b"x"})
        assert writer.wait(-1, CACHED, 5_000, after=3).step == 4
        refuses(4, writer.wait, -1, CACHED, 100, after=4)  # DEADLINE_EXCEEDED
