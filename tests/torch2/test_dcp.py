"""cairn.dcp against stock torch.distributed.checkpoint: the same state back, the same files in storage.

One file: each case saves one state and loads it, in the few words at the top.
"""

from __future__ import annotations

import gc
import os
import pickle
import threading
import warnings
import weakref
from pathlib import Path
from typing import Any

import cairn
import cairn.dcp
import pytest
import torch
import torch.distributed.checkpoint as stock
from cairn import torch_format
from cairn.dcp import Reader, Writer
from in_call import in_call, interrupted_in
from node import MIB, Node
from patience import patient, until
from torch.distributed.checkpoint import CheckpointException

State = dict[str, Any]


def model(seed: int = 1) -> State:
    torch.manual_seed(seed)
    net = torch.nn.Sequential(
        torch.nn.Linear(64, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 8)
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    net(torch.randn(4, 64)).sum().backward()
    optimizer.step()
    return {
        "net": net.state_dict(),
        "optim": optimizer.state_dict(),
        "step": seed,
        "words": ["a", seed],
    }


def blank(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return torch.full_like(state, 0) if not state.is_quantized else state
    if isinstance(state, dict):
        return {key: blank(value) for key, value in state.items()}
    if isinstance(state, list):
        return [blank(value) for value in state]
    return None if isinstance(state, str) else type(state)()


def assert_same(a: Any, b: Any) -> None:
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert (
            a.contiguous()
            .view(-1)
            .view(torch.uint8)
            .equal(b.contiguous().view(-1).view(torch.uint8))
            if (a.numel())
            else True
        )
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_same(one, other)
    else:
        assert a == b


def save(c: cairn.Connection, state: State, step: int) -> Any:
    return cairn.dcp.save(state, c, step)


# --- one process -------------------------------------------------------------------------------------


def test_a_model_and_its_optimizer_come_back(c: cairn.Connection) -> None:
    state = model()
    save(c, state, 3)
    into = blank(model(2))
    found = cairn.dcp.load(into, c)
    assert found.step == 3
    assert_same(into, state)


class Counter:
    """Stateful, as DCP calls it."""

    loaded: list[str] = []  # of all, in order

    def __init__(self, name: str, value: int) -> None:
        self.name, self.weight, self.value = name, torch.full((3,), value), value

    def state_dict(self) -> State:
        return {"weight": self.weight, "value": self.value}

    def load_state_dict(self, state: State) -> None:
        Counter.loaded.append(self.name)
        self.weight, self.value = state["weight"], state["value"]


@pytest.mark.parametrize("how", ["save", "async_save"])
def test_stateful_values_are_asked_and_others_replaced(c: cairn.Connection, how: str) -> None:
    """What stock does with the values of the outermost dictionary, which stock does not see."""

    def state(value: int) -> State:
        names = ("b", "a", "state_dict")
        return {name: Counter(name, value) for name in names} | {"step": value, "t": torch.ones(2)}

    if how == "save":
        save(c, state(5), 3)
    else:
        cairn.dcp.async_save(state(5), c, 3).result()
    into = state(0)
    into["t"].zero_()
    tensor = into["t"]
    Counter.loaded.clear()
    cairn.dcp.load(into, c)
    assert Counter.loaded == ["a", "b", "state_dict"], "on all ranks in the same order"
    assert all(into[name].value == 5 for name in Counter.loaded)
    assert all(into[name].weight.tolist() == [5, 5, 5] for name in Counter.loaded)
    assert into["step"] == 5
    assert into["t"] is tensor and tensor.tolist() == [1, 1]


class Taking(Counter):
    """Removes another value when it is loaded."""

    def __init__(self, name: str, of: State) -> None:
        super().__init__(name, 1)
        self.of = of

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.of.pop("z", None)


def test_keys_that_are_no_strings_and_values_that_go_meanwhile_are_as_with_stock(
    c: cairn.Connection, tmp_path: Path
) -> None:
    save(c, {1: torch.ones(2), 2: 5}, 3)
    stock.save({1: torch.ones(2), 2: 5}, storage_writer=stock.FileSystemWriter(tmp_path))
    ours: dict[Any, Any] = {1: torch.zeros(2), 2: 0}
    theirs: dict[Any, Any] = {1: torch.zeros(2), 2: 0}
    cairn.dcp.load(ours, c)
    stock.load(theirs, storage_reader=stock.FileSystemReader(tmp_path))
    assert_same(ours, theirs)

    save(c, {"a": Counter("a", 4), "z": torch.ones(2)}, 4)
    into: State = {"z": torch.zeros(2)}
    into["a"] = Taking("a", into)
    cairn.dcp.load(into, c)
    assert into["a"].value == 4 and "z" not in into


def test_a_step_is_a_folder_that_the_stock_reader_reads(c: cairn.Connection, node: Node) -> None:
    state = model()
    save(c, state, 3)
    c.persist(3)
    c.wait(3, timeout=patient(60))
    into = blank(model(2))
    stock.load(into, storage_reader=stock.FileSystemReader(node.storage / c.job / "3"))
    assert_same(into, state)


def test_what_the_stock_writer_writes_is_in_it_and_an_index(
    c: cairn.Connection, tmp_path: Path
) -> None:
    """The plans, the names and the properties of every tensor are those of stock DCP."""
    state = model()
    ours = save(c, state, 3)
    theirs = stock.save(state, storage_writer=stock.FileSystemWriter(tmp_path))
    assert ours.state_dict_metadata == theirs.state_dict_metadata
    assert ours.planner_data == theirs.planner_data
    assert ours.storage_data.keys() == theirs.storage_data.keys()
    assert {i.relative_path for i in ours.storage_data.values()} == {"__0_0.distcp"}
    assert c.checkpoint(3).names() == [".metadata", ".metadata.index", "__0_0.distcp"]


def test_stock_functions_take_the_step_from_the_checkpoint_id(c: cairn.Connection) -> None:
    state = model()
    writer, reader = Writer(c, alone=True), Reader(c)
    for step, name in ((7, f"cairn://{c.job}/7"), (8, "8")):
        stock.save(state, checkpoint_id=name, storage_writer=writer)
        assert c.latest().step == step
    for name in (f"cairn://{c.job}/7", "8", f"cairn://{c.job}/latest", "latest"):
        into = blank(model(2))
        stock.load(into, checkpoint_id=name, storage_reader=reader)
        assert_same(into, state)


def test_a_reader_stays_with_what_it_found(c: cairn.Connection) -> None:
    first, second = model(1), model(2)
    save(c, first, 3)
    reader = Reader(c, c.resume_latest())
    save(c, second, 4)
    into = blank(model(3))
    stock.load(into, storage_reader=reader)
    assert_same(into, first)


def test_what_is_saved_anew_after_it_was_found_is_not_mixed(c: cairn.Connection) -> None:
    first, second = model(1), model(2)
    save(c, first, 3)
    found = c.resume_latest()
    assert found is not None
    save(c, second, 3)
    into = blank(model(3))
    try:
        cairn.dcp.load(into, c, found)
    except CheckpointException as error:
        assert "is no more" in str(error)
    else:
        assert_same(into, first)
    into = blank(model(3))
    assert cairn.dcp.load(into, c, 3).revision == 1
    assert_same(into, second)


def test_only_what_is_wanted_is_read(c: cairn.Connection) -> None:
    state = model()
    save(c, state, 3)
    into = {"net": {"0.weight": torch.zeros(32, 64)}}
    cairn.dcp.load(into, c)
    assert into["net"]["0.weight"].equal(state["net"]["0.weight"])


# --- every kind of tensor ----------------------------------------------------------------------------

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.float32, torch.float64, torch.bfloat16),
    *(torch.complex32, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    torch.float8_e8m0fnu,
    torch.float4_e2m1fn_x2,
]


def bits(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Random bytes as that dtype; of booleans only valid ones."""
    count = torch.Size(shape).numel()
    if dtype == torch.bool:
        return torch.randint(0, 2, shape).bool()
    item = torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 256, (max(count * item, 0),), dtype=torch.uint8)
    return raw.view(dtype).view(shape) if count else torch.empty(shape, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_bit_by_bit(
    c: cairn.Connection, node: Node, dtype: torch.dtype
) -> None:
    state = {"w": bits(dtype, 33, 7), "scalar": bits(dtype), "none": bits(dtype, 0, 4)}
    save(c, state, 1)
    into = {key: torch.empty_like(value) for key, value in state.items()}
    cairn.dcp.load(into, c)
    for key, value in state.items():
        assert_same(into[key], value)
    c.persist(1)
    c.wait(1, timeout=patient(60))
    again = {key: torch.empty_like(value) for key, value in state.items()}
    stock.load(again, storage_reader=stock.FileSystemReader(node.storage / c.job / "1"))
    for key, value in state.items():
        assert_same(again[key], value)


def test_views_and_strides_and_shared_storages(c: cairn.Connection, node: Node) -> None:
    base = torch.arange(5 * 6 * 7 * 8, dtype=torch.float32)
    whole = base.view(5, 6, 7, 8)
    state = {
        "row": base[100:200],
        "transposed": whole.permute(3, 1, 0, 2),
        "channels_last": whole.clone().to(memory_format=torch.channels_last),
        "strided": base[::3],
        "inner": whole[1:3, :, 2:5],
        "expanded": base[:4].expand(6, 4),
        "one": whole[:, :, 3:4, 0:1],
        "tied": whole,
        "tied_too": whole,
        "negative": torch.view_as_complex(base[:10].view(5, 2)).conj(),
        "parameter": torch.nn.Parameter(base[:12].view(3, 4)),
        "scalar": base[7],
        "empty": base[:0],
    }
    save(c, state, 1)
    for reader in (Reader(c, 1), None):
        if reader is None:
            c.persist(1)
            c.wait(1, timeout=patient(60))
            reader = stock.FileSystemReader(node.storage / c.job / "1")
        into = {key: torch.zeros(value.shape, dtype=value.dtype) for key, value in state.items()}
        stock.load(into, storage_reader=reader)
        for key, value in state.items():
            assert_same(into[key], value.detach().resolve_conj().contiguous())


def test_ten_thousand_tiny_tensors_and_odd_names(c: cairn.Connection) -> None:
    names = ["a.b", "a/b", "a b", "ä\U0001f600", "..", "a\nb", "x" * 300]
    state: State = {name: torch.full((3,), i) for i, name in enumerate(names)}
    state.update({f"t{i}": torch.tensor([i, -i]) for i in range(10_000)})
    save(c, state, 1)
    into = blank(state)
    cairn.dcp.load(into, c)
    assert_same(into, state)


# --- bad input and failures --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("checkpoint_id", "says"),
    [
        ("latest", "has a number"),
        ("cairn://other/3", "of job other"),
        ("cairn://JOB/3/name", "names an object"),
        ("/tmp/3", "is not cairn://JOB/STEP or STEP"),
        ("3/x", "is not cairn://JOB/STEP or STEP"),
        (Path("/tmp/3"), "is a file's"),
        (Path("cairn://JOB/3"), "drops a slash"),
        ("cairn://JOB/-1", "step"),
        (None, "give one"),
    ],
)
def test_what_is_no_step_to_write_is_refused(
    c: cairn.Connection, checkpoint_id: Any, says: str
) -> None:
    if isinstance(checkpoint_id, str):
        checkpoint_id = checkpoint_id.replace("JOB", c.job)
    with pytest.raises((ValueError, CheckpointException), match=says):
        stock.save(model(), checkpoint_id=checkpoint_id, storage_writer=Writer(c, alone=True))
    with pytest.raises(cairn.NotFound):
        c.latest()


def test_one_that_saves_alone_as_one_of_several_is_told(node: Node) -> None:
    """Else its step would lack the others for good, and nobody would say so."""
    state = {"w": torch.ones(3)}
    with cairn.connect(job="one-of-two", rank=0, world_size=2, attempt=5, socket=node.socket) as c:
        with pytest.raises(stock.CheckpointException, match="1 save, and the Writer is one of 2"):
            stock.save(state, checkpoint_id="1", storage_writer=cairn.dcp.Writer(c), no_dist=True)
        alone = cairn.dcp.Writer(c, alone=True)
        stock.save(state, checkpoint_id="2", storage_writer=alone, no_dist=True)
        assert c.latest().step == 2


def test_a_failure_while_writing_leaves_the_step_absent(c: cairn.Connection) -> None:
    save(c, model(1), 1)

    class Breaks(stock.DefaultSavePlanner):
        def resolve_data(self, item: Any) -> Any:
            raise RuntimeError("the planner broke")

    with pytest.raises(CheckpointException, match="the planner broke"):
        cairn.dcp.save(model(2), c, 2, planner=Breaks())
    assert c.latest().step == 1
    save(c, model(2), 2)
    assert c.latest().step == 2
    assert c.checkpoint(2).revision == 1  # the failed one was the first


class Interrupts(stock.DefaultSavePlanner):
    """Does something once, when the third tensor is about to be written."""

    def __init__(self, what: Any) -> None:
        super().__init__()
        self.what = what
        self.resolved = 0

    def resolve_data(self, item: Any) -> Any:
        self.resolved += 1
        if self.resolved == 3:
            self.what()
        return super().resolve_data(item)


def test_a_daemon_that_is_killed_while_a_save_is_written_costs_nothing(
    c: cairn.Connection, node: Node
) -> None:
    save(c, model(1), 1)
    state = model(2)
    cairn.dcp.save(state, c, 2, planner=Interrupts(node.kill_daemon))
    into = blank(model(3))
    assert cairn.dcp.load(into, c).step == 2
    assert_same(into, state)


def test_a_daemon_that_is_killed_before_the_metadata_is_written_costs_nothing(
    c: cairn.Connection, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(c, model(1), 1)
    state, finish = model(2), Writer.finish

    def killed_before(self: Writer, *arguments: Any, **more: Any) -> None:
        node.kill_daemon()
        finish(self, *arguments, **more)

    monkeypatch.setattr(Writer, "finish", killed_before)
    save(c, state, 2)
    into = blank(model(3))
    assert cairn.dcp.load(into, c).step == 2
    assert_same(into, state)


def test_memory_that_is_full_fails_the_save_and_leaves_the_one_before() -> None:
    node = Node(budget=64 * MIB, storage=False).start()
    try:
        with cairn.connect(
            job="full", rank=0, world_size=1, socket=node.socket, timeout=patient(5)
        ) as c:
            state = {"w": torch.arange(5 << 20, dtype=torch.int32)}
            save(c, state, 1)
            with pytest.raises(CheckpointException, match="memory: .* MiB wanted"):
                save(c, {"w": torch.zeros(16 << 20, dtype=torch.int32)}, 2)
            into = {"w": torch.zeros(5 << 20, dtype=torch.int32)}
            assert cairn.dcp.load(into, c).step == 1
            assert into["w"].equal(state["w"])
            save(c, state, 3)
            assert c.latest().step == 3
    finally:
        node.remove()


def test_a_step_without_metadata_and_foreign_metadata_are_named(c: cairn.Connection) -> None:
    with c.step(1) as s:
        s.save(b"x", "other")
    with pytest.raises(CheckpointException, match="has no object '.metadata'"):
        cairn.dcp.load({"w": torch.zeros(1)}, c)
    with c.step(2) as s:
        s.save(b"not a pickle", ".metadata")
    with pytest.raises(CheckpointException, match="is no metadata of DCP"):
        cairn.dcp.load({"w": torch.zeros(1)}, c)
    with c.step(3) as s:
        s.save(pickle.dumps({"w": 1}), ".metadata")
    with pytest.raises(CheckpointException, match="holds dict"):
        cairn.dcp.load({"w": torch.zeros(1)}, c)


def test_a_checkpoint_of_another_model_is_described(c: cairn.Connection) -> None:
    save(c, {"a": torch.zeros(3), "b": torch.zeros(2, 2), "c": torch.zeros(4), "n": 1}, 1)
    into = {
        "a": torch.zeros(3, dtype=torch.float64),
        "b": torch.zeros(2, 3),
        "c": torch.zeros(4),
        **{f"new{i}": torch.zeros(1) for i in range(10)},
    }
    with pytest.raises(CheckpointException) as raised:
        cairn.dcp.load(into, c)
    said = str(raised.value)
    assert "10 not in the checkpoint: 'new0', 'new1'" in said and "and 2 more" in said
    assert "1 of another shape: 'b' saved as (2, 2), wanted as (2, 3)" in said
    assert "1 of another dtype: 'a' saved as torch.float32, wanted as torch.float64" in said
    with pytest.raises(CheckpointException, match="DefaultLoadPlanner"):
        cairn.dcp.load({"a": torch.ones(3, dtype=torch.float64)}, c)
    converted = {"a": torch.ones(3, dtype=torch.float64)}
    cairn.dcp.load(converted, c, planner=stock.DefaultLoadPlanner())
    assert converted["a"].equal(torch.zeros(3, dtype=torch.float64))


def test_nothing_saved_is_not_found(c: cairn.Connection) -> None:
    with pytest.raises(cairn.NotFound):
        cairn.dcp.load({"w": torch.zeros(1)}, c)
    with pytest.raises(cairn.NotFound):
        cairn.dcp.load({"w": torch.zeros(1)}, c, 4)


def test_archives_whose_pickles_are_equal_are_told_apart_by_their_bytes(
    c: cairn.Connection,
) -> None:
    """A pickle that was read is kept: what is read by it is still each tensor's own."""
    state = {f"w{i}": torch.full((5, 3), float(i)).t() for i in range(50)}
    state["other"] = torch.arange(15).view(5, 3).float()
    save(c, state, 1)
    for _ in range(2):
        into = {key: torch.zeros(value.shape) for key, value in state.items()}
        cairn.dcp.load(into, c)
        for key, value in state.items():
            assert into[key].equal(value), key


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("overlap", [False, True])
def test_an_async_save_that_fails_before_it_begins_is_over(
    c: cairn.Connection, overlap: bool
) -> None:
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    writer = Writer(c, overlap=optimizer if overlap else None)
    done = stock.async_save(
        {"w": weight}, checkpoint_id="cairn://of-another-job/3", storage_writer=writer, no_dist=True
    )
    with pytest.raises(ValueError, match="checkpoint_id"):
        done.result()
    assert c.fence(timeout=patient(10))
    weight.grad = torch.ones(3)
    optimizer.step()
    # The same Writer again, without staging: what had been watched is forgotten.
    stock.save(
        {"w": weight}, checkpoint_id=f"cairn://{c.job}/4", storage_writer=writer, no_dist=True
    )
    assert c.latest().step == 4


class Slow(stock.DefaultSavePlanner):
    """Plans when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.met, self.may = threading.Event(), threading.Event()

    def create_local_plan(self) -> Any:
        self.met.set()
        self.may.wait(patient(20))
        return super().create_local_plan()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_parameter_that_moved_before_it_was_copied_fails_the_save(c: cairn.Connection) -> None:
    layer = torch.nn.Linear(4, 4)
    planner = Slow()
    done = cairn.dcp.async_save(
        dict(layer.named_parameters()),
        c,
        1,
        planner=planner,
        overlap=list(layer.parameters()),
        no_dist=True,
    )
    layer.weight.data = torch.zeros(4, 4)
    planner.may.set()
    with pytest.raises(CheckpointException, match="weight; call fence"):
        done.result()
    with pytest.raises(cairn.NotFound):
        c.latest()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_who_is_interrupted_while_it_is_copied_has_saved_nothing(c: cairn.Connection) -> None:
    planner = Slow()
    writer = Writer(c, 1, alone=True)
    with interrupted_in("synchronize_staging", once=planner.met.is_set):
        stock.async_save(
            {"w": torch.zeros(3)}, storage_writer=writer, planner=planner, no_dist=True
        )
    planner.may.set()
    writer.stage({})  # waits for the save
    with pytest.raises(cairn.NotFound):
        c.latest()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_save_that_is_over_keeps_no_model_alive(c: cairn.Connection) -> None:
    def save() -> weakref.ref[Any]:
        layer = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
        cairn.dcp.async_save(
            dict(layer.named_parameters()), c, 1, overlap=optimizer, no_dist=True
        ).result()
        return weakref.ref(layer)

    layer = save()
    gc.collect()
    assert layer() is None


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_was_saved_goes_without_a_collector(c: cairn.Connection) -> None:
    """A state that was made to be saved may be as large as the model."""

    def save(step: int) -> weakref.ref[Any]:
        weights = torch.ones(8)
        cairn.dcp.save({"w": weights, "deep": {"list": [weights, 1]}}, c, step)
        return weakref.ref(weights)

    gc.collect()
    gc.disable()
    try:
        for step in range(1, 4):
            assert save(step)() is None
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_default_device_is_not_that_of_what_is_read(c: cairn.Connection) -> None:
    state = {"w": torch.arange(6.0), "empty": torch.empty(0), "deep": {"v": torch.ones(2, 3)}}
    into = {"w": torch.zeros(6), "empty": torch.empty(0), "deep": {"v": torch.zeros(2, 3)}}
    with torch.device("meta"):
        cairn.dcp.save(state, c, 1)
        cairn.dcp.load(into, c, 1)
        with c.step(2) as s:
            s.save({"tensors": state}, "all.pt")
        loaded = cairn.load(f"cairn://{c.job}/2/all.pt")
    assert into["w"].equal(state["w"]) and into["deep"]["v"].equal(state["deep"]["v"])
    assert loaded["tensors"]["w"].equal(state["w"]) and loaded["tensors"]["empty"].numel() == 0


def test_what_describes_an_archive_is_never_filled() -> None:
    """As torch.empty does where algorithms are deterministic."""
    torch.use_deterministic_algorithms(True)
    try:
        before = Path("/proc/self/statm").read_text().split()[1]
        like = torch_format.untouched(torch, torch.uint8, (1 << 30,), (1,))
        after = Path("/proc/self/statm").read_text().split()[1]
    finally:
        torch.use_deterministic_algorithms(False)
    assert like.numel() == 1 << 30 and int(after) - int(before) < (64 << 20) // os.sysconf(
        "SC_PAGESIZE"
    )


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_of_a_checkpoint_fits_is_told_before_it_is_loaded(c: cairn.Connection) -> None:
    saved = {"model": {"a": torch.zeros(3), "b": torch.zeros(2, 2), "c": torch.zeros(1)}, "step": 5}
    cairn.dcp.save(saved, c, 1)
    found = c.resume_latest()
    assert found is not None
    same = cairn.dcp.compare(saved, c, found)
    assert same.fits and same.world_size == 1 and "saved by 1 rank: every tensor fits" in str(same)
    other = cairn.dcp.compare(
        {"model": {"a": torch.zeros(4), "b": torch.zeros(2, 2).half(), "d": torch.zeros(1)}},
        c,
        found,
    )
    assert not other.fits
    assert other.missing == ["'model.d'"] and other.unexpected == ["'model.c'", "'step'"]
    assert other.shapes == ["'model.a' saved as (3,), wanted as (4,)"]
    assert other.dtypes == ["'model.b' saved as torch.float32, wanted as torch.float16"]
    said = str(other)
    for words in ("1 not in the checkpoint: 'model.d'", "1 of another shape", "2 not wanted"):
        assert words in said
    # A part of it is what fits.
    assert cairn.dcp.compare({"model": {"a": torch.zeros(3)}}, c, found).fits
    with c.step(2) as s:
        s.save(1, "x.pt")
    with pytest.raises(cairn.MissingObject):
        cairn.dcp.compare(saved, c, c.checkpoint(2))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_daemon_that_dies_during_an_async_save_fails_that_save_at_most() -> None:
    node = Node(budget=256 * MIB).start()
    try:
        with cairn.connect("dies", rank=0, world_size=1, socket=node.socket) as c:
            state = {"model": {"w": torch.zeros(40 * MIB, dtype=torch.uint8)}}
            cairn.dcp.save(state, c, 1, no_dist=True)
            for step in (2, 3):
                planner = Slow()
                overlap = [state["model"]["w"]]
                done = cairn.dcp.async_save(
                    state, c, step, planner=planner, overlap=overlap, no_dist=True
                )
                planner.may.set()
                node.kill_daemon()
                assert c.fence(timeout=patient(60))
                try:
                    done.result()
                except CheckpointException:
                    assert c.latest().step < step
                else:
                    assert c.latest().step == step
            cairn.dcp.async_save(state, c, 9, no_dist=True).result()
            assert c.latest().step == 9
    finally:
        node.remove()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_is_wrong_in_a_call_is_named(c: cairn.Connection) -> None:
    state = {"w": torch.ones(3)}
    with pytest.raises(ValueError, match=r'state_dict: is of type Linear, .*{"model": model'):
        cairn.dcp.save(torch.nn.Linear(2, 2), c, 1)  # type: ignore[arg-type]
    for call in (cairn.dcp.save, cairn.dcp.async_save, cairn.dcp.load, cairn.dcp.compare):
        with pytest.raises(ValueError, match="connection: is of type str"):
            call(state, "job", 1)  # type: ignore[operator]
    cairn.dcp.save(state, c, 1)
    for step in (-1, "latest", 1.0):
        with pytest.raises(ValueError, match="step: "):
            cairn.dcp.load(state, c, step)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="checkpoint: "):
            Reader(c, step)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="checkpoint: None"):
        cairn.dcp.compare(state, c, None)  # type: ignore[arg-type]
    assert cairn.dcp.compare(state, c, 1).fits
    with pytest.raises(ValueError, match=r"checkpoint_id: 'cairn://edge' is not .*JOB/STEP"):
        Reader(c).reset("cairn://edge")
    with cairn.connect(c.job, rank=-1, socket=c.socket) as reads:
        with pytest.raises(stock.CheckpointException, match="only reads"):
            cairn.dcp.save(state, reads, 2)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_failed_save_whose_future_nobody_asks_is_told(c: cairn.Connection) -> None:
    class Broken(stock.DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            raise RuntimeError("broken by design")

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        cairn.dcp.async_save({"w": torch.ones(3)}, c, 1, planner=Broken())
        cairn.dcp.async_save({"w": torch.ones(3)}, c, 2).result()
    assert c.failures == {"Error": 1}
    (told,) = [str(one.message) for one in warned if one.category is cairn.CairnWarning]
    assert "step 1 of job" in told and "broken by design" in told


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_save_after_an_interrupted_one_waits_for_it(c: cairn.Connection) -> None:
    """Else both talk in one group."""
    first, second = Slow(), Slow()
    with interrupted_in("synchronize_staging", once=first.met.is_set):
        cairn.dcp.async_save({"w": torch.zeros(3)}, c, 1, planner=first)
    saves = threading.Thread(
        target=lambda: cairn.dcp.async_save({"w": torch.ones(3)}, c, 2, planner=second).result()
    )
    saves.start()
    until(
        "the second save waits",
        lambda: second.met.is_set() or in_call(saves.ident or 0, "_wait_for_uploads"),
    )
    assert not second.met.is_set()
    first.may.set()
    assert second.met.wait(patient(20))
    second.may.set()
    saves.join()
    assert c.latest().step == 2
