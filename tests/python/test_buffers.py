"""Objects that the program fills in place: `Step.buffer`, with a real daemon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator

import cairn
import numpy as np
import pytest
import torch
from node import MIB, Node
from patience import patient

LENGTH = 9 * MIB + 3  # three blocks


@pytest.fixture(params=[True, False], ids=["descriptors", "chunks"])
def c(node: Node, job: str, request: pytest.FixtureRequest) -> Iterator[cairn.Connection]:
    with cairn.connect(job, takes_fds=request.param) as connection:
        yield connection


def content(length: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, length, dtype=np.uint8)


def filled(s: cairn.Step, name: str, data: np.ndarray) -> np.ndarray:
    array = np.frombuffer(s.buffer(name, data.nbytes), np.uint8)
    array[:] = data
    return array


def with_numpy(buffer: object, data: np.ndarray) -> object:
    array = np.frombuffer(buffer, np.uint8)
    array[:] = data
    return array


def with_torch(buffer: object, data: np.ndarray) -> object:
    tensor = torch.frombuffer(buffer, dtype=torch.uint8)
    tensor.copy_(torch.from_numpy(data))
    return tensor


def with_a_memoryview(buffer: object, data: np.ndarray) -> object:
    view = memoryview(buffer)
    view[:] = data
    return view


FILLS = [with_numpy, with_torch, with_a_memoryview]


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("length", [1, 4097, LENGTH])
def test_what_is_filled_is_what_is_loaded(
    c: cairn.Connection, fill: Callable[[object, np.ndarray], object], length: int
) -> None:
    data = content(length, 1)
    with c.step(1) as s:
        buffer = s.buffer("a", length)
        assert len(buffer) == length and not memoryview(buffer).readonly
        kept = fill(buffer, data)  # still there when the step ends
        assert s.bytes_written == 0
    assert s.ok and s.complete
    assert c.load("1/a") == data.tobytes()  # every block verified
    info = c.stat(1, "a")
    assert (info.name, info.kind, info.length) == ("a", "raw", length)
    del kept


def test_an_empty_one(c: cairn.Connection) -> None:
    with c.step(1) as s:
        assert len(memoryview(s.buffer("a", 0))) == 0
    assert s.ok and c.load("1/a") == b""


def test_several_beside_what_is_saved(c: cairn.Connection) -> None:
    """Other threads fill, one is sealed meanwhile, and the step's own thread goes on saving."""
    data = [content(LENGTH, seed) for seed in range(3)]
    with c.step(1) as s:
        buffers = [s.buffer(f"o{i}", LENGTH) for i in range(3)]
        filling = [
            threading.Thread(target=with_numpy, args=(buffers[i], data[i])) for i in range(3)
        ]
        filling[0].start()
        filling[0].join()
        for thread in filling[1:]:
            thread.start()
        s.seal("o0")
        assert s.bytes_written == LENGTH
        s.save(torch.arange(5), "t.pt")
        for thread in filling[1:]:
            thread.join()
    assert s.ok
    for i in range(3):
        assert c.load(f"1/o{i}") == data[i].tobytes()
    assert torch.equal(c.load("1/t.pt"), torch.arange(5))


@pytest.mark.parametrize("fill", FILLS)
def test_one_that_is_kept_does_not_reach_what_was_saved(
    c: cairn.Connection, fill: Callable[[object, np.ndarray], object]
) -> None:
    """As by a program that asks for its buffers once and fills them at every step."""
    kept: list[object] = []
    for step in range(6):
        data = content(LENGTH, step)
        with c.step(step) as s:
            kept.append(fill(s.buffer("a", LENGTH), data))
            for array in kept[:-1]:
                memoryview(array if not isinstance(array, torch.Tensor) else array.numpy())[:] = (
                    content(LENGTH, 100)
                )
            s.seal("a")
            with_a_memoryview(np.asarray(kept[-1]), content(LENGTH, 101))
        assert s.ok
        with_a_memoryview(np.asarray(kept[-1]), content(LENGTH, 102))
        assert c.load(f"{step}/a") == data.tobytes()


def test_an_exception_discards(c: cairn.Connection) -> None:
    with c.step(1) as s:
        filled(s, "a", content(LENGTH, 1))
    with pytest.raises(KeyError), c.step(2) as s:
        array = filled(s, "a", content(LENGTH, 2))
        raise KeyError
    array[:] = content(LENGTH, 3)
    assert c.latest().step == 1
    assert c.load("1/a") == content(LENGTH, 1).tobytes()
    with pytest.raises(cairn.NotFound):
        c.load("2/a")


def test_a_step_that_was_forgotten(c: cairn.Connection) -> None:
    s = c.step(1).begin()
    array = filled(s, "a", content(LENGTH, 1))
    del s
    array[:] = content(LENGTH, 2)
    with c.step(2) as s:
        filled(s, "a", content(LENGTH, 3))
    array[:] = content(LENGTH, 4)
    assert c.load("2/a") == content(LENGTH, 3).tobytes()


def test_mistakes(c: cairn.Connection) -> None:
    s = c.step(1)
    with pytest.raises(cairn.FailedPrecondition, match=r"buffer\(\) outside the `with`"):
        s.buffer("a", 1)
    with s:
        for nbytes, says in (
            (-1, "nbytes: -1 is not in 0"),
            (2**43 + 1, "nbytes: 8796093022209 is not in 0"),
            (1.5, "nbytes: 1.5 is of type float"),
            (True, "nbytes: True is of type bool"),
            ("1", "nbytes: '1' is of type str"),
        ):
            with pytest.raises(ValueError, match=says):
                s.buffer("a", nbytes)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="name"):
            s.buffer("../a", 1)
        assert s.buffer("a", np.int64(3)) is not None
    assert s.ok
    with pytest.raises(cairn.FailedPrecondition, match=r"buffer\(\) after the `with`"):
        s.buffer("b", 1)
    with pytest.raises(cairn.FailedPrecondition, match=r"seal\(\) after the `with`"):
        s.seal("a")
    for mistake, says in (
        (lambda s: s.buffer("a", 1), "name: a is already in step"),
        (lambda s: s.save(b"x", "a"), "name: a is already in step"),
        (lambda s: s.seal("b"), "name: b is not reserved in step"),
    ):
        with pytest.raises((ValueError, FileExistsError), match=says), c.step(2) as s:
            s.buffer("a", 1)
            mistake(s)
        assert not s.ok


def test_no_room_is_no_reason_to_stop(own_node: Node, job: str) -> None:
    """What is filled then is memory that costs next to nothing, and nothing is saved."""
    with cairn.connect(job, timeout=patient(5)) as c, warnings.catch_warnings():
        warnings.simplefilter("ignore", cairn.CairnWarning)
        length = 3 << 30
        with c.step(1) as s:
            array = np.frombuffer(s.buffer("a", length), np.uint8)
            assert not s.ok and isinstance(s.error, cairn.Full)
            before = resident()
            array[:: 1 << 12] = 7
            array[-1] = 8
            assert resident() - before < 64 * MIB
            filled(s, "b", content(LENGTH, 1))  # the same
            s.seal("b")
        assert c.failures == {"Full": 1}
        with c.step(2) as s:
            filled(s, "a", content(LENGTH, 2))
        assert s.ok and c.load("2/a") == content(LENGTH, 2).tobytes()
        with pytest.raises(cairn.Full), c.step(3, strict=True) as s:
            s.buffer("a", length)


def resident() -> int:
    """This process's own memory and shared memory that is there. Not files: its share of a library's grows
    when another process that has it ends."""
    with open("/proc/self/smaps_rollup") as file:
        lines = dict(line.split(":", 1) for line in file if ":" in line.split()[0])
    return sum(int(lines[key].split()[0]) << 10 for key in ("Pss_Anon", "Pss_Shmem"))


def test_a_buffer_that_is_kept_holds_no_room(own_node: Node, job: str) -> None:
    """In 32 MiB, steps of which three do not fit, each of another size, all of whose buffers are kept."""
    kept = []
    with cairn.connect(job) as c:
        for step in range(6):
            length = (10 + step % 3) * MIB
            with c.step(step, strict=True) as s:
                kept.append(filled(s, "a", content(length, step)))
            assert c.load(f"{step}/a") == content(length, step).tobytes()


@pytest.mark.parametrize("takes_fds", [True, False], ids=["descriptors", "chunks"])
def test_the_daemon_restarts_while_they_are_filled(
    own_node: Node, job: str, takes_fds: bool
) -> None:
    """With descriptors the session outlives the daemon, and so does the step."""
    with cairn.connect(job, takes_fds=takes_fds) as c:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cairn.CairnWarning)
            with c.step(1) as s:
                array = filled(s, "a", content(LENGTH, 1))
                own_node.kill_daemon()
                array[:5] = 7
        assert s.ok == takes_fds
        if s.ok:
            expected = content(LENGTH, 1)
            expected[:5] = 7
            assert c.load("1/a") == expected.tobytes()
        else:
            assert isinstance(s.error, cairn.Unavailable)
        with c.step(2) as s:
            filled(s, "a", content(LENGTH, 2))
        assert s.ok and c.load("2/a") == content(LENGTH, 2).tobytes()


def test_all_memory_is_lost_while_they_are_filled(own_node: Node, job: str) -> None:
    with cairn.connect(job) as c:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cairn.CairnWarning)
            with c.step(1) as s:
                array = filled(s, "a", content(LENGTH, 1))
                own_node.kill()
                own_node.start()
                array[:] = 7
        assert not s.ok and isinstance(s.error, cairn.Unavailable)
        array[:] = 8
        with c.step(2) as s:
            filled(s, "a", content(LENGTH, 2))
        assert s.ok and c.load("2/a") == content(LENGTH, 2).tobytes()


KILLED = """
import os, signal, sys
import cairn, numpy as np
c = cairn.connect(sys.argv[1])
with c.step(1) as s:
    np.frombuffer(s.buffer("a", 9 << 20), np.uint8)[:] = 1
with c.step(2) as s:
    np.frombuffer(s.buffer("a", 9 << 20), np.uint8)[:] = 2
    s.seal("a")
    np.frombuffer(s.buffer("b", 9 << 20), np.uint8)[:] = 3
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_writer_is_killed_while_it_fills(own_node: Node, job: str) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, job], timeout=patient(60), check=False)
    assert ended.returncode == -signal.SIGKILL
    with cairn.connect(job) as c:
        assert c.latest().step == 1
        assert c.load("1/a") == bytes([1]) * (9 * MIB)
        with c.step(2) as s:  # 32 MiB hold three of these: what the dead one had is free again
            filled(s, "a", content(9 * MIB, 1))
            filled(s, "b", content(9 * MIB, 2))
        assert s.ok and c.latest().step == 2


def test_a_forked_child_drops_its_copy(c: cairn.Connection) -> None:
    with c.step(1) as s:
        array = filled(s, "a", content(LENGTH, 1))
        child = os.fork()
        if child == 0:
            del array, s
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert s.ok and c.load("1/a") == content(LENGTH, 1).tobytes()
