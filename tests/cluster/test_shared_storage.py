"""Storage that all nodes share: each writes its own parts, whoever sees the last one publishes, and the
files are the user's (promise 9)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cairn_raw import PERSISTED
from patience import patient
from ring import MIB, Ring, attempt_number, content, names, ring, until
from stopped import stands

pytestmark = pytest.mark.full

JOB = "run"
PYTHON = "/usr/bin/python3"


def persisted(r: Ring, rank: int, step: int, limit_s: float = 60) -> None:
    with r[rank].session(JOB) as reader:
        reader.change("persist", reader.ref(step))
        reader.wait(step, PERSISTED, timeout_ms=int(patient(limit_s) * 1000))


def files(r: Ring, step: int) -> Path:
    assert r.storage is not None
    return r.storage / JOB / str(step)


def test_each_node_writes_its_part_and_the_step_is_published_once_all_are_there() -> None:
    with ring(3, storage=True, persist="every") as r:
        attempt = attempt_number()
        ranks = [r[0].writer(JOB, attempt, 0, 2), r[1].writer(JOB, attempt, 1, 2)]
        r[0].save(ranks[0], 1)
        assert not files(r, 1).exists(), "half a step is not published"
        r[1].save(ranks[1], 1)
        for member in r:
            member.cairn(f"wait {JOB}/1 --level persisted --timeout 60")
        for writer in range(2):
            for name in names(writer):
                assert (files(r, 1) / name).read_bytes() == content(JOB, 1, name)


def test_a_node_alone_writes_nothing_that_is_anothers() -> None:
    """Without replicas node 0's bytes come to storage through node 0 only."""
    with ring(2, replicas=0, storage=True) as r:
        attempt = attempt_number()
        ranks = [r[0].writer(JOB, attempt, 0, 2), r[1].writer(JOB, attempt, 1, 2)]
        for rank, writer in enumerate(ranks):
            r[rank].save(writer, 1)
        r[0].pause()
        r[1].cairn(f"persist {JOB}/1 --no-wait", code=0)
        assert not files(r, 1).exists()
        r[0].go_on()
        persisted(r, 0, 1)
        assert r[1].loads(JOB, 1, 2)


def test_stock_torch_opens_what_two_nodes_saved(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = """
import sys, torch, cairn
rank, socket, attempt = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
c = cairn.connect('run', socket=socket, attempt=attempt, rank=rank, world_size=2)
with c.step(1, strict=True) as s:
    s.save({'weight': torch.arange(100_000) * (rank + 1)}, f'rank{rank}.pt')
if rank == 1:
    c.wait(1, 'replicated', timeout=60)
c.wait(1, 'PERSISTED', timeout=60)
"""
    check = """
import sys, torch
for rank in range(2):
    assert torch.equal(torch.load(f'{sys.argv[1]}/rank{rank}.pt')['weight'],
                       torch.arange(100_000) * (rank + 1))
"""
    with ring(2, storage=True, persist="every") as r:
        attempt = attempt_number()
        running = [
            subprocess.Popen([PYTHON, "-c", program, str(rank), r[rank].socket, str(attempt)])
            for rank in range(2)
        ]
        assert [process.wait(patient(120)) for process in running] == [0, 0]
        subprocess.run([PYTHON, "-c", check, str(files(r, 1))], check=True, timeout=patient(60))


def test_a_lost_nodes_part_is_written_by_the_one_that_has_its_replica() -> None:
    with ring(3, storage=True, lost_after_s=3) as r:
        attempt = attempt_number()
        ranks = [r[0].writer(JOB, attempt, 0, 2), r[2].writer(JOB, attempt, 1, 2)]
        r[0].save(ranks[0], 1)
        r[2].save(ranks[1], 1)
        r[0].wait_replicated(JOB, 1)
        r[0].kill()
        persisted(r, 2, 1, limit_s=90)
        for writer in range(2):
            for name in names(writer):
                assert (files(r, 1) / name).read_bytes() == content(JOB, 1, name)


@pytest.mark.parametrize("point", ["storage.write:4", "storage.rename:3", "storage.link:3"])
def test_an_owner_that_stood_still_takes_nothing_from_what_its_stand_in_published(
    point: str,
) -> None:
    """Promise 1: it goes on in the midst of its persist, long after another node wrote its part."""

    def arm(r: Ring) -> None:
        r[0].command.append(f"--test.failpoints={point}=STOP")

    with ring(3, storage=True, lost_after_s=3, before=arm) as r:
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1)
        r[0].wait_replicated(JOB, 1)
        r[1].cairn(f"persist {JOB}/1 --no-wait", code=0)
        until("node 0 stands still", lambda: stands(r[0].daemon_pid()))
        r[0].pause()
        r[1].cairn(f"wait {JOB}/1 --level persisted --timeout 90", limit_s=90)
        r[0].go_on()
        r[0].cairn(f"wait {JOB}/1 --level persisted --timeout 60")
        for rank in range(3):
            r[rank].kill()
        for name in names(0):
            assert (files(r, 1) / name).read_bytes() == content(JOB, 1, name)
        for rank in range(3):
            r[rank].replace(wait=False)
        for member in r:
            member.wait_ready()
        r.await_met()
        assert all(member.loads(JOB, 1) for member in r)


def test_what_the_policy_deleted_comes_back_on_no_node() -> None:
    """Promise 9. Each node has all of it in memory, and finds the files gone when it reads storage again."""
    with ring(3, storage=True, persist="every") as r:
        writer = r[0].writer(JOB, attempt_number())
        for step in range(1, 13):
            r[0].save(writer, step)
            persisted(r, 0, step)
        for member in r:
            member.cairn(f"wait {JOB}/12 --level persisted --timeout 60")
        r[1].cairn(f"policy {JOB} --mode=every --every=2 --keep-last=3 --keep-every=4")

        def steps() -> list[int]:
            found = (r.storage / JOB).iterdir() if r.storage else ()
            return sorted(int(path.name) for path in found if path.name.isdigit())

        kept = [4, 8, 10, 11, 12]
        until("the policy was applied", lambda: steps() == kept)
        for member in r:
            member.kill_daemon()  # its keeper starts another, which reads storage
            member.cairn(f"wait {JOB}/12 --level persisted --timeout 60")
        r.await_met()
        writer.reconnect()
        for step in (14, 16, 18):
            r[0].save(writer, step)
            persisted(r, 0, step)
        assert set(steps()) <= {*kept, 14, 16, 18}


def test_all_memory_lost_the_whole_ring_goes_on_from_storage() -> None:
    with ring(3, storage=True, persist="every") as r:
        attempt = attempt_number()
        ranks = [r[rank].writer(JOB, attempt, rank, 3) for rank in range(3)]
        for rank, writer in enumerate(ranks):
            r[rank].save(writer, 1)
        persisted(r, 2, 1)
        for rank in range(3):
            r[rank].kill()
        for rank in range(3):
            r[rank].replace(wait=False)
        for member in r:
            member.wait_ready()
        r.await_met()
        r.await_same_latest(JOB, 1)
        assert all(member.loads(JOB, 1, 3) for member in r), "promise 1"


def test_what_goes_to_storage_waits_while_a_client_writes_and_no_longer() -> None:
    """The client never writes its step to the end."""
    with ring(2, replicas=0, storage=True, persist="every") as r:
        writer = r[0].writer(JOB, attempt_number())
        idle = r[0].writer("another", attempt_number())
        idle.create(1, {"open": MIB})
        r[0].save(writer, 1)
        persisted(r, 0, 1)
        with r[0].session(JOB) as asking:
            assert asking.status().counters["background_waited_ms"] > 0
