"""R2 across nodes: random SIGKILL of daemons and of whole nodes, links that come and go, trainers that
go on. What was acknowledged is noted outside of everything that dies, and held against the ring each time all
is quiet.

The seed is printed; CAIRN_CLUSTER_SEED=N repeats the choices, though not the moments.
"""

from __future__ import annotations

import dataclasses
import os
import random
import time
from typing import Any

import pytest
from cairn_raw import CairnError, TTransportException
from patience import patient
from ring import MIB, Ring, attempt_number, ring, until

pytestmark = pytest.mark.full

JOB = "loop"
NODES = 3
ROUNDS = 8
LASTS_S = 240
SAFE_MODE_WINDOW_S = 65  # the keeper's minute, and what a death takes to be noticed
PART = MIB + 11


@dataclasses.dataclass
class Notes:
    """What was acknowledged. `replicated`: the newest step that was, of the life `attempt`."""

    attempt: int
    step: int = 0
    replicated: int = 0


class Loop:
    def __init__(self, r: Ring, choose: random.Random) -> None:
        self.r, self.choose = r, choose
        self.notes = Notes(attempt_number())
        self.writers: list[Any] = []
        self.killed: dict[int, list[float]] = {}  # when the daemon of each rank's keeper was

    def begin_life(self) -> None:
        """The trainers of all nodes start again, and go on from what the ring says is latest."""
        for writer in self.writers:
            writer.vanish()
        self.r.await_met(90)
        answers: list[tuple[int, int]] = []

        def agreed() -> bool:
            found = [member.latest(JOB) for member in self.r]
            if None in found or len(set(found)) != 1:
                return self.notes.replicated == 0 and found == [None] * NODES
            answers[:] = [found[0]] if found[0] else []
            return True

        until("all nodes agree on latest", agreed, 90)
        at = answers[0][0] if answers else 0
        self.r.say(f"life: latest is {answers}, noted {self.notes}")
        assert at >= self.notes.replicated, f"promise 1: latest is {at}, noted {self.notes}"
        if at:
            for member in self.r:
                assert member.loads(JOB, at, NODES, part_bytes=PART), "promises 1 and 2"
        self.notes = Notes(attempt_number(), at, self.notes.replicated)
        self.writers = [
            self.r[rank].writer(JOB, self.notes.attempt, rank, NODES) for rank in range(NODES)
        ]

    def save(self) -> bool:
        """One step by all ranks; False: somebody could not."""
        step = self.notes.step + 1
        try:
            for rank, writer in enumerate(self.writers):
                self.r[rank].save(writer, step, part_bytes=PART, timeout_ms=int(patient(20_000)))
        except (CairnError, TTransportException, OSError, EOFError, ValueError) as error:
            self.r.say(f"step {step} was not saved: {error}")
            return False
        self.notes.step = step
        return True

    def note_replicated(self) -> None:
        """Acknowledged now: it may be lost by nothing that happens to one node from here on."""
        if self.notes.step == self.notes.replicated:
            return
        self.r[self.choose.randrange(NODES)].wait_replicated(JOB, self.notes.step, 90)
        self.notes.replicated = self.notes.step

    def strike(self) -> None:
        """One fault, and its end; at most one node's memory is lost."""
        rank = self.choose.randrange(NODES)
        other = (rank + self.choose.randrange(1, NODES)) % NODES
        kind = self.choose.choice(("daemon", "daemons", "node", "node", "pause", "cut", "one-way"))
        if kind == "daemon" and self._would_be_safe_mode(rank):
            kind = "node"
        elif kind == "daemons" and any(map(self._would_be_safe_mode, range(NODES))):
            kind = "pause"
        self.r.say(f"{kind}: {rank} ({other}) after {self.notes}")
        if kind == "daemon":
            self._kill_daemon(rank)
        elif kind == "daemons":
            for each in range(NODES):
                self._kill_daemon(each)
        elif kind == "node":
            self.killed.pop(rank, None)
            self.r[rank].replace()
        elif kind == "pause":
            self.r[rank].pause()
            self._let_pass(1.5)
            self.r[rank].go_on()
        else:
            self.r.cut(rank, other, one_way=kind == "one-way")
            self._let_pass(1.5)
            self.r.heal()

    def _kill_daemon(self, rank: int) -> None:
        self.killed.setdefault(rank, []).append(time.monotonic())
        self.r[rank].kill_daemon()

    def _would_be_safe_mode(self, rank: int) -> bool:
        """Of a daemon that dies three times within a minute nothing more is admitted, which is right."""
        lately = time.monotonic() - SAFE_MODE_WINDOW_S
        return sum(at > lately for at in self.killed.get(rank, [])) >= 2

    def _let_pass(self, seconds: float) -> None:
        """A fault of this length: nothing is waited for."""
        time.sleep(seconds * self.choose.uniform(0.5, 1.5))

    def secured(self) -> None:
        """Only a ring that has both copies again may lose another node."""
        if self.notes.replicated:
            step = self.notes.replicated
            until(
                f"two copies of step {step} or a later one",
                lambda: any(self.r[0].replicated(JOB, s) for s in range(step, self.notes.step + 1)),
                90,
            )


def test_whatever_dies_what_was_acknowledged_is_there() -> None:
    seed = int(os.environ.get("CAIRN_CLUSTER_SEED") or random.randrange(1 << 30))
    print(f"CAIRN_CLUSTER_SEED={seed}")
    choose = random.Random(seed)
    deadline = time.monotonic() + LASTS_S
    with ring(NODES, lost_after_s=3) as r:
        loop = Loop(r, choose)
        for _ in range(ROUNDS):
            loop.begin_life()
            for _ in range(choose.randrange(1, 5)):
                assert loop.save(), "nothing is wrong, and a save fails"
                if choose.random() < 0.5:
                    loop.note_replicated()
            loop.note_replicated()
            loop.secured()
            if choose.random() < 0.7:
                loop.save()  # not waited for: the fault may meet it half-way
            loop.strike()
            for _ in range(choose.randrange(3)):
                if not loop.save():
                    break
            if time.monotonic() > deadline:
                break
        loop.begin_life()
        check_nothing_leaks(r)


def check_nothing_leaks(r: Ring) -> None:
    """Promise 8: slabs stay within the budget, replicas within their quota."""
    for member in r:
        status = member.json("status")
        assert status["slab_bytes"] <= status["budget_bytes"]
        kept = status["ring"]
        assert kept["replica_bytes"] <= kept["replica_quota_bytes"]
