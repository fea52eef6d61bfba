"""Rings whose members encrypt what they read of each other's memory, not only what they say."""

from __future__ import annotations

from encryption import certificates
from ring import PART_BYTES, attempt_number, ring, until

JOB = "job"


def test_a_ring_that_encrypts_everything_replicates_and_recovers() -> None:
    with ring(2, before=certificates(lambda rank: "all")) as r:
        r[0].save(r[0].writer(JOB, attempt_number()), 1)
        r[0].wait_replicated(JOB, 1)
        assert r[1].json("status")["counters"]["bytes_read_over_tcp"] >= PART_BYTES
        r[0].kill()
        assert r[1].loads(JOB, 1)
        r[0].start()
        until("the lost part is loaded where it was saved", lambda: r[0].loads(JOB, 1), 60)


def test_members_that_do_not_agree_read_nothing_plain() -> None:
    with ring(2, before=certificates(lambda rank: "all" if rank == 0 else "control")) as r:
        r[0].save(r[0].writer(JOB, attempt_number()), 1)

        def read_bytes() -> int:
            return int(r[1].json("status")["counters"]["bytes_read_over_tcp"])

        def failed() -> int:
            return int(r[1].json("status")["counters"]["failed_fetch_reads"])

        until("the backup has tried again and again", lambda: failed() > 3, 60)
        assert read_bytes() == 0
        assert not r[0].replicated(JOB, 1)
