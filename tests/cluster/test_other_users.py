"""What one user can do to another in a ring, by the nodes' Unix sockets alone: promises 1, 4 and 6.

Users are real uids; so these tests run as root.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import members
import pytest
from cairn_raw import RESOURCE_EXHAUSTED
from patience import patient
from ring import MIB, Ring, ring, until

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(os.getuid() != 0, reason="other users' processes: needs uid 0"),
]

FAULTS = Path(__file__).resolve().parents[1] / "faults"
OWNER, STRANGER = 1001, 2002
JOB = "run"

PREAMBLE = """
import os, random, sys, time
sys.path.insert(0, {faults!r})
os.setgroups([]); os.setgid({uid}); os.setuid({uid})
from cairn_raw import *

def secret(step):
    return random.Random(step).randbytes(1 << 20)

def tried(what, *arguments, **options):
    try:
        answer = what(*arguments, **options)
    except CairnError as error:
        print("refused:", error)
        return None
    print("done")
    return answer
"""

# Saves a step about every 0.2 s.
TRAINER = """
session = Raw({socket!r}, {job!r}, int(time.time() * 1000), 0, 1)
step = 1
while True:
    try:
        session.save(step, {{"0/large": secret(step)}})
        print("saved", step)
        step += 1
    except CairnError as error:
        # Whose the job is must be known before the first step.
        if step > 1 or error.code != UNAVAILABLE:
            print("FAILED", step, error)
    time.sleep(0.2)
"""


def command(uid: int, script: str, **values: Any) -> list[str]:
    text = PREAMBLE.format(faults=str(FAULTS), uid=uid) + script.format(**values)
    return ["/usr/bin/python3", "-u", "-c", text]


def run_as(uid: int, script: str, *, limit_s: float = 120, **values: Any) -> str:
    result = subprocess.run(
        command(uid, script, **values),
        env=members.without_cairn(),
        capture_output=True,
        text=True,
        timeout=patient(limit_s),
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@contextmanager
def trains(r: Ring, rank: int, uid: int, job: str = JOB) -> Iterator[Path]:
    """A trainer of that user; its output so far."""
    path = r.folder / f"{job}.{uid}.out"
    with open(path, "w") as out:
        process = subprocess.Popen(
            command(uid, TRAINER, socket=str(r[rank].socket), job=job),
            env=members.without_cairn(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield path
    finally:
        process.kill()
        process.wait()


def steps_of(output: Path) -> int:
    lines = output.read_text().splitlines()
    assert not [line for line in lines if not line.startswith("saved")], lines[-5:]
    return len(lines)


def await_more_steps(output: Path, more: int = 4) -> None:
    goal = steps_of(output) + more
    until(f"{goal} steps were saved", lambda: steps_of(output) >= goal, 60)


def open_to_all(r: Ring) -> None:
    os.chmod(r.folder, 0o755)


@pytest.mark.parametrize(
    "attack",
    [
        "tried(thief.create, 1_000_000, {{}}, timeout_ms=0)",
        "tried(thief.create, 1_000_000, {{}}, timeout_ms=4_000)",
        "tried(thief.commit, 1_000_000)",
    ],
    ids=["create at once", "create", "commit"],
)
def test_a_job_is_not_taken_from_its_owner_on_a_node_that_has_not_heard_of_it(attack: str) -> None:
    with ring(4) as r:
        open_to_all(r)
        with trains(r, 0, OWNER) as output:
            await_more_steps(output)
            said = run_as(
                STRANGER,
                "attempt = int(time.time() * 1000) + 60_000\n"
                "thief = Raw({socket!r}, {job!r}, attempt, 0, 1, fence=True)\n" + attack,
                socket=str(r[2].socket),
                job=JOB,
            )
            assert said.startswith("refused:"), said
            await_more_steps(output)


SPY = """
attempt = int(time.time() * 1000) + 60_000
mine = Raw({far!r}, {job!r}, attempt, 0, 1, fence=True)
for _ in range(100):  # until the others are lost to this side of the ring
    try:
        mine.save(7_000_000, {{f"x{{i:04}}": b"x" for i in range(256)}})
        print("saved")
        break
    except CairnError as error:
        time.sleep(0.5)
"""

READ = """
spy = Raw({near!r}, {job!r})
for step in range(1, 200):
    try:
        reply = spy.open(step, "0/large", MAP, timeout_ms=1_000)
        print("OPENED", step)
    except CairnError as error:
        if error.code == RESOURCE_EXHAUSTED:
            print("full")
try:
    reply = spy.open(7_000_000, "x0000", MAP, timeout_ms=PATIENCE_MS)
    got = os.pread(spy.leases[reply.lease], reply.slab_bytes, 0)
    alike = max(sum(a == b for a, b in zip(got, secret(step))) for step in range(1, 60))
    print("LENT", len(got), "alike", alike)
except CairnError as error:
    print("mine:", error)
"""


def test_two_users_who_take_one_name_while_the_ring_is_split_keep_apart() -> None:
    """On the other side of the split the name is a stranger's. Neither gets the other's bytes, and who had it
    goes on."""
    with ring(4, lost_after_s=3) as r:
        open_to_all(r)
        for a in (0, 1):
            for b in (2, 3):
                r.cut(a, b)
        with trains(r, 0, OWNER) as output:
            said = run_as(STRANGER, SPY, far=str(r[3].socket), job=JOB)
            assert "saved" in said, "on that side nobody knows of an owner"
            await_more_steps(output)
            r.heal()
            r.await_met()
            await_more_steps(output, 20)
            said = run_as(STRANGER, READ, near=str(r[2].socket), job=JOB)
            assert "OPENED" not in said, said
            alike = [int(line.split()[3]) for line in said.splitlines() if line.startswith("LENT")]
            # Of bytes that have nothing to do with each other one in 256 is the same.
            assert all(count < (1 << 20) // 64 for count in alike), said
            await_more_steps(output)


FILL = """
made = 0
for i in range({most}):
    try:
        session = Raw({socket!r}, f"{name}-{{i}}-" + "x" * {length}, 1000, 0, 1, takes_fds=False)
        session.create(1, {{}}, timeout_ms=PATIENCE_MS)
        session.commit(1)
        session.vanish()
        made += 1
    except (CairnError, OSError) as error:
        break
print(made)
"""

SAVES = """
session = Raw({socket!r}, {job!r}, 5, 0, 1)
tried(session.save, 1, {{"a": b"x"}})
"""


def test_what_a_node_keeps_for_others_does_not_fill_its_journal() -> None:
    """Promise 4: a daemon whose journal is full would end, and so would each that its keeper starts."""

    def small(r: Ring) -> None:
        for member in r:
            member.command.append("--journal.bytes=1MiB")

    with ring(3, budget=256 * MIB, before=small) as r:
        open_to_all(r)
        daemon = r[1].daemon_pid()
        for rank in (1, 0):  # node 1 keeps what node 0 saves
            made = run_as(
                STRANGER, FILL, socket=str(r[rank].socket), name=f"of{rank}", most=400, length=110
            )
            assert int(made) > 50
        r.await_met()
        said = run_as(OWNER, SAVES, socket=str(r[1].socket), job="other")
        assert said.startswith(("done", f"refused: {RESOURCE_EXHAUSTED}: journal")), said
        assert r[1].daemon_pid() == daemon, r[1].tail()


def test_replicas_of_one_users_jobs_leave_room_for_anothers() -> None:
    with ring(3, replicas=2, budget=256 * MIB, options=("--limits.jobs=100",)) as r:
        open_to_all(r)
        for rank in range(3):
            run_as(STRANGER, FILL, socket=str(r[rank].socket), name=f"of{rank}", most=60, length=1)
        r.await_met()
        for rank in range(3):
            said = run_as(OWNER, SAVES, socket=str(r[rank].socket), job=f"other{rank}")
            assert said.startswith("done"), said
