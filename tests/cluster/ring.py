"""A ring of a test's own: real keepers and daemons, each on a host of its own, and what can be done to them.

    with ring(3) as r:
        r[0].save(r[0].writer("job", attempt_number()), 1)
        r[0].cairn("wait job/1 --level replicated")
        r[0].kill()
        assert r[1].loads("job", 1)
        r[0].replace()
        r.cut(1, 2, one_way=True)
        r.heal()

Clients run outside of the hosts' networks, as the Unix sockets do not mind. What a test saves by `save` has
bytes that follow from job, step and writer, so any node's answer can be compared.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import members
from cairn_daemon import MIB, Node, binary, children
from cairn_raw import (
    PATIENCE_MS,
    UNAVAILABLE,
    CairnError,
    Raw,
    TTransportException,
    attempt_number,
    pattern,
)
from network import Network
from patience import T, patient
from patience import until as until_soon
from stopped import go_on, stop

CONTROL_PORT, DATA_PORT = members.CONTROL_PORT, members.CONTROL_PORT + 1
PART_BYTES = 3 * MIB + 77
# How long whatever the ring does by itself may take here, where the tests of others run beside.
PATIENCE_S = 60
SOON_S = 10
_NOT_NOW = (3, 4, 6, 7)  # NOT_FOUND, DATA_LOSS, UNAVAILABLE, DEADLINE_EXCEEDED


class NotNow(AssertionError):
    """What a command that may do better in a moment ended with: NOT_FOUND, UNAVAILABLE and their like."""


def until(what: str, condition: Callable[[], T], limit_s: float = PATIENCE_S) -> T:
    """What the condition asks may not be known yet, or a daemon be starting: then it is not true yet."""
    last: Exception | None = None

    def holds() -> T | None:
        nonlocal last
        try:
            return condition()
        except (NotNow, LookupError) as error:  # LookupError: of a list that is not filled yet
            last = error
            return None

    try:
        found = until_soon(what, holds, limit_s)
    except AssertionError as error:
        raise error from last
    assert found is not None
    return found


def names(writer: int) -> list[str]:
    """Of what a writer saves by `save`: a name belongs to one writer of a step."""
    return [f"{writer}/large", f"{writer}/small"]


def content(job: str, step: int, name: str, part_bytes: int = PART_BYTES) -> bytes:
    return pattern(f"{job}/{step}/{name}", part_bytes if name.endswith("large") else 1000)


class Member(Node):
    """The daemon of one rank, and its folder. `life` counts how often the rank was replaced."""

    def __init__(self, ring: Ring, rank: int, life: int = 0) -> None:
        folder = ring.folder / f"{rank}.{life}"
        folder.mkdir()
        self.ring, self.rank, self.life = ring, rank, life
        self.host = ring.network.enter(rank)
        self.address = ring.network.addresses[rank]
        super().__init__(
            folder,
            budget=ring.budget,
            storage=False,
            persist=ring.persist,
            options=(
                *ring.options_of(rank),
                f"--ring.lost_after_seconds={ring.lost_after_s}",
                *([f"--storage.root={ring.storage}"] if ring.storage else []),
                *ring.options,
            ),
            wrapper=tuple(self.host),
        )
        self.writers: list[Raw] = []
        self.trainers: list[Any] = []

    # --- clients ---

    def cairn(self, words: str, *, code: int = 0, limit_s: float = PATIENCE_S) -> str:
        """The command's output; `words` as in a shell."""
        result = self._run_cairn(words, limit_s + 30)
        if code == 0 and result.returncode in _NOT_NOW:
            raise NotNow(f"cairn {words}: {result.returncode}: {result.stderr}")
        assert result.returncode == code, f"cairn {words}: {result.returncode}: {result.stderr}"
        return result.stdout if code == 0 else result.stderr

    def exit_code(self, words: str) -> int:
        return self._run_cairn(words, PATIENCE_S).returncode

    def _run_cairn(self, words: str, limit_s: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [binary("cairn"), f"--socket={self.socket}", *shlex.split(words)],
            env=members.without_cairn(),
            capture_output=True,
            text=True,
            timeout=patient(limit_s),
            stdin=subprocess.DEVNULL,
        )

    def json(self, words: str) -> Any:
        return json.loads(self.cairn(f"{words} -o json"))

    def writer(
        self, job: str, attempt: int, writer: int = 0, world_size: int = 1, **options: Any
    ) -> Raw:
        """A trainer of this node: it ends with it."""
        session = super().writer(job, attempt, writer, world_size, **options)
        self.writers.append(session)
        return session

    def wait_replicated(self, job: str, step: int, limit_s: float = PATIENCE_S) -> None:
        self.cairn(
            f"wait {job}/{step} --level replicated --timeout {patient(limit_s):g}", limit_s=limit_s
        )

    def replicated(self, job: str, step: int) -> bool:
        """Whether it is acknowledged as REPLICATED now."""
        answer = self._ask(f"stat {job}/{step}")
        if answer is None:
            return False
        facts = answer["facts"]
        return bool(facts["replicas_asked"] >= 1 and facts["replicas"] >= facts["replicas_asked"])

    def latest(self, job: str) -> tuple[int, int] | None:
        """Step and attempt; None: the node cannot say now, or there is nothing."""
        answer = self._ask(f"latest {job}")
        return (answer["step"], answer["attempt"]) if answer else None

    def _ask(self, words: str) -> dict[str, Any] | None:
        """None: it cannot be had now (NOT_FOUND, DATA_LOSS, UNAVAILABLE, DEADLINE_EXCEEDED)."""
        result = self._run_cairn(f"{words} -o json", 60)
        if result.returncode in _NOT_NOW:
            return None
        assert result.returncode == 0, f"cairn {words}: {result.returncode}: {result.stderr}"
        answer: dict[str, Any] = json.loads(result.stdout)
        return answer

    def loads(
        self,
        job: str,
        step: int,
        writers: int = 1,
        *,
        attempt: int = 0,
        part_bytes: int = PART_BYTES,
    ) -> bool:
        """Every byte of what `save` saved comes, and is right; False: it cannot be had now."""
        try:
            with self.session(job) as reader:
                for writer in range(writers):
                    for name in names(writer):
                        data = reader.load(
                            step, name, attempt=attempt, timeout_ms=int(patient(30_000))
                        )
                        right = content(job, step, name, part_bytes)
                        assert data == right, f"promise 2: {job}/{step}/{name} has other bytes"
        except (CairnError, TTransportException, EOFError, OSError) as error:
            self.ring.say(f"node {self.rank}: {job}/{step} cannot be had: {error}")
            return False
        return True

    def save(
        self,
        session: Raw,
        step: int,
        *,
        part_bytes: int = PART_BYTES,
        timeout_ms: int = PATIENCE_MS,
    ) -> float:
        """A whole part of the session's writer; how many seconds that took."""
        objects = {
            name: content(session.job, step, name, part_bytes) for name in names(session.writer)
        }
        begin = time.monotonic()
        session.save(step, objects, timeout_ms=timeout_ms)
        return time.monotonic() - begin

    # --- what it says of the ring ---

    def ring_status(self) -> dict[str, Any]:
        """The part `ring` of its status; empty: it has none yet."""
        status: dict[str, Any] = self.json("status")
        return status.get("ring") or {}

    def states(self) -> dict[int, str]:
        """What it thinks of each rank: "self", "up", "silent", …"""
        return {
            member["rank"]: str(member["state"]).split()[0]
            for member in self.ring_status().get("members", [])
        }

    def seat(self) -> int:
        """The rank that it has; -1: none, or it is just being replaced."""
        result = self._run_cairn("status -o json", 30)
        if result.returncode != 0:
            return -1
        return int((json.loads(result.stdout).get("ring") or {}).get("rank", -1))

    def has_own_rank(self) -> bool:
        return self.seat() == self.rank

    def incarnation_of(self, rank: int) -> int:
        found = [m for m in self.ring_status().get("members", []) if m["rank"] == rank]
        return int(found[0]["incarnation"]) if found else 0

    # --- its deaths ---

    def kill(self) -> None:
        """Keeper, daemon and the trainers of this node at once: what was in its memory is gone."""
        self.kill_all()
        for session in self.writers:
            session.vanish()
        for trainer in self.trainers:
            trainer.end()
        self.writers, self.trainers = [], []

    def replace(self, *, wait: bool = True) -> Member:
        """Kills what is there; an empty daemon takes the rank, at the same address."""
        self.kill()
        successor = Member(self.ring, self.rank, self.life + 1)
        self.ring.members[self.rank] = successor
        successor.start(wait=wait)
        return successor

    def pause(self) -> None:
        """Keeper and daemon stand still, with all their connections open."""
        keeper = self.keeper_pid
        for pid in (keeper, *children(keeper)):
            stop(pid)

    def go_on(self) -> None:
        keeper = self.keeper_pid
        for pid in (*children(keeper), keeper):
            go_on(pid)


class Ring:
    def __init__(
        self,
        folder: Path,
        network: Network,
        *,
        replicas: int,
        budget: int,
        storage: bool,
        persist: str,
        lost_after_s: int,
        options: tuple[str, ...],
        spares: int | None = None,
    ) -> None:
        self.folder, self.network = folder, network
        self.spares = spares
        self.replicas, self.budget, self.persist = replicas, budget, persist
        self.lost_after_s, self.options = lost_after_s, options
        self.storage = folder / "storage" if storage else None
        if self.storage:
            self.storage.mkdir()
        self.told: list[str] = []
        self.members = [Member(self, rank) for rank in range(len(network.addresses))]

    def options_of(self, host: int) -> list[str]:
        """The members stand in a list, or, where there is a number of spares, in the catalog: there the first
        hosts want the rank of their number, and the others any."""
        addresses = self.network.addresses
        if self.spares is None:
            return members.ring_options(addresses, host, replicas=self.replicas)
        size = len(addresses) - self.spares
        return members.catalog_ring_options(
            addresses[host], host if host < size else None, size, replicas=self.replicas
        )

    def __getitem__(self, rank: int) -> Member:
        return self.members[rank]

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members)

    def say(self, what: str) -> None:
        """Shown if the test fails."""
        self.told.append(what)

    def start(self) -> Ring:
        first = self.members[: len(self.members) - (self.spares or 0)]
        for member in first:
            member.start(wait=False)
        if self.spares is not None:
            # A spare takes any rank that is empty.
            for member in first:
                until(f"host {member.rank} has its rank", member.has_own_rank)
            for member in self.members[len(first) :]:
                member.start(wait=False)
        for member in self.members:
            member.wait_ready()
        return self

    def await_met(self, limit_s: float = PATIENCE_S) -> None:
        """Until all that run think of each other that they are up."""
        running = {member.rank for member in self.members if member.process is not None}
        if len(self.members) == 1:
            return  # alone

        def met() -> bool:
            for member in self.members:
                if member.rank in running:
                    up = {
                        rank for rank, state in member.states().items() if state in ("up", "self")
                    }
                    if not running <= up:
                        return False
            return True

        until("the members have met", met, limit_s)

    def await_same_latest(
        self, job: str, step: int, ranks: tuple[int, ...] = (), limit_s: float = PATIENCE_S
    ) -> None:
        """Until each of them (all: none are named) answers `latest` with this step."""
        for rank in ranks or range(len(self.members)):
            member = self.members[rank]
            until(
                f"node {rank} says that latest is {step}",
                lambda member=member: (member.latest(job) or (-1, 0))[0] == step,
                limit_s,
            )

    # --- the network ---

    def cut(self, a: int, b: int, *, one_way: bool = False, port: int = 0) -> None:
        self.network.cut(a, b, one_way=one_way, port=port)

    def heal(self) -> None:
        self.network.heal()

    def rate(self, rank: int, mbit: float) -> None:
        self.network.rate(rank, mbit)

    # --- the end ---

    def close(self) -> None:
        for member in self.members:
            member.kill()

    def logs(self) -> str:
        text = "".join(f"{line}\n" for line in self.told[-50:])
        for log in sorted(self.folder.glob("*/cairnd.log")):
            text += f"--- node {log.parent.name}\n{log.read_text(errors='replace')[-3000:]}\n"
        return text


@contextmanager
def ring(
    nodes: int = 3,
    *,
    replicas: int = 1,
    budget: int = 64 * MIB,
    storage: bool = False,
    persist: str = "on-demand",
    lost_after_s: int = 5,
    options: tuple[str, ...] = (),
    meet: bool = True,
    spares: int | None = None,
    before: Callable[[Ring], None] = lambda _: None,
    make_network: Callable[[int], AbstractContextManager[Any]] = Network,
) -> Iterator[Ring]:
    """A running ring whose members have met; nothing of it is left behind. `before` any daemon starts."""
    # Short: a socket's path has 107 bytes at most.
    folder = Path(tempfile.mkdtemp(prefix="cairn-", dir="/tmp"))
    try:
        with make_network(nodes) as network:
            instance = Ring(
                folder,
                network,
                replicas=replicas,
                budget=budget,
                storage=storage,
                persist=persist,
                lost_after_s=lost_after_s,
                options=options,
                spares=spares,
            )
            try:
                before(instance)
                instance.start()
                if meet:
                    instance.await_met()
                yield instance
            except BaseException:
                print(instance.logs())
                raise
            finally:
                instance.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def refused(what: Callable[[], Any], code: int = UNAVAILABLE) -> bool:
    try:
        what()
    except CairnError as error:
        return error.code == code
    return False


__all__ = [
    "CONTROL_PORT",
    "DATA_PORT",
    "MIB",
    "PATIENCE_S",
    "SOON_S",
    "Member",
    "Ring",
    "attempt_number",
    "content",
    "names",
    "refused",
    "ring",
    "until",
]
