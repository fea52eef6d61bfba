"""cairn.dcp beside stock DCP over several ranks: every way to spread a model, loaded by other worlds.

Each model is saved twice, by stock DCP into a folder and into a step. What another world then loads of both
is the same bit by bit.
"""

from __future__ import annotations

from pathlib import Path

from node import Node
from test_dcp_ranks import run_ranks

MODELS = r"""
import pathlib, warnings
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
warnings.simplefilter("ignore")
torch.set_num_threads(1)
folder = pathlib.Path(place).parent

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.embedding, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight
    def forward(self, x):
        return self.head(self.embedding(x.abs().long().flatten() % 11))

def layers(hidden):
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, 5))

# How the ranks are arranged. "flat": all in one dimension; "square": in two.
def mesh_of(shape):
    if shape == "flat":
        return init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    rows = 2 if world % 2 == 0 else 1
    return init_device_mesh("cpu", (rows, world // rows), mesh_dim_names=("dp", "tp"))

def trained(model, seed):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(2 if seed else 0):
        torch.manual_seed(100 * seed + step)  # replicas are equal
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optim": of_optimizer, "seed": seed, "words": ["a", {"b": seed}]}

def plain(shape, seed):
    return trained(layers(7), seed)

def data_parallel(shape, seed):
    return trained(DistributedDataParallel(layers(7)), seed)

def tied(shape, seed):
    return trained(DistributedDataParallel(Tied()), seed)

def fully_sharded(shape, seed):
    "Of 7 rows and of 5, which no world divides; square: replicated along one dimension of the mesh."
    model = layers(7)
    for layer in (model[0], model[3], model):
        fully_shard(layer, mesh=mesh_of(shape))
    return trained(model, seed)

def tied_and_sharded(shape, seed):
    model = Tied()
    fully_shard(model, mesh=mesh_of("flat"))
    return trained(model, seed)

def tensor_parallel(shape, seed):
    "Square: sharded along the other dimension as well, so that some are of _StridedShard."
    mesh = mesh_of(shape)
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 5))
    along = mesh if shape == "flat" else mesh["tp"]
    parallelize_module(model, along, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    if shape == "square":
        fully_shard(model, mesh=mesh["dp"])
    return trained(model, seed)

def uneven(shape, seed):
    "Where some ranks hold less than others, or nothing."
    mesh = mesh_of(shape)
    found = {}
    placements = {
        "flat": ([Shard(0)], [Shard(1)], [Replicate()]),
        "square": ([Shard(0), Shard(1)], [Shard(1), Shard(0)], [Shard(0), Shard(0)],
                   [Replicate(), Shard(0)], [Shard(1), Replicate()]),
    }[shape]
    for number in range(5):
        placement = placements[number % len(placements)]
        for sizes in ((5, 3), (1, 3), (3, 1), (7, 5, 2), (37, 12), (0, 4), (2, 0)):
            for dtype in (torch.float32, torch.bfloat16):
                whole = (values(*sizes) + 1000 * number + 1).to(dtype) * bool(seed)
                name = f"{number}.{dtype}/{sizes} ä"
                found[name] = distribute_tensor(whole, mesh, placement)
    found["scalar"] = distribute_tensor(torch.tensor(3.0 * seed), mesh, [Replicate()] * mesh.ndim)
    return found

CASES = (plain, data_parallel, tied, fully_sharded, tied_and_sharded, tensor_parallel, uneven)

def bits(tensor):
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.detach().contiguous().flatten().view(torch.uint8)

def assert_same(a, b, path=""):
    assert type(a) is type(b), path
    if isinstance(a, torch.Tensor):
        assert a.shape == b.shape and a.dtype == b.dtype, path
        if isinstance(a, DTensor):
            assert a.placements == b.placements and a.to_local().shape == b.to_local().shape, path
        assert bits(a).equal(bits(b)), path
    elif isinstance(a, dict):
        assert list(a) == list(b), path
        for key in a:
            assert_same(a[key], b[key], f"{path}/{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), path
        for number, (one, other) in enumerate(zip(a, b)):
            assert_same(one, other, f"{path}/{number}")
    else:
        assert a == b, path

def differ(a, b):
    try:
        assert_same(a, b)
    except AssertionError:
        return True
    return False

def save_both(state, step, **arguments):
    "Into the step, and by stock DCP into a folder. What both say of it is the same."
    ours = cairn.dcp.save(state, c, step, **arguments)
    theirs = stock.save(state, storage_writer=stock.FileSystemWriter(folder / f"{job}-{step}"), **arguments)
    assert ours.state_dict_metadata == theirs.state_dict_metadata, step
    assert ours.planner_data == theirs.planner_data, step
    if ours.storage_data is not None:  # the coordinator's
        assert ours.storage_data.keys() == theirs.storage_data.keys(), step
    dist.barrier()

def load_both(make, shape, step, of_job=None, expected=None):
    "From memory and from stock's folder; the same bits come."
    begin = make(shape, 0)
    ours, theirs = make(shape, 0), make(shape, 0)
    found = c.checkpoint(step, of_job or job)
    stock.load(ours, storage_reader=cairn.dcp.Reader(c, found))
    stock.load(theirs, storage_reader=stock.FileSystemReader(folder / f"{of_job or job}-{step}"))
    assert_same(ours, theirs, make.__name__)
    assert differ(begin, theirs), make.__name__  # so that something was loaded
    if expected is not None:
        assert_same(ours, expected, make.__name__)
    return theirs
"""


def test_every_way_to_spread_a_model_is_loaded_by_other_worlds_as_stock_loads_it(
    node: Node, tmp_path: Path
) -> None:
    """4 ranks -> 2 x 2, 4 -> 2, 2 -> 3."""
    run_ranks(
        4,
        MODELS
        + rf"""
storage = pathlib.Path({str(node.storage)!r})
for number, make in enumerate(CASES):
    print(make.__name__, flush=True)
    for step, shape in ((2 * number, "flat"), (2 * number + 1, "square")):
        state = make(shape, seed=1 + step)
        save_both(state, step)
        loaded = load_both(make, shape, step, expected=state)
    # 4 -> 2 x 2, also by stock's reader of what was persisted.
    other = load_both(make, "square", 2 * number)
    if rank == 0:
        c.persist(2 * number)
        c.wait(2 * number, timeout=patient(60))
    dist.barrier()
    persisted = make("square", 0)
    reader = stock.FileSystemReader(storage / job / str(2 * number))
    stock.load(persisted, storage_reader=reader)
    assert_same(persisted, other, make.__name__)
""",
        "of-4",
        node,
        tmp_path,
    )
    run_ranks(
        2,
        MODELS
        + """
for number, make in enumerate(CASES):
    for step in (2 * number, 2 * number + 1):  # 4 -> 2
        load_both(make, "flat", step, "of-4")
    save_both(make("flat", seed=100 + number), number)
""",
        "of-2",
        node,
        tmp_path,
    )
    run_ranks(
        3,
        MODELS
        + """
for number, make in enumerate(CASES):
    load_both(make, "flat", number, "of-2")
""",
        "of-3",
        node,
        tmp_path,
    )


def test_ranks_of_a_group_that_save_alone_and_without_collectives(
    node: Node, tmp_path: Path
) -> None:
    run_ranks(
        2,
        MODELS
        + rf"""
storage = pathlib.Path({str(node.storage)!r})

# no_dist: each rank a step of its own, which any rank loads.
mine = trained(layers(7), seed=5 + rank)
cairn.dcp.save(mine, c, 50 + rank, no_dist=True)
stock.save(mine, storage_writer=stock.FileSystemWriter(folder / f"alone-{{50 + rank}}"), no_dist=True)
done = cairn.dcp.async_save(mine, c, 60 + rank, no_dist=True)
done.result()
dist.barrier()
for step in (50, 51, 60, 61):
    assert c.checkpoint(step).world_size == 1
    ours, theirs = trained(layers(7), seed=0), trained(layers(7), seed=0)
    cairn.dcp.load(ours, c, step, no_dist=True)
    reader = stock.FileSystemReader(folder / f"alone-{{50 + step % 10}}")
    stock.load(theirs, storage_reader=reader, no_dist=True)
    assert_same(ours, theirs)
    assert ours["seed"] == 5 + step % 10

# Without collectives: each its own metadata in one step, complete when all have committed.
dist.barrier()
done = cairn.dcp.async_save(mine, c, 70, use_collectives=False)
done.result()
stock.save(mine, storage_writer=stock.FileSystemWriter(folder / "separate"), use_collectives=False)
dist.barrier()
assert c.latest().step == 70 and c.checkpoint(70).world_size == 2
assert c.checkpoint(70).names() == ["__0.metadata", "__0_0.distcp", "__1.metadata", "__1_0.distcp"]
if rank == 0:
    c.persist(70)
    c.wait(70, timeout=patient(60))
dist.barrier()
loaded = []
for reader in (
    cairn.dcp.Reader(c, 70),
    stock.FileSystemReader(storage / job / "70"),
    stock.FileSystemReader(folder / "separate"),
):
    into = trained(layers(7), seed=0)
    stock.load(into, storage_reader=reader)
    assert_same(into, mine)
    loaded.append(into)
""",
        "alone",
        node,
        tmp_path,
    )
