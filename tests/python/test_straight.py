"""Saves that go straight into storage, where there is no memory or the one before goes on: busy="storage"."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path

import cairn
import pytest
import torch
from in_call import in_call
from node import MIB, Node
from patience import patient, until
from stopped import go_on, stop, stopped


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node that two steps of 24 MiB fill."""
    node = Node(budget=64 * MIB).start()
    monkeypatch.setenv("CAIRN_SOCKET", node.socket)
    yield node
    node.remove()


def weights_of(step: int) -> torch.Tensor:
    return torch.arange(24 * MIB // 8, dtype=torch.int64) + step


def fill(c: cairn.Connection) -> None:
    for step in (1, 2):
        assert c.save_async(step, {"w.pt": weights_of(step)}).wait(patient(30))
        c.pin(step)  # it may not go


def files_of(node: Node, job: str, step: int) -> Path:
    return node.storage / job / str(step)


def unpublished(node: Node, job: str) -> list[Path]:
    meta = node.storage / job / ".cairn"
    inside = [*(meta / "writing").rglob("*"), *(meta / "partial").rglob("*")]
    return [path for path in inside if path.is_file()]


def test_what_finds_no_memory_goes_straight_into_storage(small: Node, job: str) -> None:
    with cairn.connect(job) as c:
        fill(c)
        used = c.status()["used_bytes"]
        weights = weights_of(3)
        saving = c.save_async(3, {"w.pt": weights, "note": b"bytes"}, busy="storage")
        assert saving.stored and saving.staged and saving.wait(patient(30)), saving
        assert saving.ok and saving.complete and saving.bytes_copied == saving.bytes, saving
        weights.zero_()
        assert c.status()["used_bytes"] == used
        assert c.latest().step == 3 and c.wait(3, "persisted", 5)
        assert torch.equal(cairn.load(f"cairn://{job}/3/w.pt"), weights_of(3))
        assert bytes(cairn.load(f"cairn://{job}/3/note")) == b"bytes"
        stock = files_of(small, job, 3) / "w.pt"
        assert torch.equal(torch.load(stock), weights_of(3)) and stock.stat().st_uid == os.getuid()
        c.pin(1, False)
        again = c.save_async(4, {"w.pt": weights_of(4)}, busy="storage")
        assert again.wait(patient(30)) and again.ok and not again.stored, "there is memory again"
        assert c.latest().step == 4


def test_a_daemon_that_starts_anew_finds_it(small: Node, job: str) -> None:
    with cairn.connect(job) as c:
        fill(c)
        assert c.save_async(3, {"w.pt": weights_of(3)}, busy="storage").wait(patient(30))
        small.kill_daemon()
        assert c.latest().step == 3
        assert torch.equal(cairn.load(f"cairn://{job}/3/w.pt"), weights_of(3))
    small.kill()
    small.start()
    with cairn.connect(job) as c:
        assert c.latest().step == 3


def test_it_goes_beside_the_save_before(node: Node, job: str) -> None:
    with cairn.connect(job) as c:
        assert c.attempt
        weights = weights_of(1)
        with stopped(node.daemon_pid()):
            first = c.save_async(1, {"w.pt": weights}, overlap=[weights])
            beside = weights_of(2)
            second = c.save_async(2, {"w.pt": beside}, overlap=[beside], busy="storage")
            assert second.stored and not first.done and not second.staged
        assert c.fence() and first.staged and second.staged
        assert first.wait(patient(30)) and first.ok, first
        assert second.wait(patient(30)) and second.ok, second
        assert c.latest().step == 2
        assert torch.equal(cairn.load(f"cairn://{job}/1/w.pt"), weights_of(1))
        assert torch.equal(cairn.load(f"cairn://{job}/2/w.pt"), weights_of(2))
    assert (files_of(node, job, 2) / "w.pt").exists()
    assert not files_of(node, job, 1).exists(), "the policy is on demand"


def test_what_changes_before_it_is_written_fails_the_save(
    node: Node, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed: list[int] = []
    commit = cairn.Step.commit

    def noted(step: cairn.Step) -> None:
        committed.append(step.step)
        commit(step)

    monkeypatch.setattr(cairn.Step, "commit", noted)
    with cairn.connect(job) as c:
        assert c.save_async(1, {"small.pt": 1}).wait(patient(30))
        weights, small = weights_of(3), torch.zeros(3)
        with stopped(node.daemon_pid()):
            first = c.save_async(2, {"small.pt": small}, overlap=[small])
            saving = c.save_async(3, {"w.pt": weights}, overlap=[weights], busy="storage")
            assert saving.stored
            until("its checksums are taken, and it is committed", lambda: 3 in committed)
            weights += 1
        assert first.wait(patient(30)) and first.ok
        assert saving.wait(patient(30)) and isinstance(saving.error, cairn.FailedPrecondition), (
            saving
        )
        with pytest.raises(cairn.FailedPrecondition, match=r"changed while .*w\.pt"):
            c.fence()
        assert c.latest().step == 2 and not files_of(node, job, 3).exists()
        assert c.save_async(3, {"w.pt": weights}).wait(patient(30))
        assert torch.equal(cairn.load(f"cairn://{job}/3/w.pt"), weights)


def test_without_storage_it_is_told(job: str) -> None:
    node = Node(budget=64 * MIB, storage=False).start()
    try:
        with cairn.connect(job, socket=node.socket) as c:
            assert c.save_async(1, {"w.pt": weights_of(1)}).wait(patient(30))
            # At once, and not when memory is full for the first time.
            with pytest.raises(cairn.FailedPrecondition, match=r'busy: "storage" .*storage\.root'):
                c.save_async(2, {"w.pt": weights_of(2)}, busy="storage")
            assert c.latest().step == 1
    finally:
        node.remove()


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.03])
def test_a_daemon_that_dies_meanwhile_fails_it_at_most(small: Node, job: str, delay: float) -> None:
    with cairn.connect(job) as c, warnings.catch_warnings():
        warnings.simplefilter("ignore", cairn.CairnWarning)
        fill(c)
        saved = 2
        for step in (3, 4):  # the keeper's next daemon but one would admit nothing
            weights = weights_of(step)
            saving = c.save_async(step, {"w.pt": weights}, overlap=[weights], busy="storage")
            time.sleep(delay)
            small.kill_daemon()
            assert saving.wait(patient(60))
            c.fence()
            if saving.ok:
                saved = step
            assert c.latest().step >= saved
        for step in range(3, 5):
            if files_of(small, job, step).exists():
                assert torch.equal(cairn.load(f"cairn://{job}/{step}/w.pt"), weights_of(step))


@pytest.mark.parametrize("point", ["node.persist", "node.publish", "node.published"])
def test_a_daemon_that_dies_there_is_asked_again(
    job: str, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one has no stream of the call that is said again, and perhaps finds it published."""
    node = Node(budget=64 * MIB, options=(f"--test.failpoints={point}:2",)).start()
    monkeypatch.setenv("CAIRN_SOCKET", node.socket)
    try:
        with cairn.connect(job) as c:
            fill(c)
            daemon = node.daemon_pid()
            for step in (3, 4):
                saving = c.save_async(step, {"w.pt": weights_of(step)}, busy="storage")
                assert saving.stored and saving.ok and saving.complete, saving
            assert node.daemon_pid() != daemon, "it did not die"
            assert c.latest().step == 4
            assert torch.equal(cairn.load(f"cairn://{job}/4/w.pt"), weights_of(4))
            assert not unpublished(node, job)
    finally:
        node.remove()


def test_of_a_trainer_that_is_killed_nothing_is_published(small: Node, job: str) -> None:
    script = f"""
import cairn, torch
c = cairn.connect({job!r})
for step in (1, 2):
    assert c.save_async(step, {{"w.pt": torch.ones(24 << 20, dtype=torch.uint8)}}).wait(30)
    c.pin(step)
print("begins", flush=True)
for step in range(3, 1000):
    weights = torch.full((24 << 20,), step % 256, dtype=torch.uint8)
    assert c.save_async(step, {{"w.pt": weights}}, busy="storage").ok
    print(step, flush=True)
"""
    trainer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == "begins\n"
    last = int(trainer.stdout.readline())

    def is_under_way() -> bool:
        try:
            return bool(unpublished(small, job))
        except FileNotFoundError:  # it was published meanwhile
            return False

    until("the next one is under way", is_under_way)
    trainer.send_signal(signal.SIGKILL)
    told = trainer.stdout.read().split()
    trainer.wait()
    last = max([last, *map(int, told)])
    with cairn.connect(job, rank=-1) as reader:
        latest = reader.latest().step
    assert last <= latest <= last + 1
    assert int(cairn.load(f"cairn://{job}/{latest}/w.pt")[0]) == latest % 256


def test_a_writer_that_does_not_send_is_given_up(small: Node, job: str) -> None:
    """Its part is not there, others save meanwhile, and the daemon ends, once it has lost its patience."""
    with cairn.connect(job) as c:
        fill(c)
        script = """
import cairn, time, torch
c = cairn.connect("stands")
weights = torch.ones(100 << 20, dtype=torch.uint8)
for step in range(20):
    saving = c.save_async(step, {"w.pt": weights}, overlap=[weights], busy="storage")
    while saving.bytes_copied == 0 and not saving.staged:
        time.sleep(0.0005)
    print("sends", flush=True)
    input()
    print(saving.bytes_copied / saving.bytes, flush=True)
    input()
    c.fence()
"""
        stands = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        assert stands.stdin is not None and stands.stdout is not None
        daemon = small.daemon_pid()
        for step in range(20):
            assert stands.stdout.readline() == "sends\n"
            stop(daemon)  # it asks for no more
            stands.stdin.write("\n")
            if float(stands.stdout.readline()) < 0.5:
                its_files = files_of(small, "stands", step)
                break
            go_on(daemon)  # most was sent before this looked
            stands.stdin.write("\n")
        else:
            pytest.fail("each was sent before this looked")
        stop(stands.pid)
        go_on(daemon)
        assert c.save_async(3, {"w.pt": weights_of(3)}, busy="storage").ok
        os.kill(daemon, signal.SIGTERM)
        # What is on its way is waited for, and the writer for half a minute, of which little had gone.
        until("the daemon has ended", lambda: small.daemon_pid() != daemon, 90)
        assert not its_files.exists()
        stands.kill()
        stands.communicate()


def test_only_some_ranks_cannot_agree(node: Node, job: str) -> None:
    with cairn.connect(job, rank=0, world_size=4, attempt=1) as c:
        with pytest.raises(ValueError, match='busy: all ranks agree on "storage"'):
            c.save_async(1, {"w.pt": torch.ones(3)}, busy="storage", writers=2, writer=0)
        with pytest.raises(ValueError, match="busy: 'disk' is none of wait, skip, storage"):
            c.save_async(1, {"w.pt": torch.ones(3)}, busy="disk")


def test_a_rank_that_fails_before_the_others_go_straight_stays_in_step_with_them(
    node: Node, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its part of one try and theirs of another would make one step."""
    answers: list[bool] = []
    monkeypatch.setattr("cairn.distributed.any_of", lambda mine, size: answers.pop(0))
    attempt = int(time.time() * 1000)
    ranks = [cairn.connect(job, rank=rank, world_size=2, attempt=attempt) for rank in (0, 1)]

    def save(rank: int, number: int) -> cairn.Saving:
        saving = ranks[rank].save_async(3, {f"r{rank}.pt": {"try": number}}, busy="storage")
        assert saving.wait(patient(30))
        return saving

    answers[:] = [False, True]  # no save goes on; on some rank there is no room
    assert save(0, 1).stored
    with monkeypatch.context() as broken, warnings.catch_warnings():
        warnings.simplefilter("ignore", cairn.CairnWarning)

        def fails(*_: object) -> None:
            raise cairn.Unavailable("the daemon is away")

        broken.setattr("cairn.step.Step._set_aside", fails)
        answers[:] = [False, True]
        assert not save(1, 1).ok
    for rank in (0, 1):
        answers[:] = [True]  # one goes on: straight
        assert save(rank, 2).ok
    assert ranks[0].latest().step == 3
    for rank in (0, 1):
        assert cairn.load(f"cairn://{job}/3/r{rank}.pt") == {"try": 2}
    for c in ranks:
        c.close()


@pytest.mark.parametrize("busy", ["skip", "storage"])
def test_where_a_rank_does_not_answer_nothing_is_kept_of_the_save(
    node: Node, job: str, monkeypatch: pytest.MonkeyPatch, busy: str
) -> None:
    answers = iter([False])  # no save goes on; then it is gone

    def any_of(mine: bool, size: int) -> bool:
        for answer in answers:
            return answer
        raise cairn.Unavailable("a rank of the group does not answer")

    attempt = int(time.time() * 1000)
    with cairn.connect(job, rank=1, world_size=2, attempt=attempt) as c:
        with monkeypatch.context() as broken:
            broken.setattr("cairn.distributed.any_of", any_of)
            with pytest.raises(cairn.Unavailable, match="does not answer"):
                c.save_async(1, {"w.pt": weights_of(1)}, busy=busy)
        until("nothing is being written", lambda: c.status()["writing_bytes"] == 0)
        again = c.save_async(1, {"w.pt": weights_of(1)}, busy=busy)
        assert again.wait(patient(30)) and again.ok, again


@pytest.mark.parametrize("busy", ["skip", "storage"])
def test_a_daemon_that_answers_late_is_waited_for(node: Node, job: str, busy: str) -> None:
    """Only for room nobody waits long."""
    with cairn.connect(job) as c:
        assert c.save_async(1, {"w.pt": weights_of(1)}).wait(patient(30))
        daemon = node.daemon_pid()
        main = threading.get_ident()

        def goes_on_late() -> None:
            try:
                until("the save asks", lambda: in_call(main, "save_async"))
                time.sleep(1.0)  # longer than it waits for room
            finally:
                go_on(daemon)

        stop(daemon)
        late = threading.Thread(target=goes_on_late)
        late.start()
        saving = c.save_async(2, {"w.pt": weights_of(2)}, busy=busy)
        assert saving.wait(patient(30)) and saving.ok and not saving.stored, saving
        late.join()


def test_an_archive_that_changes_unseen_has_right_checksums_or_is_not_saved(
    small: Node, job: str
) -> None:
    """Such changes, as through `.data`, move no version; an archive holds its own checksums."""
    with cairn.connect(job) as c:
        fill(c)
        tries, takes = 20, 0.0
        for n in range(tries):
            step = 3 + n
            weights = torch.zeros(48 * MIB, dtype=torch.uint8)
            began = time.monotonic()
            saving = c.save_async(step, {"w.pt": weights}, overlap=[weights], busy="storage")
            if n == 0:  # how long one takes, and that one is saved
                assert saving.wait(patient(30)) and saving.ok
                takes = time.monotonic() - began
            time.sleep(takes * n / tries)
            weights.data[-1] = 7
            assert saving.wait(patient(30))
            if saving.ok:
                with zipfile.ZipFile(files_of(small, job, step) / "w.pt") as archive:
                    assert archive.testzip() is None
                c.remove(step, force=True)
            else:
                assert "changed" in str(saving.error), saving
            with contextlib.suppress(cairn.FailedPrecondition):
                c.fence()
