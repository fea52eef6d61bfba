"""cairn.caching_planner: what it plans is what stock DCP plans, and only a model that changed is planned.

One file: every case changes one thing of the same model, and compares with stock.
"""

from __future__ import annotations

import collections
import copy
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cairn
import cairn.dcp
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as stock
from cairn import caching_planner
from cairn.caching_planner import CachingPlanner
from node import Node
from test_dcp_ranks import run_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

State = dict[str, Any]


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    place = tmp_path_factory.mktemp("group") / "meeting"
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    caching_planner.forget()
    yield
    caching_planner.forget()


def planned(planner: Any, state: State) -> tuple[Any, Any, bool]:
    """(final plan, metadata, whether a whole plan was sent), as stock's save drives a planner of one rank."""
    planner.set_up_planner(state, None, is_coordinator=True)
    local = planner.create_local_plan()
    plans, metadata = planner.create_global_plan([local])
    return (
        planner.finish_plan(plans[0]),
        metadata,
        not caching_planner._is(caching_planner._Name, local),
    )


def assert_as_stock(state: State, *, kept: bool) -> None:
    plan, metadata, sent = planned(CachingPlanner(), state)
    expected, expected_metadata, _ = planned(stock.DefaultSavePlanner(), state)
    assert plan == expected
    assert metadata == expected_metadata
    assert list(metadata.state_dict_metadata) == list(expected_metadata.state_dict_metadata)
    assert sent is not kept


def random_state(seed: int, mesh: Any) -> State:
    choose = random.Random(seed)
    dtypes = [torch.float32, torch.bfloat16, torch.int64, torch.bool]

    def tensor() -> torch.Tensor:
        shape = [choose.randrange(4) for _ in range(choose.randrange(4))]
        return torch.zeros(shape, dtype=choose.choice(dtypes))

    def value(depth: int) -> Any:
        kind = choose.randrange(8 if depth < 3 else 5)
        if kind == 0:
            return choose.choice([1, 2.5, "word", None, (1, 2), {1, 2}, [1, [2]], []])
        if kind in (1, 2):
            return tensor()
        if kind == 3:
            placement = choose.choice([Shard(0), Replicate()])
            return DTensor.from_local(torch.zeros(3, 2), mesh, [placement])
        if kind == 4:
            return torch.nn.Parameter(torch.zeros(2), requires_grad=choose.random() < 0.5)
        if kind == 5:
            return [value(depth + 1) for _ in range(choose.randrange(4))]
        if kind == 6:
            return collections.OrderedDict((f"o{i}", value(depth + 1)) for i in range(3))
        return {choose.choice([i, f"k{i}"]): value(depth + 1) for i in range(choose.randrange(4))}

    return {f"top{i}": value(0) for i in range(choose.randrange(1, 8))}


# --- one rank ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_random_models_are_planned_as_stock_plans_them(mesh: Any, seed: int) -> None:
    state = random_state(seed, mesh)
    assert_as_stock(state, kept=False)
    assert_as_stock(state, kept=True)
    assert_as_stock(copy.deepcopy(state), kept=True)  # other objects of equal description


def test_random_models_do_not_get_each_others_plans(mesh: Any) -> None:
    for seed in [*range(12), *range(12)]:
        state = random_state(seed, mesh)
        plan, metadata, _ = planned(CachingPlanner(), state)
        assert (plan, metadata) == planned(stock.DefaultSavePlanner(), state)[:2]


def base(mesh: Any) -> State:
    return {
        "net": {"w": torch.zeros(4, 6), "b": torch.zeros(6)},
        "sharded": DTensor.from_local(torch.zeros(4, 6), mesh, [Shard(0)]),
        "list": [torch.zeros(2), torch.zeros(3)],
        "keys": {1: torch.zeros(1)},
        "step": 3,
    }


def changed(name: str, value: Any) -> Callable[[State, Any], None]:
    def change(state: State, mesh: Any) -> None:
        *path, last = name.split(".")
        for key in path:
            state = state[key]
        state[last] = value(mesh) if callable(value) else value

    return change


def dtensor(local: torch.Tensor, placement: Any, grad: bool = False) -> Callable[[Any], Any]:
    def make(mesh: Any) -> DTensor:
        made = DTensor.from_local(local, mesh, [placement])
        return made.requires_grad_() if grad else made

    return make


def renamed(state: State, mesh: Any) -> None:
    state["net"]["c"] = state["net"].pop("b")


def reordered(state: State, mesh: Any) -> None:
    state["net"]["w"] = state["net"].pop("w")


CHANGES = {
    "shape": changed("net.w", torch.zeros(6, 4)),
    "dtype": changed("net.w", torch.zeros(4, 6, dtype=torch.float16)),
    "requires_grad": changed("net.w", torch.zeros(4, 6, requires_grad=True)),
    "a tensor more": changed("net.c", torch.zeros(1)),
    "renamed": renamed,
    "reordered": reordered,
    "placement": changed("sharded", dtensor(torch.zeros(4, 6), Replicate())),
    "shard dimension": changed("sharded", dtensor(torch.zeros(4, 6), Shard(1))),
    "sharded shape": changed("sharded", dtensor(torch.zeros(2, 12), Shard(0))),
    "sharded dtype": changed("sharded", dtensor(torch.zeros(4, 6).half(), Shard(0))),
    "sharded requires_grad": changed("sharded", dtensor(torch.zeros(4, 6), Shard(0), True)),
    "a local tensor with requires_grad": changed(
        "sharded", dtensor(torch.zeros(4, 6, requires_grad=True), Shard(0))
    ),
    "no more sharded": changed("sharded", torch.zeros(4, 6)),
    "list to dict": changed("list", {"0": torch.zeros(2), "1": torch.zeros(3)}),
    "longer list": changed("list", [torch.zeros(2), torch.zeros(3), 1]),
    "key of an equal kind": changed("keys", {True: torch.zeros(1)}),
    "object to tensor": changed("step", torch.tensor(3)),
    "object of another type": changed("step", "3"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_planned_anew(mesh: Any, change: Callable[[State, Any], None]) -> None:
    state = base(mesh)
    assert_as_stock(state, kept=False)
    change(state, mesh)
    assert_as_stock(state, kept=False)
    assert_as_stock(base(mesh), kept=True)  # the first one is still kept


def test_equal_leaves_in_other_lists_are_planned_anew(mesh: Any) -> None:
    leaf = torch.zeros(2)
    assert_as_stock({"l": [[leaf], leaf]}, kept=False)
    assert_as_stock({"l": [[leaf, leaf]]}, kept=False)
    assert_as_stock({"l": [[leaf], leaf]}, kept=True)


def test_without_gradients_the_plan_is_another_one(mesh: Any) -> None:
    state = {"w": dtensor(torch.zeros(4, 6), Shard(0), True)(mesh)}
    assert_as_stock(state, kept=False)
    with torch.no_grad():
        assert_as_stock(state, kept=False)
        assert_as_stock(state, kept=True)


def test_an_in_place_change_of_a_dtensor_is_planned_anew(mesh: Any) -> None:
    state = base(mesh)
    assert_as_stock(state, kept=False)
    state["sharded"]._local_tensor = torch.zeros(4, 6, dtype=torch.float64)
    assert_as_stock(state, kept=False)


def test_what_a_storage_writer_fills_in_is_not_kept(mesh: Any) -> None:
    state = base(mesh)
    _, first, _ = planned(CachingPlanner(), state)
    first.storage_data, first.storage_meta = {"a": 1}, "meta"
    first.state_dict_metadata.clear()
    first.planner_data.clear()
    plan, second, _ = planned(CachingPlanner(), state)
    plan.items.clear()
    plan.planner_data.clear()
    second.storage_data = {"a": 2}
    second.state_dict_metadata.clear()
    second.planner_data.clear()
    assert_as_stock(state, kept=True)


def test_values_that_plan_themselves_are_planned_every_time(mesh: Any) -> None:
    class PlansItself:
        def __create_write_items__(self, fqn: str, value: Any) -> list[Any]:
            return []

    state = {"own": PlansItself(), "w": torch.zeros(2)}
    assert_as_stock(state, kept=False)
    assert_as_stock(state, kept=False)


def test_few_models_are_kept(mesh: Any) -> None:
    states = [{"w": torch.zeros(i)} for i in range(6)]
    for state in states:
        assert_as_stock(state, kept=False)
    assert_as_stock(states[5], kept=True)
    assert_as_stock(states[0], kept=False)
    assert len(caching_planner._kept) == caching_planner._KEPT


def test_options_of_planning_have_plans_of_their_own(mesh: Any) -> None:
    state = base(mesh)
    planned(CachingPlanner(), state)
    assert planned(CachingPlanner(dedup_save_to_lowest_rank=True), state)[2]
    assert planned(CachingPlanner(alone=True), state)[2]


def test_a_coordinator_that_forgot_asks_for_the_plans(mesh: Any) -> None:
    state = base(mesh)
    planned(CachingPlanner(), state)
    planner = CachingPlanner()
    planner.set_up_planner(state, None, is_coordinator=True)
    local = planner.create_local_plan()
    assert not local.items
    other = local.planner_data._replace(generation=b"of somebody else")
    plans, metadata = planner.create_global_plan([local.__class__([], planner_data=other)])
    plan = planner.finish_plan(plans[0])
    expected, expected_metadata, _ = planned(stock.DefaultSavePlanner(), state)
    assert plan == expected and metadata == expected_metadata
    assert_as_stock(state, kept=True)


def test_plans_of_another_number_of_ranks_are_refused(mesh: Any) -> None:
    planner = CachingPlanner()
    planner.set_up_planner(base(mesh), None, is_coordinator=True)
    local = planner.create_local_plan()
    with pytest.raises(ValueError, match="2 plans of a group of 1"):
        planner.create_global_plan([local, local])


def test_what_is_saved_with_a_kept_plan_is_what_there_is_now(node: Node, mesh: Any) -> None:
    with cairn.connect(job="now", rank=0, world_size=1, socket=node.socket) as c:
        for step in (1, 2, 3):
            state = base(mesh)
            state["net"]["w"].fill_(step)
            state["sharded"]._local_tensor.fill_(10 * step)
            state["step"] = step
            saved = cairn.dcp.save(state, c, step)
            assert saved.storage_meta.checkpoint_id == f"cairn://now/{step}"
        for step in (1, 2, 3):
            into = base(mesh)
            cairn.dcp.load(into, c, step)
            assert into["net"]["w"].eq(step).all()
            assert into["sharded"].full_tensor().eq(10 * step).all()
            assert into["step"] == step
        assert len(caching_planner._kept) == 1


def test_a_save_by_one_process_keeps_its_plan_too(node: Node, mesh: Any) -> None:
    with cairn.connect(job="alone", rank=0, world_size=1, socket=node.socket) as c:
        first = cairn.dcp.save(base(mesh), c, 1, no_dist=True)
        second = cairn.dcp.save(base(mesh), c, 2, no_dist=True)
        assert first.state_dict_metadata == second.state_dict_metadata
        assert first.storage_data == second.storage_data
        assert len(caching_planner._kept) == 1


# --- two ranks ---------------------------------------------------------------------------------------

RANKS = r"""
import tempfile
from cairn import caching_planner
from cairn.caching_planner import CachingPlanner
mesh = init_device_mesh("cpu", (world,))
sent = []  # for each save of this rank, how many whole plans it sent
whole = CachingPlanner._whole_local_plan
def counting(self):
    sent[-1] += 1
    return whole(self)
CachingPlanner._whole_local_plan = counting
step = 0

def model(**more):
    return {**state(mesh, [Shard(0)]), **more}

def save(saved, fails=False, planner=None):
    global step
    step += 1
    sent.append(0)
    return cairn.dcp.save(saved, c, step, planner=planner)

def check_as_stock(saved):
    ours = save(saved)
    plain = stock.save(saved, storage_writer=cairn.dcp.Writer(c, step + 1000))
    assert ours.state_dict_metadata == plain.state_dict_metadata
    assert list(ours.state_dict_metadata) == list(plain.state_dict_metadata)
    assert ours.planner_data == plain.planner_data
    assert ours.storage_data == plain.storage_data

def whole_plans():
    everyone = [None] * world
    dist.all_gather_object(everyone, sent[-1])
    return everyone
"""


def test_ranks_plan_once_and_a_miss_of_one_is_a_miss_of_all(node: Node, tmp_path: Path) -> None:
    run_ranks(
        2,
        RANKS
        + r"""
check_as_stock(model())
assert whole_plans() == [1, 1]
check_as_stock(model())
assert whole_plans() == [0, 0]

# A change on one rank only: the other sends its plan when it is told to.
for other in (
    {"mine": torch.zeros(3)},
    {"mine": torch.zeros(4)},
    {"mine": torch.zeros(4, dtype=torch.int8)},
    {"mine": 7},
    {"mine": {"deeper": torch.zeros(1)}},
):
    more = other if rank == 1 else {}
    check_as_stock(model(**more))
    assert whole_plans() == [1, 1], whole_plans()
    check_as_stock(model(**more))
    assert whole_plans() == [0, 0]
more = {"zero": 1} if rank == 0 else {}
check_as_stock(model(**more))
assert whole_plans() == [1, 1]

# Another placement, on all ranks, as a DTensor is.
check_as_stock(state(mesh, [Shard(1)]))
assert whole_plans() == [1, 1]
check_as_stock(state(mesh, [Shard(1)]))
assert whole_plans() == [0, 0]

# One rank forgot.
for who in (0, 1):
    if rank == who:
        caching_planner.forget()
    check_as_stock(state(mesh, [Shard(1)]))
    assert whole_plans() == [1, 1]
    check_as_stock(state(mesh, [Shard(1)]))
    assert whole_plans() == [0, 0]

# One rank has an older plan of the same model than the other.
old = list(caching_planner._kept)
caching_planner.forget()
check_as_stock(state(mesh, [Shard(1)]))
if rank == 1:
    caching_planner._kept[:] = old
check_as_stock(state(mesh, [Shard(1)]))
assert whole_plans() == [1, 1]
check_as_stock(state(mesh, [Shard(1)]))
assert whole_plans() == [0, 0]
into = state(mesh, [Shard(0)], fill=-1)
cairn.dcp.load(into, c, step)
check(into)
""",
        "agree",
        node,
        tmp_path,
    )


def test_a_save_that_fails_anywhere_leaves_the_next_one_right(node: Node, tmp_path: Path) -> None:
    run_ranks(
        2,
        RANKS
        + r"""
class Breaks(CachingPlanner):
    def __init__(self, where, who):
        super().__init__()
        self.where, self.who = where, who
    def at(self, where):
        if self.where == where and self.who in (rank, None):
            raise RuntimeError("broken by design")
    def set_up_planner(self, *a, **k):
        self.at("set up")
        super().set_up_planner(*a, **k)
    def _whole_local_plan(self):
        self.at("local")
        return super()._whole_local_plan()
    def _plan_in_full(self, plans):
        self.at("global")
        return super()._plan_in_full(plans)
    def finish_plan(self, plan):
        self.at("before finish")
        plan = super().finish_plan(plan)
        self.at("after finish")
        return plan
    def resolve_data(self, item):
        self.at("write")
        return super().resolve_data(item)

# From nothing kept, from all kept, and from rank 1's kept alone: the second round.
for prepare in ("nothing", "all", "one"):
    for where in ("set up", "local", "global", "after finish", "write", "before finish"):
        for who in (0, 1, None):
            if where == "before finish" and prepare == "one":
                continue  # only a rank that is gone fails between being told and its second plan
            caching_planner.forget()
            if prepare != "nothing":
                save(model())
            if prepare == "one" and rank == 0:
                caching_planner.forget()
            must = where in ("set up", "after finish", "before finish", "write")
            failed = False
            try:
                save(model(), planner=Breaks(where, who))
            except stock.CheckpointException as error:
                assert "broken by design" in str(error), error
                failed = True
            assert failed or not must, (prepare, where, who)
            check_as_stock(model())
            check_as_stock(model())
            assert whole_plans() == [0, 0]
""",
        "broken",
        node,
        tmp_path,
    )


def test_groups_and_modes_of_saving(node: Node, tmp_path: Path) -> None:
    run_ranks(
        2,
        RANKS
        + r"""
check_as_stock(model())
group = dist.new_group([0, 1])
sent.append(0)
first = cairn.dcp.save(model(), c, 100, process_group=group)
sent.append(0)
again = cairn.dcp.save(model(), c, 101, process_group=group)
assert first.storage_data == again.storage_data and sent[-1] == 0

for number in (102, 103):  # by thread
    kept = model()
    sent.append(0)
    done = cairn.dcp.async_save(kept, c, number)
    kept["all"].zero_()
    done.result()
    into = state(mesh, [Shard(1)], fill=-1)
    dist.barrier()
    cairn.dcp.load(into, c, number)
    check(into)
assert whole_plans() == [0, 0]

for number in (104, 105, 106):  # each rank for itself
    sent.append(0)
    cairn.dcp.save({"mine": torch.full((4,), rank + number)}, c, number, use_collectives=False)
    dist.barrier()
    mine = {"mine": torch.zeros(4, dtype=torch.int64)}
    cairn.dcp.load(mine, c, number)
    assert mine["mine"].eq(rank + number).all()
    if rank == number - 104:
        caching_planner.forget()
assert whole_plans() == [0, 1]

# Stock's writer, which marks the plans that the coordinator sends.
for number in range(4):
    sent.append(0)
    folder = f"{place}-stock-{number}"
    if rank == 1 and number == 2:
        caching_planner.forget()
    stock.save(model(), storage_writer=stock.FileSystemWriter(folder), planner=CachingPlanner())
    assert whole_plans() == [[1, 1], [0, 0], [1, 1], [0, 0]][number]
    into = state(mesh, [Shard(1)], fill=-1)
    stock.load(into, storage_reader=stock.FileSystemReader(folder))
    check(into)

# A planner for all ranks, given to a save without collectives, is refused and hangs nobody.
try:
    cairn.dcp.save({"mine": torch.zeros(4)}, c, 107, planner=CachingPlanner(), use_collectives=False)
    raise SystemExit("it did not fail")
except ValueError as error:
    assert "alone=True" in str(error), error
""",
        "modes",
        node,
        tmp_path,
    )
