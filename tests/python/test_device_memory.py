"""Saves of tensors that lie on a device. The device is the host's own, whose memory a stream gives; torch
believes that these tensors are on the CPU, so which of them are the device's is said here."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import cairn
import pytest
import torch
from cairn import _native, device_memory, torch_format
from cairn.weights import publish, stream
from node import MIB, Node
from patience import patient, until

Weights = dict[str, torch.Tensor]


@pytest.fixture(params=["descriptors", "chunks"])
def c(node: Node, request: pytest.FixtureRequest) -> Iterator[cairn.Connection]:
    job = re.sub(r"[^A-Za-z0-9._-]", "-", request.node.name)
    connection = cairn.connect(
        job=f"{job}-{os.getpid()}", timeout=patient(20), takes_fds=request.param == "descriptors"
    )
    with contextlib.closing(connection):
        yield connection


class Device:
    """The host's device, instead of torch's."""

    def __init__(self) -> None:
        self.addresses: set[int] = set()
        self.sources: list[int] = []

    def source(self, _device: Any, address: int) -> _native.OnDevice | None:
        if address not in self.addresses:
            return None
        self.sources.append(address)
        return _native.OnDevice(_native.HOST_DEVICE, address, 0)

    def bring(self, c: cairn.Connection, state: Weights) -> Weights:
        """The same tensors, on the device."""
        publish(c, 1, state)
        there = dict(stream(c, 1, "cpu"))
        self.addresses |= {tensor.data_ptr() for tensor in there.values()}
        return there


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    monkeypatch.setattr(device_memory, "source", made.source)
    monkeypatch.setattr(device_memory, "in_use", lambda: True)
    return made


def state() -> Weights:
    return {
        "large": torch.randn(1500, 1024),  # more than a block
        "odd": torch.randint(0, 255, (77777,), dtype=torch.uint8),
        "small": torch.randn(3).to(torch.bfloat16),
    }


def same(came: Weights, wanted: Weights) -> None:
    assert came.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert came[name].dtype == tensor.dtype and torch.equal(came[name], tensor), name


def test_what_is_published_comes_from_the_device(c: cairn.Connection, device: Device) -> None:
    wanted = state()
    there = device.bring(c, wanted)
    on_host = {"on the host": torch.arange(1000)}
    assert publish(c, 2, there | on_host).complete
    assert len(device.sources) == 3
    same(dict(stream(c, 2, "cpu")), wanted | on_host)


def test_what_is_saved_comes_from_the_device(c: cairn.Connection, device: Device) -> None:
    wanted = state()
    there = device.bring(c, wanted)
    held = {"model": there, "row": there["large"][7], "lr": 0.1, "host": torch.arange(300_000)}
    with c.step(2) as step:
        step.save(held, "state")
    assert step.ok
    assert len(device.sources) == 3, "a view has its tensor's storage"
    came = c.load("2/state")
    same(came["model"], wanted)
    assert torch.equal(came["row"], wanted["large"][7])
    assert torch.equal(came["host"], torch.arange(300_000)) and came["lr"] == 0.1
    assert came["row"].storage().data_ptr() == came["model"]["large"].storage().data_ptr()


def test_every_record_has_a_true_crc32(c: cairn.Connection, device: Device) -> None:
    there = device.bring(c, state())
    with c.step(2) as step:
        step.save(there, "state")
    assert device.sources
    with c.file("2/state") as path:
        same(torch.load(path), there)
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None


def test_nothing_is_brought_to_the_host_first(c: cairn.Connection, device: Device) -> None:
    payload = torch_format.encode(device.bring(c, state()))
    assert payload.records is not None
    there = [record for record in payload.records if isinstance(record[1], _native.OnDevice)]
    assert len(there) == 3


def test_what_is_no_memory_of_the_device_is_refused(c: cairn.Connection) -> None:
    class Wrong:
        def write_to(self, writer: Any, name: str) -> None:
            writer.write(name, "raw", [(_native.OnDevice(_native.HOST_DEVICE, 4096, 0), 100)])

    step = c.step(5, strict=True)
    with pytest.raises(ValueError, match="not of one allocation"), step:
        step._put(Wrong(), "wrong")  # type: ignore[arg-type]


def test_where_there_is_no_such_gpu_torch_copies(caplog: pytest.LogCaptureFixture) -> None:
    if cairn.gpu.available():
        pytest.skip("there is a GPU")
    device_memory._problem.cache_clear()
    caplog.set_level(logging.INFO)
    for _ in range(3):
        assert device_memory.source(SimpleNamespace(type="cuda", index=0), 4096) is None
    assert device_memory.source(torch.device("cpu"), 4096) is None
    said = [
        record for record in caplog.records if "by way of this process's memory" in record.message
    ]
    assert len(said) == 1


# Saves what lies on the device, step after step. The device's memory comes from another job, so that this
# one has no consumer.
WRITER = """
    import sys, torch, cairn
    from cairn import _native, device_memory
    from cairn.weights import publish, stream

    source = cairn.connect(job=sys.argv[1] + "-source", timeout=20)
    publish(source, 1, {"w": torch.zeros(1 << 20)})
    there = dict(stream(source, 1, "cpu"))
    here = there["w"].data_ptr()
    device_memory.source = lambda _, address: (
        _native.OnDevice(_native.HOST_DEVICE, address, 0) if address == here else None
    )
    c = cairn.connect(job=sys.argv[1], timeout=20)
    for step in range(1, 1_000_000):
        there["w"].fill_(step)
        assert publish(c, step, there).complete
        print(step, flush=True)
"""


def test_a_killed_writers_slabs_are_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device may have them for longer than their mapping: the next process's bytes are its own."""
    node = Node(budget=64 * MIB).start()
    monkeypatch.setenv("CAIRN_SOCKET", node.socket)
    try:
        writer = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITER), "killed"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        with cairn.connect(job="killed", timeout=patient(20)) as c:

            def count(name: str) -> int:
                found: int = c.status()["counters"].get(name, 0)
                return found

            while count("standing_lends") < 3:  # one is the source's, which stays
                assert writer.stdout.readline(), "the writer ended"
            last = int(writer.stdout.readline())
            writer.kill()
            writer.wait()
            until("its slabs are condemned", lambda: count("slabs_condemned") >= 3)
            # What was committed stays what it is.
            newest = c.latest().step
            assert newest >= last
            assert torch.equal(dict(stream(c, newest, "cpu"))["w"], torch.full((1 << 20,), newest))
            for step in range(newest + 1, newest + 30):  # until the memory is full
                assert publish(c, step, {"w": torch.full((1 << 20,), -float(step))}).complete
                came = dict(stream(c, step, "cpu"))["w"]
                assert torch.equal(came, torch.full((1 << 20,), -float(step)))
                if count("slabs_condemned_destroyed") >= 2:
                    break
            assert count("slabs_condemned_destroyed") >= 2
    finally:
        node.remove()
