"""R8, R9, R30: memory is short, in plain and in odd ways. Refused before the first touch, with the
arithmetic; never over the budget; never a deadlock. Promises 4 and 8.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cairn_daemon import MIB, Node, exit_status, node
from cairn_raw import (
    EVICTED,
    MAP,
    NOT_FOUND,
    READ,
    RESOURCE_EXHAUSTED,
    CairnError,
    attempt_number,
    pattern,
    refuses,
)
from patience import patient, until

MEMORY_V1 = Path("/sys/fs/cgroup/memory")


# --- cgroups ---


class Cgroup:
    """A memory cgroup of this test's own, of either version."""

    def __init__(self, name: str, limit: int | None) -> None:
        self.v1 = (MEMORY_V1 / "memory.limit_in_bytes").exists()
        self.path = (
            MEMORY_V1 if self.v1 else Path("/sys/fs/cgroup")
        ) / f"cairn-{os.getpid()}-{name}"
        self.path.mkdir()
        if limit is not None:
            (self.path / ("memory.limit_in_bytes" if self.v1 else "memory.max")).write_text(
                str(limit)
            )

    @property
    def wrapper(self) -> tuple[str, ...]:
        return ("sh", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"', str(self.path))

    def usage(self) -> int:
        return int(
            (self.path / ("memory.usage_in_bytes" if self.v1 else "memory.current")).read_text()
        )

    def killed(self) -> int:
        name = "memory.oom_control" if self.v1 else "memory.events"
        match = re.search(r"^oom_kill (\d+)", (self.path / name).read_text(), re.M)
        return int(match.group(1)) if match else 0

    def remove(self) -> None:
        until("the cgroup is empty", lambda: not (self.path / "cgroup.procs").read_text().strip())
        self.path.rmdir()


@contextmanager
def cgroup(name: str, limit: int | None = None) -> Iterator[Cgroup]:
    group = Cgroup(name, limit)
    try:
        yield group
    finally:
        group.remove()


@pytest.mark.root
def test_a_budget_beyond_the_cgroups_limit_is_refused_before_a_page_is_touched() -> None:
    """R8: over the limit the kernel kills, it does not refuse; so the daemon must."""
    with cgroup("small", 256 * MIB) as group:
        with (
            pytest.raises(AssertionError),
            node(budget=1024 * MIB, wrapper=group.wrapper) as instance,
        ):
            raise RuntimeError(f"started: {instance.status()}")
        assert group.killed() == 0


@pytest.mark.root
def test_the_refusal_names_the_budget_and_the_limit(tmp_path: Path) -> None:
    with cgroup("named", 256 * MIB) as group:
        instance = Node(tmp_path, budget=1024 * MIB, wrapper=group.wrapper)
        instance.start(wait=False)
        assert instance.process is not None
        assert exit_status(instance.process) != 0
        text = instance.tail()
        assert "memory.budget" in text, text
        assert str(1024 * MIB) in text and str(256 * MIB) in text, text
        assert group.killed() == 0


@pytest.mark.root
def test_the_default_budget_fits_the_cgroup_and_full_use_of_it_kills_no_one() -> None:
    with cgroup("default", 256 * MIB) as group, node(budget=0, wrapper=group.wrapper) as instance:
        budget = instance.status().budget_bytes
        assert 16 * MIB <= budget < 256 * MIB
        with instance.writer("fit", attempt_number()) as writer:
            size = budget // 3
            for step in range(1, 8):
                writer.save(step, {"a": pattern(f"fit{step}", size)})
            refuses(RESOURCE_EXHAUSTED, writer.create, 9, {"a": 512 * MIB}, timeout_ms=300)
        assert group.killed() == 0
        assert group.usage() <= 256 * MIB


@pytest.mark.root
def test_the_client_is_charged_under_five_percent_of_what_it_saves() -> None:
    """R9: the first toucher pays, for good. A trainer's container must not run out of memory by saving."""
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from cairn_raw import *
data = pattern("charge", 16 << 20)
block_crcs(data)
w = Raw(sys.argv[1], "charge", {attempt_number()}, 0, 1)
w.save(1, {{"warm": b"up"}})
print("ready", flush=True); sys.stdin.readline()
for step in range(2, 4):
    w.save(step, {{f"o{{i}}": data for i in range(8)}})
print("saved", flush=True); sys.stdin.readline()
"""
    saved = 256 * MIB
    with cgroup("daemon") as server, cgroup("client") as client:
        with node(budget=320 * MIB, storage=False, wrapper=server.wrapper) as instance:
            before_server = server.usage()
            process = subprocess.Popen(
                [*client.wrapper, "/usr/bin/python3", "-c", script, instance.socket],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert process.stdin is not None and process.stdout is not None
            try:
                assert process.stdout.readline() == b"ready\n"
                before = client.usage()
                process.stdin.write(b"\n")
                process.stdin.flush()
                assert process.stdout.readline() == b"saved\n"
                charged = client.usage() - before
                print(
                    f"client charged {charged / MIB:.1f} MiB of {saved / MIB:.0f}, "
                    f"daemon {(server.usage() - before_server) / MIB:.1f} MiB more than before"
                )
                assert charged < 0.05 * saved
            finally:
                process.kill()
                process.wait()
                process.stdin.close()
                process.stdout.close()


# --- racing for the last bytes ---


def test_savers_racing_for_the_last_bytes_never_exceed_the_budget() -> None:
    """R8: eight jobs ask at once for 12 MiB each of 64. Each is admitted whole or refused by the deadline."""
    with node(budget=64 * MIB, storage=False) as instance:
        writers = [instance.writer(f"racer{i}", attempt_number()) for i in range(8)]
        outcomes: list[str] = [""] * 8
        highest = [0]
        stop = threading.Event()

        def watch() -> None:
            with instance.session() as session:
                while not stop.is_set():
                    status = session.status()
                    highest[0] = max(highest[0], status.slab_bytes)
                    assert status.slab_bytes <= status.budget_bytes

        def race(i: int) -> None:
            data = pattern(f"racer{i}", 12 * MIB)
            try:
                writers[i].save(1, {"a": data}, timeout_ms=int(patient(5_000)))
                outcomes[i] = "saved" if writers[i].load(1, "a") == data else "other bytes"
            except CairnError as error:
                assert error.code == RESOURCE_EXHAUSTED, error
                assert "64" in error.message and "12" in error.message, error
                outcomes[i] = "refused"

        watcher = threading.Thread(target=watch)
        watcher.start()
        racers = [threading.Thread(target=race, args=(i,)) for i in range(8)]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join(patient(30))
        stop.set()
        watcher.join(patient(30))
        assert sorted(set(outcomes)) in (["refused", "saved"],), outcomes
        assert 3 <= outcomes.count("saved") <= 5, outcomes
        assert highest[0] <= 64 * MIB
        for i, outcome in enumerate(outcomes):
            if outcome == "saved":
                assert writers[i].load(1, "a") == pattern(f"racer{i}", 12 * MIB)
        for writer in writers:
            writer.vanish()


# --- R30 ---


def test_room_for_six_of_eight_ranks_means_a_refusal_for_all_and_none_holds_memory() -> None:
    with node(budget=64 * MIB, storage=False) as instance:
        attempt = attempt_number()
        ranks = [instance.writer("eight", attempt, rank, 8, local_writers=8) for rank in range(8)]
        messages: list[str] = [""] * 8
        began = time.monotonic()

        def ask(rank: int) -> None:
            messages[rank] = refuses(
                RESOURCE_EXHAUSTED,
                ranks[rank].create,
                1,
                {f"r{rank}": 10 * MIB},
                timeout_ms=int(patient(4_000)),
            )

        threads = [threading.Thread(target=ask, args=(rank,)) for rank in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(patient(30))
        assert all(messages), f"not every rank was refused: {messages}"
        assert time.monotonic() - began < patient(12), (
            "one deadline for all, not one after the other"
        )
        assert any("80" in message and "64" in message for message in messages), messages
        until("no rank holds memory", lambda: instance.status().writing_bytes == 0)
        # The same eight with what fits go on at once.
        for rank, writer in enumerate(ranks):
            writer.save(2, {f"r{rank}": pattern(f"r{rank}", 7 * MIB)})
        assert ranks[0].latest().step == 2
        for writer in ranks:
            writer.vanish()


def test_a_job_that_fits_twice_can_always_save_when_nothing_is_ever_persisted() -> None:
    """A policy that never persists must not fill memory for good: superseded steps go."""
    with (
        node(budget=64 * MIB, persist="on-demand") as instance,
        instance.writer("never", attempt_number()) as writer,
    ):
        for step in range(1, 25):
            data = pattern(f"never{step}", 26 * MIB)
            writer.save(step, {"a": data})
            assert writer.latest().step == step
        assert writer.load(24, "a") == data


def test_saving_on_goes_on_when_every_persist_fails() -> None:
    """Promise 4: a slow or broken disk is a documented fallback, not a stop."""
    with node(budget=64 * MIB, persist="every") as instance:
        if os.geteuid() == 0:
            (instance.storage / "broken").write_text("a file where the job's directory would stand")
        else:
            instance.storage.chmod(0o555)
        with instance.writer("broken", attempt_number()) as writer:
            for step in range(1, 12):
                writer.save(step, {"a": pattern(f"b{step}", 26 * MIB)})
            job = until(
                "status says why", lambda: [j for j in writer.status().jobs if j.persist_problem]
            )[0]
            assert job.latest_step == 11 and job.latest_persisted_step == -1
        instance.storage.chmod(0o755)


def test_finished_jobs_make_room_once_they_are_in_storage() -> None:
    with node(budget=64 * MIB) as instance:
        for i in range(6):
            with instance.writer(f"done{i}", attempt_number()) as writer:
                writer.save(
                    1, {"a": pattern(f"done{i}", 25 * MIB)}, timeout_ms=int(patient(20_000))
                )
                writer.persist(1)
        with instance.session() as reader:
            for i in range(6):
                # From memory or from the file, every one is to be had.
                assert reader.load(1, "a", job=f"done{i}") == pattern(f"done{i}", 25 * MIB)


def test_a_finished_job_owes_a_file_whatever_its_policy_and_then_makes_room() -> None:
    """Nobody asked for a persist; pressure alone puts the last step of a job without writers into storage."""
    with node(budget=64 * MIB, persist="on-demand") as instance:
        for i in range(4):
            with instance.writer(f"owes{i}", attempt_number()) as writer:
                writer.save(
                    1, {"a": pattern(f"owes{i}", 25 * MIB)}, timeout_ms=int(patient(30_000))
                )
        with instance.session() as reader:
            for i in range(4):
                assert reader.load(1, "a", job=f"owes{i}") == pattern(f"owes{i}", 25 * MIB)


def test_the_garbage_of_a_crash_loop_never_fills_memory() -> None:
    """A job dies in the middle of every save, thirty times over; each leaves a step of half the budget."""
    with node(budget=64 * MIB, storage=False) as instance:
        with instance.writer("loop", attempt_number()) as writer:
            data = pattern("good", 20 * MIB)
            writer.save(1, {"r0": data})
        for _ in range(30):
            writer = instance.writer("loop", attempt_number(), 0, 2)
            seals = writer.write(
                2, {"r0": pattern("half", 20 * MIB)}, timeout_ms=int(patient(20_000))
            )
            writer.commit(2, seals)  # this rank's part is whole, the other's never comes
            writer.vanish()
        with instance.session("loop") as reader:
            assert reader.latest().step == 1
            assert reader.load(1, "r0") == data


def test_a_load_needs_no_room_in_a_full_cache() -> None:
    with node(budget=64 * MIB) as instance:
        old = pattern("old", 20 * MIB)
        with instance.writer("archive", attempt_number()) as writer:
            writer.save(1, {"a": old})
            writer.persist(1)
            writer.change("remove", writer.ref(1), True, False)
            assert writer.checkpoint(1).level == EVICTED
        with (
            instance.writer("full", attempt_number()) as writer,
            instance.session("archive") as reader,
        ):
            writer.save(1, {"a": pattern("full", 30 * MIB)})
            writer.write(2, {"a": pattern("full", 30 * MIB)})
            held = reader.open(1, "a", MAP)
            assert held.slab == 0, "the fd is the file's"
            assert os.pread(reader.leases[held.lease], len(old), held.offset) == old
            reader.release(held)
            writer.commit(2, [writer.sealed("a", pattern("full", 30 * MIB))])


def test_pins_are_kept_and_named_when_they_leave_no_room() -> None:
    with (
        node(budget=64 * MIB, storage=False) as instance,
        instance.writer("pinned", attempt_number()) as writer,
    ):
        kept = pattern("kept", 30 * MIB)
        writer.save(1, {"a": kept})
        writer.change("pin", writer.ref(1), True)
        writer.save(2, {"a": pattern("two", 20 * MIB)})
        message = refuses(RESOURCE_EXHAUSTED, writer.create, 3, {"a": 30 * MIB}, timeout_ms=300)
        assert "pin" in message, message
        assert writer.load(1, "a") == kept
        writer.change("pin", writer.ref(1), False)
        # Step 3 stays refused: its other writers would have heard the same.
        writer.save(4, {"a": pattern("four", 30 * MIB)})


def test_an_object_that_is_leased_is_not_evicted_and_a_waiting_saver_gets_the_room_when_it_is_released() -> (
    None
):
    with (
        node(budget=64 * MIB, storage=False) as instance,
        instance.writer("waits", attempt_number()) as writer,
    ):
        data = pattern("one", 30 * MIB)
        writer.save(1, {"a": data})
        with instance.session("waits") as reader:
            held = reader.open(1, "a", READ)
            writer.save(2, {"a": pattern("two", 30 * MIB)})
            answer: list[object] = []
            waiting = threading.Thread(
                target=lambda: answer.append(
                    writer.create(3, {"a": 30 * MIB}, timeout_ms=int(patient(20_000)))
                )
            )
            waiting.start()
            until(
                "the create waits",
                lambda: answer or instance.status().counters["waiting_callers"] == 1,
            )
            assert not answer, "leased bytes were given away"
            assert os.pread(reader.leases[held.lease], len(data), held.offset) == data
            reader.release(held)
            waiting.join(patient(20))
            assert answer


def test_many_small_objects_and_one_large_fit_where_their_bytes_fit() -> None:
    with (
        node(budget=64 * MIB, storage=False) as instance,
        instance.writer("small", attempt_number()) as writer,
    ):
        for step in range(1, 6):
            objects = {f"o{i:04}": pattern(f"{step}-{i}", 4096 + i) for i in range(999)} | {
                "big": pattern("b", 16 * MIB)
            }
            writer.save(step, objects)
        assert writer.load(5, "o0777") == objects["o0777"]
        assert writer.load(5, "big") == objects["big"]


def test_removing_the_last_copy_needs_force_and_frees_at_once() -> None:
    with (
        node(budget=64 * MIB, storage=False) as instance,
        instance.writer("rm", attempt_number()) as writer,
    ):
        writer.save(1, {"a": pattern("rm", 30 * MIB)})
        refuses(9, writer.change, "remove", writer.ref(1), False, False)  # FAILED_PRECONDITION
        writer.change("remove", writer.ref(1), False, True)
        refuses(NOT_FOUND, writer.checkpoint, 1)
        writer.save(2, {"a": pattern("rm2", 60 * MIB)})
