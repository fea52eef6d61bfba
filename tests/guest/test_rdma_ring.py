"""Members that read each other's memory over RDMA (Soft-RoCE): promises hold as over TCP, a device that goes
is left out, and nothing stays locked when a daemon dies.

All members are on this host and share rxe0 and rxe1, each at a loopback address of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cairn_daemon import Node, children
from encryption import certificates
from patience import patient
from ring import MIB, PART_BYTES, Member, attempt_number, ring, until

RDMA, AUTO = ("--transport=rdma",), ("--transport=auto",)
JOB = "job"


class Loopback:
    """The network of a ring whose members are all here."""

    def __init__(self, nodes: int) -> None:
        self.addresses = [f"127.0.0.{rank + 1}" for rank in range(nodes)]

    def enter(self, rank: int) -> list[str]:
        return []


@contextmanager
def loopback(nodes: int) -> Iterator[Loopback]:
    yield Loopback(nodes)


@contextmanager
def devices(chosen: str) -> Iterator[None]:
    """Those that daemons begun meanwhile may use."""
    os.environ["NCCL_IB_HCA"] = chosen
    try:
        yield
    finally:
        del os.environ["NCCL_IB_HCA"]


@contextmanager
def down(network: str) -> Iterator[None]:
    subprocess.run(["ip", "link", "set", network, "down"], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "set", network, "up"], check=True)


def counters(member: Member) -> dict[str, int]:
    with member.session(JOB) as asking:
        return {name: int(value) for name, value in asking.status().counters.items()}


def pinned_pages() -> int:
    Path("/proc/sys/vm/stat_refresh").write_text("1")
    counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(counts["nr_foll_pin_acquired"]) - int(counts["nr_foll_pin_released"])


def settled(count: Callable[[], int]) -> int:
    """What it counts once that has stood still for a second."""
    seen: list[int] = []

    def stands() -> bool:
        seen.append(count())
        return len(seen) >= 5 and len(set(seen[-5:])) == 1

    until("what is locked stands still", stands, 30)
    return seen[-1]


def test_what_is_replicated_and_recovered_travels_over_rdma() -> None:
    with ring(3, options=RDMA, make_network=loopback) as r:
        r[0].save(r[0].writer(JOB, attempt_number()), 1)
        r[0].wait_replicated(JOB, 1)
        holder = next(m for m in (r[1], r[2]) if counters(m)["bytes_read_over_rdma"] > 0)
        assert counters(holder)["bytes_read_over_rdma"] >= PART_BYTES
        r[0].kill()
        assert holder.loads(JOB, 1)  # promise 4
        successor = r[0].replace()
        until("the lost part is loaded where it was saved", lambda: successor.loads(JOB, 1), 60)
        assert counters(successor)["bytes_read_over_rdma"] >= PART_BYTES
        for member in r:
            assert counters(member)["bytes_read_over_tcp"] == 0
            assert counters(member)["bad_blocks_fetched"] == 0


def test_many_steps_are_replicated_while_they_are_superseded() -> None:
    """Slabs are granted, revoked and used anew again and again."""
    with ring(2, options=RDMA, make_network=loopback) as r:
        writer = r[0].writer(JOB, attempt_number())
        for step in range(1, 13):
            r[0].save(writer, step)
        r[0].wait_replicated(JOB, 12)
        assert r[1].loads(JOB, 12)
        assert counters(r[1])["bad_blocks_fetched"] == 0
        assert counters(r[1])["bytes_read_over_tcp"] == 0


def test_a_network_that_goes_is_left_out_and_tcp_goes_on() -> None:
    with devices("=rxe0"), ring(2, options=AUTO, make_network=loopback) as r:
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1)
        r[0].wait_replicated(JOB, 1)
        assert counters(r[1])["bytes_read_over_rdma"] >= PART_BYTES
        with down("veth0"):
            r[0].save(writer, 2)
            r[0].wait_replicated(JOB, 2)
            assert counters(r[1])["rdma_left_out"] >= 1
            assert counters(r[1])["bytes_read_over_tcp"] >= PART_BYTES
        r[0].save(writer, 3)
        r[0].wait_replicated(JOB, 3)
        assert r[1].loads(JOB, 3)


def test_of_two_devices_one_that_fails_is_left_out_and_the_other_goes_on() -> None:
    with ring(2, options=AUTO, make_network=loopback, budget=128 * MIB) as r:
        for device in ("rxe0:1", "rxe1:1"):
            assert f"RDMA over {device}" in r[0].log.read_text()
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1, part_bytes=16 * MIB)
        r[0].wait_replicated(JOB, 1)
        assert counters(r[1])["rdma_rails_left_out"] == 0
        with down("veth1"):
            r[0].save(writer, 2, part_bytes=16 * MIB)
            r[0].wait_replicated(JOB, 2)
        assert counters(r[1])["rdma_rails_left_out"] >= 1
        assert counters(r[1])["rdma_left_out"] == 0
        assert counters(r[1])["bytes_read_over_tcp"] == 0
        assert r[1].loads(JOB, 2, part_bytes=16 * MIB)


def test_a_killed_daemon_leaves_nothing_locked_and_its_successor_is_read() -> None:
    before = pinned_pages()
    with ring(2, options=RDMA, make_network=loopback) as r:
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1)
        r[0].wait_replicated(JOB, 1)
        held = settled(lambda: pinned_pages() - before)
        assert held * 4096 >= PART_BYTES  # the owner's slabs, and its holder's
        (daemon,) = children(r[0].keeper_pid)
        os.kill(daemon, signal.SIGKILL)
        until("the next daemon answers", lambda: r[0].latest(JOB) is not None, 30)
        # It registers what the keeper held, in the background; nothing is locked twice.
        again = settled(lambda: pinned_pages() - before)
        assert PART_BYTES <= again * 4096 <= held * 4096
        with r[0].session(JOB) as reader:
            assert reader.load(1, "0/large", timeout_ms=30_000)
        r[0].save(r[0].writer(JOB, attempt_number()), 2)
        r[0].wait_replicated(JOB, 2)
        assert r[1].loads(JOB, 2)
    until("nothing is locked", lambda: pinned_pages() == before, 20)


def test_one_without_rdma_and_one_with_it_speak_tcp() -> None:
    with ring(2, options=AUTO, make_network=loopback, meet=False) as r:
        r[1].kill()
        r[1].command = [word for word in r[1].command if word != AUTO[0]] + ["--transport=tcp"]
        r[1].start()
        r.await_met()
        r[0].save(r[0].writer(JOB, attempt_number()), 1)
        r[0].wait_replicated(JOB, 1)
        assert counters(r[1])["bytes_read_over_tcp"] >= PART_BYTES
        assert counters(r[1])["bytes_read_over_rdma"] == 0


def test_what_is_to_be_encrypted_never_takes_rdma() -> None:
    both = certificates(lambda rank: "all")
    with ring(2, options=AUTO, make_network=loopback, before=both) as r:
        r[0].save(r[0].writer(JOB, attempt_number()), 1)
        r[0].wait_replicated(JOB, 1)
        assert counters(r[1])["bytes_read_over_tcp"] >= PART_BYTES
        assert counters(r[1])["bytes_read_over_rdma"] == 0
        assert "RDMA over" not in r[0].log.read_text()


# --- bad input


def without_the_right(command: list[str]) -> list[str]:
    return ["prlimit", f"--memlock={MIB}", "setpriv", "--bounding-set=-ipc_lock", *command]


def alone(folder: Path, transport: str) -> Node:
    options: tuple[Any, ...] = (
        "--ring.cluster=ring",
        "--ring.rank=0",
        "--ring.nodes=0=127.0.0.1:7400,1=127.0.0.2:7400",
        f"--transport={transport}",
    )
    node = Node(folder, storage=False, options=options)
    node.command = without_the_right(node.command)
    return node


def test_memory_that_must_not_be_locked_is_an_error_that_tells_the_arithmetic(
    tmp_path: Path,
) -> None:
    node = alone(tmp_path, "rdma")
    result = subprocess.run(node.command, capture_output=True, text=True, timeout=patient(60))
    assert result.returncode != 0
    said = result.stderr + (node.log.read_text() if node.log.exists() else "")
    assert "transport: locked memory: RDMA needs 64 MiB for each of 1 devices" in said
    assert "the limit of this process is 1 MiB" in said
    assert "CAP_IPC_LOCK" in said


def test_a_choice_of_devices_that_matches_none_is_an_error(tmp_path: Path) -> None:
    for transport in ("rdma", "auto"):
        node = alone(tmp_path, transport)
        result = subprocess.run(
            node.command,
            env={**os.environ, "NCCL_IB_HCA": "=mlx5_7"},
            capture_output=True,
            text=True,
            timeout=patient(60),
        )
        assert result.returncode != 0
        said = result.stderr + (node.log.read_text() if node.log.exists() else "")
        assert 'NCCL_IB_HCA: "=mlx5_7" chooses no RDMA port; there are rxe0:1, rxe1:1' in said


def test_the_chosen_device_is_used() -> None:
    with devices("=rxe1:1"), ring(2, options=RDMA, make_network=loopback) as r:
        assert "RDMA over rxe1:1" in r[0].log.read_text()
        assert "RDMA over rxe0:1" not in r[0].log.read_text()
        r[0].save(r[0].writer(JOB, attempt_number()), 1)
        r[0].wait_replicated(JOB, 1)
        assert counters(r[1])["bytes_read_over_rdma"] >= PART_BYTES


def test_auto_takes_tcp_where_memory_must_not_be_locked(tmp_path: Path) -> None:
    node = alone(tmp_path, "auto")
    node.start()
    try:
        until(
            "it says so", lambda: "no RDMA, members are read over TCP" in node.log.read_text(), 20
        )
    finally:
        node.kill_all()
