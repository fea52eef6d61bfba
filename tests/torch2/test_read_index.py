"""cairn.read_index: what it says is what `.metadata` says, and what it plans is what stock DCP plans.

One file: the format from its first byte to its last, and plans from it, over one example.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import pickle
import random
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cairn
import cairn.dcp
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as stock
from cairn import read_index
from cairn.comparing_planner import ComparingPlanner
from cairn.dcp import Reader
from cairn.read_index import Index, IndexedPlanner
from node import Node
from test_dcp_ranks import run_ranks
from test_plan_caching import random_state
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.device_mesh import init_device_mesh

State = dict[str, Any]


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    place = tmp_path_factory.mktemp("group") / "meeting"
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def tensor_of(size: tuple[int, ...], boxes: list[tuple[Any, Any]]) -> TensorStorageMetadata:
    chunks = [ChunkStorageMetadata(torch.Size(o), torch.Size(s)) for o, s in boxes]
    return TensorStorageMetadata(TensorProperties(dtype=torch.float32), torch.Size(size), chunks)


def example(names: tuple[str, ...] = ("a.w", "ä\ud800", "")) -> Metadata:
    """Two files, tensors of 0 to 2 dimensions, several chunks, objects."""
    saved: dict[str, Any] = {
        names[0]: tensor_of((4, 6), [((0, 0), (2, 6)), ((2, 0), (2, 6))]),
        names[1]: BytesStorageMetadata(),
        names[2]: tensor_of((), [((), ())]),
        "none": tensor_of((0, 3), [((0, 0), (0, 3))]),
        "half": tensor_of((5,), [((3,), (2,)), ((0,), (3,))]),
    }
    saved["half"].properties = TensorProperties(
        dtype=torch.float16, requires_grad=True, memory_format=torch.channels_last
    )
    places = {}
    for name, of in saved.items():
        if isinstance(of, BytesStorageMetadata):
            places[MetadataIndex(name)] = _StorageInfo("__1_0.distcp", 7, 9)
            continue
        for number, chunk in enumerate(of.chunks):
            file = f"__{number % 2}_0.distcp"
            index = MetadataIndex(name, chunk.offsets, number)
            places[index] = _StorageInfo(file, 100 * len(places), 10 + number)
    planner_data = {name: tuple(name.split(".")) for name in saved}
    return Metadata(saved, planner_data, places, StorageMeta("cairn://j/1", "save"), "1")


def encoded(metadata: Metadata) -> bytes:
    content = read_index.encode(metadata, pickle.dumps(metadata))
    assert content is not None
    return content


def decoded(metadata: Metadata) -> Metadata:
    return Index(encoded(metadata), "index").metadata()


# --- the same as .metadata ---------------------------------------------------------------------------


def test_it_says_what_the_metadata_says() -> None:
    metadata = example()
    found = decoded(metadata)
    assert list(found.state_dict_metadata) == list(metadata.state_dict_metadata)
    for name, of in metadata.state_dict_metadata.items():
        assert found.state_dict_metadata[name] == of
        assert of == found.state_dict_metadata[name]
        assert repr(found.state_dict_metadata[name]) == repr(of)
    for field in dataclasses.fields(Metadata):
        assert getattr(found, field.name) == getattr(metadata, field.name), field.name
        assert getattr(metadata, field.name) == getattr(found, field.name), field.name
    assert found == metadata and metadata == decoded(metadata)


@pytest.mark.parametrize(
    "copied",
    [
        lambda metadata: pickle.loads(pickle.dumps(metadata)),
        copy.deepcopy,
        copy.copy,
        dataclasses.replace,
    ],
)
def test_copies_and_pickles_are_whole(copied: Callable[[Metadata], Metadata]) -> None:
    metadata = example()
    assert copied(decoded(metadata)) == metadata
    for name in ("a.w", "none"):
        one, other = (of.state_dict_metadata[name] for of in (decoded(metadata), metadata))
        assert dataclasses.asdict(one) == dataclasses.asdict(other)
    plain = pickle.loads(pickle.dumps(decoded(metadata)))
    assert type(plain.storage_data) is dict
    assert type(plain.state_dict_metadata["a.w"]) is TensorStorageMetadata


def test_a_tensor_can_be_changed_like_any_other() -> None:
    metadata, found = example(), decoded(example())
    for one in (metadata, found):
        of = one.state_dict_metadata["a.w"]
        of.chunks.append(of.chunks[0])
        one.state_dict_metadata["half"] = dataclasses.replace(
            one.state_dict_metadata["half"], chunks=[]
        )
    assert found == metadata
    assert found.state_dict_metadata["a.w"] != decoded(example()).state_dict_metadata["a.w"]


KEY = MetadataIndex("a.w", (2, 0))
NEW = MetadataIndex("new")
OPERATIONS: dict[str, Callable[[dict[Any, Any]], Any]] = {
    "len": len,
    "bool": bool,
    "iteration": lambda d: sorted(map(repr, d)),
    "reversed": lambda d: sorted(map(repr, reversed(d))),
    "keys": lambda d: set(d.keys()),
    "values": lambda d: sorted(map(repr, d.values())),
    "items": lambda d: sorted(map(repr, d.items())),
    "hints": lambda d: sorted((key.fqn, key.index or 0) for key in d),
    "dict": dict,
    "spread": lambda d: {**d},
    "copy": lambda d: d.copy(),
    "or": lambda d: d | {NEW: 1},
    "ror": lambda d: {NEW: 1} | d,
    "item": lambda d: d[KEY],
    "by a wrong hint": lambda d: d[MetadataIndex("a.w", (2, 0), 0)],
    "by a hint too large": lambda d: d[MetadataIndex("a.w", (2, 0), 9)],
    "get": lambda d: (d.get(KEY), d.get(NEW), d.get(NEW, 5)),
    "in": lambda d: (KEY in d, NEW in d, MetadataIndex("a.w", (1, 0)) in d, "a.w" in d),
    "object": lambda d: d[MetadataIndex("ä\ud800")],
    "object by an offset": lambda d: MetadataIndex("ä\ud800", (0,)) in d,
    "tensor by none": lambda d: MetadataIndex("a.w") in d,
    "pop": lambda d: (d.pop(KEY), len(d), KEY in d),
    "del": lambda d: (d.__delitem__(KEY), KEY in d, len(d)),
    "set": lambda d: (d.__setitem__(NEW, 3), d[NEW], len(d), d[KEY]),
    "setdefault": lambda d: (d.setdefault(NEW, 3), d[NEW], d.setdefault(KEY, 3)),
    "update": lambda d: (d.update({KEY: 3}), d[KEY], len(d)),
    "clear": lambda d: (d.clear(), len(d), KEY in d, d.get(KEY)),
    "equal": lambda d: (d == {}, d != {}, d == example().storage_data),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_storage_data_is_a_dict(operation: Callable[[Any], Any]) -> None:
    metadata = example()
    assert metadata.storage_data is not None
    lazy = decoded(metadata).storage_data
    assert isinstance(lazy, dict)
    assert operation(lazy) == operation(metadata.storage_data)
    assert lazy == metadata.storage_data


def test_two_that_nobody_has_looked_at_are_compared_by_what_they_hold() -> None:
    one, other = decoded(example()).storage_data, decoded(example()).storage_data
    assert one is not None and other is not None and one == other
    one, other = decoded(example()).storage_data, decoded(example()).storage_data
    assert one is not None and other is not None
    other.popitem()
    assert one != other and other != one


def test_a_missing_key_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        decoded(example()).storage_data[NEW]


def test_looking_up_decodes_nothing_else() -> None:
    found = decoded(example())
    assert found.storage_data[KEY].offset == 100 and KEY in found.storage_data
    assert not list(dict.keys(found.storage_data))
    assert "chunks" not in vars(found.state_dict_metadata["a.w"])


def unusual(change: Callable[[Metadata], Any]) -> Metadata:
    metadata = example()
    change(metadata)
    return metadata


UNUSUAL: dict[str, Callable[[Metadata], Any]] = {
    "no storage_data": lambda m: setattr(m, "storage_data", None),
    "another's storage_data": lambda m: m.storage_data.update({KEY: ("file", 1)}),
    "transformed": lambda m: m.storage_data.update({KEY: _StorageInfo("f", 1, 2, ["zstd"])}),
    "a chunk that is nowhere": lambda m: m.storage_data.pop(KEY),
    "a place of no chunk": lambda m: m.storage_data.update({NEW: _StorageInfo("f", 1, 2)}),
    "another kind of entry": lambda m: m.state_dict_metadata.update(new=3),
    "another name": lambda m: m.state_dict_metadata.update({3: BytesStorageMetadata()}),
    "chunks of other dimensions": lambda m: m.state_dict_metadata["half"].chunks.append(
        ChunkStorageMetadata(torch.Size([1, 2]), torch.Size([1, 2]))
    ),
    "too long": lambda m: m.storage_data.update({KEY: _StorageInfo("f", 1 << 80, 2)}),
}


@pytest.mark.parametrize("change", UNUSUAL.values(), ids=UNUSUAL)
def test_what_the_format_cannot_hold_has_no_index(change: Callable[[Metadata], Any]) -> None:
    assert read_index.encode(unusual(change), b"") is None


# --- the same plans ----------------------------------------------------------------------------------


class Holds(torch.Tensor):
    """A tensor of which this rank holds any boxes."""

    chunks: list[ChunkStorageMetadata]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return self.chunks


@pytest.mark.parametrize("seed", range(300))
def test_random_boxes_are_planned_as_stock_plans_them(seed: int) -> None:
    choose = random.Random(seed)
    dimensions = choose.randrange(5)
    size = tuple(choose.randrange(1, 9) for _ in range(dimensions))

    def boxes(most: int) -> list[tuple[Any, Any]]:
        found = {}
        for _ in range(choose.randrange(most)):
            offsets = tuple(choose.randrange(extent) for extent in size)
            sizes = tuple(
                choose.randrange(extent - offset + 1)
                for extent, offset in zip(size, offsets, strict=True)
            )
            found[offsets] = sizes  # saved chunks are told apart by their offsets
        return list(found.items())

    saved = tensor_of(size, boxes(12))
    metadata = Metadata({"w": saved}, None, {}, None)
    metadata.storage_data = {
        MetadataIndex("w", chunk.offsets, number): _StorageInfo("f", number, 1)
        for number, chunk in enumerate(saved.chunks)
    }
    local = torch.zeros(size).as_subclass(Holds)
    local.chunks = tensor_of(size, boxes(4)).chunks
    planner = IndexedPlanner()
    planner.set_up_planner({"w": local}, decoded(metadata))
    found = planner.create_local_plan().items
    expected = create_read_items_for_chunk_list("w", saved, local.chunks)
    assert found == expected
    hints = [(item.dest_index.index, item.storage_index.index) for item in found]
    assert hints == [(item.dest_index.index, item.storage_index.index) for item in expected]


def read_plan(planner: Any, state: State, metadata: Metadata) -> Any:
    planner.set_up_planner(state, metadata, is_coordinator=True)
    return planner.create_local_plan()


def test_chunks_that_somebody_changed_are_planned_as_they_are_now() -> None:
    metadata, plain = decoded(example()), example()
    for of in (metadata, plain):
        of.state_dict_metadata["a.w"].chunks.pop()
    state = {"a.w": torch.zeros(4, 6)}
    plan = read_plan(IndexedPlanner(), state, metadata)
    assert plan == read_plan(stock.DefaultLoadPlanner(), state, plain)
    assert len(plan.items) == 1


def pickled(c: cairn.Connection, step: int) -> Metadata:
    return pickle.loads(c.checkpoint(step).load(".metadata"))


@pytest.mark.parametrize("seed", range(20))
def test_random_models_are_read_as_stock_reads_them(
    c: cairn.Connection, mesh: Any, seed: int
) -> None:
    state = random_state(seed, mesh)
    cairn.dcp.save(state, c, 1)
    metadata, expected = Reader(c, 1).read_metadata(), pickled(c, 1)
    assert isinstance(metadata.storage_data, read_index.StorageData)
    plan = read_plan(IndexedPlanner(), copy.deepcopy(state), metadata)
    assert plan == read_plan(stock.DefaultLoadPlanner(), copy.deepcopy(state), expected)
    by_stock = read_plan(stock.DefaultLoadPlanner(), copy.deepcopy(state), metadata)
    assert by_stock == plan
    for item in plan.items:
        where = metadata.storage_data[item.storage_index]
        assert where == expected.storage_data[item.storage_index]
    assert not list(dict.keys(metadata.storage_data))  # nothing of it has filled the dict
    assert metadata == expected


def test_the_whole_state_is_made_from_the_metadata(c: cairn.Connection) -> None:
    state = {"net": {"w": torch.arange(6.0).view(2, 3)}, "step": 3}
    cairn.dcp.save(state, c, 1, no_dist=True)
    into: State = {}
    planner = _EmptyStateDictLoadPlanner()
    _load_state_dict(into, storage_reader=Reader(c, 1), planner=planner, no_dist=True)
    assert into["net"]["w"].equal(state["net"]["w"]) and into["step"] == 3


def test_another_model_is_described(c: cairn.Connection) -> None:
    cairn.dcp.save({"w": torch.zeros(4), "v": torch.zeros(2)}, c, 1, no_dist=True)
    metadata = Reader(c, 1).read_metadata()
    into = {"w": torch.zeros(5), "v": torch.zeros(2, dtype=torch.int8), "x": torch.zeros(1)}
    with pytest.raises(ValueError) as raised:
        read_plan(ComparingPlanner(), into, metadata)
    for text in ("'x'", "'w' saved as (4,), wanted as (5,)", "'v' saved as torch.float32"):
        assert text in str(raised.value)
    with pytest.raises(ValueError, match="Size mismatch between saved .* for w"):
        read_plan(IndexedPlanner(), {"w": torch.zeros(5)}, metadata)
    with pytest.raises(RuntimeError, match="Missing key in checkpoint state_dict: x"):
        read_plan(IndexedPlanner(), {"x": torch.zeros(5)}, metadata)
    with pytest.raises(ValueError, match="Invalid checkpoint metadata for w"):
        read_plan(IndexedPlanner(), {"w": 3}, metadata)
    partial = IndexedPlanner(allow_partial_load=True)
    plan = read_plan(partial, {"w": torch.zeros(4), "x": torch.zeros(5)}, metadata)
    assert [item.dest_index.fqn for item in plan.items] == ["w"]


def test_ranks_read_what_other_ranks_saved(node: Node, tmp_path: Path) -> None:
    run_ranks(
        3,
        "cairn.dcp.save(state(init_device_mesh('cpu', (world,)), [Shard(0)]), c, 1)",
        "shards",
        node,
        tmp_path,
    )
    run_ranks(
        2,
        r"""
        import copy, pickle
        from cairn.read_index import IndexedPlanner, StorageData
        mesh = init_device_mesh("cpu", (world,))
        metadata = cairn.dcp.Reader(c, 1).read_metadata()
        assert isinstance(metadata.storage_data, StorageData)
        expected = pickle.loads(c.checkpoint(1).load(".metadata"))
        for placement in (Shard(0), Shard(1), Replicate()):
            plans = []
            for planner, of in ((IndexedPlanner(), metadata), (stock.DefaultLoadPlanner(), expected)):
                planner.set_up_planner(state(mesh, [placement], fill=-1), of, rank == 0)
                plans.append(planner.create_local_plan())
            assert plans[0] == plans[1]
            into = state(mesh, [placement], fill=-1)
            cairn.dcp.load(into, c, 1)
            check(into)
        assert metadata == expected
        # At its end torch's gloo sometimes aborts a process that had replicated DTensors ("terminate called
        # without an active exception", torch 2.13 alone as well).
        dist.barrier(); dist.destroy_process_group(); c.close(); os._exit(0)
        """,
        "shards",
        node,
        tmp_path,
    )


# --- bad indexes -------------------------------------------------------------------------------------


def test_a_part_of_an_index_is_corrupt() -> None:
    content = encoded(example())
    for length in range(len(content)):
        with pytest.raises(cairn.Corrupt, match="^name: "):
            Index(content[:length], "name")
    with pytest.raises(cairn.Corrupt, match="^name: "):
        Index(content + b"\0", "name")


def test_every_flipped_byte_is_corrupt() -> None:
    content = encoded(example())
    for at in range(len(content)):
        flipped = bytearray(content)
        flipped[at] ^= 0x40
        with pytest.raises(cairn.Corrupt, match="^name: "):
            Index(bytes(flipped), "name")


def with_right_checksum(content: bytes) -> bytes:
    head = read_index._HEAD
    return head.pack(b"CAIRNIDX", 1, zlib.crc32(content[head.size :])) + content[head.size :]


@pytest.mark.parametrize("value", [-2, -1, 1, 5, 1 << 40, -(1 << 62)])
def test_tables_that_point_outside_are_corrupt_and_never_a_wrong_read(value: int) -> None:
    """Of a program that writes right checksums over wrong numbers."""
    metadata = example()
    content = encoded(metadata)
    begin = read_index._HEAD.size + read_index._NUMBERS.size
    names = len(metadata.state_dict_metadata)
    table = begin + 8 * read_index._COLUMNS * names + 24 * len(metadata.storage_data)
    for at in range(begin, table, 8):
        forged = bytearray(content)
        struct.pack_into("<q", forged, at, value)
        try:
            found = Index(with_right_checksum(bytes(forged)), "name").metadata()
        except cairn.Corrupt:
            continue
        pickle.dumps(found)  # whatever it says, it can be looked at


def test_lengths_that_do_not_add_up_are_corrupt() -> None:
    content = encoded(example())
    for at in range(read_index._HEAD.size + 16, read_index._HEAD.size + 56, 8):
        for value in (0, 1, 1 << 40, (1 << 64) - 1):
            forged = bytearray(content)
            struct.pack_into("<Q", forged, at, value)
            if forged != content:
                with pytest.raises(cairn.Corrupt):
                    Index(with_right_checksum(bytes(forged)), "name")


def saved_objects(c: cairn.Connection, **change: Any) -> int:
    """A step with the objects of a save, of which some are replaced (None: left out)."""
    cairn.dcp.save({"w": torch.arange(4)}, c, 1, no_dist=True)
    found = c.checkpoint(1)
    objects = {name: found.load(name) for name in (".metadata", ".metadata.index", "__0_0.distcp")}
    metadata, index = objects[".metadata"], objects[".metadata.index"]
    with c.step(2) as s:
        for name, content in objects.items():
            content = change.get(name, lambda *_, of=content: of)(metadata, index)
            if content is not None:
                s.save(content, name)
    return 2


@pytest.mark.parametrize(
    ("index", "says"),
    [
        (lambda metadata, index: None, ""),
        (lambda metadata, index: index[:-1], r"\.metadata\.index: the bytes do not match"),
        (lambda metadata, index: b"", r"\.metadata\.index: 0 bytes are no index"),
        (lambda metadata, index: metadata, r"\.metadata\.index: no index of DCP's"),
        (
            lambda metadata, index: encoded(example()),
            r"\.metadata\.index: is of another \.metadata",
        ),
    ],
    ids=["none", "truncated", "empty", "not an index", "of another .metadata"],
)
def test_an_index_that_is_not_right_is_named_and_the_metadata_read(
    c: cairn.Connection, caplog: pytest.LogCaptureFixture, index: Any, says: str
) -> None:
    step = saved_objects(c, **{".metadata.index": index})
    into = {"w": torch.zeros(4, dtype=torch.int64)}
    with caplog.at_level(logging.WARNING, "cairn"):
        cairn.dcp.load(into, c, step, no_dist=True)
        assert type(Reader(c, step).read_metadata().storage_data) is dict
    assert into["w"].equal(torch.arange(4))
    said = [record.getMessage() for record in caplog.records if record.name == "cairn"]
    assert bool(said) == bool(says)
    if says:
        assert re.search(says, said[0]) and "/2 (attempt" in said[0]


@pytest.mark.parametrize(
    "metadata", [lambda metadata, index: metadata[:-9], lambda metadata, index: b"no pickle"]
)
def test_metadata_that_is_not_right_is_named_in_spite_of_its_index(
    c: cairn.Connection, metadata: Any
) -> None:
    step = saved_objects(c, **{".metadata": metadata})
    with pytest.raises(cairn.Corrupt, match=r"^\.metadata of checkpoint .* is no metadata of DCP"):
        Reader(c, step).read_metadata()
    with pytest.raises(CheckpointException, match="is no metadata of DCP"):
        cairn.dcp.load({"w": torch.zeros(4)}, c, step, no_dist=True)


def test_ranks_that_save_for_themselves_have_no_index(c: cairn.Connection, mesh: Any) -> None:
    cairn.dcp.save({"w": torch.zeros(4)}, c, 1, use_collectives=False)
    assert c.checkpoint(1).names() == ["__0.metadata", "__0_0.distcp"]
    assert type(Reader(c, 1).read_metadata(rank=0).storage_data) is dict
