#!/usr/bin/env python3
"""make demo-cluster: training on a ring of three nodes and a spare loses a node, the database, then two.

The nodes are network namespaces on this machine (as root or as any user), each with a daemon of its own. The
job's two ranks run on nodes 0 and 1; each part that they save is copied to the next node as well, and to the
storage that all nodes share. A MariaDB server says who has which rank of the ring, and has an index of all.

 1. The job runs once undisturbed, without Cairn.
 2. It runs again and saves every step through Cairn. In the middle of a save everything on node 0 is
    SIGKILLed: trainer, daemon and keeper. The spare takes its rank by itself, and the job goes on there
    from memory: rank 0's part comes from node 1.
 3. The database is SIGKILLed and stays away for some steps. Every save goes on, and when it is back the
    daemons write what it missed.
 4. Then nodes 0 and 1 lose everything at once. What they held for each other is gone; the job goes on from
    storage.
 5. The end state must be the first run's, bit for bit, and the database must know every complete step.

With --rdma the replication part runs afterwards in the guest (hack/guest), over RDMA, and says which
transport carried how many bytes (hack/demo/replicate.py).

Exit status 0 when it was, 1 when anything was not as promised.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import run
from run import (
    BUILD,
    JOB,
    STEPS,
    WORLD_SIZE,
    DemoError,
    Node,
    Place,
    Timeline,
    Trainers,
    catch_mid_save,
    digest,
    say,
    scratch_folders,
    stalls,
)

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "cluster"))

import mariadb
from mariadb import MariaDb
from members import binary, catalog_ring_options
from network import Network, NetworkError, unavailable

OUT = BUILD / "demo-cluster"
NODES = 3
SPARE = NODES  # a host of its own
TAKEOVER_AFTER_S = 5
FIRST_LOSS, SECOND_LOSS = 6, 14
DATABASE_LOSS, DATABASE_RETURN = 8, 12
BUDGET = "1GiB"
LOST_AFTER_S = 5
GOING_ON_S = 90

run.OUT = OUT


class Ring:
    """Three daemons and the ranks of the job beside two of them."""

    def __init__(
        self, network: Network, scratch: Path, storage: Path, database: MariaDb, running: list
    ) -> None:
        self.network, self.scratch, self.storage, self.running = network, scratch, storage, running
        self.database = database
        self.lives = [0] * (NODES + 1)
        self.hosts = list(range(NODES))  # of each rank
        self.nodes = [self._start(rank, rank) for rank in range(NODES)]
        for rank in range(NODES):
            self.await_rank(rank)
        self.spare = self._start(SPARE, None)

    def _start(self, host: int, rank: int | None) -> Node:
        """A daemon that wants this rank; without one a spare."""
        self.lives[host] += 1
        node = Node(
            self.scratch,
            self.storage,
            f"{host}-{self.lives[host]}",
            self.network.enter(host),
            [
                f"--ring.lost_after_seconds={LOST_AFTER_S}",
                f"--ring.takeover_after_seconds={TAKEOVER_AFTER_S}",
                *catalog_ring_options(self.network.addresses[host], rank, NODES, cluster="demo"),
                *self.database.options(),
            ],
            BUDGET,
        )
        self.running.append(node)
        return node

    def replace(self, rank: int) -> Node:
        """An empty daemon in the place of one that was killed, on the host that the rank had at first."""
        self.hosts[rank] = rank
        self.nodes[rank] = self._start(rank, rank)
        return self.nodes[rank]

    def await_spare(self, rank: int) -> None:
        """Until the spare has this rank by itself."""
        self.hosts[rank] = SPARE
        self.nodes[rank] = self.spare
        self.await_rank(rank)

    def await_rank(self, rank: int) -> None:
        deadline = time.monotonic() + GOING_ON_S
        while True:
            try:
                if self.cairn(rank, "status").get("ring", {}).get("rank") == rank:
                    return
            except DemoError:
                pass  # it is just starting, or being replaced by a daemon that has the rank
            if time.monotonic() > deadline:
                raise DemoError(f"nobody has rank {rank} after {GOING_ON_S} s")
            time.sleep(0.1)

    def places(self) -> list[Place]:
        """A rank beside each of the first nodes' daemons, on their network."""
        return [
            Place(
                self.network.enter(self.hosts[rank]),
                "eth0",
                1,
                ["--socket", str(self.nodes[rank].socket)],
            )
            for rank in range(WORLD_SIZE)
        ]

    def cairn(self, rank: int, *words: str):
        """The answer of a command, on that node."""
        asked = [binary("cairn"), f"--socket={self.nodes[rank].socket}", *words, "-o", "json"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode != 0:
            raise DemoError(f"cairn {' '.join(words)}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def catalog(self, rank: int) -> str:
        """ "mysql: up to date", or by how much it is behind and why."""
        return self.cairn(rank, "status")["catalog"]

    def await_catalog(self) -> None:
        deadline = time.monotonic() + GOING_ON_S
        while any(self.catalog(rank) != "mysql: up to date" for rank in range(NODES)):
            if time.monotonic() > deadline:
                raise DemoError(
                    f"the catalog is not up to date: {[self.catalog(rank) for rank in range(NODES)]}"
                )
            time.sleep(0.2)

    def complete_steps(self) -> set[tuple[int, int]]:
        """(step, attempt) of all that is complete, as the nodes themselves say it."""
        shown = [
            checkpoint
            for rank in range(NODES)
            for checkpoint in self.cairn(rank, "ls", JOB, "--all")["checkpoints"]
        ]
        return {(one["step"], one["attempt"]) for one in shown if one["facts"]["complete"]}

    def recorded_steps(self) -> set[tuple[int, int]]:
        """The same, as the database has it."""
        rows = self.database.ask(
            f"SELECT step, attempt FROM steps WHERE cluster='demo' AND job='{JOB}' AND removed=0"
        )
        return {(int(step), int(attempt)) for step, attempt in rows}

    def await_latest(self, rank: int):
        """What this node says is latest, once it can say it."""
        import cairn

        session = self.nodes[rank].connect()
        deadline = time.monotonic() + GOING_ON_S
        try:
            while True:
                try:
                    return session.latest()
                except (cairn.Unavailable, cairn.Timeout) as error:
                    if time.monotonic() > deadline:
                        raise DemoError(
                            f"node {rank} cannot say what is latest: {error}"
                        ) from error
                    time.sleep(0.1)
                except cairn.NotFound as error:
                    raise DemoError(f"node {rank} knows of nothing complete: {error}") from error
        finally:
            session.close()


class Story:
    """The lives of the job on the ring, and what is told of them at the end."""

    def __init__(self, ring: Ring, scratch: Path, running: list) -> None:
        self.ring, self.scratch, self.running = ring, scratch, running
        self.timeline = Timeline()
        self.lives: list[Trainers] = []
        self.losses: list[tuple[str, str, int, float, float]] = []
        self.without_database: list[float] = []  # ms that saves took meanwhile
        self.recorded = 0

    def start(self, *extra: str) -> Trainers:
        life = f"life-{len(self.lives) + 1}"
        trainers = Trainers(life, ["--job", JOB, *extra], self.scratch, self.ring.places())
        self.lives.append(trainers)
        self.running.append(trainers)
        return trainers

    def go_on(self, what: str, lost_at: float, struck: int, *extra: str) -> Trainers:
        """The next life, and from where it went on."""
        trainers = self.start(*extra)
        trainers.wait_for("the trainers' start", lambda: len(trainers.ready) == WORLD_SIZE)
        slowest = max(trainers.ready.values(), key=lambda event: event["load_ms"])
        source = {"memory": "memory", "peer": "memory", "storage": "storage"}.get(
            slowest["source"], slowest["source"]
        )
        after_s = time.monotonic() - lost_at
        redone = struck - slowest["step"]
        self.losses.append((what, source, redone, slowest["load_ms"], after_s))
        self.timeline.add(
            f"life {len(self.lives)} goes on with step {slowest['step']}, loaded from {source} in "
            f"{slowest['load_ms']:.0f} ms, {after_s:.1f} s after the loss"
        )
        return trainers

    def lose_one(self, trainers: Trainers) -> Trainers:
        node = self.ring.nodes[0]
        session = node.connect()

        def strike() -> None:
            node.kill_everything()
            trainers.processes[0].kill()

        step, part = catch_mid_save(trainers, session, FIRST_LOSS, strike)
        lost_at = time.monotonic()
        trainers.kill()  # the other rank has lost its group; a launcher ends it
        self.timeline.add(
            f"SIGKILL to everything on node 0 with step {step} {100 * part:.0f} % written: its "
            "memory is gone"
        )
        self.ring.await_spare(0)
        self.timeline.add(
            f"the spare has rank 0, {time.monotonic() - lost_at:.1f} s after the loss; nobody told it to"
        )
        latest = self.ring.await_latest(0)
        self.timeline.add(f"it says that latest is {latest.step}")
        if latest.step not in (step - 1, step):
            raise DemoError(f"latest is {latest.step}, expected {step - 1}")
        return self.go_on("one node", lost_at, step)

    def lose_database(self, trainers: Trainers) -> None:
        trainers.wait_for(
            f"step {DATABASE_LOSS}", lambda: trainers.last_step() >= DATABASE_LOSS, GOING_ON_S
        )
        self.ring.database.kill()
        first = trainers.last_step() + 1
        self.timeline.add("SIGKILL to the database, while the job trains")
        trainers.wait_for(
            f"step {DATABASE_RETURN}", lambda: trainers.last_step() >= DATABASE_RETURN, GOING_ON_S
        )
        last = trainers.last_step()
        said = self.ring.catalog(0)
        if "behind" not in said:
            raise DemoError(f"the database is away, and node 0 says: {said}")
        self.ring.database.start()
        meanwhile = [trainers.steps[step] for step in range(first, last + 1)]
        if trainers.not_saved:
            raise DemoError(f"steps {sorted(trainers.not_saved)} could not be saved")
        self.without_database = [
            max(event["stalls"]["cairn"] for event in ranks.values()) for ranks in meanwhile
        ]
        self.timeline.add(
            f"the database is back; steps {first} to {last} were trained and saved without it"
        )

    def check_catalog(self) -> None:
        """The database has every complete step, and no other."""
        self.ring.await_catalog()
        deadline = time.monotonic() + GOING_ON_S
        while True:
            complete, recorded = self.ring.complete_steps(), self.ring.recorded_steps()
            if complete == recorded and complete:
                break
            if time.monotonic() > deadline:
                raise DemoError(
                    f"complete are {sorted(complete)}, and the database has {sorted(recorded)}"
                )
            time.sleep(0.5)
        self.recorded = len(recorded)
        steps = ", ".join(str(step) for step, _ in sorted(recorded))
        self.timeline.add(f"the database has all {len(recorded)} complete steps: {steps}")

    def lose_two(self, trainers: Trainers) -> Trainers:
        session = self.ring.nodes[0].connect()
        step, part = catch_mid_save(trainers, session, SECOND_LOSS, trainers.kill)
        latest = session.latest()
        session.wait(latest.step, "PERSISTED", timeout=120)
        session.close()
        for rank in (0, 1):
            self.ring.nodes[rank].kill_everything()
        lost_at = time.monotonic()
        self.timeline.add(
            f"SIGKILL to both trainers with step {step} {100 * part:.0f} % written, then, once step "
            f"{latest.step} was PERSISTED, to everything on nodes 0 and 1: of rank 0's part no copy "
            "is left in any memory"
        )
        for rank in (0, 1):
            self.ring.replace(rank)
        for rank in (0, 1):
            self.ring.await_rank(rank)
        found = self.ring.await_latest(1)
        self.timeline.add(
            f"two empty daemons are nodes 0 and 1; they say that latest is {found.step}"
        )
        if found.step != latest.step:
            raise DemoError(f"latest is {found.step}, and {latest.step} was PERSISTED")
        return self.go_on(
            "two neighbours", lost_at, step, "--write-final", str(OUT / "disturbed.pt")
        )


def play(network: Network, scratch: Path, running: list) -> None:
    say("the job once without Cairn, undisturbed: two ranks of a small transformer")
    plain = Trainers("undisturbed", ["--write-final", str(OUT / "undisturbed.pt")], scratch)
    running.append(plain)
    plain.wait_for("the undisturbed run", plain.finished)
    plain.pump(0.5)

    storage = OUT / "storage"
    storage.mkdir()
    # On the switch, so that the server ends with the network.
    database = MariaDb(scratch / "mysql", network.enter_switch())
    ring = Ring(network, scratch, storage, database, running)
    for node in ring.nodes:
        node.connect().close()
    story = Story(ring, scratch, running)
    story.timeline.add(f"undisturbed run done, {STEPS} steps")
    story.timeline.add(
        f"{NODES} nodes form a ring, {BUDGET} each, beside a spare; rank 0 is on node 0, 1 on 1"
    )

    trainers = story.lose_one(story.start())
    story.lose_database(trainers)
    trainers = story.lose_two(trainers)
    trainers.wait_for("the last life", trainers.finished)
    trainers.pump(0.5)
    final = ring.await_latest(2)
    story.timeline.add(f"all {STEPS} steps are done; node 2 says that latest is {final.step}")
    if final.step != STEPS - 1:
        raise DemoError(f"latest is {final.step}, expected {STEPS - 1}")
    story.check_catalog()
    same = (digest(OUT / "undisturbed.pt"), digest(OUT / "disturbed.pt"))
    report(story, same)
    if same[0] != same[1]:
        raise DemoError("the end states differ")


def report(story: Story, same: tuple[str, str]) -> None:
    print("\nWhat happened\n")
    for at, text in story.timeline.rows:
        print(f"  {at:6.1f} s  {text}")
    saves = stalls(story.lives, "cairn", skip=2)
    print(
        "\nTraining stood still per save, while each part was copied to the next node and to storage\n"
    )
    print(f"  {'through Cairn':42s} {statistics.median(saves):8.1f} ms   median of {len(saves)}")
    away = story.without_database
    print(
        f"  {'… without the database':42s} {statistics.median(away):8.1f} ms   median of {len(away)}"
    )
    print("\nTime to go on\n")
    print(f"  {'lost':16s} {'from':10s} {'steps redone':>12s} {'load':>11s}   loss → loaded")
    for what, source, redone, load_ms, after_s in story.losses:
        print(f"  {what:16s} {source:10s} {redone:12d} {load_ms:8.0f} ms   {after_s:8.1f} s")
    print("\nEnd state (SHA-256 over every tensor of model and optimizer)\n")
    print(f"  undisturbed                {same[0]}")
    print(f"  nodes and database lost    {same[1]}")
    print(f"  → {'bit-identical' if same[0] == same[1] else 'DIFFERENT'}\n", flush=True)
    (OUT / "result.json").write_text(
        json.dumps(
            {
                "timeline": story.timeline.rows,
                "stall_ms": statistics.median(saves),
                "stall_without_database_ms": statistics.median(story.without_database),
                "losses": story.losses,
                "steps_in_the_database": story.recorded,
                "identical": same[0] == same[1],
            },
            indent=1,
        )
    )


def replicate_over_rdma() -> int:
    """In the guest; its output is shown as it comes."""
    say("the replication part once more, over RDMA, in an emulated machine that has devices")
    root = Path(__file__).resolve().parent.parent
    script = [str(root / "demo" / "replicate.py")]
    return subprocess.run([root / "guest", "/usr/bin/python3", *script], check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser("hack/demo/cluster.py")
    parser.add_argument("--rdma", action="store_true", help="afterwards, replication over RDMA")
    arguments = parser.parse_args()
    code = train()
    return replicate_over_rdma() if arguments.rdma and code == 0 else code


def train() -> int:
    problem = unavailable(cuts=False) or mariadb.unavailable()
    if problem:
        say(f"FAILED: {problem}")
        return 1
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    running: list[Trainers | Node] = []
    with scratch_folders() as (scratch, _), Network(NODES + 1, cuts=False) as network:
        try:
            play(network, scratch, running)
            return 0
        except (DemoError, NetworkError, RuntimeError) as error:
            say(f"FAILED: {error}")
            return 1
        except KeyboardInterrupt:
            say("interrupted")
            return 130
        finally:
            for thing in running:
                if isinstance(thing, Trainers):
                    thing.kill()
                elif thing.process.poll() is None:
                    thing.kill_everything()


if __name__ == "__main__":
    sys.exit(main())
