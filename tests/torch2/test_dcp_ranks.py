"""cairn.dcp over several ranks: each a process of a gloo group.

One file: each case is a few lines of what the ranks do, in the words at the top.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import pytest
from node import MIB, Node
from patience import patient
from stopped import go_on

MOST_S = 120  # on a busy machine; some seconds on an idle one

PRELUDE = r"""
import os, sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as stock
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
import cairn, cairn.dcp
from patience import patient
from stopped import go_on, stop
rank, world, place, job, socket = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:6]
dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=world)
c = cairn.connect(job=job, rank=rank, world_size=world, socket=socket)

def values(*shape):
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)

def state(mesh, placements, fill=None):
    def spread(tensor):
        whole = tensor if fill is None else torch.full_like(tensor, fill)
        return distribute_tensor(whole, mesh, placements)
    return {
        "w": spread(values(37, 12)),
        "deep": {"v": spread(values(5, 8) + 1000)},
        "all": values(9) if fill is None else torch.full((9,), float(fill)),
        "step": 5 if fill is None else 0,
    }

class Breaks(stock.DefaultSavePlanner):
    def __init__(self, where):
        super().__init__()
        self.where = where
    def create_local_plan(self):
        if rank == 1 and self.where == "plan":
            raise RuntimeError("broken by design")
        return super().create_local_plan()
    def resolve_data(self, item):
        if rank == 1 and self.where == "write":
            raise RuntimeError("broken by design")
        return super().resolve_data(item)
    def create_global_plan(self, plans):
        if self.where == "global":
            raise RuntimeError("broken by design")
        return super().create_global_plan(plans)

def check(loaded):
    assert loaded["w"].full_tensor().equal(values(37, 12))
    assert loaded["deep"]["v"].full_tensor().equal(values(5, 8) + 1000)
    assert loaded["all"].equal(values(9))
    assert loaded["step"] == 5
"""


def run_ranks(
    world: int, script: str, job: str, node: Node, folder: Path, ends: list[int] | None = None
) -> list[str]:
    """What the ranks printed. `ends`: with what each ends, -9 where it is killed; a script of ranks that are
    left alone by another one's death ends itself."""
    place = folder / f"meeting-{uuid.uuid4()}"
    text = (
        PRELUDE
        + textwrap.dedent(script)
        + "\ndist.barrier()\ndist.destroy_process_group()\nc.close()\n"
        # PyTorch's gloo sometimes aborts a process at exit: "terminate called without an active exception".
        + "sys.stdout.flush()\nos._exit(0)\n"
    )
    outputs = [folder / f"{place.name}-{rank}" for rank in range(world)]
    expected = [0] * world if ends is None else ends
    request = {
        "script": text,
        "arguments": [str(place), job, node.socket],
        "outputs": [str(output) for output in outputs],
        "expected": expected,
        "most_s": patient(MOST_S),
    }
    starter = _starter()
    assert starter.stdin is not None and starter.stdout is not None
    starter.stdin.write(json.dumps(request) + "\n")
    starter.stdin.flush()
    ended = json.loads(starter.stdout.readline())
    said = [output.read_text() for output in outputs]
    # None: had not ended, for too long or when another one ended otherwise.
    assert ended == expected, f"{ended}, expected {expected}\n" + "\n".join(said)
    return said


@functools.cache
def _starter() -> subprocess.Popen[str]:
    """Of all ranks of this run of the tests; it ends when they end."""
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("rank_starter.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


SAVE = """
mesh = init_device_mesh("cpu", (world,))
cairn.dcp.save(state(mesh, [Shard(0)]), c, 1)
if rank == 0:
    assert c.latest().world_size == world
"""


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 3)])
def test_another_world_loads_its_own_shards(
    node: Node, tmp_path: Path, before: int, after: int
) -> None:
    job = f"reshard-{before}-{after}"
    run_ranks(before, SAVE, job, node, tmp_path)
    run_ranks(
        after,
        """
        mesh = init_device_mesh("cpu", (world,))
        into = state(mesh, [Shard(1)], fill=-1)
        assert cairn.dcp.load(into, c).step == 1
        check(into)
        """,
        job,
        node,
        tmp_path,
    )


def test_a_mesh_of_two_dimensions_loads_rows_and_the_stock_reader_reads_it(
    node: Node, tmp_path: Path
) -> None:
    job = "mesh"
    run_ranks(
        2,
        SAVE + "if rank == 0: c.persist(1); c.wait(1, timeout=patient(60))\n",
        job,
        node,
        tmp_path,
    )
    run_ranks(
        4,
        f"""
        mesh = init_device_mesh("cpu", (2, 2))
        for reader in (cairn.dcp.Reader(c, 1), stock.FileSystemReader({str(node.storage / job / "1")!r})):
            into = state(mesh, [Replicate(), Shard(0)], fill=-1)
            stock.load(into, storage_reader=reader)
            check(into)
        """,
        job,
        node,
        tmp_path,
    )


def test_a_rank_that_fails_fails_all_and_the_next_save_succeeds(node: Node, tmp_path: Path) -> None:
    run_ranks(
        2,
        """
        mesh = init_device_mesh("cpu", (world,))
        good = state(mesh, [Shard(0)])
        cairn.dcp.save(good, c, 1)

        for where in ("plan", "write", "global"):
            try:
                cairn.dcp.save(good, c, 2, planner=Breaks(where))
                raise SystemExit("it did not fail")
            except stock.CheckpointException as error:
                assert "broken by design" in str(error), error
            dist.barrier()
            assert c.latest().step == 1
            dist.barrier()
        try:
            cairn.dcp.save(good, c, 2, planner=stock.DefaultSavePlanner() if rank == 1 else None)
            raise SystemExit("it did not fail")
        except stock.CheckpointException as error:
            assert "planner: the ranks of a save have different ones" in str(error), error
        cairn.dcp.save(good, c, 2)
        dist.barrier()
        assert c.latest().step == 2 and c.checkpoint(2).revision == 4
        into = state(mesh, [Shard(0)], fill=-1)
        cairn.dcp.load(into, c)
        check(into)
        """,
        "fails",
        node,
        tmp_path,
    )


def test_async_saves_by_thread_and_without_collectives(node: Node, tmp_path: Path) -> None:
    run_ranks(
        2,
        """
        mesh = init_device_mesh("cpu", (world,))
        kept = state(mesh, [Shard(0)])
        done = cairn.dcp.async_save(kept, c, 1)
        kept["all"].zero_()  # staged already
        done.result()
        into = state(mesh, [Shard(1)], fill=-1)
        dist.barrier()
        cairn.dcp.load(into, c)
        check(into)

        plain = {"mine": torch.full((4,), rank)}
        cairn.dcp.save(plain, c, 2, use_collectives=False)
        dist.barrier()
        assert c.checkpoint(2).names() == [
            "__0.metadata", "__0_0.distcp", "__1.metadata", "__1_0.distcp"]
        mine = {"mine": torch.zeros(4, dtype=torch.int64)}
        cairn.dcp.load(mine, c, 2)
        assert mine["mine"].equal(plain["mine"])
        """,
        "async",
        node,
        tmp_path,
    )


def test_async_saves_that_fail_or_follow_each_other(node: Node, tmp_path: Path) -> None:
    """Each with what the state was when `async_save` returned; one that fails is absent everywhere."""
    run_ranks(
        2,
        """
        mesh = init_device_mesh("cpu", (world,))
        kept = state(mesh, [Shard(0)])

        writer = cairn.dcp.Writer(c)
        responses = []
        for step in (1, 2, 3):
            kept["all"].fill_(step)
            kept["w"].to_local().fill_(step)
            # DCP's own function; the writer is its own stager.
            responses.append(stock.async_save(
                kept, checkpoint_id=f"cairn://{job}/{step}", storage_writer=writer))
        kept["all"].zero_()
        kept["w"].to_local().zero_()
        for response in responses:
            response.result()
        dist.barrier()
        for step in (1, 2, 3):
            into = state(mesh, [Shard(1)], fill=-1)
            cairn.dcp.load(into, c, step)
            assert into["all"].eq(step).all() and into["w"].full_tensor().eq(step).all()

        for where in ("plan", "write"):
            done = cairn.dcp.async_save(kept, c, 4, planner=Breaks(where))  # raises nothing, and returns
            try:
                done.result()
                raise SystemExit("it did not fail")
            except stock.CheckpointException as error:
                assert "broken by design" in str(error), error
            dist.barrier()
            assert c.latest().step == 3
            dist.barrier()
        cairn.dcp.async_save(kept, c, 4).result()
        dist.barrier()
        assert c.latest().step == 4
        """,
        "async-again",
        node,
        tmp_path,
    )


def test_an_async_save_is_copied_during_the_next_step(node: Node, tmp_path: Path) -> None:
    """FSDP2: what the forward changes is copied at once, and the optimizer's step waits for the rest."""
    run_ranks(
        2,
        """
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
        torch.manual_seed(3)
        model = torch.nn.Sequential(
            torch.nn.Linear(32, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 8))
        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

        def forward_and_backward():
            optimizer.zero_grad()
            model(torch.randn(16, 32)).square().mean().backward()

        def whole(state):
            return {
                name: tensor.full_tensor().clone() if isinstance(tensor, DTensor) else tensor.clone()
                for name, tensor in state.items()}

        def states():
            of_model, of_optimizer = get_state_dict(model, optimizer)
            return {"model": of_model, "optim": of_optimizer}

        expected = {}
        for step in range(5):
            forward_and_backward()
            optimizer.step()
            saved = states()
            expected[step] = whole(saved["model"])
            done = cairn.dcp.async_save(saved, c, step, overlap=optimizer)
            forward_and_backward()  # all ranks talk in the default group, and the save in its own
            if step % 2:
                assert c.fence()
            optimizer.step()
            done.result()
            dist.barrier()
        for step in range(5):
            into = states()
            cairn.dcp.load(into, c, step)
            assert all(whole(into["model"])[name].equal(tensor) for name, tensor in expected[step].items())
        set_state_dict(model, optimizer, model_state_dict=into["model"], optim_state_dict=into["optim"])

        # A step that does not wait makes the save fail on all ranks, by name.
        class Waits(stock.DefaultSavePlanner):
            def create_local_plan(self):
                changed.wait(patient(20))
                return super().create_local_plan()
        import threading
        changed = threading.Event()
        done = cairn.dcp.async_save(states(), c, 5, overlap=list(model.parameters()), planner=Waits())
        if rank == 1:
            with torch.no_grad():
                next(model.parameters()).to_local().mul_(2)
        changed.set()
        try:
            done.result()
            raise SystemExit("it did not fail")
        except stock.CheckpointException as error:
            assert "model.0.weight; call fence" in str(error), error
        dist.barrier()
        assert c.latest().step == 4
        """,
        "async-overlap",
        node,
        tmp_path,
    )


def test_async_saves_that_nobody_waits_for_go_on_one_after_the_other(
    node: Node, tmp_path: Path
) -> None:
    """Two at once would talk in one group, on some ranks in one order and on others in another."""
    run_ranks(
        2,
        """
        import random, time
        mesh = init_device_mesh("cpu", (world,))
        kept = state(mesh, [Shard(0)])
        tensors = [kept["w"], kept["deep"]["v"], kept["all"]]
        choose = random.Random(rank)
        for step in range(12):
            c.fence()
            kept["all"].fill_(step)
            done = cairn.dcp.async_save(kept, c, step, overlap=tensors)
            time.sleep(choose.random() / 50)
        done.result()
        dist.barrier()
        for step in range(12):
            into = state(mesh, [Shard(1)], fill=-1)
            cairn.dcp.load(into, c, step)
            assert into["all"].eq(step).all()
        """,
        "async-many",
        node,
        tmp_path,
    )


def test_all_ranks_skip_a_save_or_none(node: Node, tmp_path: Path) -> None:
    """Also where the save before goes on at one of them alone."""
    try:
        run_ranks(
            2,
            f"""
            weights = torch.zeros(1000)
            def save(step, **more):
                return c.save_async(step, {{f"w{{rank}}.pt": weights}}, overlap=[weights], **more)
            first = save(1, busy="skip")
            assert not first.skipped
            assert c.fence()
            assert first.wait(patient(30))
            dist.barrier()
            if rank == 1:
                stop({node.daemon_pid()})
                alone = c.save_async(2, {{"w.pt": weights}}, overlap=[weights], writers=1)
            assert save(3, busy="skip").skipped
            if rank == 1:
                assert not alone.done
                go_on({node.daemon_pid()})
                assert alone.wait(patient(30)) and alone.ok
            dist.barrier()
            last = save(4, busy="skip")
            assert not last.skipped and last.wait(patient(30)) and last.ok
            dist.barrier()
            assert c.latest().step == 4
            """,
            "skips",
            node,
            tmp_path,
        )
    finally:
        go_on(node.daemon_pid())


def test_all_ranks_go_straight_into_storage_or_none(node: Node, tmp_path: Path) -> None:
    """Also where the save before goes on at one of them alone."""
    try:
        run_ranks(
            2,
            f"""
            def save(step):
                part = torch.full((1 << 20,), step + rank, dtype=torch.uint8)
                return c.save_async(step, {{f"w{{rank}}.pt": part}}, overlap=[part], busy="storage")
            first = save(1)
            assert not first.stored
            assert c.fence()
            assert first.wait(patient(30))
            dist.barrier()
            if rank == 1:
                stop({node.daemon_pid()})
                weights = torch.zeros(1000)
                alone = c.save_async(2, {{"w.pt": weights}}, overlap=[weights], writers=1)
            saving = save(3)
            assert saving.stored and not saving.done
            dist.barrier()
            if rank == 1:
                go_on({node.daemon_pid()})
                assert alone.wait(patient(30)) and alone.ok
            assert c.fence()
            assert saving.wait(patient(60)) and saving.ok, saving
            dist.barrier()
            assert c.latest().step == 3
            other = cairn.load(f"cairn://{{job}}/3/w{{1 - rank}}.pt")
            assert torch.equal(other, torch.full((1 << 20,), 4 - rank, dtype=torch.uint8))
            """,
            "straight",
            node,
            tmp_path,
        )
    finally:
        go_on(node.daemon_pid())


@pytest.mark.parametrize("busy", ["wait", "skip", "storage"])
def test_a_rank_that_cannot_encode_its_state_stays_in_step_with_the_others(
    node: Node, tmp_path: Path, busy: str
) -> None:
    """Else the parts of two tries would make one step."""
    run_ranks(
        2,
        f"""
        class Bad:
            def __reduce__(self):
                raise RuntimeError("it cannot be pickled")
        def save(number, bad):
            part = {{"try": number}} | ({{"bad": Bad()}} if bad else {{}})
            return c.save_async(3, {{f"r{{rank}}.pt": part}}, busy={busy!r})
        for number in (1, 2, 3):
            try:
                saving = save(number, number < 3 and rank == number - 1)
                assert saving.wait(patient(30))
            except RuntimeError as error:
                assert "pickled" in str(error)
                saving = None
            dist.barrier()
        assert saving.ok, saving
        assert c.latest().step == 3
        tries = [cairn.load(f"cairn://{{job}}/3/r{{r}}.pt")["try"] for r in (0, 1)]
        assert tries == [3, 3]
        """,
        "encode",
        node,
        tmp_path,
    )


def test_all_ranks_skip_a_save_for_which_one_has_no_memory(node: Node, tmp_path: Path) -> None:
    small = Node(budget=32 * MIB).start()
    try:
        run_ranks(
            2,
            f"""
            with cairn.connect(
                job=job, rank=rank, world_size=world, socket={small.socket!r} if rank else socket
            ) as mine:
                big = {{f"w{{rank}}.pt": torch.ones(40 << 20, dtype=torch.uint8)}}
                assert mine.save_async(1, big, busy="skip").skipped
                assert mine.failures == {{}}
                little = mine.save_async(2, {{f"w{{rank}}.pt": torch.ones(10)}}, busy="skip")
                assert not little.skipped and little.wait(patient(30)) and little.ok
            """,
            "no-memory",
            node,
            tmp_path,
        )
    finally:
        small.remove()


def test_a_group_of_some_ranks_saves_and_loads_a_step(node: Node, tmp_path: Path) -> None:
    run_ranks(
        4,
        """
        mesh = init_device_mesh("cpu", (world,))
        cairn.dcp.save(state(mesh, [Shard(0)]), c, 1)
        some, beside = dist.new_group([1, 3]), dist.new_group([1, 3])
        if rank in (1, 3):
            mine = {"w": torch.full((rank,), float(rank)), "step": 2}
            shards = {f"of/{rank}": mine["w"], "step": 2}
            cairn.dcp.save(shards, c, 2, process_group=some)
            found = c.latest()
            assert (found.step, found.world_size) == (2, 2), found
            stock.save(
                shards, checkpoint_id="3", process_group=some,
                storage_writer=cairn.dcp.Writer(c, process_group=some),
            )
            cairn.dcp.async_save(shards, c, 4, process_group=beside).result()
            into = {f"of/{rank}": torch.zeros(rank), "step": 0}
            assert cairn.dcp.load(into, c, process_group=some).step == 4
            assert into[f"of/{rank}"].equal(mine["w"]) and into["step"] == 2

            # A Writer that was not given the group is another rank than the group says.
            try:
                stock.save(
                    shards, checkpoint_id="5", process_group=some, storage_writer=cairn.dcp.Writer(c)
                )
                raise SystemExit("it did not fail")
            except stock.CheckpointException as error:
                assert "process_group: this is rank 0 of the group" in str(error), error
        dist.barrier()
        assert c.latest().step == 4
        cairn.dcp.save(state(mesh, [Shard(0)]), c, 6)
        dist.barrier()
        assert c.latest().step == 6 and c.latest().world_size == 4
        dist.barrier()

        if rank == 2:
            cairn.dcp.save({"alone": torch.ones(3)}, c, 7, no_dist=True)
        dist.barrier()
        assert c.latest().step == 7 and c.latest().world_size == 1
        """,
        "some",
        node,
        tmp_path,
    )


def test_a_group_that_the_connection_is_not_of_is_refused(node: Node, tmp_path: Path) -> None:
    run_ranks(
        2,
        """
        lone = cairn.connect(job=job, rank=0, world_size=1, socket=socket)
        try:
            cairn.dcp.save({"w": torch.zeros(2)}, lone, 1)
            raise SystemExit("it did not fail")
        except ValueError as error:
            assert f"process_group: this is rank {rank} of 2" in str(error), error
        first = dist.new_group([0])
        if rank == 1:
            try:
                cairn.dcp.save({"w": torch.zeros(2)}, c, 1, process_group=first)
                raise SystemExit("it did not fail")
            except ValueError as error:
                assert "process_group: this process is not in it" in str(error), error
        """,
        "group",
        node,
        tmp_path,
    )


def test_ranks_that_save_different_steps_make_none(node: Node, tmp_path: Path) -> None:
    """Bug: each was complete, of two states, where every rank went on in the same way."""
    run_ranks(
        2,
        """
        mesh = init_device_mesh("cpu", (world,))
        def saves(step, planner):
            if planner == "stock":
                stock.save(state(mesh, [Shard(0)], fill=step), storage_writer=cairn.dcp.Writer(c, step))
            elif planner == "async":
                cairn.dcp.async_save(state(mesh, [Shard(0)], fill=step), c, step).result()
            else:
                cairn.dcp.save(state(mesh, [Shard(0)], fill=step), c, step)
        for planner in ("stock", "cached", "async"):
            for i in range(3):
                try:
                    saves(i + rank, planner)
                except stock.CheckpointException as error:
                    assert "step: the ranks of a group save the same one" in str(error), error
                else:
                    raise AssertionError("no rank was told")
            dist.barrier()
        try:
            c.latest()
        except cairn.NotFound:
            pass
        else:
            raise AssertionError("two states are one step")
        dist.barrier()
        saves(20, "cached")
        assert c.latest().step == 20
        dist.barrier()
        if rank == 1:
            c.step(21).begin().discard()
        try:
            saves(21, "cached")
        except stock.CheckpointException as error:
            assert "has entered this step more often" in str(error)
        else:
            raise AssertionError("parts of two tries are one step")
        """,
        "different-steps",
        node,
        tmp_path,
    )


def test_a_rank_whose_state_cannot_be_asked_fails_all(node: Node, tmp_path: Path) -> None:
    """Bug: it left before the others met, and its next save met theirs of this one."""
    run_ranks(
        2,
        """
        mesh = init_device_mesh("cpu", (world,))
        class Odd(Exception):  # it cannot be unpickled
            def __init__(self, one, other):
                super().__init__(f"broken by {one} {other}")
        class Asked:
            breaks = False
            def state_dict(self):
                if self.breaks:
                    raise Odd("design", 1)
                return {"v": values(3)}
            def load_state_dict(self, loaded):
                pass
        asked = Asked()
        def save(step, how):
            whole = {**state(mesh, [Shard(0)], fill=step), "asked": asked}
            if how == "sync":
                cairn.dcp.save(whole, c, step)
            elif how == "stock's planner":
                cairn.dcp.save(whole, c, step, planner=stock.DefaultSavePlanner())
            else:
                cairn.dcp.async_save(whole, c, step).result()
        for number, how in enumerate(("sync", "stock's planner", "async")):
            save(3 * number + 1, how)
            asked.breaks = rank == 1
            try:
                save(3 * number + 2, how)
            except stock.CheckpointException as error:
                assert list(error.failures) == [1] and "broken by design" in str(error), error
            else:
                raise AssertionError("it did not fail")
            asked.breaks = False
            dist.barrier()
            assert c.latest().step == 3 * number + 1
            dist.barrier()
            save(3 * number + 3, how)
            assert c.latest().step == 3 * number + 3
        """,
        "cannot-be-asked",
        node,
        tmp_path,
    )


def test_groups_of_another_default_group_are_made_anew(node: Node, tmp_path: Path) -> None:
    run_ranks(
        2,
        r"""
        from cairn import distributed
        def groups():
            return distributed.own_group("busy"), distributed.group_beside(None)
        assert groups() == groups()
        dist.destroy_process_group()
        dist.init_process_group("gloo", init_method=f"file://{place}-2", rank=rank, world_size=world)
        for group in groups():
            ones = torch.ones(1)
            dist.all_reduce(ones, group=group)
            assert ones.item() == 2
        """,
        "groups",
        node,
        tmp_path,
    )
