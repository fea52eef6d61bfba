"""Weights: published as safetensors files, streamed into the host's device (docs/weights.md).

One file: each case publishes and streams in the few words at the top.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cairn
import pytest
import torch
from cairn.weights import Part, Shard, Slice, publish, stream
from in_call import in_call
from node import MIB, Node, held_port
from patience import patient, until
from stopped import stopped

Weights = dict[str, torch.Tensor]


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def model(layers: int = 12) -> Weights:
    """About 1.2 MiB per layer, out of order."""
    state: Weights = {"lm_head.weight": random(50, 256), "norm.weight": random(256)}
    for layer in reversed(range(layers)):
        state[f"layers.{layer}.w"] = random(512, 256)
        state[f"layers.{layer}.up"] = random(256, 1024, dtype=torch.bfloat16)
        state[f"layers.{layer}.norm"] = random(256)
    state["embed.weight"] = random(50, 256)
    state["steps"] = torch.tensor(7)
    state["nothing"] = torch.empty(0, 4)
    state["odd"] = torch.tensor([True, False, True])
    return state


def safetensors(head: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + data


def read_safetensors(path: str) -> tuple[dict[str, Any], bytes]:
    content = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def same(came: Weights, wanted: Weights) -> None:
    assert came.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert came[name].dtype == tensor.dtype and came[name].shape == tensor.shape, name
        assert torch.equal(came[name], tensor), name


@pytest.fixture
def c(node: Node, request: pytest.FixtureRequest) -> Iterator[cairn.Connection]:
    with contextlib.closing(connect(request)) as connection:
        yield connection


def connect(request: pytest.FixtureRequest, **arguments: Any) -> cairn.Connection:
    job = re.sub(r"[^A-Za-z0-9._-]", "-", request.node.name)
    return cairn.connect(job=f"{job}-{os.getpid()}", timeout=patient(20), **arguments)


# --- publishing and streaming


def test_what_was_published_streams(c: cairn.Connection) -> None:
    state = model()
    saved = publish(c, 3, state)
    assert saved.ok and saved.complete
    with stream(c, 3, "cpu", bucket_bytes=2 * MIB) as s:
        same(dict(s), state)
    assert s.stats["checked_on_host"] == s.stats["blocks"] > 3
    same(dict(stream(c, device="cpu")), state)  # the latest


def test_tensors_come_in_layer_order(c: cairn.Connection) -> None:
    publish(c, 1, model())
    names = [name for name, _ in stream(c, 1, "cpu", bucket_bytes=MIB)]
    assert names[0] == "embed.weight" and names[-2:] == ["norm.weight", "lm_head.weight"]
    layers = [int(name.split(".")[1]) for name in names if name.startswith("layers.")]
    assert layers == sorted(layers) and layers[-1] == 11
    assert names == [tensor.name for tensor in cairn.weights.index(c, 1)]


def test_views_are_valid_until_the_next_bucket(c: cairn.Connection) -> None:
    state = model()
    publish(c, 1, state)
    came = {}
    for bucket in stream(c, 1, "cpu", views=True, bucket_bytes=3 * MIB).buckets():
        came |= {name: tensor.clone() for name, tensor in bucket.items()}
    same(came, state)


def test_tensors_stay_when_stream_and_step_are_gone(c: cairn.Connection) -> None:
    state = model(4)
    publish(c, 1, state)
    came = dict(stream(c, 1, "cpu"))
    publish(c, 2, model(4))
    c.remove(1, force=True)
    gc.collect()
    same(came, state)
    with pytest.raises(cairn.NotFound):
        stream(c, 1, "cpu")


def test_a_module_is_published(c: cairn.Connection) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.BatchNorm1d(40))
    publish(c, 1, net)
    same(dict(stream(c, 1, "cpu")), dict(net.state_dict()))


def test_each_bucket_calls_back(c: cairn.Connection) -> None:
    publish(c, 1, model())
    seen: list[str] = []
    stream(c, 1, "cpu", bucket_bytes=MIB).for_each_bucket(seen.extend)
    assert len(seen) == len(model())


def test_a_strided_view_is_published_as_it_looks(c: cairn.Connection) -> None:
    wide = random(64, 64)
    state = {"t": wide.t(), "columns": wide[:, ::3], "expanded": wide[:1].expand(5, 64)}
    publish(c, 1, state)
    same(dict(stream(c, 1, "cpu")), state)


@pytest.mark.parametrize("world", [2, 3])
def test_parts_of_several_writers_are_one_tensor(
    node: Node, request: pytest.FixtureRequest, world: int
) -> None:
    whole = {"layers.0.w": random(30, 8), "layers.1.w": random(8, 30), "norm.weight": random(5)}
    with contextlib.ExitStack() as held:
        for rank in range(world):
            c = held.enter_context(
                contextlib.closing(connect(request, rank=rank, world_size=world, attempt=5))
            )
            rows = whole["layers.0.w"].chunk(world)[rank]
            columns = whole["layers.1.w"].chunk(world, 1)[rank]
            state: dict[str, Any] = {
                "layers.0.w": Part(rows, (30, 8), (rank * (-(-30 // world)), 0)),
                "layers.1.w": Part(columns, (8, 30), (0, rank * (-(-30 // world)))),
            }
            if rank == 0:
                state["norm.weight"] = whole["norm.weight"]
            assert publish(c, 1, state).ok
        same(dict(stream(c, 1, "cpu")), whole)
        halves = dict(stream(c, 1, "cpu", names="layers.*", slices=Shard(1, 2, dim=1)))
        same(halves, {n: whole[n].chunk(2, 1)[1] for n in ("layers.0.w", "layers.1.w")})


SHARDED = """
    import cairn, torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    whole = {"rows": torch.randn(7, 6), "columns": torch.randn(4, 9), "copied": torch.randn(5)}
    whole["plain"] = torch.randn(3)
    state = {
        "rows": distribute_tensor(whole["rows"], mesh, [Shard(0)]),
        "columns": distribute_tensor(whole["columns"], mesh, [Shard(1)]),
        "copied": distribute_tensor(whole["copied"], mesh, [Replicate()]),
        "plain": whole["plain"],
    }
    c = cairn.connect(job="sharded")
    assert cairn.weights.publish(c, 1, state).ok
    dist.barrier()
    came = dict(cairn.weights.stream(c, 1, "cpu"))
    assert came.keys() == whole.keys()
    assert all(torch.equal(came[name], whole[name]) for name in whole)
    dist.barrier()
"""


@pytest.mark.torch2
def test_dtensors_are_each_ranks_part(node: Node) -> None:
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(held_port()), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SHARDED)],
            env=os.environ | group | {"RANK": str(rank)},
        )
        for rank in range(2)
    ]
    try:
        assert [rank.wait(patient(240)) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()


def test_slices(c: cairn.Connection) -> None:
    state = {"a.w": random(64, 48), "a.b": random(64), "head": random(10, 48)}
    publish(c, 1, state)
    came = dict(
        stream(
            c,
            1,
            "cpu",
            slices={"*.w": Shard(3, 8, dim=-1), "a.*": Slice(2, 9), "head": Shard(1, 4)},
        )
    )
    same(
        came,
        {
            "a.w": state["a.w"][:, 18:24],
            "a.b": state["a.b"][2:9],
            "head": state["head"].chunk(4)[1],
        },
    )


def test_files_are_published_and_go_once_committed(c: cairn.Connection, tmp_path: Path) -> None:
    tensor = random(3, MIB)
    data = bytes(tensor.numpy().tobytes())
    content = safetensors(
        {"w": {"dtype": "F32", "shape": [3, MIB], "data_offsets": [0, len(data)]}}, data
    )
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    assert publish(c, 1, path).ok and path.exists()
    same(dict(stream(c, 1, "cpu")), {"w": tensor})
    assert publish(c, 2, [path], remove_files=True).ok
    assert not path.exists()
    same(dict(stream(c, 2, "cpu")), {"w": tensor})
    with cairn.weights.files(c, 2) as paths:
        assert Path(paths["model.safetensors"]).read_bytes() == content


def test_files_stay_until_all_writers_have_committed(
    node: Node, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    head = {"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors(head, b"abcd"))
    with contextlib.ExitStack() as held:
        first, second = (
            held.enter_context(
                contextlib.closing(connect(request, rank=rank, world_size=2, attempt=5))
            )
            for rank in range(2)
        )
        assert publish(first, 1, path, remove_files=True, timeout=patient(5)).ok and path.exists()
        other = threading.Thread(target=publish, args=(second, 2, {}))
        other.start()
        assert publish(first, 2, path, remove_files=True, timeout=patient(30)).ok
        other.join()
        assert not path.exists()
        # Once more: what was complete before is no reason.
        path.write_bytes(safetensors(head, b"efgh"))
        assert publish(first, 2, path, remove_files=True, timeout=patient(5)).ok and path.exists()


def test_files_stay_when_the_step_was_not_committed(c: cairn.Connection, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(
        safetensors({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}, b"abcd")
    )
    sparse = tmp_path / "big.safetensors"
    size = 600 * MIB  # more than the node has
    sparse.write_bytes(
        safetensors({"v": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}, b"")
    )
    os.truncate(sparse, sparse.stat().st_size + size)
    with pytest.warns(cairn.CairnWarning) as warned:
        saved = publish(c, 1, [path, sparse], remove_files=True)
    assert warned[0].filename == __file__, "it names the line that published"
    assert not saved.ok and path.exists() and sparse.exists()


def test_what_was_published_is_a_file_that_stock_tools_read(c: cairn.Connection) -> None:
    state = model(2)
    publish(c, 1, state)
    with cairn.weights.files(c, 1) as paths:
        head, data = read_safetensors(paths["model.safetensors"])
    assert head.pop("__metadata__") == {"format": "pt"}
    assert head.keys() == state.keys()
    at = 0
    for name, entry in head.items():
        begin, end = entry["data_offsets"]
        assert begin == at and entry["shape"] == list(state[name].shape)
        assert begin % max(1, state[name].element_size()) == 0
        raw = torch.frombuffer(bytearray(data[begin:end] or b"\0"), dtype=torch.uint8)
        if end > begin:
            assert torch.equal(raw.view(state[name].dtype).reshape(state[name].shape), state[name])
        at = end
    assert at == len(data)


# --- where the bytes come from


def evicted(node: Node, job: str, step: int) -> None:
    """Persisted, and no more in memory."""
    c = node.reader(job)
    c.persist(step)
    c.wait(step, "PERSISTED")
    c.remove(step, memory_only=True)
    assert not c.stat(step).facts.resident


def test_a_step_in_storage_streams_from_its_file(node: Node, c: cairn.Connection) -> None:
    state = model()
    publish(c, 1, state)
    evicted(node, c.job, 1)
    with stream(c, 1, "cpu", bucket_bytes=2 * MIB) as s:
        same(dict(s), state)
        assert s.stats["direct"] == 0
    assert not c.stat(1).facts.resident  # it needed no room in memory


def test_a_client_without_descriptors_streams_in_chunks(
    node: Node, c: cairn.Connection, request: pytest.FixtureRequest
) -> None:
    state = model(4)
    publish(c, 1, state)
    with contextlib.closing(connect(request, rank=-1, takes_fds=False)) as far:
        same(dict(stream(far, 1, "cpu")), state)


def stored_file(node: Node, c: cairn.Connection, step: int) -> Path:
    return node.storage / c.job / str(step) / "model.safetensors"


def test_a_file_cut_short_is_an_error_that_names_it(node: Node, c: cairn.Connection) -> None:
    publish(c, 1, model())
    evicted(node, c.job, 1)
    s = stream(c, 1, "cpu", bucket_bytes=MIB, ahead=0)
    tensors = iter(s)
    next(tensors)
    os.truncate(stored_file(node, c, 1), 5 * MIB)
    with pytest.raises(cairn.Corrupt, match="tensor .*layers"):
        dict(tensors)


def test_a_flipped_bit_in_the_only_copy_names_tensor_and_block(
    node: Node, c: cairn.Connection
) -> None:
    publish(c, 1, model())
    evicted(node, c.job, 1)
    with open(stored_file(node, c, 1), "r+b") as file:
        file.seek(9 * MIB)
        byte = file.read(1)
        file.seek(9 * MIB)
        file.write(bytes([byte[0] ^ 4]))
    with pytest.raises(cairn.Corrupt, match=r"tensor .*block 2"):
        dict(stream(c, 1, "cpu"))


# --- somebody dies


def test_a_daemon_killed_in_mid_stream_is_not_noticed(
    own_node: Node, request: pytest.FixtureRequest
) -> None:
    c = connect(request)
    state = model()
    publish(c, 1, state)
    tensors = iter(stream(c, 1, "cpu", bucket_bytes=MIB, ahead=0))
    came = dict([next(tensors)])
    own_node.kill_daemon()
    same(came | dict(tensors), state)
    same(dict(stream(c, 1, "cpu")), state)


CONSUMER = """
    import sys, time, cairn
    s = cairn.weights.stream(cairn.connect(job=sys.argv[1], rank=-1), 1, "cpu", bucket_bytes=1 << 20)
    next(iter(s))
    print("streaming", flush=True)
    time.sleep(60)
"""


def test_a_consumer_killed_in_mid_stream_leaves_nothing(
    own_node: Node, request: pytest.FixtureRequest
) -> None:
    """A node of 32 MiB: what the dead one read must go before the next versions have room."""
    c = connect(request)
    publish(c, 1, model())
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CONSUMER), c.job], stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() == b"streaming\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    for step in range(2, 7):
        assert publish(c, step, model()).ok
    same(dict(stream(c, 6, "cpu", names="steps")), {"steps": torch.tensor(7)})


def test_a_step_removed_in_mid_stream_streams_to_its_end(c: cairn.Connection) -> None:
    state = model()
    publish(c, 1, state)
    publish(c, 2, {"w": random(3)})
    tensors = iter(stream(c, 1, "cpu", bucket_bytes=MIB, ahead=0))
    came = dict([next(tensors)])
    c.remove(1, force=True)
    same(came | dict(tensors), state)


def test_who_stops_taking_stops_the_stream(c: cairn.Connection) -> None:
    publish(c, 1, model())
    before = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    for _ in range(20):
        next(iter(stream(c, 1, "cpu", bucket_bytes=MIB)))
    gc.collect()
    with stream(c, 1, "cpu") as s:
        pass
    with pytest.raises(StopIteration):
        next(iter(s))

    def are_few() -> bool:
        after = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
        # The lanes of the process's streams stay; they are no more than its processors.
        return after[0] <= before[0] + 2 and after[1] <= before[1] + 2 + (os.cpu_count() or 1)

    until("descriptors and threads are as few as before", are_few)


def test_threads_that_share_a_stream_are_refused_or_end(c: cairn.Connection) -> None:
    publish(c, 1, model())
    for _ in range(20):
        s = stream(c, 1, "cpu", bucket_bytes=MIB)
        errors: list[BaseException] = []

        def take(s: cairn.weights.Stream = s, errors: list[BaseException] = errors) -> None:
            try:
                for _ in s:
                    pass
            except BaseException as raised:
                errors.append(raised)

        takers = [threading.Thread(target=take) for _ in range(3)]
        for taker in takers:
            taker.start()
        s.close()
        for taker in takers:
            taker.join(patient(20))
            assert not taker.is_alive()
        assert all(isinstance(e, cairn.Error) for e in errors), errors


def test_an_iteration_goes_on_where_another_left_off(c: cairn.Connection) -> None:
    state = model()
    publish(c, 1, state)
    s = stream(c, 1, "cpu", bucket_bytes=MIB)
    came = dict([next(iter(s)), next(iter(s))])
    for bucket in s.buckets():
        came |= bucket
        break
    same(came | dict(s), state)


def test_objects_of_which_nothing_is_wanted_are_closed(c: cairn.Connection, tmp_path: Path) -> None:
    for i in range(30):
        (tmp_path / f"{i}.safetensors").write_bytes(
            safetensors({f"w{i}": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}, b"abcd")
        )
    publish(c, 1, sorted(tmp_path.iterdir()))
    before = len(os.listdir("/proc/self/fd"))
    with stream(c, 1, "cpu", names="w7") as s:
        assert len(os.listdir("/proc/self/fd")) <= before + 3
        assert bytes(dict(s)["w7"].tolist()) == b"abcd"


def test_views_that_are_kept_keep_no_stream(c: cairn.Connection) -> None:
    publish(c, 1, model())
    kept = []
    for _ in range(20):  # more than the process has lanes
        with stream(c, 1, "cpu", views=True, bucket_bytes=2 * MIB) as s:
            kept.append(next(iter(s))[1])
    assert all(view.shape == kept[0].shape for view in kept)


def test_a_publisher_knows_what_is_no_file(c: cairn.Connection, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(ValueError, match="is no regular file"):
            publish(c, 1, path)
    with pytest.raises(FileNotFoundError):
        publish(c, 1, tmp_path / "nothing")


def test_two_files_with_one_tensor_are_refused_before_anything_is_done(
    c: cairn.Connection, tmp_path: Path
) -> None:
    """Bug: they were published as a step that nobody can stream, and with remove_files removed."""
    content = safetensors({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}, b"abcd")
    both = [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]
    for path in both:
        path.write_bytes(content)
    with pytest.raises(ValueError, match="both have tensor 'w'"):
        publish(c, 1, both, remove_files=True)
    assert all(path.exists() for path in both)
    with pytest.raises(cairn.NotFound):
        c.latest()
    assert publish(c, 2, both[:1], remove_files=True).complete


def test_a_gpu_that_is_not_there_is_unavailable(c: cairn.Connection) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    publish(c, 1, {"w": random(3)})
    with pytest.raises(cairn.Unavailable, match="device: cuda:0: "):
        stream(c, 1, "cuda")


def test_a_forked_child_is_told_so(c: cairn.Connection) -> None:
    publish(c, 1, model(2))
    s = stream(c, 1, "cpu", bucket_bytes=MIB, ahead=0)
    tensors = iter(s)
    next(tensors)
    child = os.fork()
    if child == 0:
        try:
            for _ in s.buckets():
                pass
        except cairn.FailedPrecondition:
            os._exit(0)
        except BaseException:
            os._exit(2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    dict(tensors)


# --- consumers that wait


def test_a_consumer_waits_for_the_next_version(c: cairn.Connection) -> None:
    publish(c, 1, {"w": torch.tensor([1.0])})
    seen = c.latest()
    publish(c, 2, {"w": torch.tensor([2.0])})
    version = c.wait_after(seen, timeout=patient(5))
    assert version.step == 2
    same(dict(stream(c, version.step, "cpu")), {"w": torch.tensor([2.0])})


def test_a_consumer_follows_and_may_be_there_first(
    node: Node, c: cairn.Connection, request: pytest.FixtureRequest
) -> None:
    came: list[tuple[int, float]] = []
    with contextlib.closing(connect(request, rank=-1)) as reader:

        def consume() -> None:
            for version in cairn.weights.follow(reader, "cpu", names="w"):
                came.append((version.step, float(dict(version)["w"])))
                if version.step == 2:
                    return

        consumer = threading.Thread(target=consume)
        consumer.start()
        until("it waits for the first", lambda: in_call(consumer.ident or 0, "_in_slices"))
        for step in range(3):
            publish(c, step, {"w": torch.tensor(float(step))})
        consumer.join(patient(20))
        assert not consumer.is_alive()
    assert came[-1] == (2, 2.0) and all(step == value for step, value in came)
    versions = cairn.weights.follow(c, "cpu", timeout=patient(2))
    next(versions)
    with pytest.raises(cairn.Timeout):
        next(versions)


def test_a_version_that_cannot_be_streamed_ends_nothing_and_ordinary_steps_are_passed_over(
    c: cairn.Connection,
) -> None:
    """Bug: a version with a hole, or a step without weights, ended `follow` for good."""
    publish(c, 1, {"w": torch.tensor([1.0])})
    versions = cairn.weights.follow(c, "cpu", timeout=patient(5))
    assert next(versions).step == 1
    with c.step(2) as s:
        s.save(b"an optimizer's state", "optim")
    publish(c, 3, {"w": Part(torch.zeros(2), (4,), (0,))})
    with pytest.raises(ValueError, match='"w"'):
        next(versions)
    with c.step(4) as s:
        s.save(b"an optimizer's state", "optim")
    publish(c, 5, {"w": torch.tensor([5.0])})
    version = next(versions)
    assert version.step == 5
    same(dict(version), {"w": torch.tensor([5.0])})


def test_a_consumer_that_waits_in_vain_is_told_for_what(c: cairn.Connection) -> None:
    limit_s = patient(2)
    says = rf"job {re.escape(c.job)}: no version within {limit_s:g} s"
    with pytest.raises(cairn.Timeout, match=says):
        next(cairn.weights.follow(c, "cpu", timeout=limit_s))
    publish(c, 7, {"w": random(1)})
    versions = cairn.weights.follow(c, "cpu", timeout=limit_s)
    next(versions)
    with pytest.raises(cairn.Timeout, match=f"no version after step 7 within {limit_s:g} s"):
        next(versions)


def test_a_follower_takes_the_versions_of_its_own_job(c: cairn.Connection) -> None:
    """Bug: with job= it asked for its own job's latest, and waited for that."""
    for name, value in {"job": "other", "step": 3, "attempt": 1, "revision": 0}.items():
        with pytest.raises(ValueError, match=f"{name}: follow takes"):
            cairn.weights.follow(c, "cpu", **{name: value})


def test_who_waits_outlives_a_daemon_that_stands_still(
    node: Node, c: cairn.Connection, request: pytest.FixtureRequest
) -> None:
    """Bug: a wait is asked in pieces of a second, and one that was answered late ended it."""
    publish(c, 1, {"w": torch.tensor([1.0])})
    with contextlib.closing(connect(request, rank=-1)) as reader:
        versions = cairn.weights.follow(reader, "cpu", timeout=patient(60))
        assert next(versions).step == 1
        main = threading.get_ident()

        def stand_still() -> None:
            with stopped(node.daemon_pid()):
                until("it waits", lambda: in_call(main, "_in_slices"))
                time.sleep(4)  # longer than a piece of its wait, with what an answer may take
            publish(c, 2, {"w": torch.tensor([2.0])})

        still = threading.Thread(target=stand_still)
        still.start()
        try:
            assert next(versions).step == 2
        finally:
            still.join()


def test_to_wait_for_any_step_is_to_wait_after_minus_one(
    c: cairn.Connection, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(cairn.Timeout):
        c.wait_after(-1, timeout=0.1)
    publish(c, 0, {"w": torch.tensor(1)})
    assert c.wait_after(-1, timeout=patient(5)).step == 0


# --- bad input

Bad = Callable[[cairn.Connection], object]
BAD: dict[str, tuple[Bad, str]] = {
    "unknown name": (lambda c: stream(c, 1, "cpu", names=["v"]), r'"v" matches none of the 2'),
    "pattern": (lambda c: stream(c, 1, "cpu", names="x.*"), r'"x\.\*" matches none'),
    "no name": (lambda c: stream(c, 1, "cpu", names=[]), "names: nothing is named"),
    "cut of nothing": (
        lambda c: stream(c, 1, "cpu", slices={"v": Shard(0, 2)}),
        '"v" matches none',
    ),
    "slice": (lambda c: stream(c, 1, "cpu", slices={"w": Slice(0, 9)}), "slice 0:9 along dim 0"),
    "dim": (lambda c: stream(c, 1, "cpu", slices={"w": Shard(0, 2, 5)}), 'dim 5 of "w"'),
    "rank": (lambda c: stream(c, 1, "cpu", slices=Shard(4, 4)), "rank 4 of 4"),
    "negative rank": (lambda c: stream(c, 1, "cpu", slices=Shard(-1, 4)), "Shard.rank: -1"),
    "cut of another type": (lambda c: stream(c, 1, "cpu", slices=3), "slices: 3"),  # type: ignore[arg-type]
    "device": (lambda c: stream(c, 1, "moon"), "device: "),
    "other device": (lambda c: stream(c, 1, "meta"), "neither the host's nor a CUDA"),
    "bucket": (lambda c: stream(c, 1, "cpu", bucket_bytes=255), "bucket_bytes: 255"),
    "check": (lambda c: stream(c, 1, "cpu", check="twice"), "twice"),
    "no index": (lambda c: stream(c, 2, "cpu"), "/2 .* has no index of tensors.*1 raw"),
    "sparse": (
        lambda c: publish(c, 3, {"w": torch.eye(3).to_sparse()}),
        "tensor 'w': a tensor of layout torch.sparse_coo",
    ),
    "no tensor": (lambda c: publish(c, 3, {"w": 4}), "tensor 'w' is a int"),
    "complex": (
        lambda c: publish(c, 3, {"w": torch.zeros(1, dtype=torch.complex128)}),
        "complex128",
    ),
    "source": (lambda c: publish(c, 3, 7), "source: int"),
    "no file": (lambda c: publish(c, 3, []), "source: no file"),
    "remove": (lambda c: publish(c, 3, {}, remove_files=True), "remove_files"),
    "part beyond": (
        lambda c: publish(c, 3, {"w": Part(random(2, 4), (4, 4), (3, 0))}),
        r"tensor 'w': a part of \[2, 4\] at \[3, 0\] reaches beyond \[4, 4\] along dim 0",
    ),
    "part before": (
        lambda c: publish(c, 3, {"w": Part(random(2), (4,), (-1,))}),
        r"tensor 'w': a part of \[2\] at \[-1\]",
    ),
    "part of other dimensions": (
        lambda c: publish(c, 3, {"w": Part(random(2), (4, 4), (0, 0))}),
        "tensor 'w': a part of 1 dimensions",
    ),
    "name": (lambda c: publish(c, 3, {1: random(2)}), "tensor 1: its name is of type int"),
    "surrogate": (lambda c: publish(c, 3, {"\ud800": random(2)}), "its name is not UTF-8"),
    "meta": (
        lambda c: publish(c, 3, {"w": torch.empty(2, device="meta")}),
        "tensor 'w': a tensor without data, on the meta device",
    ),
    "names of bytes": (lambda c: stream(c, 1, "cpu", names=b"w"), "names: b'w' is of type bytes"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_named(c: cairn.Connection, what: str) -> None:
    publish(c, 1, {"w": random(8, 4), "b": random(4)})
    with c.step(2) as s:
        s.save(b"bytes", "notes")
    call, says = BAD[what]
    with pytest.raises(ValueError, match=says):
        call(c)
    same(dict(stream(c, 1, "cpu", names="b")), dict(stream(c, 1, "cpu", names=["b"])))


LIES: dict[str, bytes] = {
    "length": struct.pack("<Q", 1 << 40) + b"{}",
    "short": b"abc",
    "json": struct.pack("<Q", 2) + b"{]",
    "offsets": safetensors(
        {"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 8]}}, b"abcdefgh"
    ),
    "dtype": safetensors({"w": {"dtype": "U9", "shape": [4], "data_offsets": [0, 4]}}, b"abcd"),
    "overlap": safetensors(
        {
            "v": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
            "w": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]},
        },
        b"abcdef",
    ),
    "twice": struct.pack("<Q", 114)
    + b'{"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},'
    + b'"w":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}         '
    + b"abcdefgh",
}


@pytest.mark.parametrize("lie", LIES)
def test_a_file_whose_header_lies_is_not_published(
    c: cairn.Connection, tmp_path: Path, lie: str
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(LIES[lie])
    with pytest.raises(ValueError, match="model.safetensors: "):
        publish(c, 1, path)
    with pytest.raises(cairn.NotFound):
        c.stat(1)


def test_two_writers_with_one_range_are_refused(node: Node, request: pytest.FixtureRequest) -> None:
    with contextlib.ExitStack() as held:
        for rank in range(2):
            c = held.enter_context(
                contextlib.closing(connect(request, rank=rank, world_size=2, attempt=5))
            )
            publish(c, 1, {"w": random(4)})
        with pytest.raises(ValueError, match='00001-of.*00002-of.*both hold .0:4. of "w"'):
            stream(c, 1, "cpu")


def test_a_step_that_lacks_a_writer_is_not_streamed(
    node: Node, request: pytest.FixtureRequest
) -> None:
    with contextlib.ExitStack() as held:
        for rank in range(2):
            c = held.enter_context(
                contextlib.closing(connect(request, rank=rank, world_size=2, attempt=5))
            )
            if rank == 1:
                for read in (stream, cairn.weights.index):
                    with pytest.raises(cairn.NotFound, match="not complete"):
                        read(c, 1)
            publish(c, 1, {f"layers.{rank}": random(4)})
        assert len(dict(stream(c, 1, "cpu"))) == 2


def test_a_hole_is_refused_when_it_is_wanted(c: cairn.Connection) -> None:
    publish(c, 1, {"w": Part(random(4, 2), (8, 2), (0, 0)), "v": random(3)})
    assert [tensor.name for tensor in cairn.weights.index(c, 1)] == ["v", "w"]
    with pytest.raises(ValueError, match=r'"w" lacks \[4:8, 0:2\]'):
        stream(c, 1, "cpu")
    assert len(dict(stream(c, 1, "cpu", names="v"))) == 1


def test_without_a_gpu_it_says_why() -> None:
    available = cairn.gpu.available()
    if available:
        pytest.skip("there is a GPU")
    assert "libcuda" in available.reason or "device" in available.reason
    assert not available and "not available: " in str(available)
