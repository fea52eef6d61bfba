"""What several ranks of a group want is read by one of them and handed on. Ranks are processes over gloo."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import pytest
from node import Node
from patience import patient
from test_dcp_ranks import PRELUDE, run_ranks

# --- ranks ------------------------------------------------------------------------------------------

# Blocks are 4 MiB: states of a few dozens of them, and rounds of a few.
RANKS = """
import time
from cairn import distributed, exchange, exchange_plan
from cairn.exchange_plan import BLOCK
exchange_plan.ROUND_BYTES = 16 << 20

def fill(tensor, seed):
    return tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape).mul_(seed).remainder_(8191))

def large(mesh, placements, blank=False):
    def made(seed, *shape):
        whole = torch.zeros(shape) if blank else fill(torch.empty(shape), seed)
        return distribute_tensor(whole, mesh, placements)
    return {
        "model": {f"layers.{i}.weight": made(i + 3, 1000 + 8 * i, 1030) for i in range(8)},
        "odd": {"step": 0 if blank else 7, "small": made(5, 37, 6),
                "scalar": torch.tensor(0.0 if blank else 2.5)},
    }

def to_storage(step):
    dist.barrier()
    if rank == 0:
        c.persist(step)
        c.wait(step, timeout=patient(60))
        c._session().remove(c.job, step, True, True)
    dist.barrier()

def read_with(step, into, exchange, group=None):
    reader = cairn.dcp.Reader(c, step, exchange=exchange, process_group=group)
    stock.load(into, storage_reader=reader, process_group=group)
    return reader.traffic

def total(number):
    sum_ = torch.tensor([number])
    dist.all_reduce(sum_)
    return int(sum_)

def same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, dict):
            same(value, other[name])
        elif isinstance(value, DTensor):
            assert value.to_local().equal(other[name].to_local()), name
        elif isinstance(value, torch.Tensor):
            assert value.equal(other[name]), name
        else:
            assert value == other[name], name

def as_stock_loads(step, mesh, placements):
    into = large(mesh, placements, blank=True)
    stock.load(into, storage_reader=stock.FileSystemReader(os.path.join(c.storage_root, job, str(step))))
    return into

def blocks(step):
    # Bytes of what the ranks saved.
    return sum(o.length for o in c.ls(f"{job}/{step}").objects if o.name.endswith(".distcp"))
"""


def run(world: int, script: str, job: str, node: Node, folder: Path) -> list[str]:
    return run_ranks(world, RANKS + textwrap.dedent(script), job, node, folder)


def test_replicas_read_each_byte_once(node: Node, tmp_path: Path) -> None:
    """As with DDP: each rank wants all of it."""
    run(
        4,
        """
        mesh = init_device_mesh("cpu", (world,))
        cairn.dcp.save(large(mesh, [Replicate()]), c, 1)
        to_storage(1)
        for method in exchange.METHODS:
            into = large(mesh, [Replicate()], blank=True)
            traffic = read_with(1, into, method)
            same(into, large(mesh, [Replicate()]))
            same(into, as_stock_loads(1, mesh, [Replicate()]))
            assert total(traffic.read_bytes) == blocks(1), (method, traffic, blocks(1))
            assert total(traffic.received_bytes) >= 3 * blocks(1)
            assert traffic.rounds > 1
            assert traffic.read_bytes < blocks(1) / 4 + 2 * BLOCK  # equal shares
        """,
        "replicas",
        node,
        tmp_path,
    )


def test_a_default_device_is_not_that_of_what_is_exchanged(node: Node, tmp_path: Path) -> None:
    run(
        2,
        """
        mesh = init_device_mesh("cpu", (world,))
        cairn.dcp.save(large(mesh, [Replicate()]), c, 1)
        to_storage(1)
        for method in exchange.METHODS:
            into = large(mesh, [Replicate()], blank=True)
            with torch.device("meta"):
                read_with(1, into, method)
                assert distributed.any_of(rank == 1, world)
            same(into, large(mesh, [Replicate()]))
        """,
        "default-device",
        node,
        tmp_path,
    )


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2)])
def test_another_sharding_reads_each_byte_once(
    node: Node, tmp_path: Path, before: int, after: int
) -> None:
    """By rows, as it was saved, and by columns."""
    job = f"reshard-{before}-{after}"
    run(
        before,
        """
        mesh = init_device_mesh("cpu", (world,))
        cairn.dcp.save(large(mesh, [Shard(0)]), c, 1)
        to_storage(1)
        """,
        job,
        node,
        tmp_path,
    )
    run(
        after,
        """
        mesh = init_device_mesh("cpu", (world,))
        for method in exchange.METHODS:
            for to in (Shard(0), Shard(1)):
                into = large(mesh, [to], blank=True)
                traffic = read_with(1, into, method)
                same(into, large(mesh, [to]))
                same(into, as_stock_loads(1, mesh, [to]))
                assert total(traffic.read_bytes) == blocks(1), (method, traffic, blocks(1))
                assert total(traffic.received_bytes) > 0
        """,
        job,
        node,
        tmp_path,
    )


def test_replicas_of_shards_read_each_byte_once_and_beside_each_other(
    node: Node, tmp_path: Path
) -> None:
    """As with HSDP, and a model in FSDP2 that is loaded through its state dict."""
    run(
        4,
        """
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        where = [Replicate(), Shard(0)]
        cairn.dcp.save(large(mesh, where), c, 1)
        to_storage(1)
        into = large(mesh, where, blank=True)
        traffic = read_with(1, into, "broadcast")
        same(into, large(mesh, where))
        assert total(traffic.read_bytes) == blocks(1)
        assert traffic.received_bytes < blocks(1) * 0.6  # what it wants, and not what others do

        from torch.distributed.fsdp import fully_shard
        from torch.distributed.checkpoint.state_dict import get_state_dict
        def states(seed):
            torch.manual_seed(seed)
            model = torch.nn.Sequential(torch.nn.Linear(1500, 1500), torch.nn.BatchNorm1d(1500))
            fully_shard(model, mesh=mesh)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            model(torch.randn(4, 1500)).square().mean().backward()
            optimizer.step()
            of_model, of_optimizer = get_state_dict(model, optimizer)
            return {"model": of_model, "optim": of_optimizer}
        saved = states(1)
        cairn.dcp.save(saved, c, 2)
        to_storage(2)
        loaded = states(2)
        assert cairn.dcp.load(loaded, c, 2, exchange=True).step == 2
        same(loaded["model"], saved["model"])
        same(loaded["optim"]["state"], saved["optim"]["state"])
        """,
        "hsdp",
        node,
        tmp_path,
    )


def test_by_itself_only_what_nodes_would_read_twice_is_exchanged(
    node: Node, tmp_path: Path
) -> None:
    run(
        2,
        """
        mesh = init_device_mesh("cpu", (world,))
        cairn.dcp.save(large(mesh, [Replicate()]), c, 1)
        dist.barrier()
        def load():
            into = large(mesh, [Replicate()], blank=True)
            traffic = read_with(1, into, "auto")
            same(into, large(mesh, [Replicate()]))
            return traffic
        assert load() is None  # from memory
        to_storage(1)
        traffic = load()
        assert traffic.read_bytes == blocks(1) and traffic.received_bytes == 0
        exchange._this_node = lambda: f"node {rank}"
        traffic = load()
        assert total(traffic.read_bytes) == blocks(1) == total(traffic.received_bytes)

        into = large(mesh, [Replicate()], blank=True)
        assert read_with(1, into, False) is None
        same(into, large(mesh, [Replicate()]))
        """,
        "auto",
        node,
        tmp_path,
    )


def test_tied_and_converted_tensors_come_as_with_stock(node: Node, tmp_path: Path) -> None:
    """Also where names that share memory were saved by different ranks, with different values."""
    run(
        2,
        """
        def tied(blank):
            one, two = torch.zeros(1_500_000), torch.zeros(2_000_000)
            names = {"w4": one, "w2": one, "w0": two[:1_500_000], "w1": two[500_000:],
                     "w3": torch.zeros(1_500_000)}
            if not blank:
                names = {name: torch.full((1_500_000,), float(name[1])) for name in names}
            return names
        mesh = init_device_mesh("cpu", (world,))
        cairn.dcp.save({**tied(blank=False), "double": fill(torch.zeros(1_500_000), 3), "n": 7}, c, 1)
        dist.barrier()
        assert len([n for n in c.checkpoint(1).names() if n.endswith(".distcp")]) == 2
        to_storage(1)
        def blank():
            return {**tied(blank=True), "double": torch.zeros(1_500_000, dtype=torch.float64), "n": 0}
        ours, theirs = blank(), blank()
        assert read_with(1, ours, "broadcast").received_bytes
        stock.load(theirs, storage_reader=stock.FileSystemReader(os.path.join(c.storage_root, job, "1")))
        same(ours, theirs)
        assert ours["n"] == 7
        """,
        "tied",
        node,
        tmp_path,
    )


def test_a_sub_group_exchanges_among_itself_if_it_can(node: Node, tmp_path: Path) -> None:
    run(
        3,
        """
        mesh = init_device_mesh("cpu", (world,))
        cairn.dcp.save(large(mesh, [Replicate()]), c, 1)
        to_storage(1)
        pair = dist.new_group([1, 2], backend="gloo")
        saved, into = large(mesh, [Replicate()]), large(mesh, [Replicate()], blank=True)
        if rank > 0:
            traffic = read_with(1, into, "broadcast", pair)
            read = torch.tensor([traffic.read_bytes])
            dist.all_reduce(read, group=pair)
            assert int(read) == blocks(1)
            same(into, saved)

        group = dist.new_group(backend="cuda:gloo")
        assert distributed.has_cpu_backend(None)
        assert not distributed.has_cpu_backend(group)
        try:
            cairn.dcp.Reader(c, exchange=True, process_group=group)
            raise SystemExit("it did not fail")
        except ValueError as error:
            assert "process_group: it has no backend for the CPU" in str(error), error
        """,
        "sub-group",
        node,
        tmp_path,
    )


# --- what goes wrong ----------------------------------------------------------------------------------


def test_a_block_that_is_bad_fails_all_ranks_alike_and_the_next_load_succeeds(
    node: Node, tmp_path: Path
) -> None:
    run(
        3,
        """
        mesh = init_device_mesh("cpu", (world,))
        for step in (1, 2):
            cairn.dcp.save(large(mesh, [Replicate()]), c, step)
            to_storage(step)
        if rank == 0:
            with open(os.path.join(c.storage_root, job, "1", "__1_0.distcp"), "r+b") as file:
                file.seek(5 << 20)
                byte = file.read(1)
                file.seek(5 << 20)
                file.write(bytes([byte[0] ^ 1]))
        dist.barrier()
        for method in exchange.METHODS:
            begin = time.monotonic()
            try:
                cairn.dcp.load(large(mesh, [Replicate()], blank=True), c, 1, exchange=method)
                raise SystemExit("it did not fail")
            except stock.CheckpointException as error:
                assert sorted(error.failures) == [0, 1, 2], error
                for failed, (cause, _) in error.failures.items():
                    assert isinstance(cause, cairn.Corrupt), (failed, cause)
                    assert "__1_0.distcp" in str(cause), cause
                assert sum("rank " in str(cause) for cause, _ in error.failures.values()) == 2
            assert time.monotonic() - begin < patient(30)
            dist.barrier()
            into = large(mesh, [Replicate()], blank=True)
            cairn.dcp.load(into, c, 2, exchange=method)
            same(into, large(mesh, [Replicate()]))
        """,
        "corrupt",
        node,
        tmp_path,
    )


def test_what_one_rank_cannot_take_fails_all(node: Node, tmp_path: Path) -> None:
    """It fails before the first block is handed on, or when one is put where it belongs."""
    run(
        3,
        """
        mesh = init_device_mesh("cpu", (world,))
        cairn.dcp.save(large(mesh, [Replicate()]), c, 1)
        to_storage(1)
        class Breaks(stock.DefaultLoadPlanner):
            def resolve_tensor(self, item):
                if rank == 1 and where == "resolve":
                    raise RuntimeError("broken by design")
                return super().resolve_tensor(item)
            def load_bytes(self, item, value):
                if rank == 1 and where == "load_bytes":
                    raise RuntimeError("broken by design")
                return super().load_bytes(item, value)
        for where in ("resolve", "load_bytes"):
            try:
                cairn.dcp.load(
                    large(mesh, [Replicate()], blank=True), c, 1, planner=Breaks(), exchange=True)
                raise SystemExit("it did not fail")
            except stock.CheckpointException as error:
                assert "broken by design" in str(error) and 1 in error.failures, error
            dist.barrier()
        into = large(mesh, [Replicate()], blank=True)
        cairn.dcp.load(into, c, 1, exchange=True)
        same(into, large(mesh, [Replicate()]))

        try:
            read_with(1, into, "broadcast" if rank else "gather_rounds")
            raise SystemExit("it did not fail")
        except stock.CheckpointException as error:
            assert "exchange: differs between ranks" in str(error), error
        """,
        "takes",
        node,
        tmp_path,
    )


def test_a_rank_that_dies_in_the_middle_ends_the_others(node: Node, tmp_path: Path) -> None:
    job = "dies"
    script = RANKS + textwrap.dedent(
        """
        import datetime, signal
        mesh = init_device_mesh("cpu", (world,))
        cairn.dcp.save(large(mesh, [Replicate()]), c, 1)
        to_storage(1)
        handed = exchange._broadcast
        def broadcast(group, round_, traffic):
            if rank == 1 and traffic.rounds == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return handed(group, round_, traffic)
        exchange._WAYS["broadcast"] = broadcast
        group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=10))
        begin = time.monotonic()
        try:
            read_with(1, large(mesh, [Replicate()], blank=True), "broadcast", group)
        except Exception as error:
            took = time.monotonic() - begin
            print(f"ended after {took:.1f} s with {type(error).__name__}: {error}", flush=True)
            os._exit(3 if took < patient(40) else 4)
        """
    )
    place = tmp_path / f"meeting-{uuid.uuid4()}"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PRELUDE + script, str(rank), "3", str(place), job, node.socket],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(3)
    ]
    try:
        outputs = [rank.communicate(timeout=patient(120))[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [3, -signal.SIGKILL, 3], outputs
