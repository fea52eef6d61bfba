"""Faults of several kinds, up to three at once, strike a real ring whose trainers go on.

Acknowledgements are noted in a file outside of all that dies. Each time all is quiet again, every member has
to name the same newest step, which is none older than the one that had to stay, and has to load its bytes.

CAIRN_NEMESIS_SECONDS is how long each shape of a ring is struck; CAIRN_CLUSTER_SEED=N repeats the choices,
though not the moments.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import random
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cairn_daemon import Node, binary, children
from cairn_raw import PERSISTED, REPLICATED, CairnError, Raw, TTransportException, pattern
from mariadb import MariaDb
from patience import patient, stays
from ring import MIB, Member, Ring, attempt_number, ring, until
from storage_faults import Throttle

pytestmark = pytest.mark.full

SECONDS = float(os.environ.get("CAIRN_NEMESIS_SECONDS", "45"))
LOST_AFTER_S = 3
# How old an acknowledgement may be: a member that has fallen silent is noticed within this time.
NOTICED_S = LOST_AFTER_S + 3
QUIET_S = 120
PART = MIB + 11
CALL_S = 20
SAVE_S = 6 * CALL_S  # of all ranks, and the questions after it
SAFE_MODE_WINDOW_S = 65  # the keeper's minute, and what a death takes to be noticed
_FAILED = (CairnError, TTransportException, OSError, EOFError, ValueError)


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    nodes: int = 3
    replicas: int = 1
    storage: bool = False
    slow: bool = False  # the disk of its storage
    spares: int | None = None  # the members stand in the catalog, and so many are spares


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("list"),
        Shape("two-replicas", nodes=4, replicas=2),
        Shape("storage", storage=True),
        Shape("slow-storage", storage=True, slow=True),
        Shape("catalog", nodes=4, storage=True, spares=1),
    )
}


@dataclasses.dataclass(frozen=True)
class Acknowledged:
    step: int
    asked: float  # when the question began


class Notes:
    """What happened, a line of JSON each. The file stays when the process dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self.counts: collections.Counter[str] = collections.Counter()

    def add(self, what: str, **more: Any) -> None:
        with self._lock:
            self.counts[what] += 1
            line = json.dumps({"at": round(time.monotonic(), 3), "what": what, **more})
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(f"{line}\n")

    def last(self, lines: int = 60) -> str:
        return "\n".join(self.path.read_text(encoding="utf-8").splitlines()[-lines:])


class Job:
    """A job whose ranks save one step after the other, in a thread, for one life at a time."""

    def __init__(self, nemesis: Nemesis, name: str, world_size: int) -> None:
        self.nemesis, self.name, self.world_size = nemesis, name, world_size
        self.step, self.attempt = 0, 0
        self.begun = 0.0  # the step that it saves now
        self.replicated: Acknowledged | None = None
        self.persisted: Acknowledged | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def objects(self, attempt: int, step: int, writer: int) -> dict[str, bytes]:
        tag = f"{self.name}/{attempt}/{step}/{writer}"
        return {f"{writer}/large": pattern(tag, PART), f"{writer}/small": pattern(tag, 1000)}

    # --- while all is quiet ---

    def has_to_stay(self) -> int:
        """The newest step that no fault since may have taken away; 0: there is none."""
        found = [self.persisted.step] if self.persisted else []
        if self.replicated and self.nemesis.lost_since(self.replicated.asked - NOTICED_S) <= (
            self.nemesis.shape.replicas
        ):
            found.append(self.replicated.step)
        return max(found, default=0)

    def begin_life(self) -> None:
        """Checks what the ring has, and goes on from there."""
        stays = self.has_to_stay()
        choose = random.Random(self.nemesis.choose.random())
        found: list[tuple[int, int] | None] = []

        def agreed() -> bool:
            found[:] = [member.latest(self.name) for member in self.nemesis.seated()]
            return len(set(found)) == 1 and (found[0] is not None or stays == 0)

        until(f"all name the same latest of {self.name}, which has {stays}", agreed, QUIET_S)
        step, attempt = found[0] or (0, 0)
        self.nemesis.notes.add("life", job=self.name, latest=step, of=attempt, stays=stays)
        assert step >= stays, f"promise 1: latest of {self.name} is {step}, {stays} has to be there"
        if step:
            for member in self.nemesis.seated():
                until(
                    f"node {member.rank} loads {self.name}/{step} of {attempt}, which has {stays}",
                    lambda member=member: self.loads(member, step, attempt),
                    QUIET_S,
                )
        self.step, self.attempt = step, attempt_number()
        self.begun = time.monotonic()
        self._stop.clear()
        self._thread = threading.Thread(target=self._live, args=[choose], daemon=True)
        self._thread.start()

    def loads(self, member: Member, step: int, attempt: int) -> bool:
        try:
            with member.session(self.name) as reader:
                for writer in range(self.world_size):
                    for name, wanted in self.objects(attempt, step, writer).items():
                        data = reader.load(
                            step, name, attempt=attempt, timeout_ms=int(patient(CALL_S) * 1000)
                        )
                        assert data == wanted, f"promise 2: {self.name}/{step}/{name} of {attempt}"
        except _FAILED as error:
            self.nemesis.notes.add("no load", job=self.name, step=step, why=str(error)[:300])
            return False
        return True

    def end_life(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(patient(SAVE_S))
            assert not self._thread.is_alive(), f"a call of {self.name} hangs"

    def secured(self) -> bool:
        """Whether what was acknowledged, or a newer step, has all its copies now."""
        stays = self.has_to_stay()
        member = self.nemesis.seated()[0]
        latest = member.latest(self.name)
        if stays == 0:
            return True
        if latest is None or latest[0] < stays or not member.replicated(self.name, latest[0]):
            return False
        self.replicated = Acknowledged(latest[0], time.monotonic())
        return True

    # --- the thread ---

    def _live(self, choose: random.Random) -> None:
        sessions: list[Raw] = []
        try:
            hosts = self.nemesis.seated()
            for rank in range(self.world_size):
                host = hosts[rank % len(hosts)]
                # Not Member's: its sessions are ended by the thread that kills the node.
                sessions.append(Node.writer(host, self.name, self.attempt, rank, self.world_size))
            while not self._stop.wait(choose.uniform(0.05, 0.3)):
                self._save(sessions, choose)
        except _FAILED as error:
            self.nemesis.notes.add("life ended", job=self.name, why=str(error)[:300])
        finally:
            self.begun = float("inf")
            for session in sessions:
                with contextlib.suppress(*_FAILED):
                    session.vanish()

    def _save(self, sessions: list[Raw], choose: random.Random) -> None:
        step, self.begun = self.step + 1, time.monotonic()
        for session in sessions:
            objects = self.objects(self.attempt, step, session.writer)
            session.save(step, objects, timeout_ms=int(patient(CALL_S) * 1000))
        self.step = step
        self.nemesis.notes.add("saved", job=self.name, step=step, attempt=self.attempt)
        if choose.random() < 0.4:
            self._ask(REPLICATED, choose)
        if self.nemesis.shape.storage and choose.random() < 0.3:
            self._ask(PERSISTED, choose)

    def _ask(self, level: int, choose: random.Random) -> None:
        asked, step = time.monotonic(), self.step
        try:
            with choose.choice(self.nemesis.r.members).session(self.name) as reader:
                reader.wait(step, level, int(patient(3) * 1000), attempt=self.attempt)
        except _FAILED:
            return  # not acknowledged
        found = Acknowledged(step, asked)
        if level == REPLICATED:
            self.replicated = found
            self.nemesis.notes.add("replicated", job=self.name, step=step, attempt=self.attempt)
        else:
            self.persisted = found
            self.nemesis.notes.add("persisted", job=self.name, step=step, attempt=self.attempt)


@dataclasses.dataclass
class Fault:
    name: str
    begins: float  # seconds after the round's first
    lasts: float
    begin: Callable[[], object]
    end: Callable[[], object] | None = None


class Nemesis:
    def __init__(self, shape: Shape, r: Ring, choose: random.Random, notes: Notes) -> None:
        self.shape, self.r, self.choose, self.notes = shape, r, choose, notes
        self.jobs = [Job(self, "wide", 2), Job(self, "lone", 1)]
        self._losses: list[float] = []  # when the memory of a node went
        self._killed: dict[int, list[float]] = {}  # when the daemon of each host was
        self._paused: set[int] = set()
        self._throttle = Throttle(r.storage) if shape.slow and r.storage else None
        if self._throttle is not None:
            self._throttle.begin([pid for member in r.members for pid in processes(member)])

    def seated(self) -> list[Member]:
        """Those that have a rank."""
        if self.shape.spares is None:
            return list(self.r.members)
        return [member for member in self.r.members if member.seat() >= 0]

    def lost_since(self, moment: float) -> int:
        return sum(at >= moment for at in self._losses)

    # --- a round ---

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                self.round()
            self.await_quiet()
            for job in self.jobs:
                job.begin_life()
                job.end_life()
            check_nothing_leaks(self.seated())
        finally:
            for job in self.jobs:
                job.end_life()
            if self._throttle is not None:
                self.r.close()
                self._throttle.remove()

    def round(self) -> None:
        self.await_quiet()
        for job in self.jobs:
            job.begin_life()
        for job in self.jobs:
            step = job.step + self.choose.randrange(1, 5)
            until(f"{job.name} saves {step}", lambda job=job, step=step: job.step >= step, QUIET_S)
            until(f"{job.name} has its copies again", job.secured, QUIET_S)
        self.strike()
        for job in self.jobs:
            job.end_life()

    def await_quiet(self) -> None:
        size = self.shape.nodes - (self.shape.spares or 0)

        def met() -> bool:
            seated = self.seated()
            for member in seated:
                states = member.states()
                if sum(state in ("up", "self") for state in states.values()) != size:
                    return False
            return len(seated) == size

        for member in self.r.members:
            member.wait_ready()
        until("the members have met", met, QUIET_S)

    def no_job_hangs(self) -> bool:
        return all(time.monotonic() - job.begun <= patient(SAVE_S) for job in self.jobs)

    def strike(self) -> None:
        """Up to three faults, each with its end. Their order follows from the choices alone."""
        faults = self._choose_faults()
        moments: list[tuple[float, int, str, Callable[[], object]]] = []
        for at, fault in enumerate(faults):
            moments.append((fault.begins, at, fault.name, fault.begin))
            if fault.end is not None:
                moments.append((fault.begins + fault.lasts, at, f"end of {fault.name}", fault.end))
        begun = time.monotonic()
        for at, _, name, act in sorted(moments, key=lambda moment: moment[:2]):
            stays("a save ends", self.no_job_hangs, begun + at - time.monotonic())
            self.notes.add(name)
            act()
        self.r.heal()

    # --- what may strike ---

    def _choose_faults(self) -> list[Fault]:
        choose, size = self.choose, len(self.r.members)
        hosts = choose.sample(range(size), size)  # each has one fault of its processes at most
        kinds = ["daemon", "daemons", "node", "node", "gone", "pause", "cut", "one-way"]
        kinds += ["isolated", "narrow"]
        kinds += ["storage-away", "all-nodes"] if self.shape.storage else []
        losses = self.shape.replicas
        faults = []
        for _ in range(choose.choice((1, 2, 2, 3, 3))):
            kind, host = choose.choice(kinds), hosts.pop()
            other = (host + choose.randrange(1, size)) % size
            if kind in ("node", "gone"):
                losses -= 1
            if losses < 0:
                kind, losses = "pause", 0
            begins = choose.uniform(0, 2)
            lasts = choose.choice((choose.uniform(0.2, 2), choose.uniform(LOST_AFTER_S, 8)))
            if kind == "storage-away":
                kinds = [other for other in kinds if other != kind]  # it goes once
            acts = self._acts(kind, host, other)
            faults.append(Fault(f"{kind} {host} {other}", begins, lasts, *acts))
        return faults

    def _acts(
        self, kind: str, host: int, other: int
    ) -> tuple[Callable[[], object], Callable[[], object] | None]:
        r, network = self.r, self.r.network
        acts: dict[str, tuple[Callable[[], object], Callable[[], object] | None]] = {
            "daemon": (lambda: self._kill_daemon(host), None),
            "daemons": (lambda: self._each(self._kill_daemon), None),
            "node": (lambda: self._kill(host, begin_again=True), None),
            # Files have to be there anyway.
            "all-nodes": (lambda: self._each(self._kill), lambda: self._each(self._begin_again)),
            "gone": (lambda: self._kill(host), lambda: self._begin_again(host)),
            "pause": (lambda: self._pause(host), lambda: self._go_on(host)),
            "cut": (lambda: r.cut(host, other), r.heal),
            "one-way": (lambda: r.cut(host, other, one_way=True), r.heal),
            "isolated": (lambda: network.isolate(host), r.heal),
            "narrow": (lambda: r.rate(host, 40), lambda: r.rate(host, 0)),
            "storage-away": (self._take_storage, self._bring_storage),
        }
        return acts[kind]

    def _each(self, act: Callable[[int], None]) -> None:
        for host in range(len(self.r.members)):
            act(host)

    def _kill(self, host: int, *, begin_again: bool = False) -> None:
        self._losses.append(time.monotonic())
        self._killed.pop(host, None)
        self._paused.discard(host)
        self.r[host].kill()
        if begin_again:
            self._begin_again(host)

    def _begin_again(self, host: int) -> None:
        if self.r[host].process is not None:
            return  # another fault's end came before
        successor = Member(self.r, host, self.r[host].life + 1)
        self.r.members[host] = successor
        successor.start(wait=self._throttle is not None)
        if self._throttle is not None:
            for pid in processes(successor):
                (self._throttle.path / "cgroup.procs").write_text(str(pid))

    def _kill_daemon(self, host: int) -> None:
        """Three deaths within a minute are not tried: it would admit nothing more, which is right."""
        lately = time.monotonic() - SAFE_MODE_WINDOW_S
        deaths = self._killed.setdefault(host, [])
        stands = host not in self._paused and has_daemon(self.r[host])
        if stands and sum(at > lately for at in deaths) < 2:
            deaths.append(time.monotonic())
            self.r[host].kill_daemon()

    def _pause(self, host: int) -> None:
        if has_daemon(self.r[host]):
            self._paused.add(host)
            self.r[host].pause()

    def _go_on(self, host: int) -> None:
        if host in self._paused:
            self.r[host].go_on()
            self._paused.discard(host)

    def _take_storage(self) -> None:
        assert self.r.storage is not None
        self.r.storage.rename(self.r.storage.with_name("aside"))

    def _bring_storage(self) -> None:
        assert self.r.storage is not None
        self.r.storage.with_name("aside").rename(self.r.storage)


def processes(member: Member) -> list[int]:
    keeper = member.keeper_pid
    return [keeper, *children(keeper)]


def has_daemon(member: Member) -> bool:
    try:
        return member.process is not None and member.daemon_pid() != 0
    except ValueError:  # its keeper begins only now
        return False


def check_nothing_leaks(members: list[Member]) -> None:
    """Promise 8: slabs stay within the budget, replicas within their quota."""
    for member in members:
        status = member.json("status")
        assert status["slab_bytes"] <= status["budget_bytes"]
        kept = status["ring"]
        assert kept["replica_bytes"] <= kept["replica_quota_bytes"]


def prepare_storage(r: Ring) -> None:
    if r.storage is not None:
        subprocess.run([binary("cairn"), "storage", "init", r.storage], check=True)


@contextlib.contextmanager
def made(shape: Shape) -> Iterator[Ring]:
    with contextlib.ExitStack() as stack:
        options: tuple[str, ...] = ()
        if shape.spares is not None:
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="cairn-db-", dir="/tmp")
            )
            database = MariaDb(Path(folder) / "db")
            stack.callback(database.kill)
            options = (*database.options(), "--ring.takeover_after_seconds=5")
        if shape.storage:  # a daemon that starts while it is away makes none of its own
            options += ("--storage.require_marker=true",)
        yield stack.enter_context(
            ring(
                shape.nodes,
                before=prepare_storage,
                replicas=shape.replicas,
                storage=shape.storage,
                persist="every" if shape.storage else "on-demand",
                lost_after_s=LOST_AFTER_S,
                spares=shape.spares,
                options=options,
                meet=shape.spares is None,
            )
        )


@pytest.mark.parametrize("name", SHAPES)
def test_what_was_acknowledged_stays_whatever_strikes(name: str, tmp_path: Path) -> None:
    """Promises 1 and 2, R2. pytest keeps the notes for a while."""
    seed = int(os.environ.get("CAIRN_CLUSTER_SEED") or random.randrange(1 << 30))
    notes = Notes(tmp_path / "notes.jsonl")
    print(f"CAIRN_CLUSTER_SEED={seed}, notes in {notes.path}")
    try:
        with made(SHAPES[name]) as r:
            Nemesis(SHAPES[name], r, random.Random(seed), notes).run(SECONDS)
    except BaseException:
        print(notes.last())
        raise
    print(dict(notes.counts))
