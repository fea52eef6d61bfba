"""R1 across nodes: a daemon dies at every step of what nodes do for each other, as by SIGKILL; then again
while it recovers. Promises 1, 2, 3, 7.

Two nodes, a trainer on each: so each of them is owner and backup, asks for grants and gives them. The
trainers repeat their calls, as libcairn does. What was acknowledged as REPLICATED is noted outside; it is
held against both nodes, then against each of them alone.

The failpoints are read from common/failpoint.h, so that a new one is a case here or a failure.
"""

from __future__ import annotations

import pytest
from cairn_daemon import all_failpoints
from cairn_stubborn import Stubborn
from ring import MIB, Ring, attempt_number, content, names, ring, until

pytestmark = pytest.mark.full

VICTIM, OTHER = 1, 0
JOBS = ("job0", "job1")  # by the node of their trainer
STEPS = 3
PART = MIB + 77
POINTS = [name for name in all_failpoints() if name.startswith("ring.")]
# At which reach of it the point ends the daemon; where it is not named, REACHES.
REACHES = (1, 3)
REACHES_OF = {
    "ring.life": (1,),  # once in a daemon's life
    "ring.tell": (1, 9, 25),
    "ring.heard": (1, 9, 25),
}
CASES = [(point, reach) for point in POINTS for reach in REACHES_OF.get(point, REACHES)]


def save(trainer: Stubborn, step: int) -> None:
    trainer.save(step, {name: content(trainer.job, step, name, PART) for name in names(0)})


def loads(r: Ring, rank: int, step: int) -> None:
    for job in JOBS:
        until(
            f"node {rank} has step {step} of {job}: promise 1",
            lambda job=job: r[rank].loads(job, step, part_bytes=PART),
        )


def live_and_check(spec: str, expect_deaths: int) -> None:
    def arm(r: Ring) -> None:
        r[VICTIM].command.append(f"--test.failpoints={spec}")

    with ring(2, before=arm) as r:
        trainers = [Stubborn(r[rank], JOBS[rank], attempt_number()) for rank in (0, 1)]
        for step in range(1, STEPS + 1):
            for trainer in trainers:
                save(trainer, step)
            for job in JOBS:
                asked = r[step % 2]
                until(
                    f"step {step} of {job} is REPLICATED",
                    lambda job=job, step=step, asked=asked: asked.replicated(job, step),
                    60,
                )
            for rank in (VICTIM, OTHER):
                loads(r, rank, step)
        deaths = r[VICTIM].status().restarts
        assert deaths >= expect_deaths, f"{spec}: the daemon died {deaths} times"
        if deaths < 2:  # the third within a minute is safe mode
            r[VICTIM].kill_daemon()
            loads(r, VICTIM, STEPS)
        for trainer in trainers:
            trainer.leave()
        r[OTHER].kill()
        loads(r, VICTIM, STEPS)


@pytest.mark.parametrize(("point", "reach"), CASES)
def test_a_daemon_dies_in_the_midst_of_what_it_does_for_another(point: str, reach: int) -> None:
    live_and_check(f"{point}:{reach}", 1)


@pytest.mark.parametrize("point", POINTS)
def test_and_again_while_it_recovers(point: str) -> None:
    live_and_check(f"{point},node.recovered@1", 2)


@pytest.mark.parametrize("reach", range(7, 260, 23))
def test_a_daemon_dies_at_the_nth_reach_of_any_failpoint(reach: int) -> None:
    live_and_check(f"any:{reach}", 0)


def test_every_failpoint_of_a_ring_is_a_case() -> None:
    assert len(POINTS) >= 8
    assert {point for point, _ in CASES} == set(POINTS)
