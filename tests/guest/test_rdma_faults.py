"""R16 to R18 over RDMA (docs/testing.md): members that die in a transfer, a network that is cut, bytes that
come otherwise than their checksums say. All members share rxe0; the transport is RDMA alone, so that nothing
goes another way."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cairn_daemon import children
from patience import patient
from ring import MIB, PART_BYTES, Member, Ring, attempt_number, content, ring, until
from test_rdma_ring import JOB, RDMA, counters, devices, down, loopback

# Takes seconds in the emulator.
LARGE = 48 * MIB


@contextmanager
def pair(**options: Any) -> Iterator[Ring]:
    with devices("=rxe0"):
        options = {"options": RDMA, "make_network": loopback, "budget": 256 * MIB, **options}
        with ring(2, **options) as r:
            yield r


def fetched(member: Member) -> int:
    return counters(member)["bytes_fetched"]


def in_the_middle(member: Member) -> None:
    until("a part is under way", lambda: fetched(member) >= 8 * MIB, 60)
    assert fetched(member) < LARGE, "the transfer was over too soon to be disturbed"


def spoil(member: Member, wanted: bytes) -> tuple[str, int]:
    """Flips a bit of the member's own copy; where."""
    keeper = member.keeper_pid
    for pid in (keeper, *children(keeper)):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            if "memfd:" not in os.readlink(link):
                continue
            with open(link, "rb") as slab:
                at = slab.read().find(wanted[:4096])
            if at >= 0:
                flip(str(link), at)
                return str(link), at
    raise AssertionError("the part is in none of its slabs")


def flip(path: str, at: int) -> None:
    with open(path, "r+b", buffering=0) as slab:
        slab.seek(at)
        byte = slab.read(1)
        slab.seek(at)
        slab.write(bytes([byte[0] ^ 1]))


def test_an_owner_that_dies_in_a_transfer_is_never_replicated_and_resumes() -> None:
    """R16, the owner."""
    with pair() as r:
        r[0].save(r[0].writer(JOB, attempt_number()), 1, part_bytes=LARGE)
        in_the_middle(r[1])
        r[0].kill()
        assert not r[1].replicated(JOB, 1)  # promise 1
        assert not r[1].loads(JOB, 1, part_bytes=LARGE)
        r[0].start()
        r[0].save(r[0].writer("next", attempt_number()), 1)
        r[0].wait_replicated("next", 1)
        assert r[1].loads("next", 1)


def test_a_backup_that_dies_in_a_transfer_delays_no_save_and_its_successor_goes_on() -> None:
    """R16, the reader."""
    with pair(lost_after_s=int(patient(60))) as r:
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1, part_bytes=LARGE)
        in_the_middle(r[1])
        r[1].kill()
        r[0].save(writer, 2, part_bytes=LARGE)
        assert r[0].states()[1] != "lost", "the save waited until the peer was lost"
        assert not r[0].replicated(JOB, 1) and not r[0].replicated(JOB, 2)  # promise 1
        r[1].start()
        r[0].wait_replicated(JOB, 2, 120)
        assert counters(r[1])["bytes_read_over_tcp"] == 0


def test_a_network_that_is_cut_in_a_transfer_converges_once_it_is_back() -> None:
    """R17."""
    with pair() as r:
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1, part_bytes=LARGE)
        in_the_middle(r[1])
        with down("veth0"):
            r[0].save(writer, 2)
            time.sleep(4)
            assert not r[0].replicated(JOB, 1) and not r[0].replicated(JOB, 2)
        r[0].wait_replicated(JOB, 2, 120)
        assert r[1].loads(JOB, 2)  # promise 2: of the right generation
        assert counters(r[1])["bad_blocks_fetched"] == 0


def test_a_block_that_comes_wrong_again_and_again_is_refused_and_counted() -> None:
    """R18: an owner's copy that was spoiled after its commit; read right once it is right again."""
    with pair(budget=64 * MIB) as r:
        with down("veth0"):
            r[0].save(r[0].writer(JOB, attempt_number()), 1)
            path, at = spoil(r[0], content(JOB, 1, "0/large"))
        until("three times", lambda: counters(r[1])["bad_blocks_fetched"] >= 3, 90)
        assert not r[0].replicated(JOB, 1)  # promises 1 and 2
        flip(path, at)
        r[0].wait_replicated(JOB, 1, 120)
        assert r[1].loads(JOB, 1)
        assert counters(r[1])["bytes_read_over_rdma"] >= PART_BYTES
