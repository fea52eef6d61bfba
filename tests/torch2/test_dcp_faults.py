"""cairn.dcp over two ranks of which one fails, dies or is too late (promises 3 and 4): all hear of it,
nothing of the step counts, the previous one loads, and the next save succeeds.

One file: the faults of a group share the processes that they strike.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from node import MIB, Node
from test_dcp_ranks import run_ranks

SHARD_MIB = 8  # of each of two ranks
# Of two ranks' shards two saves, and not three.
BUDGET = 5 * SHARD_MIB * MIB


@pytest.fixture
def tight() -> Iterator[Node]:
    node = Node(budget=BUDGET, storage=False).start()
    yield node
    node.remove()


FAULTS = rf"""
import contextlib, copy, signal, threading, time, warnings
from torch.distributed.checkpoint import CheckpointException
from cairn import dcp_writer
warnings.simplefilter("ignore")
torch.set_num_threads(1)
mesh = init_device_mesh("cpu", (world,))
ELEMENTS = world * {SHARD_MIB} * (1 << 20) // 4

def filled(fill):
    local = torch.full((ELEMENTS // world,), fill, dtype=torch.int32)
    return {{"mine": DTensor.from_local(local, mesh, [Shard(0)]), "step": fill}}

def assert_latest(step):
    "On every rank, and its bytes are right."
    print("latest:", step, f"{{time.monotonic():.1f}}", flush=True)
    dist.barrier()
    assert c.latest().step == step, (c.latest(), step)
    into = filled(-1)
    found = cairn.dcp.load(into, c)
    assert found.step == step
    assert into["mine"].to_local().eq(step).all() and into["step"] == step
    dist.barrier()

def save(state, step, kind, **arguments):
    if kind == "sync":
        return cairn.dcp.save(state, c, step, **arguments)
    if kind == "overlap":
        arguments["overlap"] = [state["mine"]]
    done = cairn.dcp.async_save(state, c, step, **arguments)
    assert c.fence(timeout=patient(60))
    return done.result()

def must_fail(says, call, *arguments, **more):
    print("must fail:", says, arguments[1:], f"{{time.monotonic():.1f}}", flush=True)  # shown if it hangs
    try:
        call(*arguments, **more)
    except CheckpointException as error:
        assert says in str(error), error
        assert list(error.failures), error
        return
    raise SystemExit(f"it did not fail: {{says}}")
"""

# Each on one rank.
ONE_RANK_FAILS = r"""
class NoPickle:
    def __reduce__(self):
        raise RuntimeError("broken by design: finish")

class NoCopy:
    def __deepcopy__(self, memo):
        if rank == who:
            raise RuntimeError("broken by design: stage")
        return self

class Unpicklable(stock.DefaultSavePlanner):
    "So that `finish` fails, where the metadata is written."
    def create_global_plan(self, plans):
        plans, metadata = super().create_global_plan(plans)
        metadata.planner_data = NoPickle()
        return plans, metadata

class Fails(stock.DefaultSavePlanner):
    def resolve_data(self, item):
        if rank == who:
            raise RuntimeError("broken by design: write_data")
        return super().resolve_data(item)

@contextlib.contextmanager
def no_commit():
    commit = dcp_writer.Writer._commit
    def broken(self):
        if rank == who:
            raise RuntimeError("broken by design: commit")
        commit(self)
    dcp_writer.Writer._commit = broken
    try:
        yield
    finally:
        dcp_writer.Writer._commit = commit

save(filled(1), 1, "sync")
assert_latest(1)
step = 1
for who in (1, 0):
    for kind in ("sync", "async", "overlap"):
        def fail(says, planner=None, **extra):
            must_fail("broken by design: " + says, save, {**filled(step + 1), **extra}, step + 1, kind,
                      planner=planner)
            assert_latest(step)
        if kind == "overlap":
            fail("stage", odd=NoCopy())
        fail("write_data", Fails())
        with no_commit():
            fail("commit")
        if who == 0:  # the coordinator's
            fail("finish", Unpicklable())
        # What failed holds no memory: the budget has room for two.
        save(filled(step + 1), step + 1, kind)
        step += 1
        assert_latest(step)
        revisions = [None] * world
        dist.all_gather_object(revisions, c.checkpoint(step).revision)
        assert len(set(revisions)) == 1 and revisions[0] >= 2, revisions
"""

FULL_MEMORY = r"""
# Rank 1 wants more than there is, after its first tensors.
c.close()
c = cairn.connect(job=job, rank=rank, world_size=world, socket=socket, timeout=patient(5))
for kind in ("sync", "async", "overlap"):
    large = filled(step + 1)
    if rank == 1:
        large["large"] = torch.zeros(60 << 20, dtype=torch.uint8)
    must_fail("memory:", save, large, step + 1, kind)
    assert_latest(step)
    save(filled(step + 1), step + 1, kind)
    step += 1
    assert_latest(step)
"""

DAEMON_RESTARTS = r"""
# In the middle of a save of both: it is there on all ranks or on none.
def daemon():
    with open(f"/proc/{KEEPER}/task/{KEEPER}/children") as children:
        return int((children.read().split() or ["0"])[0])

class Kills(stock.DefaultSavePlanner):
    def resolve_data(self, item):
        if rank == 1 and item.index.fqn == "mine":
            old = daemon()
            os.kill(old, signal.SIGKILL)
            while daemon() in (0, old):
                time.sleep(0.01)
        return super().resolve_data(item)

c.close()
c = cairn.connect(job=job, rank=rank, world_size=world, socket=socket)
for kind in ("async", "overlap"):  # a third death within a minute would mean safe mode
    try:
        save(filled(step + 1), step + 1, kind, planner=Kills())
        saved = True
    except CheckpointException:
        saved = False
    everyone = [None] * world
    dist.all_gather_object(everyone, saved)
    assert len(set(everyone)) == 1, everyone
    step += saved
    assert_latest(step)
    save(filled(step + 1), step + 1, kind)
    step += 1
    assert_latest(step)
"""

SUPERSEDED = r"""
# A newer life of the job has saved: the older one can save nothing more, and changes nothing.
newer = cairn.connect(job=job, rank=rank, world_size=world, socket=socket, attempt=c.attempt + 1, fence=True)
step += 1
cairn.dcp.save(filled(step), newer, step)
assert_latest(step)
for kind in ("sync", "async", "overlap"):
    must_fail("superseded", save, filled(step + 1), step + 1, kind)
    assert_latest(step)
    must_fail("superseded", save, filled(0), step, kind)  # the step that the newer one has saved
    assert_latest(step)
c.close()
c = newer
save(filled(step + 1), step + 1, "async")
step += 1
assert_latest(step)
"""


def test_one_rank_fails_and_all_hear_of_it(tight: Node, tmp_path: Path) -> None:
    assert tight._keeper is not None
    run_ranks(
        2,
        f"KEEPER = {tight._keeper.pid}\n" + FAULTS + ONE_RANK_FAILS + FULL_MEMORY + DAEMON_RESTARTS,
        "fails",
        tight,
        tmp_path,
    )


# Rank 1 is killed in the save of step 2, then, by the next life, rank 0 in the save of step 3.
KILLED = (
    FAULTS
    + r"""
writer = dcp_writer.Writer
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

class Dies(stock.DefaultSavePlanner):
    def resolve_data(self, item):
        return die() if rank == WHO else super().resolve_data(item)

if WHERE != "nowhere" and not LAST:
    cairn.dcp.save(filled(1), c, 1)
    LAST = 1
assert_latest(LAST)

planner = Dies() if WHERE == "before the copy" else None
if rank == WHO:
    if WHERE == "between stage and commit":
        writer._commit = die
    elif WHERE == "in finish":
        writer.finish = die

begin = time.monotonic()
if WHERE != "nowhere":
    done = cairn.dcp.async_save(filled(LAST + 1), c, LAST + 1, overlap=[], planner=planner)
    try:
        done.result()
        raise SystemExit("it did not fail")
    except SystemExit:
        raise
    except BaseException as error:
        print("heard:", type(error).__name__, error)
    assert c.fence(timeout=patient(30))  # the one that is left may go on
    assert time.monotonic() - begin < patient(90)
    assert c.latest().step == LAST, c.latest()
else:
    for step in (LAST + 1, LAST + 2):
        cairn.dcp.save(filled(step), c, step)
        assert_latest(step)
c.close()
sys.stdout.flush()
os._exit(0)
"""
)


def test_a_rank_killed_between_stage_and_commit_leaves_the_step_before(
    tight: Node, tmp_path: Path
) -> None:
    """The memory that it had taken is free for the next life, in a budget that holds two."""
    lives = [
        ("between stage and commit", 1, 0, [0, -9]),
        ("in finish", 0, 1, [-9, 0]),  # when rank 1 has committed
        ("before the copy", 1, 1, [0, -9]),
        ("nowhere", 0, 1, [0, 0]),
    ]
    for where, who, last, ends in lives:
        script = f"WHERE, WHO, LAST = {where!r}, {who}, {last}\n" + KILLED
        outputs = run_ranks(2, script, "killed", tight, tmp_path, ends)
        if where != "nowhere":
            assert "heard:" in outputs[1 - who], outputs


MEET = r"""
import random, threading, time, warnings
from torch.distributed.checkpoint import CheckpointException
warnings.simplefilter("ignore")
mesh = init_device_mesh("cpu", (world,))
def filled(fill):
    local = torch.full((1 << 18,), fill, dtype=torch.int32)
    return {"mine": DTensor.from_local(local, mesh, [Shard(0)]), "step": fill}

def assert_saved(connection, step, fill):
    into = filled(-1)
    cairn.dcp.load(into, connection, step)
    assert into["mine"].to_local().eq(fill).all() and into["step"] == fill

choose = random.Random(rank)
class Late(stock.DefaultSavePlanner):
    "DCP's threads talk to other ranks whenever they come to it."
    def create_local_plan(self):
        time.sleep(choose.random() / 30)
        return super().create_local_plan()
"""

TWO_JOBS = r"""
# Both save each step number, and both saves go on at once.
other = cairn.connect(job=job + "-other", rank=rank, world_size=world, socket=socket)
for step in range(12):
    both = [
        cairn.dcp.async_save(filled(fill), connection, step, planner=Late(), overlap=[])
        for connection, fill in ((c, step), (other, 100 + step))
    ]
    # Asks all ranks whether one is busy, while those threads talk.
    small = c.save_async(1000 + step, {f"{rank}.pt": step}, overlap=[], busy="skip")
    for done in both:
        done.result()
    assert small.wait(patient(30)) and (small.ok or small.skipped)
dist.barrier()
for step in range(12):
    assert_saved(c, step, step)
    assert_saved(other, step, 100 + step)
other.close()
"""

TWO_SAVES = r"""
# Of stock's, at once, each in a group of its own, over one connection. The newer one is planned for all ranks
# when the older is complete: until then the node may give up what it has of the older.
class AfterTheOlder(Late):
    def __init__(self, older):
        super().__init__()
        self.older = older
    def create_global_plan(self, plans):
        self.older.result()
        return super().create_global_plan(plans)

groups = [dist.new_group(backend="gloo") for _ in range(2)]
for step in range(2000, 2008, 2):
    both = []
    for i in range(2):
        both.append(stock.async_save(
            filled(step + i), checkpoint_id=f"cairn://{job}/{step + i}",
            planner=AfterTheOlder(both[0]) if both else Late(),
            storage_writer=cairn.dcp.Writer(c, overlap=[]), process_group=groups[i]))
    for done in both:
        done.result()
    dist.barrier()
    for i in range(2):
        assert_saved(c, step + i, step + i)
"""

SAVED_WHILE_LOADED = r"""
# Rank 0 loads all of a step, and has read one rank's file when both save it again, twice.
cairn.dcp.save(filled(1), c, 3000)
dist.barrier()
found = c.checkpoint(3000)

class SavesAgain(stock.DefaultLoadPlanner):
    again = False
    def commit_tensor(self, item, tensor):
        super().commit_tensor(item, tensor)
        if not self.again:
            self.again = True
            for fill in (2, 3):
                cairn.dcp.save(filled(fill), c, 3000)

dist.barrier()
if rank == 0:
    into = {"mine": torch.full((2 << 18,), -1, dtype=torch.int32)}
    planner = SavesAgain()
    try:
        stock.load(into, storage_reader=cairn.dcp.Reader(c, found), planner=planner, no_dist=True)
        assert into["mine"].eq(1).all(), into["mine"].unique()
    except CheckpointException as error:
        assert "is no more" in str(error), error
    assert planner.again
else:
    for fill in (2, 3):
        cairn.dcp.save(filled(fill), c, 3000)
dist.barrier()
assert c.checkpoint(3000).revision == found.revision + 2
assert_saved(c, 3000, 3)
"""


def test_saves_and_loads_that_meet(node: Node, tmp_path: Path) -> None:
    script = MEET + TWO_JOBS + TWO_SAVES + SAVED_WHILE_LOADED
    run_ranks(2, script, "meets", node, tmp_path)


def test_a_superseded_life_saves_nothing(node: Node, tmp_path: Path) -> None:
    begin = "step = 1\nsave(filled(1), 1, 'sync')\nassert_latest(1)\n"
    run_ranks(2, FAULTS + begin + SUPERSEDED, "superseded", node, tmp_path)


def test_a_group_without_a_cpu_backend(node: Node, tmp_path: Path) -> None:
    """As a group of NCCL's alone is: Cairn's own threads talk in a gloo group of their own."""
    run_ranks(
        2,
        r"""
        import warnings
        warnings.simplefilter("ignore")
        c.close()
        dist.destroy_process_group()
        dist.init_process_group("cuda:gloo", init_method=f"file://{place}-2", rank=rank, world_size=world)
        c = cairn.connect(job=job, rank=rank, world_size=world, socket=socket, attempt=1 << 40)
        state = {"mine": torch.full((4,), rank), "n": 7}
        try:
            cairn.dcp.async_save(state, c, 1, process_group=dist.group.WORLD)
            raise SystemExit("it did not fail")
        except ValueError as error:
            assert "process_group: " in str(error) and "no CPU backend" in str(error), error
        for step in (1, 2):
            weights = torch.full((4,), step)
            done = cairn.dcp.async_save({"w": weights, "n": step}, c, step, overlap=[weights])
            done.result()
            small = c.save_async(10 + step, {f"{rank}.pt": step}, busy="skip")
            assert small.wait(patient(30)) and small.ok
        into = {"w": torch.zeros(4, dtype=torch.int64), "n": 0}
        cairn.dcp.load(into, c, 2, no_dist=True)
        assert into["w"].eq(2).all() and into["n"] == 2
        c.close()
        sys.stdout.flush()
        os._exit(0)
        """,
        "cuda-only",
        node,
        tmp_path,
    )
