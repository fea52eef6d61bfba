"""What a DCP load reads: straight into plain tensors, through torch into others, and all of it verified."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cairn
import cairn.dcp
import pytest
import torch
import torch.distributed.checkpoint as stock
from cairn import dcp_reads, tensor_archives
from node import MIB, Node
from patience import patient
from torch.distributed.checkpoint import CheckpointException, DefaultLoadPlanner

State = dict[str, Any]


@pytest.fixture(params=["first", "again"], autouse=True)
def shapes(request: pytest.FixtureRequest) -> None:
    """Also as in a process that has read nothing yet."""
    if request.param == "first":
        tensor_archives._shapes.clear()


@pytest.fixture
def through_torch(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tensors that torch was asked to read."""
    names: list[str] = []
    read = dcp_reads._tensor_in

    def noted(region: Any, name: str) -> torch.Tensor:
        names.append(name)
        return read(region, name)

    monkeypatch.setattr(dcp_reads, "_tensor_in", noted)
    return names


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel()).view(shape).to(dtype)


def to_storage(c: cairn.Connection, step: int) -> None:
    """The step is in storage, and nowhere else."""
    c.persist(step)
    c.wait(step, timeout=patient(60))
    c._session().remove(c.job, step, True, True)


def same(into: State, state: State) -> None:
    for name, value in state.items():
        assert into[name].equal(value), name


# --- every layout -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [False, True], ids=["memory", "storage"])
def test_plain_tensors_of_any_layout_go_straight(
    c: cairn.Connection, through_torch: list[str], stored: bool
) -> None:
    large = numbers(1300, 1100)  # more than a block
    state = {
        "whole": large,
        "transposed": large + 1,
        "saved_transposed": (large + 2).t(),
        "strided": large + 3,
        "channels_last": numbers(4, 5, 6, 7),
        "view": numbers(9, 9, dtype=torch.bfloat16),
        "scalar": numbers(1)[0],
    }
    cairn.dcp.save(state, c, 1)
    if stored:
        to_storage(c, 1)
    room = torch.zeros(20, 20, dtype=torch.bfloat16)
    into = {
        "whole": torch.zeros(1300, 1100),
        "transposed": torch.zeros(1100, 1300).t(),
        "saved_transposed": torch.zeros(1100, 1300),
        "strided": torch.zeros(2600, 2200)[::2, 1::2],
        "channels_last": torch.zeros(4, 5, 6, 7).to(memory_format=torch.channels_last),
        "view": room[3:12, 4:13],
        "scalar": torch.zeros(()),
    }
    cairn.dcp.load(into, c)
    same(into, state)
    assert through_torch == []
    assert room.count_nonzero() == 80  # and nothing beside it


class Cuts(DefaultLoadPlanner):
    """Asks for each tensor in cuts, as ranks ask for the shards of others."""

    def create_local_plan(self) -> Any:
        plan = super().create_local_plan()
        cut = []
        for item in plan.items:
            rows, columns = item.lengths
            for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):
                begin = torch.Size((row * (rows // 3), column * (columns // 2)))
                end = (rows if row else rows // 3, columns if column else columns // 2)
                length = torch.Size(b - a for a, b in zip(begin, end, strict=True))
                cut.append(
                    type(item)(item.type, item.dest_index, begin, item.storage_index, begin, length)
                )
        return type(plan)(cut, plan.storage_data, plan.planner_data)


def test_cuts_of_rows_and_columns_are_put_together(
    c: cairn.Connection, through_torch: list[str]
) -> None:
    state = {f"w{i}": numbers(700 + i, 1201) + i for i in range(4)}
    cairn.dcp.save(state, c, 1)
    into = {name: torch.zeros_like(value) for name, value in state.items()}
    cairn.dcp.load(into, c, planner=Cuts())
    same(into, state)
    assert through_torch == []


def test_what_is_not_plain_goes_through_torch(
    c: cairn.Connection, through_torch: list[str]
) -> None:
    state = {"plain": numbers(50), "double": numbers(50), "n": 7}
    cairn.dcp.save(state, c, 1)
    into = {"plain": torch.zeros(50), "double": torch.zeros(50, dtype=torch.float64), "n": 0}
    cairn.dcp.load(into, c, planner=DefaultLoadPlanner())
    assert through_torch == ["double"]
    assert into["double"].equal(state["double"].double()) and into["n"] == 7
    with pytest.raises(CheckpointException, match="single memory location"):
        cairn.dcp.load({"plain": torch.zeros(1).expand(50)}, c)


def test_in_chunks_the_same_comes(node: Node, c: cairn.Connection) -> None:
    state = {"a": numbers(1300, 1100), "b": numbers(3), "n": 7}
    cairn.dcp.save(state, c, 1)
    with cairn.connect(job=c.job, rank=-1, socket=node.socket, takes_fds=False) as far:
        into = {"a": torch.zeros(1300, 1100), "b": torch.zeros(3), "n": 0}
        cairn.dcp.load(into, far)
    same({"a": into["a"], "b": into["b"]}, {"a": state["a"], "b": state["b"]})
    assert into["n"] == 7


def test_whole_archives_are_read_a_few_at_a_time(
    c: cairn.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dcp_reads, "_WHOLE_BYTES", 5000)
    state = {f"w{i}": numbers(500) + i for i in range(20)}
    cairn.dcp.save(state, c, 1)
    into = {name: torch.zeros(500, dtype=torch.float64) for name in state}
    cairn.dcp.load(into, c, planner=DefaultLoadPlanner())
    same(into, {name: value.double() for name, value in state.items()})


# --- as stock does ----------------------------------------------------------------------------------


def test_of_names_that_share_memory_the_one_that_counts_is_stocks(
    c: cairn.Connection, node: Node
) -> None:
    state = {f"w{i}": torch.full((600_000,), float(i)) for i in range(6)}
    cairn.dcp.save(state, c, 1)
    c.persist(1)
    c.wait(1, timeout=patient(60))

    def tied() -> State:
        one, two = torch.zeros(600_000), torch.zeros(900_000)
        return {
            "w4": one,
            "w2": one,
            "w5": one,
            "w0": two[:600_000],
            "w1": two[300_000:],
            "w3": torch.zeros(600_000),
        }

    ours, theirs = tied(), tied()
    cairn.dcp.load(ours, c)
    stock.load(theirs, storage_reader=stock.FileSystemReader(node.storage / c.job / "1"))
    same(ours, theirs)


def test_autograd_is_told(c: cairn.Connection) -> None:
    cairn.dcp.save({"w": numbers(9)}, c, 1)
    weight = torch.nn.Parameter(torch.zeros(9))
    loss = (weight * weight).sum()
    cairn.dcp.load({"w": weight}, c)
    assert weight.equal(numbers(9))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        plain = torch.zeros(9)
    cairn.dcp.load({"w": plain}, c)
    assert plain.equal(numbers(9))


# --- bytes that are bad -----------------------------------------------------------------------------


@contextlib.contextmanager
def bytes_of(path: Path) -> Iterator[mmap.mmap]:
    descriptor = os.open(path, os.O_RDWR)
    try:
        with mmap.mmap(descriptor, 0) as view:
            yield view
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("what", ["element", "pickle", "directory"])
def test_a_flipped_bit_in_storage_is_found(c: cairn.Connection, node: Node, what: str) -> None:
    state = {"a": numbers(1200, 1000), "b": numbers(1200, 1000) + 1, "c": numbers(1200, 1000) + 2}
    cairn.dcp.save(state, c, 1)
    to_storage(c, 1)
    with bytes_of(node.storage / c.job / "1" / "__0_0.distcp") as view:
        at = {
            "element": 9 * MIB // 2,
            "pickle": view.rfind(b"FloatStorage"),
            "directory": view.rfind(b"PK\x01\x02") + 42,
        }[what]
        view[at] ^= 1
    bad = {"element": "a", "pickle": "c", "directory": "c"}[what]
    into = {name: torch.zeros(1200, 1000) for name in state}
    with pytest.raises(CheckpointException, match="does not match its checksum|no good copy"):
        cairn.dcp.load({bad: into[bad], "b": into["b"]}, c)
    if what != "element":
        cairn.dcp.load({"a": into["a"]}, c)  # whose blocks are good
        assert into["a"].equal(state["a"])


def flip_in_memory(content: bytes, then: bytes) -> None:
    """A bit of the last byte of the first `then` behind `content`, in a slab that this process wrote."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd" not in line or "rw-s" not in line:
            continue
        begin, end = (int(word, 16) for word in line.split()[0].split("-"))
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(begin)
            found = memory.read(end - begin)
            at = found.find(content)
            if at >= 0:
                at = found.index(then, at + len(content)) + len(then) - 1
                memory.seek(begin + at)
                memory.write(bytes([found[at] ^ 1]))
                return
    raise AssertionError("no slab has it")


def test_a_flipped_bit_in_memory_is_found_where_it_is_wanted(c: cairn.Connection) -> None:
    state = {"a": numbers(1200, 1000), "b": torch.rand(1200, 1000)}
    cairn.dcp.save(state, c, 1)
    row = state["b"][600].numpy().tobytes()
    flip_in_memory(row[:64], row[64:65])
    into = {name: torch.zeros(1200, 1000) for name in state}
    with pytest.raises(CheckpointException, match="does not match its checksum|no good copy"):
        cairn.dcp.load(into, c)


def test_where_the_elements_are_counts_once_it_is_verified(
    c: cairn.Connection, through_torch: list[str]
) -> None:
    """Strides are bad in memory and good in storage: what was read by the bad ones is read anew."""
    columns = 1001 + int(c.job[1:]) % 15_000 * 2
    state = {"w": numbers(3, columns)}
    cairn.dcp.save(state, c, 1)
    c.persist(1)
    c.wait(1, timeout=patient(60))
    # The size (3, columns) and the strides (columns, 1) as torch pickles them: a row becomes one shorter.
    low, high = columns.to_bytes(2, "little")
    flip_in_memory(bytes([ord("K"), 3, ord("M"), low, high]), bytes([ord("M"), low]))
    into = {"w": torch.zeros(3, columns)}
    cairn.dcp.load(into, c)
    same(into, state)
    assert through_torch == ["w"]
