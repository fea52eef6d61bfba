"""Random state dicts through cairn.dcp and stock DCP: what one saved the other reads, element by element
(promise 2).

Each seed is a model that changes between its saves: values, cuts, types, names. It prints its seed when it
fails; CAIRN_DCP_SEEDS=FIRST:COUNT runs others.
"""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent

import pytest
from node import Node
from test_dcp_ranks import run_ranks
from test_own_chunks import UNEVEN

SEEDS = os.environ.get("CAIRN_DCP_SEEDS", "1:100")

MODELS = """
import random
from torch.distributed.tensor.placement_types import _StridedShard

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.float64]
meshes = [init_device_mesh("cpu", (world,))]
if world == 4:
    meshes.append(init_device_mesh("cpu", (2, 2)))

def content(shape, dtype, salt):
    whole = torch.arange(torch.Size(shape).numel(), dtype=torch.int64).view(shape)
    return ((whole * 7 + salt) % 251).to(dtype)

class Spec:
    # One value of a model, the same on all ranks.
    def __init__(self, choose):
        self.kind = choose.choice(["plain", "object", "dtensor", "dtensor", "dtensor", "uneven"])
        self.dtype = choose.choice(DTYPES)
        self.salt = choose.randrange(1000)
        self.shape = [choose.randrange(1, 9) for _ in range(choose.randrange(1, 4))]
        self.recut(choose)

    def recut(self, choose):
        self.mesh = choose.randrange(len(meshes))
        self.placements = [placement(choose, len(self.shape)) for _ in range(meshes[self.mesh].ndim)]
        dims = [one.dim for one in self.placements if isinstance(one, Shard)]
        # FSDP over tensor parallelism: what a rank has is one piece.
        if len(dims) == 2 and dims[0] == dims[1] and self.shape[dims[0]] % 4 == 0 and choose.random() < 0.5:
            self.placements[0] = _StridedShard(dims[0], split_factor=2)
        counts = [0] * world
        for _ in range(self.shape[0]):
            counts[choose.randrange(world)] += 1
        self.order = choose.sample(range(world), world)
        self.counts = counts

    def change(self, choose):
        what = choose.randrange(4)
        if what == 0:
            self.recut(choose)
        elif what == 1:
            self.dtype = choose.choice(DTYPES)
        elif what == 2 and self.kind != "object":
            self.kind = choose.choice(["plain", "dtensor", "uneven"])
        self.salt = choose.randrange(1000)

    def whole(self, blank=False):
        if blank:
            return torch.zeros(self.shape, dtype=self.dtype)
        return content(self.shape, self.dtype, self.salt)

    def rows(self):
        begin = sum(self.counts[other] for other in self.order[: self.order.index(rank)])
        return begin, self.counts[rank]

    def make(self, blank=False, cut=None):
        kind, mesh, placements = self.kind, self.mesh, self.placements
        if cut is not None and kind == "dtensor":
            mesh, placements = cut
        if kind == "object":
            return {"salt": -1 if blank else self.salt}
        whole = self.whole(blank)
        if kind == "plain":
            return whole
        if kind == "dtensor":
            return distribute_tensor(whole, meshes[mesh], placements, src_data_rank=None)
        begin, length = self.rows()
        local = whole[begin : begin + length].clone()
        made = DTensor.from_local(
            local, meshes[0], [Shard(0)], shape=whole.shape, stride=whole.stride(), run_check=False)
        chunk = ChunkStorageMetadata(torch.Size((begin, *[0] * (whole.dim() - 1))), local.shape)
        def items(name, value):
            data = TensorWriteData(chunk, TensorProperties.create_from_tensor(value.to_local()), value.size())
            return [WriteItem(MetadataIndex(name, chunk.offsets), WriteItemType.SHARD, tensor_data=data)]
        if length:
            made._local_tensor.__create_chunk_list__ = lambda: [chunk]
            made._local_tensor.__create_write_items__ = items
        else:
            made._local_tensor.__create_chunk_list__ = lambda: []
            made._local_tensor.__create_write_items__ = lambda name, value: []
        return made

    def check(self, found, where):
        if self.kind == "object":
            assert found == {"salt": self.salt}, (where, found)
            return
        expected = self.whole()
        assert found.dtype == expected.dtype, (where, found.dtype)
        if self.kind == "plain":
            assert found.equal(expected), (where, found)
        elif self.kind == "dtensor":
            wanted = distribute_tensor(expected, found.device_mesh, found.placements, src_data_rank=None)
            assert found._local_tensor.equal(wanted._local_tensor), (where, found, expected)
        else:
            begin, length = self.rows()
            assert found._local_tensor.equal(expected[begin : begin + length]), (where, found, expected)

def placement(choose, dims):
    return choose.choice([Replicate(), *[Shard(dim) for dim in range(dims)] * 2])

def one(seed):
    choose = random.Random(seed)
    model = {f"t{i}": Spec(choose) for i in range(choose.randrange(1, 7))}
    for save in range(3):
        step = seed * 10 + save
        where = (seed, save)
        state = {name: spec.make() for name, spec in model.items()}
        how = choose.randrange(4)
        if how == 0:
            stock.save(state, storage_writer=cairn.dcp.Writer(c, step))
        elif how == 1:
            cairn.dcp.async_save(state, c, step).result()
            dist.barrier()
        else:
            cairn.dcp.save(state, c, step)
        cuts = {
            name: (0, [placement(choose, len(spec.shape))]) if choose.random() < 0.5 else None
            for name, spec in model.items()}
        for read in ("ours", "stock"):
            into = {name: spec.make(blank=True, cut=cuts[name]) for name, spec in model.items()}
            if read == "ours":
                cairn.dcp.load(into, c, step)
            else:
                stock.load(into, storage_reader=cairn.dcp.Reader(c, step))
            for name, spec in model.items():
                spec.check(into[name], (*where, how, read, name, spec.kind, cuts[name]))
        if save == 2 and seed % 8 == 0:
            if rank == 0:
                c.persist(step)
                c.wait(step, timeout=patient(60))
            dist.barrier()
            into = {name: spec.make(blank=True) for name, spec in model.items()}
            stock.load(into, storage_reader=stock.FileSystemReader(f"{storage}/{c.job}/{step}"))
            for name, spec in model.items():
                spec.check(into[name], (*where, how, "files", name, spec.kind))
        for name in list(model):
            if choose.random() < 0.4:
                model[name].change(choose)
        if choose.random() < 0.2:
            model[f"more{save}"] = Spec(choose)
"""


@pytest.mark.parametrize("world", [2, 4])
def test_random_models_are_read_as_they_were_saved(node: Node, tmp_path: Path, world: int) -> None:
    first, count = map(int, SEEDS.split(":"))
    run_ranks(
        world,
        UNEVEN
        + MODELS
        + dedent(f"""
        storage = {str(node.storage)!r}
        for seed in range({first}, {first + count}):
            try:
                one(seed)
            except BaseException:
                print(f"seed {{seed}}", flush=True)
                raise
        """),
        f"differential-{world}",
        node,
        tmp_path,
    )
