"""Which checkpoints count (docs/line.md), as a program sees it: resume, use, load with an attempt, and
waiting across a rollback. Each life is a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import cairn
import pytest
from in_call import in_call
from node import Node
from patience import patient, until

LIFE = """
import sys, cairn
c = cairn.connect(sys.argv[1])
if sys.argv[2] != "-":
    c.resume(int(sys.argv[2]))
for step in sys.argv[3:]:
    with c.step(int(step), strict=True) as s:
        s.save({"life": c.attempt, "step": int(step)}, "obj.pt")
"""


def life(job: str, attempt: int, resume: str, *steps: int) -> None:
    """A life of the job that saves these steps and ends."""
    subprocess.run(
        [sys.executable, "-c", LIFE, job, resume, *map(str, steps)],
        env={**os.environ, "CAIRN_ATTEMPT": str(attempt)},
        check=True,
        timeout=patient(60),
    )


def test_what_a_rollback_left_loads_by_its_attempt_and_use_brings_it_back(
    node: Node, job: str
) -> None:
    life(job, 1, "-", 1, 2, 3)
    life(job, 2, "1", 2)
    c = cairn.connect(job, attempt=3)
    assert (c.latest().step, c.latest().attempt) == (2, 2)
    with pytest.raises(cairn.NotFound, match="abandoned"):
        c.load("3/obj.pt")
    assert c.load("3/obj.pt", attempt=1) == {"life": 1, "step": 3}
    assert cairn.load(f"cairn://{job}/2/obj.pt", attempt=1) == {"life": 1, "step": 2}
    with pytest.raises(cairn.NotFound):
        c.use(3, attempt=2)

    used = c.use(3, attempt=1)
    assert (used.step, used.attempt) == (3, 1)
    assert used.head > 3
    assert c.latest().head == used.head
    assert cairn.load(f"cairn://{job}/latest/obj.pt") == {"life": 1, "step": 3}
    listed = {(i.step, i.attempt): i.on_line for i in c.ls().checkpoints}
    assert listed == {(1, 1): True, (2, 1): True, (3, 1): True, (2, 2): False}
    with pytest.raises(cairn.Superseded), c.step(4, strict=True) as s:
        s.save({}, "obj.pt")


def test_a_consumer_that_waits_for_more_hears_of_a_rollback(node: Node, job: str) -> None:
    life(job, 1, "-", 6, 7, 8, 9)
    c = cairn.connect(job, attempt=1)
    latest = c.latest()
    assert latest.step == 9
    heard: list[int] = []
    waiting = threading.Thread(
        target=lambda: heard.append(c.wait_after(9, timeout=patient(30)).step)
    )
    waiting.start()
    until("it waits", lambda: in_call(waiting.ident or 0, "_in_slices"))
    life(job, 2, "6")
    waiting.join(patient(40))
    assert heard == [6]
    assert c.wait_after(latest, timeout=patient(5)).step == 6, "nothing since that answer is missed"


def test_a_file_has_no_attempt(node: Node, tmp_path: object) -> None:
    with pytest.raises(ValueError, match="attempt"):
        cairn.load(f"{tmp_path}/x.pt", attempt=3)
