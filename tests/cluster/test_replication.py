"""What was acknowledged REPLICATED is on another node, whole, and is had from there: promises 1 and 2.

The first test is all that a quick look at a ring needs; it runs in the ordinary tier.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cairn_raw import NO_STEP, NOT_FOUND, UNAVAILABLE, CairnError, pattern
from patience import patient
from ring import MIB, PATIENCE_MS, Member, Ring, attempt_number, content, names, ring, until

JOB = "run"
UNAVAILABLE_CODE = 6  # of the command
LARGE = 24 * MIB + 5


def test_a_replicated_step_outlives_everything_of_its_node() -> None:
    with ring(3) as r:
        writer = r[0].writer(JOB, attempt_number())
        for step in (1, 2):
            r[0].save(writer, step)
        r[0].wait_replicated(JOB, 2)
        r[0].kill()
        r.await_same_latest(JOB, 2, (1, 2))
        assert r[1].loads(JOB, 2), "promise 1"
        assert r[2].loads(JOB, 2), "promise 1"


@pytest.mark.full
def test_a_node_that_holds_nothing_loads_from_those_that_do() -> None:
    """With one replica, node 0's parts are on node 1 as well; node 3 has none of them."""
    with ring(4) as r:
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1)
        r[0].wait_replicated(JOB, 1)
        assert r[3].latest(JOB) == r[0].latest(JOB) == (1, writer.attempt)
        assert r[3].loads(JOB, 1)
        r[0].kill()
        assert r[2].loads(JOB, 1)
        listed = r[2].cairn(f"ls {JOB}/1")
        assert "large" in listed and "small" in listed


@pytest.mark.full
def test_an_old_verdict_is_no_answer_to_a_wait() -> None:
    """Promise 1: a node that is cut off cannot know how many copies are left."""
    words = f"wait {JOB}/1 --level replicated --timeout"
    with ring(3) as r:
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1)
        r[2].cairn(f"{words} 20")
        for other in (0, 1):
            r.cut(2, other)
        until("node 2 does not say so any more", lambda: r[2].exit_code(f"{words} 1") == 7)
        r.heal()
        r[2].cairn(f"{words} 20")


@pytest.mark.full
def test_an_own_copy_that_rots_comes_back_with_its_first_load(tmp_path: Path) -> None:
    """Promises 1 and 2: after the commit its trainer writes into the memory that it still maps."""
    with ring(3) as r:
        writer = r[0].writer(JOB, attempt_number())
        saved = pattern("saved", 6 * MIB)
        (extent,) = writer.create(1, {"model": len(saved)}).extents
        writer.fill(extent, saved)
        writer.commit(1, [writer.sealed("model", saved)])
        r[0].wait_replicated(JOB, 1)
        writer.maps[extent.slab][extent.offset + 5 * MIB] ^= 1

        def gets() -> bool:
            r[0].cairn(f"get {JOB}/1/model {tmp_path / 'out'}")
            return (tmp_path / "out").read_bytes() == saved

        assert gets()
        r[0].wait_replicated(JOB, 1)
        for other in (1, 2):
            r[other].kill()
        assert gets(), "from this node's own memory"


def few_descriptors(r: Ring) -> None:
    for member in r.members:
        limited = [*member.host, "prlimit", "--nofile=256:256"]
        member.command = [*limited, *member.command[len(member.host) :]]


@pytest.mark.full
def test_at_any_number_of_small_objects_clients_connect_and_replicas_are_made() -> None:
    """The fewest descriptors a node starts with, and objects of which each has a slab of its own."""
    with ring(3, budget=640 * MIB, before=few_descriptors) as r:
        writer = r[0].writer(JOB, attempt_number())
        for step in range(1, 5):
            objects = {f"0/{i}": bytes([step]) * (MIB + i) for i in range(40)}
            writer.save(step, objects, timeout_ms=PATIENCE_MS)
            r[0].wait_replicated(JOB, step)


@pytest.mark.full
def test_a_node_that_is_cut_off_names_the_silent_members_before_its_client_gives_up() -> None:
    with ring(3, lost_after_s=300) as r:
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1)
        r[0].wait_replicated(JOB, 1)
        for other in (0, 1):
            r.cut(2, other)
        until("node 2 sees it", lambda: set(r[2].states().values()) == {"self", "silent"})
        for words in (f"latest {JOB}", f"stat {JOB}/1", f"ls {JOB}/1"):
            error = r[2].cairn(f"{words} --timeout {patient(3):g}", code=UNAVAILABLE_CODE)
            assert "rank 0, 1 of the ring does not answer" in error, error


def without_room(r: Ring) -> None:
    """Node 2 is full of a step of its own, the newest one of its job, which never gives way."""
    own = r[2].writer("own", attempt_number())
    r[2].save(own, 1, part_bytes=48 * MIB)


@pytest.mark.full
def test_what_a_node_has_no_room_for_is_read_where_it_lies(tmp_path: Path) -> None:
    """In chunks, each block compared: promise 2. With `ls` and `stat`, and by libcairn."""
    with ring(3, options=("--memory.replicas=52MiB",)) as r:
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1, part_bytes=LARGE)
        r[0].wait_replicated(JOB, 1)
        without_room(r)
        assert r[2].loads(JOB, 1, part_bytes=LARGE)
        name = names(0)[0]
        r[2].cairn(f"get {JOB}/1/{name} {tmp_path / 'out'}")
        assert (tmp_path / "out").read_bytes() == content(JOB, 1, name, LARGE)
        assert r[2].json(f"stat {JOB}/1/{name}")["length"] == LARGE
        with r[2].session(JOB) as reader:  # a page for each object, and one for the end
            pages = [reader.do("ls", f"{JOB}/1", "", 1)]
            while pages[-1].next_cursor:
                pages.append(reader.do("ls", f"{JOB}/1", pages[-1].next_cursor, 1))
        assert [info.name for page in pages for info in page.objects] == sorted(names(0))
        assert r[2].json("status")["counters"]["opens_elsewhere"] >= 3
        assert r[2].loads("own", 1, part_bytes=48 * MIB), "nothing gave way for it"


@pytest.mark.full
def test_a_reader_of_what_lies_elsewhere_goes_on_with_another_holder() -> None:
    with ring(3, options=("--memory.replicas=52MiB",)) as r:
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1, part_bytes=LARGE)
        r[0].wait_replicated(JOB, 1)
        without_room(r)
        whole = content(JOB, 1, names(0)[0], LARGE)
        with r[2].session(JOB) as reader:
            opened = reader.open(1, names(0)[0], timeout_ms=int(patient(30_000)))
            assert opened.from_member and not opened.fd_sent and opened.slab == 0
            assert reader.do("readChunk", opened.lease, 0, MIB) == whole[:MIB]
            r[0].kill()
            assert reader.read(opened) == whole
            reader.release(opened)
            with pytest.raises(CairnError) as ended:
                reader.do("readChunk", opened.lease, 0, 1)
            assert ended.value.code == NOT_FOUND


@pytest.mark.full
def test_loads_on_every_node_while_one_saves_are_of_one_generation() -> None:
    """R25 across nodes: each step is saved twice, and what a load returns is one of the two, whole."""
    size = 2 * MIB + 11
    ended = threading.Event()
    loaded: Counter[int] = Counter()

    def generation(step: int, revision: int) -> bytes:
        return pattern(f"{step}.{revision}", size)

    def load(member: Member) -> None:
        with member.session(JOB) as reader:
            newest = (0, -1)
            while not ended.is_set():
                try:
                    opened = reader.open(NO_STEP, "state", timeout_ms=int(patient(30_000)))
                    data = reader.read(opened)
                    reader.release(opened)
                except CairnError as error:
                    # Its copies went for newer ones, on the way; or nothing is saved yet.
                    assert error.code in (NOT_FOUND, UNAVAILABLE), error
                    continue
                found = (opened.step, opened.revision)
                assert data == generation(*found), f"promise 2: {found} on node {member.rank}"
                # Where it is saved nothing is older than what was seen before; another node hears late.
                if member.rank == 0:
                    assert found >= newest, f"promise 3: {found} after {newest}"
                newest = found
                loaded[member.rank] += 1

    with ring(3) as r, ThreadPoolExecutor(3) as pool:
        writer = r[0].writer(JOB, attempt_number())
        loads = [pool.submit(load, member) for member in r]
        try:
            begun, step = time.monotonic(), 0

            def few(loaded: Counter[int]) -> bool:
                return min(loaded[rank] for rank in range(3)) <= 10

            while time.monotonic() < begun + 15 or step <= 10 or few(loaded):
                assert time.monotonic() < begun + patient(120), (step, loaded)
                assert not any(of.done() for of in loads), "a reader has ended"
                step += 1
                for revision in (0, 1):
                    writer.save(step, {"state": generation(step, revision)}, revision=revision)
        finally:
            ended.set()
        for of in loads:
            of.result()


@pytest.mark.full
def test_the_command_line_gets_on_any_node_what_was_put_on_another(tmp_path) -> None:
    data = bytes(range(256)) * 40_000
    (tmp_path / "in").write_bytes(data)
    with ring(3) as r:
        r[1].cairn(f"put {tmp_path / 'in'} tool/5/file.bin --wait replicated")
        r[0].cairn(f"get tool/latest/file.bin {tmp_path / 'out'}")
        assert (tmp_path / "out").read_bytes() == data
        assert r[2].cairn("latest tool").strip() == "5"


@pytest.mark.full
def test_a_step_of_two_nodes_is_complete_only_with_both() -> None:
    with ring(3) as r:
        attempt = attempt_number()
        first = r[0].writer(JOB, attempt, 0, 2)
        second = r[1].writer(JOB, attempt, 1, 2)
        for step in (1, 2):
            r[0].save(first, step)
            r[1].save(second, step)
        r.await_same_latest(JOB, 2)
        r[0].save(first, 3)
        assert {member.latest(JOB) for member in r} == {(2, attempt)}, "promise 3: half a step"
        r[1].save(second, 3)
        r.await_same_latest(JOB, 3)
        for member in r:
            member.wait_replicated(JOB, 3)
            assert member.loads(JOB, 3, 2)


@pytest.mark.full
def test_a_job_on_two_nodes_goes_on_with_either_of_them_lost() -> None:
    """Each loss alone: node 0 comes back, empty, before node 1 goes."""
    with ring(3) as r:
        attempt = attempt_number()
        ranks = [r[0].writer(JOB, attempt, 0, 2), r[1].writer(JOB, attempt, 1, 2)]
        for member, writer in zip(r, ranks, strict=False):
            member.save(writer, 1)
        r[0].wait_replicated(JOB, 1)
        for lost in (0, 1):
            r[lost].kill()
            others = tuple(rank for rank in range(3) if rank != lost)
            r.await_same_latest(JOB, 1, others)
            for rank in others:
                assert r[rank].loads(JOB, 1, 2), "promise 1"
            r[lost].replace()
            r.await_met()
            until("two copies again", lambda lost=lost: r[lost].replicated(JOB, 1), 60)


@pytest.mark.full
def test_a_job_that_asks_for_no_replica_has_none() -> None:
    with ring(2) as r:
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1)
        r[0].wait_replicated(JOB, 1)
        r[0].cairn(f"policy {JOB} --replicas 0")
        r[0].save(writer, 2)
        assert "REPLICATED" in r[0].cairn(f"wait {JOB}/2 --level replicated --timeout 5", code=1)
        r[0].kill()
        # Of what the policy asked for nothing is lost: step 1 is on node 1 or was given up for step 2.
        # A death counts once it is noticed, some seconds later.
        until(
            "step 2 is gone with its node",
            lambda: r[1].latest(JOB) in (None, (1, writer.attempt)),
            20,
        )


@pytest.mark.full
def test_a_backup_without_room_for_two_steps_says_so_and_saving_goes_on() -> None:
    """Nothing is acknowledged REPLICATED then, and `wait` does not wait for it."""
    with ring(2, budget=64 * MIB, options=("--memory.replicas=4MiB",)) as r:
        writer = r[0].writer(JOB, attempt_number())
        for step in (1, 2, 3):
            r[0].save(writer, step)
        said = r[0].cairn(f"wait {JOB}/3 --level replicated --timeout 30", code=1)
        assert "replica" in said.lower() or "memory.replicas" in said
        assert not r[0].replicated(JOB, 3)
        r[0].save(writer, 4)
        assert r[0].latest(JOB) == (4, writer.attempt)


@pytest.mark.full
def test_what_is_removed_on_one_node_is_gone_on_all() -> None:
    with ring(3) as r:
        writer = r[0].writer(JOB, attempt_number())
        for step in (1, 2):
            r[0].save(writer, step)
        r[0].wait_replicated(JOB, 2)
        r[2].cairn(f"rm {JOB}/2 --yes")
        r.await_same_latest(JOB, 1)

        def gone(rank: int) -> bool:
            with r[rank].session(JOB) as reader:
                try:
                    reader.checkpoint(2)
                except CairnError as error:
                    assert error.code in (NOT_FOUND, UNAVAILABLE)
                    return True
            return False

        for rank in range(3):
            until(f"node {rank} does not show it", lambda rank=rank: gone(rank))


def waited_ms(r: Ring, rank: int) -> int:
    with r[rank].session(JOB) as asking:
        return int(asking.status().counters["background_waited_ms"])


@pytest.mark.full
def test_what_goes_out_waits_while_a_client_writes_and_no_longer() -> None:
    """The client never writes its step to the end."""
    with ring(2) as r:
        writer = r[0].writer(JOB, attempt_number())
        idle = r[0].writer("another", attempt_number())
        assert waited_ms(r, 0) == 0
        idle.create(1, {"open": MIB})
        r[0].save(writer, 1)
        r[0].wait_replicated(JOB, 1)
        assert waited_ms(r, 0) > 0


@pytest.mark.full
def test_of_a_part_that_comes_no_page_is_made_before() -> None:
    part = 12 * MIB
    with ring(2) as r:
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1, part_bytes=part)
        r[0].wait_replicated(JOB, 1)
        with r[1].session(JOB) as asking:
            counters = asking.status().counters
        assert counters["bytes_fetched"] >= part
        assert counters["bytes_faulted"] < part
