"""Forks, other processes, groups of ranks, and daemons that die."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cairn
import kinds
import pytest
import torch
from node import Node
from patience import patient, until


def in_child(work: Callable[[], Any]) -> Any:
    """What `work` returns in a forked child, by way of JSON; its traceback is the failure's."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = {"result": work()}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = json.loads(pipe.read())
    assert os.waitpid(child, 0)[1] == 0
    assert "error" not in answer, answer["error"]
    return answer["result"]


def run_python(code: str, **environment: str) -> str:
    environment = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=patient(120),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def save_one(c: cairn.Connection, step: int, obj: Any) -> None:
    with c.step(step, strict=True) as s:
        s.save(obj, "obj.pt")


# --- fork ----------------------------------------------------------------------------------------------


def test_a_forked_child_is_told_and_may_connect_anew(node: Node, job: str) -> None:
    c = cairn.connect(job)
    save_one(c, 1, {"from": "parent"})

    def work() -> list[str]:
        said = []
        for call in (
            lambda: c.latest(),
            lambda: c.load("1/obj.pt"),
            lambda: cairn.load("1/obj.pt"),
            lambda: c.status(),
        ):
            try:
                call()
            except cairn.FailedPrecondition as error:
                assert isinstance(error, RuntimeError)
                said.append(str(error))
        mine = cairn.connect(job, rank=-1)
        assert mine.load("1/obj.pt") == {"from": "parent"}
        assert cairn.load("1/obj.pt") == {"from": "parent"}
        mine.close()
        return said

    said = in_child(work)
    assert len(said) == 4 and all("fork" in text for text in said)
    assert c.latest().step == 1  # and the parent's goes on
    save_one(c, 2, {"from": "parent"})


def test_a_step_open_across_a_fork_is_the_parents_alone(node: Node, job: str) -> None:
    c = cairn.connect(job)
    with c.step(1, strict=True) as s:
        s.save({"a": 1}, "a")

        def work() -> str:
            try:
                s.save({"b": 1}, "b")
            except cairn.Error as error:
                return str(error)
            return "saved"

        assert "fork" in in_child(work)
        s.save({"c": 1}, "c")
    assert sorted(o.name for o in c.ls(f"{job}/1").objects) == ["a", "c"]


def test_a_child_that_exits_ends_nothing_of_its_parents(node: Node, job: str) -> None:
    c = cairn.connect(job)
    save_one(c, 1, {"a": torch.arange(300_000)})
    mapped = c.load("1/obj.pt", mmap=True)
    child = os.fork()
    if child == 0:
        total = int(mapped["a"].numpy().sum())  # torch's own threads do not survive a fork
        c.close()
        os._exit(0 if total == 300_000 * 299_999 // 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert int(mapped["a"].sum()) == 300_000 * 299_999 // 2
    save_one(c, 2, {})
    assert c.latest().step == 2


def test_data_loader_workers_load_through_their_own_connections(node: Node, job: str) -> None:
    cairn.save(torch.arange(12), f"cairn://{job}/1/data.pt")

    class Data(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> torch.Tensor:
            return cairn.load(f"cairn://{job}/1/data.pt")[index]

    loader = torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2)
    assert torch.equal(torch.cat(list(loader)), torch.arange(12))


# --- other processes -----------------------------------------------------------------------------------


def test_what_one_process_saved_another_loads(node: Node, job: str) -> None:
    """The process may die; the bytes live on."""
    run_python(
        "import cairn, torch\n"
        f"cairn.save({{'w': torch.arange(1000)}}, 'cairn://{job}/1/model.pt')\n"
    )
    kinds.assert_same({"w": torch.arange(1000)}, cairn.load(f"cairn://{job}/1/model.pt"))


def test_a_pickled_connection_connects_where_it_is_used(
    node: Node, job: str, tmp_path: Path
) -> None:
    c = cairn.connect(job, attempt=5)
    save_one(c, 1, b"1")
    path = tmp_path / "connection"
    path.write_bytes(pickle.dumps(c))
    out = run_python(
        "import pickle, sys\n"
        f"c = pickle.load(open({str(path)!r}, 'rb'))\n"
        "print(c.job, c.attempt, c.load('1/obj.pt'), c.latest().step)\n"
    )
    assert out.split() == [job, "5", "b'1'", "1"]


def test_a_second_process_as_the_same_writer_is_refused(node: Node, job: str) -> None:
    c = cairn.connect(job, rank=0, world_size=2, attempt=5)
    save_one(c, 1, {})
    out = run_python(
        "import cairn\n"
        "try:\n"
        f"    c = cairn.connect({job!r}, rank=0, world_size=2, attempt=5)\n"
        "    with c.step(2) as s:\n"
        "        s.save(b'', 'a')\n"
        "except cairn.Error as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    assert out and "attempt" in out


def test_a_writer_killed_in_the_middle_leaves_the_step_before(node: Node, job: str) -> None:
    """R13, promise 3."""
    with cairn.connect(job) as c:  # ended: the next one waits for nobody
        save_one(c, 1, {"whole": True})
    code = (
        "import cairn, os, signal\n"
        f"c = cairn.connect({job!r})\n"
        "with c.step(2) as s:\n"
        "    s.save(bytes(4_000_000), 'half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=patient(60))
    assert done.returncode == -signal.SIGKILL
    reader = node.reader(job)
    assert reader.latest().step == 1
    assert reader.load("1/obj.pt") == {"whole": True}
    until("what the dead writer held came back", lambda: not reader.status()["writing_bytes"])


def test_a_copy_started_by_mistake_fences_no_one_alive(node: Node, job: str) -> None:
    c = cairn.connect(job)
    save_one(c, 1, {})
    out = run_python(
        "import cairn\n"
        f"c = cairn.connect({job!r}, timeout={patient(5)})\n"
        "try:\n"
        "    with c.step(2) as s:\n"
        "        s.save(b'', 'a')\n"
        "except cairn.FailedPrecondition as error:\n"
        "    print(error)\n"
    )
    assert f"pid {os.getpid()}" in out
    save_one(c, 2, {})


RANK_CODE = """
import json, os, sys
import torch, torch.distributed as dist
import cairn
rank = int(sys.argv[1]); world = int(sys.argv[2])
dist.init_process_group("gloo", init_method="file://" + sys.argv[3], rank=rank, world_size=world)
try:
    c = cairn.connect(sys.argv[4])
    first = cairn.distributed.agree(lambda: 41 + dist.get_rank())
    with c.step(1) as s:
        s.save(torch.full((1000,), rank), f"{rank}.pt")
    dist.barrier()
    latest = cairn.distributed.agree(c.latest, job=c.job)
    other = c.load(f"{latest.step}/{(rank + 1) % world}.pt")
    print(json.dumps([c.rank, c.world_size, c.attempt, s.ok, latest.step, int(other[0]), first]))
except cairn.Error as error:
    print(json.dumps([type(error).__name__, str(error)]))
dist.barrier()
dist.destroy_process_group()
"""


ATTEMPT_CODE = """
import json, sys
import torch.distributed as dist
import cairn
rank = int(sys.argv[1]); world = int(sys.argv[2])
dist.init_process_group("gloo", init_method="file://" + sys.argv[3], rank=rank, world_size=world)
try:
    print(json.dumps(cairn.connect(sys.argv[4]).attempt))
except cairn.Error as error:
    print(json.dumps([type(error).__name__, str(error)]))
dist.barrier()
dist.destroy_process_group()
"""


def run_ranks(
    world: int,
    tmp_path: Path,
    job: str,
    *,
    code: str = RANK_CODE,
    sockets: tuple[str, ...] = (),
    **environment: str,
) -> list[Any]:
    """What each rank says; `sockets`: each one's daemon."""
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                "-W",
                "ignore",
                "-c",
                code,
                str(rank),
                str(world),
                str(tmp_path / "rendezvous"),
                job,
            ],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                **({"CAIRN_SOCKET": sockets[rank]} if sockets else {}),
                **environment,
            },
        )
        for rank in range(world)
    ]
    return [json.loads(process.communicate(timeout=patient(120))[0]) for process in ranks]


def test_a_group_has_one_attempt(node: Node, job: str, tmp_path: Path) -> None:
    answers = run_ranks(2, tmp_path, job)
    attempt = answers[0][2]
    assert attempt > 0
    assert answers == [[0, 2, attempt, True, 1, 1, 41], [1, 2, attempt, True, 1, 0, 41]]
    # The next life of the job has a newer one.
    (tmp_path / "rendezvous").unlink(missing_ok=True)
    assert run_ranks(2, tmp_path, job)[1][2] > attempt


def test_a_groups_attempt_is_above_what_the_node_of_any_rank_knows(
    node: Node, own_node: Node, job: str, tmp_path: Path
) -> None:
    """A clock ran ahead on the node of rank 1, and what was saved there nobody else has heard of."""
    ahead = int(time.time() * 1000) + 600_000
    with cairn.connect(job, socket=own_node.socket, attempt=ahead) as c:
        save_one(c, 1, {})
    sockets = (node.socket, own_node.socket)
    attempts = run_ranks(2, tmp_path, job, code=ATTEMPT_CODE, sockets=sockets)
    assert attempts[0] == attempts[1] > ahead


def test_when_the_node_of_one_rank_cannot_choose_all_ranks_say_why(
    node: Node, job: str, tmp_path: Path
) -> None:
    sockets = (node.socket, str(tmp_path / "nobody"))
    said = run_ranks(2, tmp_path, job, code=ATTEMPT_CODE, sockets=sockets)
    assert [kind for kind, _ in said] == ["Unavailable", "Unavailable"]
    assert said[0][1].startswith("rank 1: ")


def test_when_rank_0_cannot_choose_all_ranks_say_why(job: str, tmp_path: Path) -> None:
    answers = run_ranks(2, tmp_path, job, CAIRN_SOCKET=str(tmp_path / "nobody"))
    assert [answer[0] for answer in answers] == ["Unavailable", "Unavailable"]
    assert answers[1][1].startswith("rank 0: ")


# --- daemons that die ----------------------------------------------------------------------------------


def test_a_killed_daemon_loses_nothing_and_clients_go_on(own_node: Node, job: str) -> None:
    """Promise 7, R15."""
    c = cairn.connect(job)
    obj = kinds.make("forty_layers")
    save_one(c, 1, obj)
    mapped = c.load("1/obj.pt", mmap=True)
    own_node.kill_daemon()
    kinds.assert_same(obj, mapped)
    kinds.assert_same(obj, c.load("1/obj.pt"))
    save_one(c, 2, obj)
    assert c.latest().step == 2 and c.failures == {}


def test_a_step_goes_on_across_a_killed_daemon(own_node: Node, job: str) -> None:
    c = cairn.connect(job)
    with c.step(1, strict=True) as s:
        s.save({"before": torch.arange(100_000)}, "a")
        own_node.kill_daemon()
        s.save({"after": torch.arange(100_000)}, "b")
    assert s.complete
    assert c.load("1/a")["before"][-1].item() == c.load("1/b")["after"][-1].item() == 99_999


def test_without_a_daemon_training_goes_on(own_node: Node, job: str) -> None:
    """Promise 4: an error, a bounded wait; never a hang, never the trainer's death."""
    c = cairn.connect(job, timeout=patient(3))
    save_one(c, 1, {})
    own_node.kill()
    begin = time.monotonic()
    with pytest.warns(cairn.CairnWarning, match="step 2"):
        with c.step(2) as s:
            s.save({}, "a")
    assert not s.ok and isinstance(s.error, (cairn.Unavailable, cairn.Timeout))
    assert sum(c.failures.values()) == 1
    assert time.monotonic() - begin < patient(30)
    with pytest.raises((cairn.Unavailable, cairn.Timeout)):
        c.load("1/obj.pt")
    with pytest.raises((cairn.Unavailable, cairn.Timeout)):
        cairn.save({}, "3/a")


def test_a_full_cache_is_said_and_training_goes_on(own_node: Node, job: str) -> None:
    """Promise 4 and 8: 48 MiB do not go into 32."""
    c = cairn.connect(job, timeout=patient(5))
    save_one(c, 1, {"small": 1})
    with pytest.warns(cairn.CairnWarning, match="Full") as warned:
        for _ in range(2):
            with c.step(2) as s:
                s.save(torch.zeros(12 << 20), "big")
            assert not s.ok and isinstance(s.error, cairn.Full)
    assert len(warned) == 1 and c.failures == {"Full": 2}
    with pytest.raises(cairn.Full), c.step(2, strict=True) as s:
        s.save(torch.zeros(12 << 20), "big")
    save_one(c, 3, {"small": 3})
    assert c.latest().step == 3


def test_closing_twice_and_using_it_afterwards(node: Node, job: str) -> None:
    with cairn.connect(job) as c:
        save_one(c, 1, {})
    c.close()
    with pytest.raises(cairn.FailedPrecondition, match="closed"):
        c.latest()
    assert cairn.current() is None
