"""Tensors that say themselves which chunks they are, as Megatron-FSDP's DTensors do (promise 2): a save and a
load ask them each time, and never take the answer of an equal tensor."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from node import Node
from test_dcp_ranks import run_ranks

UNEVEN = """
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

mesh = init_device_mesh("cpu", (world,))

def whole(name):
    return values(8, 4) + 1000 * ord(name)

def rows_of(cut):
    # `cut`: how many rows of eight each rank has; the last rank's come first where it is negative.
    counts = [abs(one) for one in cut]
    order = list(range(world)) if cut[0] > 0 else list(reversed(range(world)))
    begin = sum(counts[other] for other in order[: order.index(rank)])
    return begin, counts[rank]

def answer_by_itself(tensor, begin, length, only=None):
    chunk = ChunkStorageMetadata(torch.Size((begin, 0)), torch.Size((length, 4)))
    def items(name, value):
        properties = TensorProperties.create_from_tensor(value.to_local())
        data = TensorWriteData(chunk=chunk, properties=properties, size=value.size())
        return [WriteItem(MetadataIndex(name, chunk.offsets), WriteItemType.SHARD, tensor_data=data)]
    tensor.__create_chunk_list__ = lambda: [chunk]
    tensor.__create_write_items__ = items

def uneven(name, cut, blank=False, on="local"):
    begin, length = rows_of(cut)
    local = torch.full((length, 4), -1.0) if blank else whole(name)[begin : begin + length].clone()
    made = DTensor.from_local(
        local, mesh, [Shard(0)], shape=torch.Size((8, 4)), stride=(4, 1), run_check=False)
    answer_by_itself(made._local_tensor if on == "local" else made, begin, length)
    return made

def check_rows(state, cuts):
    for name, cut in cuts.items():
        begin, length = rows_of(cut)
        found = state[name]._local_tensor
        assert found.equal(whole(name)[begin : begin + length]), (name, cut, found[:, 0].tolist())

CUTS = {"a": [3, 5], "b": [5, 3], "c": [-4, -4], "d": [4, 4]}
def state_of(cuts, **more):
    return {name: uneven(name, cut, **more) for name, cut in cuts.items()}
"""


@pytest.mark.parametrize("on", ["local", "value"])
def test_uneven_cuts_are_saved_and_loaded_as_stock_does(
    node: Node, tmp_path: Path, on: str
) -> None:
    run_ranks(
        2,
        UNEVEN
        + dedent(f"""
        cairn.dcp.save(state_of(CUTS, on={on!r}), c, 1)
        if rank == 0: c.persist(1); c.wait(1, timeout=patient(60))
        dist.barrier()
        files = stock.FileSystemReader({str(node.storage)!r} + "/" + c.job + "/1")
        for reader in (cairn.dcp.Reader(c, 1), files):
            into = state_of(CUTS, on={on!r}, blank=True)
            stock.load(into, storage_reader=reader)
            check_rows(into, CUTS)
        into = state_of(CUTS, on={on!r}, blank=True)
        cairn.dcp.load(into, c, 1)
        check_rows(into, CUTS)
        """),
        f"uneven-{on}",
        node,
        tmp_path,
    )


def test_a_cut_that_moves_between_saves_is_asked_for_again(node: Node, tmp_path: Path) -> None:
    """Shapes, placements and names are as they were."""
    run_ranks(
        2,
        UNEVEN
        + dedent("""
        for step, cut in enumerate(([4, 4], [-4, -4], [4, 4]), 1):
            cairn.dcp.save(state_of({"a": cut}), c, step)
        for step, cut in enumerate(([4, 4], [-4, -4], [4, 4]), 1):
            into = {"a": distribute_tensor(torch.zeros(8, 4), mesh, [Shard(0)])}
            cairn.dcp.load(into, c, step)
            assert into["a"].full_tensor().equal(whole("a")), step
        """),
        "moves",
        node,
        tmp_path,
    )


def test_one_behind_equal_tensors_that_do_not_answer_is_asked(node: Node, tmp_path: Path) -> None:
    """The first of a type does not speak for the others."""
    run_ranks(
        2,
        UNEVEN
        + dedent("""
        def state(blank=False):
            plain = {n: whole(n) if not blank else torch.zeros(8, 4) for n in "xy"}
            cut = {n: distribute_tensor(t, mesh, [Shard(0)]) for n, t in plain.items()}
            return {**cut, **state_of(CUTS, blank=blank)}
        for step in (1, 2):
            cairn.dcp.save(state(), c, step)
            into = state(blank=True)
            cairn.dcp.load(into, c, step)
            check_rows(into, CUTS)
            assert all(into[n].full_tensor().equal(whole(n)) for n in "xy")
        """),
        "behind",
        node,
        tmp_path,
    )


def test_a_copy_answers_as_the_tensor_did(node: Node, tmp_path: Path) -> None:
    """With `overlap` what the optimizer does not change is copied at once."""
    run_ranks(
        2,
        UNEVEN
        + dedent("""
        state = state_of(CUTS)
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))])
        saved = cairn.dcp.async_save(state, c, 1, overlap=optimizer)
        for value in state.values():
            value._local_tensor.fill_(-7)
        saved.result()
        dist.barrier()
        into = state_of(CUTS, blank=True)
        cairn.dcp.load(into, c, 1)
        check_rows(into, CUTS)
        """),
        "copied",
        node,
        tmp_path,
    )


def test_a_copy_answers_by_itself_whatever_its_tensor_answers_later(
    node: Node, tmp_path: Path
) -> None:
    """Its elements, its attributes and its chunks are those of the moment of the copy."""
    run_ranks(
        2,
        UNEVEN
        + dedent("""
        import types

        def flat(name, cut, blank=False):
            # The rows are a view of a buffer that the tensor alone knows.
            made = uneven(name, cut, blank)
            buffer = made._local_tensor.clone()
            made._local_tensor.__get_tensor_shard__ = lambda index: buffer
            return made, buffer

        def by_a_method(name, cut, blank=False):
            begin, length = rows_of(cut)
            made = uneven(name, cut, blank)
            made._local_tensor.begin = begin
            items = made._local_tensor.__create_write_items__
            def moved(self, fqn, value):
                item, = items(fqn, value)
                offset = torch.Size((self.begin, 0))
                chunk = ChunkStorageMetadata(offset, torch.Size((length, 4)))
                data = TensorWriteData(chunk=chunk, properties=item.tensor_data.properties, size=value.size())
                return [WriteItem(MetadataIndex(fqn, offset), WriteItemType.SHARD, tensor_data=data)]
            made._local_tensor.__create_write_items__ = types.MethodType(moved, made._local_tensor)
            return made

        (a, buffer), b = flat("a", [3, 5]), by_a_method("b", [5, 3])
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))])
        saved = cairn.dcp.async_save({"a": a, "b": b}, c, 1, overlap=optimizer)
        buffer.fill_(-7)
        b._local_tensor.fill_(-7)
        b._local_tensor.begin = 77
        saved.result()
        dist.barrier()
        cuts = {"a": [3, 5], "b": [5, 3]}
        into = state_of(cuts, blank=True)
        cairn.dcp.load(into, c, 1)
        check_rows(into, cuts)
        """),
        "copied-whole",
        node,
        tmp_path,
    )


def test_what_is_published_is_streamed_whole(node: Node, tmp_path: Path) -> None:
    run_ranks(
        2,
        UNEVEN
        + dedent("""
        # All of "e" lies on rank 0, and rank 1 says that it has no chunk.
        state = {**state_of(CUTS), "e": uneven("e", [8, 0])}
        if rank == 1:
            state["e"]._local_tensor.__create_write_items__ = lambda name, value: []
        published = cairn.weights.publish(c, 1, state)
        assert published.ok, published.error
        dist.barrier()
        c.wait(1, "CACHED", timeout=patient(60))
        found = dict(cairn.weights.stream(c, 1, "cpu"))
        assert found.keys() == state.keys()
        for name in state:
            assert found[name].equal(whole(name)), name
        """),
        "published",
        node,
        tmp_path,
    )


INTERLEAVED = """
from torch.distributed.tensor.placement_types import _StridedShard
"""


def test_interleaved_pieces_are_refused_by_name(node: Node, tmp_path: Path) -> None:
    """As of a fused QKV: a rank has several pieces of the tensor."""
    run_ranks(
        2,
        INTERLEAVED
        + dedent("""
        mesh = init_device_mesh("cpu", (world,))
        for step, (dim, shape) in enumerate([(0, (8, 4)), (1, (4, 8))], 1):
            cut = distribute_tensor(values(*shape), mesh, [_StridedShard(dim, split_factor=2)])
            try:
                cairn.weights.publish(c, step, {"qkv": cut})
            except ValueError as error:
                assert f"tensor 'qkv'" in str(error) and f"dimension {dim}" in str(error), error
            else:
                raise SystemExit(f"{dim}: published")
        """),
        "interleaved",
        node,
        tmp_path,
    )


def test_a_tensor_that_fsdp_and_tensor_parallelism_cut_is_one_piece(
    node: Node, tmp_path: Path
) -> None:
    run_ranks(
        4,
        INTERLEAVED
        + dedent("""
        mesh = init_device_mesh("cpu", (2, 2))
        cut = distribute_tensor(values(16, 4), mesh, [_StridedShard(0, split_factor=2), Shard(0)])
        published = cairn.weights.publish(c, 1, {"w": cut})
        assert published.ok, published.error
        dist.barrier()
        c.wait(1, "CACHED", timeout=patient(60))
        assert dict(cairn.weights.stream(c, 1, "cpu"))["w"].equal(values(16, 4))
        """),
        "two-ways",
        node,
        tmp_path,
    )
