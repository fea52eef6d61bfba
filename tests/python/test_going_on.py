"""How a job goes on: finding the newest checkpoint and loading of exactly that one, in groups and in a
world that has grown; questions without a connection; and what a person is told of saves that failed.

One file: what a script does between its start and its first saved step.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import cairn
import pytest
from cairn import notices
from node import Node
from patience import patient


def save(c: cairn.Connection, step: int, **objects: Any) -> None:
    with c.step(step, strict=True) as s:
        for name, obj in objects.items():
            s.save(obj, name)


# --- a group of ranks, each a process --------------------------------------------------------------------

RANK_BEGINS = """
import json, os, sys
import torch.distributed as dist
import cairn
rank = int(os.environ["RANK"]); world = int(os.environ["WORLD_SIZE"])
job, rendezvous = sys.argv[1:]
dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=world)
def tell(*what):
    print(json.dumps(what), flush=True)
def which(checkpoint):
    return checkpoint and [checkpoint.step, checkpoint.attempt, checkpoint.revision, checkpoint.digest]
"""
RANK_ENDS = """
dist.barrier()
dist.destroy_process_group()
"""


def ranks(
    world: int, code: str, tmp_path: Path, job: str, **environment: str
) -> list[list[list[Any]]]:
    """What each rank of a new gloo group told, line by line."""
    rendezvous = tmp_path / "rendezvous"
    rendezvous.unlink(missing_ok=True)
    whole = RANK_BEGINS + textwrap.dedent(code) + RANK_ENDS
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", whole, job, str(rendezvous)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment, "RANK": str(rank), "WORLD_SIZE": str(world)},
        )
        for rank in range(world)
    ]
    told = [process.communicate(timeout=patient(120))[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * world
    return [[json.loads(line) for line in text.splitlines()] for text in told]


# The loop that people copy; each rank has a name of its own.
LIFE = """
c = cairn.connect(job)
checkpoint = c.resume_latest()
first, state = 0, None
if checkpoint is not None:
    first = checkpoint.step + 1
    try:
        state = checkpoint.load(f"rank{c.rank}.pt")["from"]
    except cairn.MissingObject as error:
        state = str(error)
dist.barrier()
for step in range(first, first + 2):
    with c.step(step) as s:
        s.save({"from": [c.rank, step]}, f"rank{c.rank}.pt")
tell(which(checkpoint), state, s.ok, s.step)
"""


def test_a_group_goes_on_from_one_checkpoint_and_so_does_a_grown_one(
    node: Node, job: str, tmp_path: Path
) -> None:
    first = ranks(2, LIFE, tmp_path, job)
    assert first == [[[None, None, True, 1]]] * 2

    second = ranks(2, LIFE, tmp_path, job)
    assert second[0][0][0] == second[1][0][0] and second[0][0][0][0] == 1
    assert [told[0][1:] for told in second] == [[[rank, 1], True, 3] for rank in range(2)]

    grown = ranks(3, LIFE, tmp_path, job)
    assert grown[0][0][0] == grown[1][0][0] == grown[2][0][0] and grown[0][0][0][0] == 3
    assert [told[0][1] for told in grown[:2]] == [[0, 3], [1, 3]]
    assert [told[0][2:] for told in grown] == [[True, 5]] * 3
    missing = grown[2][0][1]
    assert "no object 'rank2.pt'" in missing and "'rank0.pt', 'rank1.pt'" in missing.replace(
        "'rank1.pt', 'rank0.pt'", "'rank0.pt', 'rank1.pt'"
    )
    assert "saved by 2 writers" in missing and "rank 2 of 3" in missing


def test_finding_the_newest_decides_nothing(node: Node, job: str, tmp_path: Path) -> None:
    """No record of it is written, and a life that only asks leaves no trace."""
    with cairn.connect(job, attempt=1) as c:
        save(c, 1, a=b"1")
        c.persist(1)
        c.wait(1, timeout=patient(30))
        head = c.latest().head
    told = ranks(2, "tell(which(cairn.connect(job).resume_latest()))", tmp_path, job)
    assert told[0] == told[1] and told[0][0][0][0] == 1
    assert node.reader(job).latest().head == head == 1
    assert list((node.storage / job / ".cairn").glob("line/*.resume")) == []


def test_all_ranks_get_the_error_of_rank_0(node: Node, job: str, tmp_path: Path) -> None:
    """Above all none of them hears that there is nothing."""
    code = """
    c = cairn.connect(job, attempt=7)
    if rank == 0:
        c.close()
        c = cairn.Connection(cairn.connection.Options(job, 0, 2, 7, socket="/nowhere", timeout=0.3))
    try:
        tell("found", which(c.resume_latest()))
    except cairn.Error as error:
        tell(type(error).__name__, str(error))
    """
    told = ranks(2, code, tmp_path, job)
    assert [lines[0][0] for lines in told] == ["Unavailable", "Unavailable"]
    assert told[1][0][1].startswith("rank 0: ")


def test_a_reader_in_a_group_hears_what_rank_0_hears(node: Node, job: str, tmp_path: Path) -> None:
    with cairn.connect(job) as c:
        save(c, 3, a=b"3")
    code = """
    c = cairn.connect(job, rank=-1)
    if rank == 1:
        c.latest = lambda: 1 / 0  # which a rank other than 0 does not ask
    checkpoint = c.resume_latest()
    tell(which(checkpoint)[:1], checkpoint.load("a").decode())
    """
    assert ranks(2, code, tmp_path, job) == [[[[3], "3"]]] * 2


def test_what_rank_0_misses_no_rank_takes_for_nothing(node: Node, job: str, tmp_path: Path) -> None:
    with cairn.connect(job) as c:
        save(c, 3, a=b"3")
    code = """
    checkpoint = cairn.connect(job, rank=-1).resume_latest()
    try:
        cairn.distributed.agree(lambda: checkpoint.load("b"))
    except cairn.NotFound:
        tell("nothing is there")
    except cairn.MissingObject as error:
        tell("missing", str(error))
    """
    told = ranks(2, code, tmp_path, job)
    assert [lines[0][0] for lines in told] == ["missing", "missing"]
    assert "no object 'b'; it has 'a'" in told[1][0][1]


# Each rank has a job of its own, and takes no part in another's.
JOB_PER_RANK = """
c = cairn.connect(f"{job}.rank{rank}", rank=0, world_size=1)
asked = []
for ask in (c.resume_latest, lambda: cairn.distributed.agree(c.latest, job=c.job)):
    try:
        asked.append(which(ask()))
    except ValueError as error:
        asked.append(str(error))
try:
    mine = c.load(f"{c.latest().step}/state").decode()
except cairn.NotFound:
    mine = None
if mine is None and (rank > 0 or os.environ.get("ALL_SAVE")):
    with c.step(1, strict=True) as s:
        s.save(f"of rank {rank}".encode(), "state")
tell(*asked, mine)
"""


@pytest.mark.parametrize("rank_0_has_one", [True, False])
def test_ranks_with_jobs_of_their_own_all_hear_that_there_is_no_one_checkpoint(
    rank_0_has_one: bool, node: Node, job: str, tmp_path: Path
) -> None:
    """Neither does a rank load another job's state, nor does it begin from nothing because rank 0 does."""
    environment = {"ALL_SAVE": "1"} if rank_0_has_one else {}
    for life in range(2):
        told = ranks(2, JOB_PER_RANK, tmp_path, job, **environment)
        for lines in told:
            for said in lines[0][:2]:
                assert isinstance(said, str) and said.startswith("job: "), said
                assert f"rank 0 has '{job}.rank0', rank 1 has '{job}.rank1'" in said
        mine = [lines[0][2] for lines in told]
        assert mine == [f"of rank {r}" if life and (r or rank_0_has_one) else None for r in (0, 1)]


def test_ranks_of_one_group_that_connect_to_different_jobs_are_all_refused(
    node: Node, job: str, tmp_path: Path
) -> None:
    """They would wait for each other's parts of steps that no other rank saves."""
    code = """
    try:
        tell("connected", cairn.connect(f"{job}.{min(rank, 1)}").attempt)
    except ValueError as error:
        tell("refused", str(error))
    """
    told = ranks(3, code, tmp_path, job)
    assert told[0] == told[1] == told[2] and told[0][0][0] == "refused"
    assert "job: the ranks of a group act on one answer" in told[0][0][1]
    assert f"rank 0 has '{job}.0', rank 1 has '{job}.1'" in told[0][0][1]


# --- the checkpoint that was found -----------------------------------------------------------------------


def test_without_a_group_a_writer_and_a_reader_ask_for_themselves(node: Node, job: str) -> None:
    c = cairn.connect(job)
    reader = node.reader(job)
    assert c.resume_latest() is None and reader.resume_latest() is None
    save(c, 4, model={"w": 1})
    found = c.resume_latest()
    assert found == reader.resume_latest()
    assert found is not None and isinstance(found, cairn.Checkpoint)
    latest = c.latest()
    for field in ("job", "step", "attempt", "revision", "world_size", "digest", "source"):
        assert getattr(found, field) == getattr(latest, field)
    assert found.load("model") == {"w": 1} and found.names() == ["model"]


def test_nothing_is_said_only_when_nothing_is_known_to_be_there(node: Node, job: str) -> None:
    c = node.reader(job)
    assert c.resume_latest() is None
    unreachable = cairn.Connection(
        cairn.connection.Options(job, -1, 0, 0, socket="/nowhere", timeout=0.3)
    )
    with pytest.raises(cairn.Unavailable):
        unreachable.resume_latest()


def test_storage_that_cannot_be_read_is_not_nothing(own_node: Node, job: str) -> None:
    with cairn.connect(job) as c:
        save(c, 1, a=b"1")
        c.persist(1)
        c.wait(1, timeout=patient(30))
    own_node.kill()
    kept = own_node.storage.rename(own_node.folder / "elsewhere")
    own_node.storage.touch()  # no directory
    own_node.start()
    reader = own_node.reader(job)
    with pytest.raises((cairn.Unavailable, cairn.Timeout)):
        reader.resume_latest()
    own_node.storage.unlink()
    kept.rename(own_node.storage)


def test_it_loads_from_storage_as_from_memory(own_node: Node, job: str) -> None:
    np = pytest.importorskip("numpy")
    c = cairn.connect(job)
    save(c, 1, a=np.arange(1000), b=b"bytes")
    found = c.resume_latest()
    assert found is not None and found.source == "memory"
    c.persist(1)
    c.wait(1, timeout=patient(30))
    c.remove(1, memory_only=True)
    stored = c.resume_latest()
    assert stored == found or stored is not None and stored.source == "storage"
    c.close()
    own_node.kill()  # memory is gone
    own_node.start()
    again = own_node.reader(job).resume_latest()
    assert again is not None and again.source == "storage"
    for mmap in (None, True):
        assert np.array_equal(again.load("a", mmap=mmap), np.arange(1000))
    assert again.load("b") == b"bytes" and again.names() == ["a", "b"]
    with pytest.raises(cairn.MissingObject, match="it has 'a', 'b'|it has 'b', 'a'"):
        again.load("c")


def test_load_takes_what_cairn_load_takes(node: Node, job: str) -> None:
    torch = pytest.importorskip("torch")
    c = cairn.connect(job)
    save(c, 1, model={"w": torch.arange(100_000)})
    found = c.resume_latest()
    assert found is not None
    mapped = found.load("model", mmap=True, weights_only=True, map_location="cpu")
    mapped["w"][0] = 7  # copy on write
    assert found.load("model", "cpu")["w"][0] == 0
    for name in ("..", "", "a//b"):
        with pytest.raises(ValueError, match="name"):
            found.load(name)


def test_a_name_that_is_not_there_is_missing_and_the_checkpoint_is_not(
    node: Node, job: str
) -> None:
    c = cairn.connect(job)
    with c.step(1, strict=True) as s:
        for name in ["model.pt", "optimizer.pt", *(f"shard/{i}" for i in range(20))]:
            s.save(b"", name)
    found = c.resume_latest()
    assert found is not None
    with pytest.raises(cairn.MissingObject) as renamed:
        found.load("models.pt")
    said = str(renamed.value)
    assert f"{job}/1" in said and "it has 'model.pt'" in said and "more" in said
    assert "world" not in said
    assert isinstance(renamed.value, LookupError) and isinstance(renamed.value, cairn.Error)
    assert not isinstance(renamed.value, (cairn.NotFound, FileNotFoundError))
    copy = pickle.loads(pickle.dumps(renamed.value))
    assert type(copy) is cairn.MissingObject and str(copy) == said


def test_names_of_more_objects_than_one_answer_holds(node: Node, job: str) -> None:
    c = cairn.connect(job)
    names = [f"{i:04}" for i in range(1203)]
    with c.step(1, strict=True) as s:
        for name in names:
            s.save(b"", name)
    found = c.resume_latest()
    assert found is not None and found.names() == names


def test_it_stays_the_one_that_was_found_or_says_that_it_is_gone(node: Node, job: str) -> None:
    c = cairn.connect(job)
    save(c, 1, a=b"first")
    found = c.resume_latest()
    assert found is not None
    save(c, 1, a=b"second", b=b"")
    save(c, 2, a=b"later")
    try:
        assert found.load("a") == b"first"
    except cairn.FailedPrecondition as error:
        assert "no more" in str(error) and f"{job}/1" in str(error)
    try:
        assert found.names() == ["a"]
    except cairn.FailedPrecondition as error:
        assert "no more" in str(error) and f"{job}/1" in str(error)
    with pytest.raises((cairn.MissingObject, cairn.FailedPrecondition)):
        found.load("b")  # which only the later one has

    found = c.resume_latest()
    assert found is not None and found.step == 2
    c.remove(2, force=True)
    for ask in (found.names, lambda: found.load("a")):
        with pytest.raises(cairn.FailedPrecondition, match=r"no more .*resume_latest") as error:
            ask()
        assert not isinstance(error.value, cairn.NotFound)
    newest = c.resume_latest()
    assert newest is not None and newest.load("a") == b"second"


def test_it_is_listed_also_when_another_one_counts_at_its_step(node: Node, job: str) -> None:
    with cairn.connect(job, attempt=1) as c:
        save(c, 1, a=b"1")
        save(c, 2, a=b"2", mine=b"")
        c.persist(2)
        c.wait(2, timeout=patient(30))
    reader = node.reader(job)
    found = reader.resume_latest()
    assert found is not None and (found.step, found.attempt) == (2, 1)
    with cairn.connect(job, attempt=2) as c:
        c.resume(1)
        save(c, 2, a=b"2 anew", other=b"")
    assert found.names() == ["a", "mine"] and found.load("mine") == b""
    with pytest.raises(
        cairn.MissingObject, match="no object 'other'; it has 'mine', 'a'|'a', 'mine'"
    ):
        found.load("other")
    now = reader.resume_latest()
    assert now is not None and now.names() == ["a", "other"]


@pytest.mark.parametrize("lost", ["file", "step", "job", "file whose name is known"])
def test_what_storage_has_lost_is_not_nothing(lost: str, own_node: Node, job: str) -> None:
    """A script that begins from nothing where nothing is must not do so here."""
    with cairn.connect(job) as c:
        for step in (0, 1):
            save(c, step, a=b"a" * 100, b=b"b")
            c.persist(step)
            c.wait(step, timeout=patient(30))
            c.remove(step, memory_only=True)
    c = own_node.reader(job)
    found = c.resume_latest()
    assert found is not None and found.source == "storage"
    folder = own_node.storage / job
    if lost == "file whose name is known":
        assert found.names() == ["a", "b"]
    if lost.startswith("file"):
        (folder / "1" / "a").unlink()
    else:
        shutil.rmtree(folder / "1" if lost == "step" else folder)

    expected: Any = cairn.Corrupt if lost.startswith("file") else cairn.FailedPrecondition
    with pytest.raises(expected, match=f"{job}.1|step 1 of job {job}") as error:
        found.load("a")
    assert not isinstance(error.value, FileNotFoundError)

    def load_if_it_exists() -> None:
        if not c.exists("1/a"):
            raise cairn.NotFound("it does not exist")
        c.load("1/a")

    asked = (
        load_if_it_exists,
        lambda: c.load("1/a"),
        lambda: cairn.load(f"cairn://{job}/1/a", mmap=True),
        lambda: c.file("1/a").__enter__(),
    )
    for ask in asked:
        try:
            with pytest.raises(expected):
                ask()
        except cairn.NotFound:  # once storage was read again: there is no such step
            with pytest.raises(cairn.NotFound):
                c.stat(1)


def test_a_name_that_a_complete_step_lacks_is_not_found_in_place_of_torch_load(
    node: Node, job: str
) -> None:
    with cairn.connect(job, rank=0, world_size=2, attempt=1) as c:
        save(c, 1, a=b"1")
        with pytest.raises(cairn.NotFound):  # not complete
            c.load("1/a")
    cairn.save(b"", f"cairn://{job}.whole/1/a")
    for name in ("1/b", "2/a", "latest/b"):
        with pytest.raises(cairn.NotFound):
            cairn.load(f"cairn://{job}.whole/{name}")


def test_what_is_lost_while_it_is_read_was_there(node: Node, job: str) -> None:
    class Lost:
        def info(self) -> dict[str, Any]:
            return {"kind": "raw"}

        def read_bytes(self) -> bytes:
            raise cairn.NotFound("lease: 7 has ended")

        def close(self) -> None:
            pass

    c = node.reader(job)
    c._open = lambda *_arguments: Lost()  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(cairn.Unavailable, match="^a was lost while it was read: lease: 7"):
        c.load("1/a")


def test_a_found_checkpoint_travels_to_another_process(
    node: Node, job: str, tmp_path: Path
) -> None:
    c = cairn.connect(job, attempt=5)
    save(c, 1, a=b"1")
    (tmp_path / "found").write_bytes(pickle.dumps(c.resume_latest()))
    code = f"import pickle; print(pickle.load(open({str(tmp_path / 'found')!r}, 'rb')).load('a'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=True,
    )
    assert done.stdout.strip() == "b'1'"


# --- questions without a connection ----------------------------------------------------------------------


def test_questions_need_no_connection(
    node: Node, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not cairn.exists(f"cairn://{job}/latest/a")
    with pytest.raises(cairn.NotFound):
        cairn.latest(job)
    cairn.save(b"1", f"cairn://{job}/1/a")
    cairn.api._implicit.clear()
    assert cairn.latest(job).step == 1
    monkeypatch.setenv("CAIRN_JOB", job)
    assert cairn.latest().step == 1
    assert cairn.exists(f"cairn://{job}/1/a") and cairn.exists(f"cairn://{job}/latest/a")
    assert cairn.exists(f"cairn://{job}/1") and not cairn.exists(f"cairn://{job}/2")
    assert not cairn.exists(f"cairn://{job}/1/b") and not cairn.exists("cairn://no-such-job/1/a")
    assert job in cairn.ls().jobs
    assert [i.step for i in cairn.ls(job).checkpoints] == [1]
    assert [o.name for o in cairn.ls(f"{job}/latest").objects] == ["a"]
    assert [o.name for o in cairn.ls(f"cairn://{job}/1").objects] == ["a"]
    assert cairn.status()["state"] and cairn.status(job)["latest_step"] == 1
    with pytest.raises(cairn.NotFound, match="no-such-job"):
        cairn.status("no-such-job")
    # Asking makes nobody a writer, and one connection has asked it all.
    assert [(c.rank, c.job) for c in cairn.api._implicit.values()] == [(-1, "")]


def test_another_socket_in_the_environment_is_another_node(
    node: Node, own_node: Node, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for here, content in ((node, b"1"), (own_node, b"2")):
        monkeypatch.setenv("CAIRN_SOCKET", here.socket)
        cairn.save(content, f"cairn://{job}/1/a")
    for here, content in ((node, b"1"), (own_node, b"2")):
        monkeypatch.setenv("CAIRN_SOCKET", here.socket)
        assert cairn.load(f"cairn://{job}/1/a") == content


def test_with_a_connection_short_paths_are_of_its_job(node: Node, job: str) -> None:
    with pytest.raises(ValueError, match="needs a job"):
        cairn.exists("1/a")
    c = cairn.connect(job)
    save(c, 1, a=b"1")
    assert cairn.exists("1/a") and not cairn.exists("1/b") and not cairn.exists("2/a")
    asked = [dataclasses.replace(latest, as_of=0) for latest in (cairn.latest(), c.latest())]
    assert asked[0] == asked[1]  # but for when that was known
    assert c.exists("1/a") and cairn.status(job) == c.status(job)
    assert cairn.api._implicit == {}
    for path in ("model.pt", "", 3, Path("1/a")):
        with pytest.raises(ValueError, match="path"):
            cairn.exists(path)  # type: ignore[arg-type]


def test_a_step_that_lacks_writers_or_was_left_behind_does_not_exist(node: Node, job: str) -> None:
    c = cairn.connect(job, rank=0, world_size=2, attempt=1)
    save(c, 1, a=b"1")
    assert not cairn.exists("1/a") and not cairn.exists(f"cairn://{job}/1")
    c.close()
    with cairn.connect(job, attempt=2) as lone:
        save(lone, 1, a=b"1")
        save(lone, 2, a=b"2")
    with cairn.connect(job, attempt=3) as back:
        back.resume(1)
        save(back, 3, a=b"3")
        assert cairn.exists("1/a") and cairn.exists("3/a") and not cairn.exists("2/a")
        assert cairn.exists("2/a", attempt=2) and not cairn.exists("2/a", attempt=3)


def test_without_a_daemon_a_question_says_what_can_answer(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAIRN_SOCKET", str(tmp_path / "nobody"))
    monkeypatch.setattr(cairn.connection._native, "DEFAULT_TIMEOUT_S", 0.3)
    monkeypatch.setattr(
        cairn.api, "Options", lambda **given: cairn.connection.Options(**{**given, "timeout": 0.3})
    )
    path = f"cairn://{job}/1/a"
    for ask in (
        lambda: cairn.latest(job),
        lambda: cairn.exists(path),
        lambda: cairn.ls(),
        lambda: cairn.status(),
        lambda: cairn.load(path),
    ):
        with pytest.raises(cairn.Unavailable, match="nobody.*CAIRN_STORAGE"):
            ask()


# --- connecting ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("job", 3, "a str"),
        ("job", b"j", "a str"),
        ("rank", "0", "an integer"),
        ("rank", True, "an integer"),
        ("rank", 1.0, "an integer"),
        ("rank", 2**40, "2\\^31"),
        ("world_size", "2", "an integer"),
        ("attempt", "7", "an integer"),
        ("attempt", 2**70, "2\\^63"),
        ("socket", 3, "a str or an os.PathLike"),
        ("local_writers", 1.5, "an integer"),
        ("timeout", "3", "a number of seconds"),
        ("timeout", None, "a number of seconds"),
        ("timeout", True, "a number of seconds"),
        ("copy_threads", "2", "an integer"),
        ("copy_threads", 2**40, "2\\^31"),
        ("takes_fds", 1, "True or False"),
        ("fence", "yes", "True or False"),
        ("policy", {"mode": "every"}, "a cairn.JobPolicy"),
    ],
)
def test_connect_names_the_argument_and_the_type_wanted(
    field: str, value: Any, wanted: str
) -> None:
    with pytest.raises(cairn.InvalidArgument, match=f"^{field}: .*{wanted}") as error:
        cairn.connect(**{"job": "j", "socket": "/nowhere", field: value})
    assert isinstance(error.value, ValueError)


def test_connect_takes_what_stands_for_a_number_or_a_path(node: Node, job: str) -> None:
    np = pytest.importorskip("numpy")
    c = cairn.connect(job, rank=np.int64(0), world_size=np.int32(1), socket=Path(node.socket))
    assert (c.rank, c.world_size, c.socket) == (0, 1, node.socket)


def made_with(monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> dict[str, Any]:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(cairn.connection._native, "Session", lambda **options: made.append(options))
    cairn.connect("j", **arguments)
    cairn.api._current = None
    return made[0]


@pytest.mark.parametrize(
    ("run", "restart", "sent"),
    [
        ("run-7", "3", ("run-7", 3)),
        ("run-7", "0", ("run-7", 0)),
        ("run-7", None, ("", -1)),
        (None, "3", ("", -1)),
        ("", "3", ("", -1)),
        ("run-7", "often", ("", -1)),
        ("run-7", "-1", ("", -1)),
        ("run-7", "9" * 12, ("", -1)),
        ("none", "1", ("", -1)),  # torchrun's for a run that was given no id: everybody's
        ("r" * 257, "1", ("", -1)),  # more than a daemon takes
    ],
)
def test_the_launchers_run_is_told_where_it_tells_both(
    run: str | None, restart: str | None, sent: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in (("RUN_ID", run), ("RESTART_COUNT", restart)):
        monkeypatch.delenv(f"TORCHELASTIC_{variable}", raising=False)
        if value is not None:
            monkeypatch.setenv(f"TORCHELASTIC_{variable}", value)
    made = made_with(monkeypatch)
    assert (made["run"], made["restart"]) == sent


def test_fence_is_said_only_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made_with(monkeypatch)["fence"] is False
    assert made_with(monkeypatch, fence=True)["fence"] is True


# --- what a person is told -------------------------------------------------------------------------------


class Broken:
    """A session that fails as it is told."""

    socket = "/made/up"

    def __init__(self) -> None:
        self.error: cairn.Error | None = None

    def begin_step(self, *_arguments: Any) -> Broken:
        return self

    def commit(self, _notes: dict[str, str]) -> tuple[str, bool]:
        if self.error is not None:
            raise self.error
        return "digest", False

    bytes_written = 17
    revision = 0

    def drop(self) -> None:
        pass

    abort = close = drop


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def session() -> Broken:
    return Broken()


@pytest.fixture
def c(session: Broken, clock: Clock) -> cairn.Connection:
    connection = cairn.Connection(cairn.connection.Options("told", 1, 4, 7))
    connection._native = session  # type: ignore[assignment]
    connection._warnings = notices.Repeated(clock)
    return connection


def attempt_step(c: cairn.Connection, step: int) -> list[str]:
    """The Cairn warnings of one step."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with c.step(step):
            pass
    return [str(w.message) for w in warned if w.category is cairn.CairnWarning]


def test_a_warning_comes_again_after_a_while_with_how_many_there_were(
    c: cairn.Connection, session: Broken, clock: Clock
) -> None:
    session.error = cairn.Full("the budget has 3 bytes")
    (first,) = attempt_step(c, 0)
    assert "step 0" in first and "3 bytes" in first and "more since" not in first
    for step in range(1, 38):
        clock.now += 10
        assert attempt_step(c, step) == []
    clock.now = 1000.0 + notices.WARN_AGAIN_AFTER_S - 0.5
    session.error = cairn.Unavailable("gone")
    (other,) = attempt_step(c, 38)  # of another kind at once
    assert "gone" in other
    session.error = cairn.Full("the budget has 4 bytes")
    clock.now += 0.5
    (again,) = attempt_step(c, 39)
    assert "step 39" in again and "4 bytes" in again and "37 more since" in again
    clock.now += notices.WARN_AGAIN_AFTER_S
    (third,) = attempt_step(c, 40)
    assert "more since" not in third
    assert c.failures == {"Full": 40, "Unavailable": 1}


def test_each_failure_is_a_log_record_and_so_is_saving_again(
    c: cairn.Connection, session: Broken, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cairn")
    attempt_step(c, 0)
    assert caplog.records == []  # all is well
    session.error = cairn.Unavailable("lost the daemon at /made/up")
    for step in (1, 2):
        attempt_step(c, step)
    session.error = cairn.Superseded("superseded by 8")
    with pytest.raises(cairn.Superseded):
        attempt_step(c, 3)
    session.error = None
    for step in (4, 5):
        attempt_step(c, step)
    assert [(r.name, r.levelname) for r in caplog.records] == [
        ("cairn", "WARNING"),
        ("cairn", "WARNING"),
        ("cairn", "ERROR"),
        ("cairn", "INFO"),
    ]
    said = [r.getMessage() for r in caplog.records]
    assert "step 2 of job told" in said[1] and "lost the daemon" in said[1]
    assert "superseded by 8" in said[2]
    assert "saved again, with step 4; 2 before were not" in said[3]


def test_a_save_that_raises_is_logged(
    node: Node, job: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cairn")
    cairn.save(b"", f"cairn://{job}/1/a")
    assert caplog.records == []
    with pytest.raises(cairn.FailedPrecondition):
        cairn.save(b"", f"cairn://{job}/1/b")
    (record,) = caplog.records
    assert record.levelname == "ERROR" and "step 1" in record.getMessage()


def test_a_program_without_logging_sees_the_warnings_alone() -> None:
    code = (
        "import logging, cairn\n"
        "logging.getLogger('cairn').error('not for standard error')\n"
        "logging.basicConfig()\n"
        "logging.getLogger('cairn').error('for whom asks')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=True,
    )
    assert "for whom asks" in done.stderr and "not for" not in done.stderr


def test_reprs_say_which_one_it_is_and_how_it_stands(c: cairn.Connection, session: Broken) -> None:
    assert repr(c) == "<cairn.Connection job='told' rank 1 of 4 attempt=7 open>"
    step = c.step(5)
    begin = "<cairn.Step 5 job='told' rank 1 of 4 attempt=7 "
    assert repr(step) == begin + "not entered>"
    with step:
        assert repr(step) == begin + "open, 17 bytes written>"
    assert repr(step) == begin + "committed, other writers have not yet>"
    step.complete = True
    assert repr(step) == begin + "complete>"
    with pytest.raises(KeyError), c.step(5) as step:
        raise KeyError
    assert repr(step) == begin + "discarded>"
    session.error = cairn.Full("3 bytes")
    with pytest.warns(cairn.CairnWarning), c.step(5) as step:
        pass
    assert repr(step) == begin + "not saved: Full: 3 bytes>"
    assert "alone" in repr(c.step(5, writers=1))
    c.close()
    assert repr(c).endswith("attempt=7 closed>")
    reader = cairn.Connection(cairn.connection.Options("told", -1, 0, 0))
    assert repr(reader) == "<cairn.Connection job='told' reads only not opened yet>"
    checkpoint = cairn.Checkpoint("told", 5, 7, 0, 2, "d", "memory", c)
    assert repr(checkpoint) == (
        "<cairn.Checkpoint job='told' step=5 attempt=7 revision=0 of 2 writers, in memory when found>"
    )
