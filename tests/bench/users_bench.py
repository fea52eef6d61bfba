#!/usr/bin/env python3
"""sessions, neighbour/save, neighbour/load: what users of one node cost it, and each other.

    users_bench.py [row...]      one JSON object per row on stdout, as tests/bench/run.py wants them

`sessions` needs no right, but as root its clients are of eight uids. `neighbour` needs root and a cgroup for
processors: the flood (flood.py), the user it is to disturb and the daemon are of three uids.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import cairn  # before cairn_raw, whose generated types lie in a folder of that name

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "faults"))
from bench_row import row, sized  # noqa: E402
from cairn_daemon import KIB, MIB, Node, node  # noqa: E402
from patience import until  # noqa: E402

ROWS = ("sessions", "neighbour/save", "neighbour/load")
FIRST_UID = 40_000  # uids that no user of this machine has

SESSIONS, SESSION_USERS, SESSION_SAMPLES = sized(1_000, 80), 8, sized(5, 1)

# --- other users' processes ------------------------------------------------------------------------------


class Child:
    """This program as `role`, of another uid where that can be; it answers each line with one of JSON."""

    def __init__(self, role: str, uid: int, **arguments: Any) -> None:
        command = [sys.executable, __file__, "--child", role, "--arguments", json.dumps(arguments)]
        if os.getuid() == 0:
            command += ["--uid", str(uid)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, **request: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a client ended with {self.process.wait()}")
        return dict(json.loads(line))

    def ask(self, **request: Any) -> dict[str, Any]:
        self.tell(**request)
        return self.hear()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def child(role: str, uid: int, **arguments: Any) -> Iterator[Child]:
    started = Child(role, uid, **arguments)
    try:
        started.hear()
        yield started
    finally:
        started.end()


def run_child(role: str, uid: int | None, arguments: dict[str, Any]) -> None:
    if uid is not None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    answers = {"sessions": hold_sessions, "neighbour": save_and_load}[role](**arguments)
    for answer in answers:
        print(json.dumps(answer), flush=True)


def requests() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


# --- sessions --------------------------------------------------------------------------------------------


def memory_kib(*pids: int) -> tuple[int, int]:
    """What these processes have in memory together, and what of it is anonymous. Counted page by page: the
    sums in /proc/PID/status lag behind by up to some hundred KiB."""
    rss = anonymous = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            rss += int(line.split()[1]) if line.startswith("Rss:") else 0
            anonymous += int(line.split()[1]) if line.startswith("Anonymous:") else 0
    return rss, anonymous


def resting_kib(instance: Node) -> tuple[int, int]:
    """Of daemon and keeper, once it has not changed for half a second."""
    until("the budget is faulted in", lambda: instance.status().prefault_done)
    pids = instance.keeper_pid, instance.daemon_pid()
    seen, since, begun = (0, 0), 0.0, time.monotonic()
    while time.monotonic() - begun < 60:
        now = memory_kib(*pids)
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > 0.5:
            return now
        time.sleep(0.05)
    raise RuntimeError("the daemon does not come to rest")


def hold_sessions(socket: str, user: int, sessions: int) -> Iterator[dict[str, Any]]:
    """The ranks of one job, each with a session of its own, in one process."""
    yield {}
    for _ in requests():
        before, _ = memory_kib(os.getpid())
        kept = [
            cairn.connect(
                f"job{user}", rank=rank, world_size=sessions, attempt=1, socket=socket, timeout=60
            )
            for rank in range(sessions)
        ]
        yield {"sessions": len(kept), "grown_kib": memory_kib(os.getpid())[0] - before}


def one_sample_of_sessions() -> tuple[float, float, float]:
    """KiB for each session: of the node, what of it is anonymous, and of libcairn."""
    with node(storage=False) as instance, ExitStack() as stack:
        users = SESSION_USERS if os.getuid() == 0 else 1
        clients = [
            stack.enter_context(
                child(
                    "sessions",
                    FIRST_UID + user,
                    socket=instance.socket,
                    user=user,
                    sessions=SESSIONS // users,
                )
            )
            for user in range(users)
        ]
        before = resting_kib(instance)
        answers = [client.ask() for client in clients]
        after = resting_kib(instance)
        held = [s for s in instance.status().sessions if s.job.startswith("job")]
        if len(held) != SESSIONS or sum(a["sessions"] for a in answers) != SESSIONS:
            raise RuntimeError(f"{len(held)} sessions are open, not {SESSIONS}")
        theirs = sum(answer["grown_kib"] for answer in answers)
        grown = [now - then for now, then in zip(after, before, strict=True)]
        return grown[0] / SESSIONS, grown[1] / SESSIONS, theirs / SESSIONS


def row_sessions() -> dict[str, Any]:
    samples = [one_sample_of_sessions() for _ in range(SESSION_SAMPLES)]
    anonymous = statistics.median(sample[1] for sample in samples)
    users = f"{SESSION_USERS} uids" if os.getuid() == 0 else "one uid: not root"
    return row(
        "sessions",
        "KiB",
        16,
        [(node_kib, client_kib) for node_kib, _, client_kib in samples],
        "libcairn's side of it",
        absolute=True,
        note=f"daemon and keeper, {anonymous:.3g} of it anonymous; {SESSIONS} sessions of {users}",
    )


# --- a neighbour that floods -----------------------------------------------------------------------------

# Operations of a round; pairs of rounds, undisturbed and flooded.
OPERATIONS, PAIRS = sized(300, 5), sized(5, 1)
OBJECT_BYTES = 8 * MIB
NODE_BYTES = sized(1024, 256) * MIB


def save_and_load(socket: str) -> Iterator[dict[str, Any]]:
    """A round: every sample other bytes, and what is loaded compared once the clock has stopped."""
    source = memoryview(os.urandom(OBJECT_BYTES + 8 * KIB))
    connection = cairn.connect("neighbour", rank=0, world_size=1, socket=socket, timeout=60)
    step = 0
    yield {}
    for request in requests():
        saves, loads = [], []
        for _ in range(request["operations"]):
            step += 1
            data = source[step % KIB * 8 :][:OBJECT_BYTES]
            begin = time.perf_counter()
            with connection.step(step, strict=True) as s:
                s.save(data, "model")
            saved = time.perf_counter()
            found = connection.load(f"{step}/model")
            loaded = time.perf_counter()
            if found != data:
                raise RuntimeError(f"step {step} does not hold what was saved")
            if step > 2:
                connection.remove(step - 2, force=True)
            saves.append((saved - begin) * 1e3)
            loads.append((loaded - saved) * 1e3)
        yield {"save": saves, "load": loads}


def p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


class HalfAProcessor:
    """A cgroup whose processes have half of one processor, together.

    In periods of 10 ms, near to how long an operation takes. In the kernel's own of 100 ms they have all of a
    processor for 50 ms, in which Linux 6.18 lets nothing else onto it, neither clients nor its own threads.
    """

    PERIOD_US = 10_000

    def __init__(self) -> None:
        v1, v2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
        self.v1 = (v1 / "cpu.cfs_quota_us").exists() or (v1 / "cpu.cfs_period_us").exists()
        self.path = (v1 if self.v1 else v2) / f"cairn-{os.getpid()}-flood"

    def __enter__(self) -> Path:
        self.path.mkdir()
        try:
            if self.v1:
                (self.path / "cpu.cfs_period_us").write_text(str(self.PERIOD_US))
                (self.path / "cpu.cfs_quota_us").write_text(str(self.PERIOD_US // 2))
            else:
                (self.path / "cpu.max").write_text(f"{self.PERIOD_US // 2} {self.PERIOD_US}")
        except OSError:
            self.path.rmdir()
            raise
        return self.path

    def __exit__(self, *_: object) -> None:
        until("the cgroup is empty", lambda: not (self.path / "cgroup.procs").read_text().strip())
        self.path.rmdir()


Counts = dict[str, dict[str, int]]  # of flood.py: by way and field


@contextmanager
def flood(socket: str, cgroup: Path, counts: Counts, *, spin: bool = False) -> Iterator[None]:
    """While it lasts another user floods; what that came to is added to `counts`."""
    command = [sys.executable, str(ROOT / "tests" / "bench" / "flood.py"), socket]
    command += [str(FIRST_UID + 1), str(cgroup), *(["--spin"] if spin else [])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdin is not None
    try:
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("the flood does not begin")
        yield
        process.stdin.close()
        for way, counted in json.loads(process.stdout.readline()).items():
            of_way = counts.setdefault(way, {})
            for field, number in counted.items():
                of_way[field] = of_way.get(field, 0) + number
    finally:
        process.kill()
        process.wait()


def idle(instance: Node) -> None:
    """Until the daemon uses no processor time."""

    def ticks() -> int:
        fields = Path(f"/proc/{instance.daemon_pid()}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    def rests() -> bool:
        before = ticks()
        time.sleep(0.1)
        return ticks() == before

    until("the daemon is idle", rests, 60)


def neighbour_rounds(
    instance: Node, user: Child, cgroup: Path, counts: Counts
) -> Iterator[dict[str, dict[str, list[float]]]]:
    """What saves and loads took, in ms: `alone`, `flooded`, and `spun`, while the same processes only use
    their processor time."""

    def measured() -> dict[str, list[float]]:
        return user.ask(operations=OPERATIONS)

    measured()
    for i in range(PAIRS):
        rounds = {}
        for which in ("alone", "flooded") if i % 2 == 0 else ("flooded", "alone"):
            idle(instance)
            if which == "alone":
                rounds[which] = measured()
            else:
                with flood(instance.socket, cgroup, counts):
                    rounds[which] = measured()
        idle(instance)
        with flood(instance.socket, cgroup, {}, spin=True):
            rounds["spun"] = measured()
        yield rounds
    if instance.status().restarts != 0:
        raise RuntimeError("the daemon died and was started again")


def neighbour_rows() -> list[dict[str, Any]]:
    """Both rows, of the same rounds."""
    names = ("save", "load")
    reference = "the same user undisturbed"
    with ExitStack() as stack:
        try:
            if os.getuid() != 0:
                raise PermissionError("needs root, for other uids")
            cgroup = stack.enter_context(HalfAProcessor())
        except OSError as error:
            why = f"no flood of half a processor: {error}"
            return [row(f"neighbour/{name}", "ms", 3, [], reference, invalid=why) for name in names]
        counts: Counts = {}
        instance = stack.enter_context(node(budget=NODE_BYTES, storage=False, journal=128 * MIB))
        user = stack.enter_context(child("neighbour", FIRST_UID, socket=instance.socket))
        all_rounds = list(neighbour_rounds(instance, user, cgroup, counts))
    for way, counted in counts.items():
        print(f"flood: {way}: " + ", ".join(f"{n:,} {field}" for field, n in counted.items()))
    total = {field: sum(way[field] for way in counts.values()) for field in ("answered", "ended")}
    made = f"{total['answered']:,} calls of the flood were answered, {total['ended']:,} times it was cut off"

    def median_p99(which: str, name: str) -> float:
        return statistics.median(p99(rounds[which][name]) for rounds in all_rounds)

    return [
        row(
            f"neighbour/{name}",
            "ms",
            3,
            [(p99(r["flooded"][name]), p99(r["alone"][name])) for r in all_rounds],
            reference,
            note=f"p99 of {OPERATIONS} of 8 MiB; {made}; {median_p99('spun', name):.3g} ms when all that it"
            " does is use its processor time",
        )
        for name in names
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help=", ".join(ROWS))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--uid", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--arguments", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_child(options.child, options.uid, options.arguments)
        return 0
    logging.getLogger("thrift").setLevel(
        logging.CRITICAL
    )  # of connecting before the daemon listens
    rows = options.rows or list(ROWS)
    unknown = [name for name in rows if name not in ROWS]
    if unknown:
        raise SystemExit(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # leaves no daemon
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if "sessions" in rows:
        print(json.dumps(row_sessions()), flush=True)
    if set(rows) - {"sessions"}:
        for found in neighbour_rows():
            if found["name"] in rows:
                print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
