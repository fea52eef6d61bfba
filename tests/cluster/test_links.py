"""Links that fail: R16 (a peer dies or hangs in a transfer), R17 (partitions, also one way), R18 (bits
flip)."""

from __future__ import annotations

import threading

import pytest
from patience import patient
from ring import DATA_PORT, MIB, Ring, attempt_number, ring, until

pytestmark = pytest.mark.full

JOB = "run"
LARGE = 16 * MIB
SAVES = 7


def large_ring(budget: int = 256 * MIB, **options):
    return ring(2, budget=budget, **options)


def save_some(r: Ring, writer, first: int) -> None:
    for step in range(first, first + SAVES):
        r[0].save(writer, step, part_bytes=LARGE)


def begin_slow_transfer(r: Ring, writer, step: int) -> None:
    """Node 1 has begun to read the step, and will not be through soon."""
    r.rate(0, 8)  # 1 MB/s
    r[0].save(writer, step, part_bytes=LARGE)

    def under_way() -> bool:
        fetches = r[1].ring_status().get("fetches") or []
        return any(fetch.get("done_bytes", 0) > 0 for fetch in fetches)

    until("node 1 reads it", under_way, 30)


@pytest.mark.parametrize("fault", ["killed", "stopped", "half-open"])
def test_a_peer_that_fails_in_a_transfer_delays_no_save_and_is_not_counted(fault: str) -> None:
    """R16. Half-open: what goes either way is dropped, and no connection is closed."""
    with large_ring(lost_after_s=int(patient(60))) as r:
        writer = r[0].writer(JOB, attempt_number())
        save_some(r, writer, 1)
        step = 1 + SAVES
        begin_slow_transfer(r, writer, step)
        if fault == "killed":
            r[1].kill()
        elif fault == "stopped":
            r[1].pause()
        else:
            r.cut(0, 1)
        r.rate(0, 0)
        save_some(r, writer, step + 1)
        assert r[0].states()[1] != "lost", "the saves waited until the peer was lost"
        last = step + SAVES
        for now in (step, last):
            assert not r[0].replicated(JOB, now), "promise 1: acknowledged by nobody"
        if fault == "killed":
            r[1].replace()
        elif fault == "stopped":
            r[1].go_on()
        r.heal()
        r[0].wait_replicated(JOB, last, 90)
        r[0].kill()
        until("node 1 has it", lambda: r[1].loads(JOB, last, part_bytes=LARGE), 60)


def counter(r: Ring, name: str) -> int:
    return int(r[1].json("status")["counters"].get(name, 0))


def done(r: Ring) -> int:
    """Verified bytes of what node 1 fetches now."""
    fetches = r[1].ring_status().get("fetches") or []
    return max((int(fetch.get("done_bytes", 0)) for fetch in fetches), default=0)


def test_a_transfer_goes_on_where_it_was_when_the_readers_daemon_died() -> None:
    with large_ring(512 * MIB) as r:
        writer = r[0].writer(JOB, attempt_number())
        r.rate(0, 80)  # 10 MB/s
        r[0].save(writer, 1, part_bytes=4 * LARGE)
        until("60 % are there", lambda: done(r) >= 0.6 * 4 * LARGE, 60)
        before = done(r)
        r[1].kill_daemon()
        r[0].wait_replicated(JOB, 1, 60)
        counters = r[1].json("status")["counters"]
        kept, fetched = counters["bytes_kept_of_fetches"], counters["bytes_fetched"]
        assert kept >= before, "every verified block is there, and verifies"
        assert kept + fetched == 4 * LARGE + 1000, "and none is read twice"
        assert r[1].loads(JOB, 1, part_bytes=4 * LARGE)


def kept_for_us(r: Ring) -> dict[int, int]:
    """By node: bytes of node 0's parts, as it was told."""
    members = r[0].ring_status()["members"]
    return {member["rank"]: int(member["held_for_us_bytes"]) for member in members}


def test_a_backup_whose_data_port_is_blocked_is_passed_over_until_it_reads_again() -> None:
    with ring(3, lost_after_s=3) as r:
        r.cut(0, 1, port=DATA_PORT)
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1)
        r[0].wait_replicated(JOB, 1, 40)
        assert r[0].states()[1] == "stalled"
        assert kept_for_us(r)[1] == 0 and kept_for_us(r)[2] > 0
        r.heal()
        until("node 1 reads again", lambda: r[0].states()[1] == "up", 60)
        r[0].save(writer, 2)
        r[0].wait_replicated(JOB, 2)
        until("node 2 keeps nothing for it any more", lambda: kept_for_us(r)[2] == 0, 60)


def test_a_cut_transfer_goes_on_where_it_was() -> None:
    """Of what was verified before at most 8 MiB are read again."""
    with large_ring(512 * MIB) as r:
        writer = r[0].writer(JOB, attempt_number())
        r.rate(0, 40)  # 5 MB/s
        r[0].save(writer, 1, part_bytes=4 * LARGE)
        until("60 % are there", lambda: done(r) >= 0.6 * 4 * LARGE, 60)
        r.cut(0, 1, port=DATA_PORT)
        until("a read has failed", lambda: counter(r, "failed_fetch_reads") > 0)
        r.heal()
        r[0].wait_replicated(JOB, 1, 60)
        assert counter(r, "bytes_read_over_tcp") <= 4 * LARGE + 8 * MIB + 1000


@pytest.mark.parametrize("one_way", [False, True], ids=["both-ways", "one-way"])
def test_a_partition_heals_and_all_agree(one_way: bool) -> None:
    """R17: between ranks 0 and 1, while both save parts of one job; rank 2 reaches everybody."""
    with ring(3) as r:
        attempt = attempt_number()
        ranks = [r[0].writer(JOB, attempt, 0, 2), r[1].writer(JOB, attempt, 1, 2)]
        for rank, writer in enumerate(ranks):
            r[rank].save(writer, 1)
        r[0].wait_replicated(JOB, 1)
        r.cut(0, 1, one_way=one_way)
        for step in (2, 3):
            for rank, writer in enumerate(ranks):
                r[rank].save(writer, step)
            for member in r:
                latest = member.latest(JOB)
                assert latest is None or latest in [(s, attempt) for s in range(1, step + 1)]
        r.heal()
        r.await_met()
        r.await_same_latest(JOB, 3)
        r[0].wait_replicated(JOB, 3)
        assert all(member.loads(JOB, 3, 2) for member in r)


def test_two_lives_on_two_sides_of_a_partition_never_mix() -> None:
    """R17: each side goes on with what it reaches; then the newer attempt wins (fencing)."""
    with ring(3, lost_after_s=3) as r:
        old = attempt_number()
        writer = r[0].writer(JOB, old)
        r[0].save(writer, 1)
        r[0].wait_replicated(JOB, 1)
        r.network.isolate(0)
        r[0].save(writer, 2)
        newer = attempt_number()
        successor = r[2].writer(JOB, newer)
        r.await_same_latest(JOB, 1, (2,))
        r[2].save(successor, 7)
        r.heal()
        r.await_met()
        r.await_same_latest(JOB, 7)
        assert {member.latest(JOB) for member in r} == {(7, newer)}
        assert all(member.loads(JOB, 7) for member in r)
        with r[0].session(JOB) as reader:  # what the old life did alone is abandoned, not gone
            assert reader.checkpoint(2, attempt=old).facts.complete


def test_a_slow_link_only_takes_longer() -> None:
    """R17, clogged: everything is heard late, and nobody is lost for it."""
    with ring(3) as r:
        writer = r[0].writer(JOB, attempt_number())
        for rank in range(3):
            r.rate(rank, 5)
        r[0].save(writer, 1, part_bytes=4 * MIB)
        r[0].wait_replicated(JOB, 1, 60)
        # One block may take longer than `lost_after` here: then the next member keeps copies, too.
        assert set(r[0].states().values()) <= {"self", "up", "stalled"}


def test_bits_that_flip_on_the_wire_are_refused_read_again_and_counted() -> None:
    """R18: on the data port's answers, one packet in some; promise 2."""
    with large_ring(512 * MIB) as r:
        writer = r[0].writer(JOB, attempt_number())
        r.network.spoil(0, 1, port=DATA_PORT, one_in=60)
        r[0].save(writer, 1, part_bytes=4 * LARGE)
        until("a packet was spoiled", lambda: r.network.counted(1, "spoiled") > 0, 30)
        r.network.heal()
        r[0].wait_replicated(JOB, 1, 60)
        counters = r[1].json("status")["counters"]
        assert any(value > 0 for name, value in counters.items() if "bad_block" in name), counters
        r[0].kill()
        until("node 1 has it", lambda: r[1].loads(JOB, 1, part_bytes=4 * LARGE), 60)


def test_a_link_that_spoils_everything_makes_nothing_replicated() -> None:
    with large_ring() as r:
        writer = r[0].writer(JOB, attempt_number())
        r.network.spoil(0, 1, port=DATA_PORT, one_in=1)
        r[0].save(writer, 1, part_bytes=LARGE)
        saver = threading.Thread(target=save_some, args=(r, writer, 2))
        saver.start()
        until("packets were spoiled", lambda: r.network.counted(1, "spoiled") > 20, 60)
        saver.join(patient(120))
        assert not r[0].replicated(JOB, 1 + SAVES), "promise 2"
        r.heal()
        r[0].wait_replicated(JOB, 1 + SAVES, 90)
