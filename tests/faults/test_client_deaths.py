"""R13: a client is killed at allocation, mid-copy, before and during its commit. Nothing half-done is
visible, the memory comes back. Promise 3.

A thousand kills in the full tier, a hundred in the ordinary one.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from cairn_daemon import MIB, Node, binary, node
from cairn_raw import attempt_number, pattern
from patience import patient, until

FULL = os.environ.get("CAIRN_TIER") == "all"


def saver(*arguments: object, limit_s: float = 280) -> dict[str, Any]:
    result = subprocess.run(
        [binary("cairn_fault_saver"), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=patient(limit_s),
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def wait_for_memory(instance: Node) -> Any:
    """Every session of the dead is gone, nothing is being written, nothing is quarantined."""

    def clean() -> Any:
        status = instance.status()
        others = [s for s in status.sessions if s.job]
        return not others and status.writing_bytes == 0 and status.quarantined_bytes == 0 and status

    return until("the memory of the dead is back", clean)


def test_killed_savers_leave_nothing_half_done_and_give_their_memory_back() -> None:
    count = 1000 if FULL else 100
    seed = int(os.environ.get("SEED", "13"))
    with node(storage=False, budget=64 * MIB) as instance:
        report = saver("kill", instance.socket, "r13", count, seed)
        print(f"SEED={seed}: {report}")
        assert report["killed"] == count
        assert report["errors"] == []
        # The kills met every stage, or the test has shown nothing.
        for stage in ("s", "sc", "scw", "scwk"):
            assert report["reached"].get(stage, 0) > 0, (
                f"no saver was killed after {stage}: {report}"
            )
        status = wait_for_memory(instance)
        assert status.restarts == 0
        seen = saver("verify", instance.socket, "r13")
        assert seen["latest"] >= report["last_committed"], "an acknowledged commit is not there"
        assert seen["steps"], "not one step survived"
        # All of the budget can be used again by one save of the same uid and job.
        with instance.session("r13") as asking:
            attempt = asking.change("chooseAttempt")
        with instance.writer("r13", attempt) as writer:
            data = pattern("all", 40 * MIB)
            writer.save(count + 1, {"a": data})
            assert writer.load(count + 1, "a") == data


def test_killed_savers_and_a_killed_daemon() -> None:
    """The daemon dies among them, and what was acknowledged is there all the same."""
    with node(storage=False, budget=64 * MIB) as instance:
        last = 0
        for life in range(3):
            # The first steps of the second and third report lie below the last of the one before.
            report = saver("kill", instance.socket, f"r13-{life}", 15, 100 + life)
            assert report["errors"] == []
            last = report["last_committed"]
            if life < 2:
                instance.kill_daemon()
            seen = saver("verify", instance.socket, f"r13-{life}")
            assert seen["latest"] >= last
        wait_for_memory(instance)


def test_a_client_that_closes_its_channel_without_a_word_is_gone() -> None:
    with node(storage=False) as instance:
        writer = instance.writer("silent", attempt_number())
        writer.write(1, {"a": pattern("silent", 20 * MIB)})
        assert instance.status().writing_bytes >= 20 * MIB
        writer.vanish()
        wait_for_memory(instance)
