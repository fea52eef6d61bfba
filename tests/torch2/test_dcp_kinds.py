"""cairn.dcp beside stock DCP, one process: whatever stock round-trips comes back from memory, bit by bit, and
stock's reader reads it from what was persisted."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cairn
import cairn.dcp
import pytest
import torch
import torch.distributed.checkpoint as stock
from node import MIB, Node
from patience import patient
from test_dcp import assert_same, bits, blank
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

State = dict[str, Any]
FAILURES = (Exception, CheckpointException)  # which is none of Exception's


def persisted(c: cairn.Connection, node: Node, step: int) -> stock.FileSystemReader:
    c.persist(step)
    c.wait(step, timeout=patient(120))
    return stock.FileSystemReader(node.storage / c.job / str(step))


def load(into: State, reader: stock.StorageReader) -> State:
    stock.load(into, storage_reader=reader, no_dist=True)
    return into


# --- every dtype that this torch has -----------------------------------------------------------------


def of_dtype(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """What torch can make of it from bytes, whatever it can compute with it."""
    if dtype == torch.bool or dtype.itemsize == 0:
        return bits(dtype, *shape)
    raw = torch.randint(0, 256, (max(1, torch.Size(shape).numel()) * dtype.itemsize,))
    return raw.to(torch.uint8).view(dtype).view(shape)


def all_dtypes() -> list[torch.dtype]:
    """Each once; several have two names."""
    found = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return sorted(found, key=str)


def round_trips(dtype: torch.dtype, folder: Path) -> bool:
    """Whether stock DCP gives back what it saved. Of some dtypes torch makes no tensor of bytes, or no
    archive."""
    try:
        saved = {"w": of_dtype(dtype, 3, 5)}
        into = {"w": of_dtype(dtype, 3, 5)}
        stock.save(saved, storage_writer=stock.FileSystemWriter(folder), no_dist=True)
        load(into, stock.FileSystemReader(folder))
        assert_same(into, saved)
    except FAILURES:
        return False
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return True


def test_every_dtype_that_stock_round_trips_comes_back(
    c: cairn.Connection, node: Node, tmp_path: Path
) -> None:
    """Asked of torch itself, so that one that a later torch brings is seen. And each of another dtype is
    refused, or comes back, and the next save succeeds."""
    torch.manual_seed(4)
    stocks = [dtype for dtype in all_dtypes() if round_trips(dtype, tmp_path / "stock")]
    others = [dtype for dtype in all_dtypes() if dtype not in stocks]
    assert len(stocks) >= 22, stocks
    state: State = {}
    for dtype in stocks:
        for shape in ((), (0,), (2, 0, 3), (1,), (33, 7)):
            state[f"{dtype}{shape}"] = bits(dtype, *shape)
        state[f"{dtype} view"] = of_dtype(dtype, 20, 6)[3:9]
    cairn.dcp.save(state, c, 1, no_dist=True)
    for reader in (cairn.dcp.Reader(c, 1), persisted(c, node, 1)):
        into = {name: bits(value.dtype, *value.shape) for name, value in state.items()}
        assert_same(load(into, reader), state)
    for dtype in others:
        try:
            tensor = of_dtype(dtype, 3, 5)
        except Exception:
            continue  # torch makes none
        try:
            cairn.dcp.save({"w": tensor}, c, 2, no_dist=True)
            into = {"w": torch.zeros(15 * max(1, dtype.itemsize), dtype=torch.uint8)}
            into["w"] = into["w"].view(dtype).view(3, 5)
            cairn.dcp.load(into, c, 2, no_dist=True)
        except FAILURES as error:
            assert str(error), dtype
        cairn.dcp.save({"w": torch.ones(2)}, c, 3, no_dist=True)
        assert c.latest().step == 3


# --- layouts and sharing -----------------------------------------------------------------------------


class Tied(torch.nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding, self.head = torch.nn.Embedding(50, 6), torch.nn.Linear(6, 50, bias=False)
        self.head.weight = self.embedding.weight


def layouts(fill: float) -> State:
    base = torch.arange(4 * 3 * 5 * 6, dtype=torch.float32) * fill
    whole = base.view(4, 3, 5, 6)
    tied = Tied(int(fill))
    return {
        "rows": whole[1:3],
        "columns": whole[..., 2:4],
        "every_other": base[1::2],
        "transposed": whole.permute(2, 0, 3, 1),
        "flipped": whole.flip(0),
        "channels_last": whole.contiguous(memory_format=torch.channels_last),
        "channels_last_3d": (base.view(2, 2, 3, 5, 6)).contiguous(
            memory_format=torch.channels_last_3d
        ),
        "channels_last_view": whole.contiguous(memory_format=torch.channels_last)[:, 1:],
        "shared": base,
        "shared_half": base[180:],
        "shared_as_integers": base.view(torch.int32),
        "tied": tied.state_dict(),
        "one": torch.full((1, 1, 1), fill),
        "scalar": torch.tensor(fill),
        "empty": base[:0],
        "empty_columns": base.view(4, 90)[:, :0],
        "parameter": torch.nn.Parameter(base[:6].view(2, 3).t()),
    }


def targets(fresh: bool) -> State:
    """As `layouts` lays it out, or each tensor by itself."""
    found = layouts(-1.0)
    if fresh:
        return blank(found)
    del found["shared"], found["shared_half"], found["shared_as_integers"]
    for name in ("rows", "columns", "every_other", "transposed", "parameter", "empty"):
        found[name] = found[name].detach().clone(memory_format=torch.preserve_format)
    return found


@pytest.mark.parametrize("fresh", [True, False], ids=["contiguous", "laid out"])
def test_layouts_shared_storages_and_tied_parameters_come_back_as_stocks(
    c: cairn.Connection, node: Node, tmp_path: Path, fresh: bool
) -> None:
    state = layouts(1.5)
    ours = cairn.dcp.save(state, c, 1, no_dist=True)
    theirs = stock.save(state, storage_writer=stock.FileSystemWriter(tmp_path), no_dist=True)
    assert ours.state_dict_metadata == theirs.state_dict_metadata
    expected = load(targets(fresh), stock.FileSystemReader(tmp_path))
    for reader in (cairn.dcp.Reader(c, 1), persisted(c, node, 1)):
        found = load(targets(fresh), reader)
        for name, value in found.items():
            assert_same(value, expected[name])
            saved = state[name]
            assert_same(blank_detached(value), blank_detached(saved))


def blank_detached(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().contiguous()
    return {key: blank_detached(of) for key, of in value.items()}


# --- names, and how many -----------------------------------------------------------------------------

ODD_NAMES = [
    *("a.b", "a.b.c", "a/b", "a//b", "/a", "a/", "a b", " ", "", ".", "..", "../a", "-"),
    *(
        "ä",
        "\U0001f600",
        "e\u0301",
        "\u00e9",
        "日本語/重み",
        "a\nb",
        "a\tb",
        "a\0b",
        "\\",
        "%s",
        "{}",
    ),
    *(".metadata", "__0_0.distcp", "latest", "0", "x" * 2000, "deep." * 200),
]


def test_a_hundred_thousand_tiny_tensors_with_names_of_every_kind(
    c: cairn.Connection, node: Node, tmp_path: Path
) -> None:
    state: State = {name: torch.full((3,), i) for i, name in enumerate(ODD_NAMES)}
    state["nested"] = {name: {name: [torch.full((2,), -i)]} for i, name in enumerate(ODD_NAMES)}
    parts = ("layers", "attention", "ä.b c", "w/x")
    tiny = torch.arange(200_000).view(100_000, 2)
    for i, part in zip(range(100_000), itertools.cycle(parts), strict=False):
        state[f"{part}.{i}"] = tiny[i]
    into = blank(state)
    begin_s = time.process_time()
    ours = cairn.dcp.save(state, c, 1, no_dist=True)
    assert len(ours.state_dict_metadata) == 100_000 + 2 * len(ODD_NAMES)
    cairn.dcp.load(into, c, 1, no_dist=True)
    # Some ten seconds, on a busy machine thirty: no tensor costs more where there are more of them.
    assert time.process_time() - begin_s < 100
    assert_same(into, state)
    # A few of them, by stock's reader.
    reader = persisted(c, node, 1)
    few = {name: blank(state[name]) for name in (*ODD_NAMES, "nested", "layers.0", "w/x.99999")}
    load(few, reader)
    assert_same(few, {name: state[name] for name in few})


# --- more than four gibibytes ------------------------------------------------------------------------

GIB = 1 << 30
ROWS, COLUMNS = 70_000, 8192  # of eight bytes: 4.27 GiB


@pytest.fixture
def large() -> Iterator[Node]:
    node = Node(budget=5 * GIB).start()
    yield node
    node.remove()


class Part(torch.Tensor):
    """The part of a tensor that this rank holds, as a DTensor's is."""

    begin: tuple[int, ...]
    whole: tuple[int, ...]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        sizes = super().size()
        return [ChunkStorageMetadata(torch.Size(self.begin), torch.Size(sizes))]

    def __get_tensor_shard__(self, index: Any) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)

    def size(self, *dimension: int) -> Any:
        return torch.Size(self.whole) if not dimension else self.whole[dimension[0]]


def part(begin: tuple[int, int], rows: int, columns: int) -> Part:
    local = torch.full((rows, columns), -1, dtype=torch.int64).as_subclass(Part)
    local.begin, local.whole = begin, (ROWS, COLUMNS)
    return local


def expected_part(begin: tuple[int, int], rows: int, columns: int) -> torch.Tensor:
    """Zeros, and in the first column the number of the row."""
    found = torch.zeros(rows, columns, dtype=torch.int64)
    if begin[1] == 0:
        found[:, 0] = torch.arange(begin[0], begin[0] + rows)
    return found


@pytest.mark.full
@pytest.mark.machine
def test_a_tensor_of_more_than_four_gibibytes_is_saved_and_any_part_of_it_loaded(
    large: Node,
) -> None:
    """Its pages are zeros that nobody wrote but for one number in each row of 64 KiB."""
    assert ROWS * COLUMNS * 8 > 4 * GIB + 200 * MIB
    with cairn.connect(
        "large", rank=0, world_size=1, socket=large.socket, timeout=patient(120)
    ) as c:
        big = torch.zeros(ROWS, COLUMNS, dtype=torch.int64)
        big[:, 0] = torch.arange(ROWS)
        small = {"a": torch.arange(1000), "z": torch.arange(1000) * 3}
        metadata = cairn.dcp.save(
            {"a": small["a"], "big": big, "z": small["z"]}, c, 1, no_dist=True
        )
        offsets = {index.fqn: place.offset for index, place in metadata.storage_data.items()}
        assert max(offsets.values()) > 4 * GIB, offsets
        del big
        check(cairn.dcp.Reader(c, 1), [ACROSS, *PLACES])

        # The whole, row by row.
        into = {"big": torch.full((ROWS, COLUMNS), -1, dtype=torch.int64)}
        load(into, cairn.dcp.Reader(c, 1))
        assert into["big"][:, 0].equal(torch.arange(ROWS))
        assert not any(rows[:, 1:].any() for rows in into["big"].split(8192))
        del into

        stocks = persisted(c, large, 1)
        c._session().remove(c.job, 1, True, True)  # from memory
        check(cairn.dcp.Reader(c, 1), [ACROSS])
        check(stocks, [ACROSS])  # it reads the whole tensor for any part


ROW = 4 * GIB // (COLUMNS * 8)  # the one that begins at 2^32
ACROSS = ((ROW - 2, 0), 4, COLUMNS)
PLACES = [
    ((0, 0), 3, COLUMNS),
    ((ROW // 2 - 1, 0), 3, COLUMNS),  # across 2^31
    ((ROWS - 2, 0), 2, COLUMNS),
    ((ROW - 500, 0), 1000, 1),  # a column
    ((ROW - 500, COLUMNS - 2), 1000, 2),
]


def check(reader: stock.StorageReader, places: list[Any]) -> None:
    for place in places:
        into = {"big": part(*place), "a": torch.zeros(1000).long(), "z": torch.zeros(1000).long()}
        load(into, reader)
        assert into["big"].as_subclass(torch.Tensor).equal(expected_part(*place)), place
        assert into["a"].equal(torch.arange(1000)) and into["z"].equal(torch.arange(1000) * 3)
