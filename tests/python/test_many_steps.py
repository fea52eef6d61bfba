"""What a long history costs the next save."""

from __future__ import annotations

import random

import cairn
import pytest
from node import MIB, Node
from patience import patient


@pytest.mark.parametrize("seed", [2, 3])
def test_a_large_step_after_many_small_ones_waits_for_nothing(seed: int) -> None:
    """Room for it comes from hundreds of small slabs, in more rounds than the daemon makes at once."""
    choose = random.Random(seed)
    node = Node(budget=64 * MIB).start()
    try:
        with cairn.connect(
            "history", rank=0, world_size=1, socket=node.socket, timeout=patient(5)
        ) as c:
            for step in range(1500):
                if choose.random() < 0.97:
                    size = choose.choice([1000, 5000, 20_000, 60_000, 200_000])
                else:
                    size = choose.choice([MIB, 3 * MIB, 2 * MIB])
                with c.step(step, strict=True) as s:
                    s.save(bytes(size), "a")
                    s.save(bytes(choose.randrange(3000, 9000)), "b")
                    s.save(bytes(3000), "c")
                if step % 2:
                    c.load(f"{step}/a")
    finally:
        node.remove()
