"""DCP's async_save in a process of its own: AsyncCheckpointerType.PROCESS."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path
from typing import Any

import cairn
import cairn.dcp
import pytest
import torch
from cairn import child_memory
from node import MIB, Node
from patience import patient
from test_dcp import DTYPES, assert_same, bits
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

PRELUDE = r"""
import faulthandler, os, re, signal, sys, time, warnings
from patience import patient
from stopped import go_on, stop
faulthandler.dump_traceback_later(0.9 * patient(240), exit=True)
sys.path.insert(0, sys.argv[6])
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as stock
import torch.multiprocessing.reductions as reductions
from multiprocessing.reduction import ForkingPickler
from torch.distributed.checkpoint import _async_process_executor as executor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
import cairn, cairn.dcp
from process_planners import Breaks, Waits

rank, world, place, job, socket = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:6]
dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=world)
c = cairn.connect(job=job, rank=rank, world_size=world, socket=socket, timeout=patient(20))
mesh = init_device_mesh("cpu", (world,))
PROCESS = AsyncCheckpointerType.PROCESS

def stock_save(state, step, writer=None, **more):
    return stock.async_save(state, checkpoint_id=f"cairn://{job}/{step}", async_checkpointer_type=PROCESS,
                            storage_writer=writer or cairn.dcp.Writer(c), **more)

def our_save(state, step, **more):
    return cairn.dcp.async_save(state, c, step, async_checkpointer_type=PROCESS, **more)

def fails(done, *words):
    try:
        done.result()
    except BaseException as error:
        assert all(word in str(error) for word in words), error
        return error
    raise AssertionError("it was saved")

def child():
    return executor._CHECKPOINT_PROCESS._save_process.pid

def state(seed, megabytes=1):
    torch.manual_seed(seed)
    w = torch.randn(37, 12)
    tied = torch.nn.Parameter(torch.randn(5, 8))
    return {
        "w": distribute_tensor(w, mesh, [Shard(0)]),
        "model": {
            "columns": distribute_tensor(w, mesh, [Shard(1)]),
            "same": distribute_tensor(w, mesh, [Replicate()]),
        },
        "tied": tied, "also": [tied, torch.randn(4, 6).t(), torch.randn(8)[::2], 7],
        "half": torch.randn(9).bfloat16(), "bytes": torch.arange(9, dtype=torch.uint8),
        "none": torch.zeros(0, 3),
        "big": distribute_tensor(torch.randn(world, megabytes << 18), mesh, [Shard(0)]),
        "text": "words", "step": seed,
    }

def local(value):
    return value.to_local() if hasattr(value, "to_local") else value

def blank(value):
    if isinstance(value, dict):
        return {key: blank(item) for key, item in value.items()}
    if isinstance(value, list):
        return [blank(item) for item in value]
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value.detach())
    return None

def assert_same(a, b):
    assert isinstance(a, torch.Tensor) or type(a) is type(b), (a, b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a: assert_same(a[key], b[key])
    elif isinstance(a, list):
        for one, other in zip(a, b, strict=True): assert_same(one, other)
    elif isinstance(a, torch.Tensor):
        assert local(a).equal(local(b))
    else:
        assert a == b

def check(seed, step, megabytes=1):
    saved = state(seed, megabytes)
    into = blank(saved)
    assert cairn.dcp.load(into, c, step).step == step
    assert_same(saved, into)
"""


def run_ranks(
    world: int, script: str, job: str, node: Node, folder: Path, **environment: str
) -> None:
    """Each rank has DCP's process beside it."""
    end = "\ndist.barrier()\ndist.destroy_process_group()\nc.close()\nsys.stdout.flush()\n"
    first, _, rest = script.partition("\n")
    text = PRELUDE + first + "\n" + textwrap.dedent(rest) + end
    place = folder / f"meeting-{uuid.uuid4()}"
    arguments = (str(place), job, node.socket, str(Path(__file__).resolve().parent))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", text, str(rank), str(world), *arguments],
            stdout=(folder / f"rank{rank}").open("wb"),
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", **environment},
            start_new_session=True,
        )
        for rank in range(world)
    ]
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            for rank in ranks:
                rank.wait(timeout=patient(240))
    finally:
        for rank in ranks:  # with DCP's process
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)
    outputs = [(folder / f"rank{rank}").read_text() for rank in range(world)]
    assert [rank.poll() for rank in ranks] == [0] * world, "\n".join(outputs)


@pytest.mark.parametrize("world", [1, 2])
def test_the_process_saves_what_the_thread_saves(world: int, tmp_path: Path) -> None:
    """One after the other, in memory that holds three; no tensor goes through torch's shared memory."""
    node = Node(budget=200 * MIB).start()
    try:
        run_ranks(
            world,
            """
            def not_for_tensors(tensor):
                raise AssertionError("a tensor went to torch's shared memory")
            for kind in (torch.Tensor, torch.nn.Parameter):
                ForkingPickler.register(kind, not_for_tensors)
            def shared_memory():  # torch's: what these processes have mapped, and the names they left
                pids = [os.getpid(), child()]
                mapped = "".join(open(f"/proc/{pid}/maps").read() for pid in pids)
                left = [name for name in os.listdir("/dev/shm") if any(f"_{pid}_" in name for pid in pids)]
                return left + re.findall("/dev/shm/torch.*", mapped)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                for step in range(1, 5):
                    saved = state(step, 40 // world)
                    done = stock_save(saved, step)
                    saved["big"].to_local().zero_()  # it is copied
                    saved["model"]["same"].to_local().zero_()
                    metadata = done.result()
                    assert "model.columns" in metadata.state_dict_metadata
                    check(step, step, 40 // world)
            mine = [str(one.message) for one in said if issubclass(one.category, cairn.CairnWarning)]
            assert len(mine) == 1 and "plans before it copies" in mine[0], mine
            for step in range(5, 9):
                saved = state(step, 40 // world)
                done = our_save(saved, step)
                saved["big"].to_local().zero_()
                saved["model"]["same"].to_local().zero_()
                metadata = done.result()
                assert "model.columns" in metadata.state_dict_metadata and metadata.storage_data
                check(step, step, 40 // world)
            assert not shared_memory()
            # The same steps again, in the thread, in the process, and without one.
            our_save(state(1), 8).result()
            check(1, 8)
            cairn.dcp.async_save(state(2), c, 8).result()
            check(2, 8)
            # With `overlap`, and without collectives.
            saved = state(3)
            done = our_save(saved, 9, overlap=[saved["big"]])
            assert c.fence(timeout=patient(60))
            saved["big"].to_local().zero_()
            done.result()
            check(3, 9)
            our_save(state(4), 10, use_collectives=False).result()
            assert sorted(o.name for o in c.ls(f"{job}/10").objects if "metadata" in o.name) == [
                f"__{i}.metadata" for i in range(world)
            ]
            """,
            "same",
            node,
            tmp_path,
        )
    finally:
        node.remove()


@pytest.mark.parametrize("whose", ["stock", "our"])
def test_what_fails_on_one_rank_is_told_on_all_and_the_next_save_succeeds(
    tmp_path: Path, whose: str
) -> None:
    """In memory that holds two steps."""
    node = Node(budget=130 * MIB).start()
    try:
        run_ranks(
            2,
            f"save, ours = {whose}_save, {whose == 'our'}"
            """
            save(state(1, 25), 1).result()
            for where in ("plan", "global", "write"):
                fails(save(state(2, 25), 2, planner=Breaks(where)), "broken by design")
            # What cannot be pickled, on one rank: the others hear of it and do not wait for it.
            bad = state(2, 25)
            if rank == 1:
                bad["text"] = lambda: None
            fails(save(bad, 2), "pickle", "" if ours else "RANK 1")
            # It changed before it was copied, on rank 1.
            w = torch.nn.Parameter(torch.zeros(1 << 20))
            if ours:
                class Changes(Breaks):
                    def resolve_data(self, item):
                        if rank == 1:
                            w.data = torch.ones(3)
                        return super().resolve_data(item)
                done = save({"w": torch.zeros(3), f"w{rank}": w}, 2, planner=Changes(""), overlap=[w])
            else:
                send = executor._AsyncCheckpointProcess._send
                def changes_first(self, data):
                    if rank == 1:
                        w.data = torch.ones(3)
                    send(self, data)
                executor._AsyncCheckpointProcess._send = changes_first
                done = save({"w": w}, 2, cairn.dcp.Writer(c, overlap=[w]))
            fails(done, "changed while it was copied")
            if not ours:
                executor._AsyncCheckpointProcess._send = send
                # The Writer of one rank is given no step.
                writer = cairn.dcp.Writer(c, 9 if rank == 0 else None)
                kind = dict(async_checkpointer_type=PROCESS)
                fails(stock.async_save(state(2, 25), storage_writer=writer, **kind), "checkpoint_id")
            dist.barrier()
            assert c.latest().step == 1
            check(1, 1, 25)
            for step in (2, 3):
                save(state(step, 25), step).result()
                check(step, step, 25)
            """,
            "told",
            node,
            tmp_path,
        )
    finally:
        node.remove()


# One function: what it starts takes longer than what it tries.
def test_daemons_and_processes_that_die(tmp_path: Path) -> None:
    node = Node(budget=300 * MIB).start()
    try:
        run_ranks(
            1,
            f"""
            sys.path.insert(0, {str(Path(__file__).resolve().parents[1] / "python")!r})
            keeper = {node._keeper.pid if node._keeper else 0}

            def daemon():
                return int(open(f"/proc/{{keeper}}/task/{{keeper}}/children").read().split()[0])

            def kill_daemon():
                os.kill(daemon(), signal.SIGKILL)

            our_save(state(1), 1).result()

            # The daemon dies after this rank's part was copied and before the process takes it over.
            # Two deaths in a minute it takes without a pause.
            stop(child())
            done = our_save(state(2), 2)
            kill_daemon()
            go_on(child())
            done.result()
            check(2, 2)

            # It dies while the process writes.
            planner = Waits({str(tmp_path)!r})
            done = stock_save(state(4), 4, planner=planner)
            while not os.path.exists({str(tmp_path / "begun")!r}):
                time.sleep(0.01)
            kill_daemon()
            open({str(tmp_path / "may")!r}, "w").close()
            done.result()
            check(4, 4)

            # The process is killed: with a save of stock's while it writes, or with one of ours before it
            # has taken over what was copied.
            os.remove({str(tmp_path / "may")!r})
            os.remove({str(tmp_path / "begun")!r})
            done = stock_save(state(5), 5, planner=planner)
            while not os.path.exists({str(tmp_path / "begun")!r}):
                time.sleep(0.01)
            os.kill(child(), signal.SIGKILL)
            fails(done, "process is dead")
            fails(our_save(state(5), 5))  # DCP starts no other one
            while c.status()["writing_bytes"]:
                time.sleep(0.02)
            assert c.latest().step == 4
            cairn.dcp.async_save(state(6), c, 5).result()
            check(6, 5)
            executor._CHECKPOINT_PROCESS = None  # another one after all
            our_save(state(7), 5).result()
            check(7, 5)

            # No daemon runs where the Writer is unpickled.
            for save in (stock_save, our_save):
                stop(child())
                with cairn.connect(job, rank=0, world_size=1, attempt=c.attempt, timeout=patient(5)) as away:
                    if save is stock_save:
                        done = save(state(8), 8, cairn.dcp.Writer(away))
                    else:
                        done = cairn.dcp.async_save(state(8), away, 8, async_checkpointer_type=PROCESS)
                    os.rename(socket, socket + "-away")
                    go_on(child())
                    fails(done, "no daemon listens at", socket)
                    os.rename(socket + "-away", socket)
            our_save(state(9), 9).result()
            check(9, 9)
            """,
            "dies",
            node,
            tmp_path,
            CAIRN_SOCKET=node.socket,
        )
    finally:
        node.remove()


# --- what the child gets -------------------------------------------------------------------------------


def parcel(state: dict[str, Any], memories: child_memory.Memories) -> child_memory.Staged:
    return child_memory.Staged(
        state, child_memory.Parcel(state, memories, lambda: None, lambda: None)
    )


def arrive(staged: child_memory.Staged) -> tuple[dict[str, Any], child_memory.Arrived]:
    """As DCP unpickles and reads it in the child."""
    arrived_dict = pickle.loads(pickle.dumps(staged))
    arrived = arrived_dict._arrived
    return dict(arrived_dict.items()), arrived


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_arrives_bit_by_bit(dtype: torch.dtype) -> None:
    sent = {"w": bits(dtype, 33, 7), "scalar": bits(dtype), "none": bits(dtype, 0, 4)}
    found, _ = arrive(parcel(sent, child_memory.Memories()))
    for name, tensor in sent.items():
        assert found[name].stride() == tensor.stride()
        assert_same(found[name], tensor)


def test_tensors_of_all_kinds_arrive_and_what_is_one_stays_one() -> None:
    layer = torch.nn.Linear(3, 3)
    whole = torch.arange(60.0).view(5, 12)
    sent = {
        "p": layer.weight,
        "again": layer.weight,
        "cut": whole[1:4, ::2],
        "turned": whole.t(),
        "images": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "conj": torch.randn(4, dtype=torch.complex64).conj(),
        "wide": torch.ones(1).expand(6),
        "scalar": torch.tensor(5),
        "none": torch.zeros(0, 7),
        "leaf": torch.ones(3, requires_grad=True),
        "sparse": torch.eye(3).to_sparse(),
        "quantized": torch.quantize_per_tensor(torch.randn(5), 0.1, 0, torch.qint8),
        "nested": {"a": [(torch.ones(2), {"b": torch.zeros(1)})], "c": range(3)},
        "many": [torch.full((3,), float(i)) for i in range(1000)],
    }
    found, arrived = arrive(parcel(sent, child_memory.Memories()))
    arrived.check()
    assert found["p"] is found["again"] and isinstance(found["p"], torch.nn.Parameter)
    assert found["leaf"].requires_grad and found["p"].requires_grad
    assert found["images"].is_contiguous(memory_format=torch.channels_last)
    assert found["sparse"].to_dense().equal(torch.eye(3))
    assert found["quantized"].int_repr().equal(sent["quantized"].int_repr())
    assert found["nested"]["a"][0][0].equal(torch.ones(2)) and found["nested"]["c"] == range(3)
    for name in ("p", "cut", "turned", "images", "conj", "wide", "scalar", "none", "leaf"):
        assert found[name].equal(sent[name]), name
    assert all(one.equal(other) for one, other in zip(found["many"], sent["many"], strict=True))


def test_memory_is_used_again_when_the_child_has_done_with_it() -> None:
    memories = child_memory.Memories()
    first, arrived = arrive(parcel({"t": torch.ones(1000)}, memories))
    second, _ = arrive(parcel({"t": torch.zeros(1000)}, memories))
    assert first["t"].equal(torch.ones(1000))
    arrived.release()
    third, _ = arrive(parcel({"t": torch.full((1000,), 3.0)}, memories))
    assert first["t"].equal(third["t"])  # the same memory
    assert second["t"].equal(torch.zeros(1000)) and third["t"][0] == 3
    # Of a state that has become much smaller the memory is not kept.
    small, arrived = arrive(parcel({"t": torch.ones(1)}, memories))
    del first, second, third
    arrived.release()
    big, arrived = arrive(parcel({"t": torch.ones(1 << 20)}, memories))
    arrived.release()
    arrive(parcel({"t": torch.ones(1)}, memories))
    assert all(one.address.length < 1 << 20 for one in memories._all)


def test_what_fails_on_the_way_is_told_by_check_and_never_while_it_is_unpickled() -> None:
    found, arrived = arrive(parcel({"f": lambda: None}, child_memory.Memories()))
    assert found == {}
    with pytest.raises(cairn.Error, match="pickle"):
        arrived.check()
    # The parent has ended, or closed the memory: with another file at that number, and with none.
    memories = child_memory.Memories()
    content = pickle.dumps(parcel({"t": torch.ones(4)}, memories))
    address = memories._all[0].address
    del memories
    for other in (True, False):
        if other:
            fd = os.memfd_create("another")
            os.ftruncate(fd, address.length)
            if fd != address.fd:
                os.dup2(fd, address.fd)
                os.close(fd)
        else:
            os.close(address.fd)
        later = pickle.loads(content)
        arrived = later._arrived
        assert dict(later.items()) == {}
        with pytest.raises(cairn.FailedPrecondition, match="not there any more"):
            arrived.check()
    # Twice: a child has it.
    staged = parcel({"t": torch.ones(4)}, child_memory.Memories())
    arrive(staged)
    _, arrived = arrive(staged)
    with pytest.raises(cairn.FailedPrecondition, match="has it already"):
        arrived.check()


@pytest.mark.root
def test_another_user_cannot_open_the_memory(tmp_path: Path) -> None:
    memories = child_memory.Memories()
    content = pickle.dumps(parcel({"t": torch.ones(4)}, memories))
    path = tmp_path / "content"
    path.write_bytes(content)
    script = f"""
import os, pickle, sys
import torch, cairn
from cairn import child_memory
content = open({str(path)!r}, "rb").read()
os.setgroups([]); os.setgid(65534); os.setuid(65534)
later = pickle.loads(content)
arrived = later._arrived
assert dict(later.items()) == {{}}
try:
    arrived.check()
except cairn.FailedPrecondition as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=patient(120)
    )
    assert "Permission denied" in done.stdout, done.stdout + done.stderr


def test_a_process_needs_a_process_group(c: cairn.Connection) -> None:
    kind = AsyncCheckpointerType.PROCESS
    with pytest.raises(ValueError, match="async_checkpointer_type: .*PROCESS"):
        cairn.dcp.async_save({"w": torch.zeros(3)}, c, 1, async_checkpointer_type=kind)
