#!/usr/bin/env python3
"""make soak: a node under load for a while; what it holds at the end it held at the beginning.

    tests/soak/soak.py [--minutes N] [--seed N]

Real keeper and daemon, trainers that save, load and remove under a policy that keeps few, a reader; the
catalog is on. Clients are killed all the time, the daemon now and then, but not in the last part of the
run, so that what a daemon gathers in a longer life shows. From time to time everybody rests; then memory
that is the processes' own, descriptors, threads, slabs, journal, files and catalog are counted. It fails
when one of them has grown by more than 5 % (and a little), when a client saw a wrong byte, a `latest` that
went back or an error, or when a process ended that was not killed. The same seed makes the same plan, not
the same timing.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
os.environ.setdefault("CAIRN_BIN", str(ROOT / "build" / "bin"))
sys.path[:0] = [str(ROOT / folder) for folder in ("tests", "tests/faults", "build/main/python")]

from cairn_daemon import MIB, Node, lives  # noqa: E402
from patience import patient, until  # noqa: E402
from soak_client import JOBS  # noqa: E402

BUDGET = 32 * MIB
JOURNAL = 4 * MIB
GROWTH = 1.05
LOOK_S = 0.5  # between two looks at the journal
# The keeper takes to safe mode after three deaths within a minute.
DAEMON_LIVES_S = 40.0
CLIENT_LIVES_S = 6.0
# No daemon is killed in the last part of a run.
UNDISTURBED = 0.4
WARM_UP_S = 25.0
# Until each of its threads has had its share of work, and malloc an arena for each.
DAEMON_WARM_S = 150.0
PATIENCE_S = 90.0


def log(text: str) -> None:
    print(text, flush=True)


# --- what is counted -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Figure:
    """`floor`: what may come on top of the 5 %, so that no single page or file decides. `history`: so much
    may come for each life and each step removed, of which storage keeps a small file for good, and the
    journal a fact.
    """

    name: str
    unit: int
    floor: int
    of_daemon: bool = False  # a new daemon begins anew
    cold: int = 0  # what a young daemon may come to beside
    history: int = 0


SNAPSHOT = "journal's snapshot KiB"
FIGURES = (
    Figure("keeper memory KiB", 1 << 10, 1 * MIB),
    Figure("keeper descriptors", 1, 6),
    Figure("keeper threads", 1, 0),
    Figure("daemon memory KiB", 1 << 10, 6 * MIB, of_daemon=True, cold=24 * MIB),
    Figure("daemon descriptors", 1, 8, of_daemon=True),
    Figure("daemon threads", 1, 4, of_daemon=True),
    Figure("slabs", 1, 4),
    Figure("slab KiB", 1 << 10, 4 * MIB),
    Figure("sessions", 1, 0),
    Figure(SNAPSHOT, 1 << 10, 64 << 10, history=300),
    Figure("storage KiB", 1 << 10, 2 * MIB, history=4 << 10),
    Figure("files", 1, 12, history=1),
    Figure("catalog KiB", 1 << 10, 1 * MIB),
)


def own_memory(pid: int) -> int:
    """Without slabs, which are shared memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0


def descriptors(pid: int) -> list[str]:
    found = []
    for entry in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{entry}"))
        except OSError:
            pass  # it was the listing's own, or is closed meanwhile
    return found


def on_disk(folder: Path) -> tuple[int, int]:
    """Bytes and files, without those that wait in the trash for an hour."""
    size = count = 0
    for top, folders, files in os.walk(folder):
        if "trash" in folders:
            folders.remove("trash")
        for name in files:
            try:
                size += os.lstat(os.path.join(top, name)).st_blocks * 512
                count += 1
            except OSError:
                pass
    return size, count


@dataclasses.dataclass
class Sample:
    at_s: float
    daemon_pid: int
    values: dict[str, int]
    history: int  # lives that have ended, and steps that were removed


# --- clients -------------------------------------------------------------------------------------------


class Child:
    """A client's process and what it says. `killed`: it is not to have ended by itself."""

    def __init__(self, soak: Soak, kind: str, job: str) -> None:
        self.soak, self.kind, self.job, self.life = soak, kind, job, 0
        self.counts: dict[str, int] = {}
        self.begin()

    @property
    def name(self) -> str:
        return self.job or self.kind

    def begin(self) -> None:
        self.life += 1
        self.lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self.process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("soak_client.py")),
                self.kind,
                self.soak.node.socket,
                str(self.soak.folder),
                self.job,
                str(self.life),
                str(self.soak.seed),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT / "build" / "main" / "python")},
        )
        threading.Thread(target=self._read, args=[self.process, self.lines], daemon=True).start()

    def _read(self, process: Any, lines: Any) -> None:
        for line in process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                continue  # killed in mid-line
            if "wrong" in said:
                self.soak.problems.append(f"{self.name}, life {self.life}: {said['wrong']}")
            if "refused" in said:
                self.soak.refused.append(said["refused"])
            lines.put(said)

    def tell(self, word: str) -> None:
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(word.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it will be seen to have ended

    def hear(self, what: str) -> bool:
        """Until it says so. What it counted in this life is added up."""
        deadline = time.monotonic() + patient(PATIENCE_S)
        while time.monotonic() < deadline:
            try:
                said = self.lines.get(timeout=0.2)
            except queue.Empty:
                if self.process.poll() is not None and self.lines.empty():
                    return False
                continue
            if what in said:
                self.counts = said.get("counts", self.counts)
                return True
        self.soak.problems.append(f"{self.name}, life {self.life}: it was not {what} in time")
        return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                pipe.close()
            except BrokenPipeError:
                pass


# --- the run -------------------------------------------------------------------------------------------


class Soak:
    def __init__(self, minutes: float, seed: int, folder: Path) -> None:
        self.seed, self.folder = seed, folder
        self.random = random.Random(seed)
        self.seconds = minutes * 60
        self.problems: list[str] = []
        self.refused: list[str] = []
        self.samples: list[Sample] = []
        self.journal: list[tuple[float, int]] = []  # (when, used)
        self.killed_daemons = self.killed_clients = 0
        self.node = Node(
            folder, budget=BUDGET, journal=JOURNAL, options=("--log.level=warning",)
        ).start()
        self.begin = time.monotonic()
        self.children = [Child(self, "trainer", job) for job in JOBS]
        self.children.append(Child(self, "reader", ""))
        self.totals: dict[str, int] = {}

    def now(self) -> float:
        return time.monotonic() - self.begin

    def run(self) -> None:
        rest_every = max(15.0, self.seconds / 12)
        next_rest = WARM_UP_S
        next_daemon = WARM_UP_S + rest_every * 0.5
        next_client = CLIENT_LIVES_S
        while self.now() < self.seconds and not self.problems:
            time.sleep(LOOK_S)
            self.look()
            if self.now() >= next_rest:
                self.rest()
                next_rest = self.now() + rest_every
            if self.now() >= next_daemon and self.now() < self.seconds * (1 - UNDISTURBED):
                self.node.kill_daemon()
                self.killed_daemons += 1
                next_daemon = self.now() + DAEMON_LIVES_S * self.random.uniform(1, 2)
            if self.now() >= next_client:
                self.kill_client()
                next_client = self.now() + CLIENT_LIVES_S * self.random.uniform(0.5, 1.5)
        if not self.problems:
            self.rest()

    def look(self) -> None:
        for child in self.children:
            if child.process.poll() is not None:
                time.sleep(0.2)  # its last words
                self.problems.append(f"{child.name} ended by itself: {child.process.returncode}")
        if not lives(self.node.keeper_pid):
            self.problems.append("the keeper has ended")
            return
        status = self.node.status()
        self.journal.append((self.now(), status.counters["journal_used_bytes"]))
        if status.restarts != self.killed_daemons:
            self.problems.append(
                f"the daemon died {status.restarts} times, {self.killed_daemons} by us"
            )
        if status.state != "serving":
            self.problems.append(f"the daemon is {status.state}")
        if status.slab_bytes > BUDGET:
            self.problems.append(f"slabs have {status.slab_bytes} bytes, beyond the budget")

    def kill_client(self) -> None:
        child = self.random.choice(self.children)
        child.kill()
        self.add(child)
        self.killed_clients += 1
        child.begin()

    def add(self, child: Child) -> None:
        for what, count in child.counts.items():
            self.totals[what] = self.totals.get(what, 0) + count
        child.counts = {}

    def rest(self) -> None:
        """Everybody rests, and what there is is counted."""
        for child in self.children:
            child.tell("pause")
        if not all([child.hear("paused") for child in self.children]):
            return
        try:
            until("the node is idle", self.idle, PATIENCE_S)
        except AssertionError as error:
            self.problems.append(str(error))
            return
        self.samples.append(self.sample())
        for child in self.children:
            child.tell("go")

    def idle(self) -> bool:
        status = self.node.status()
        return (
            status.prefault_done
            and not status.writing_bytes
            and not status.quarantined_bytes
            and not status.counters.get("waiting_calls", 0) > 1
            and all(lives(session.pid) for session in status.sessions)
            and not any(job.deletable_checkpoints for job in status.jobs)
        )

    def sample(self) -> Sample:
        keeper, daemon = self.node.keeper_pid, self.node.daemon_pid()
        status = self.node.status()
        held = descriptors(keeper)
        size, files = on_disk(self.node.storage)
        catalog = sum(
            path.stat().st_blocks * 512 for path in self.folder.glob("catalog.db*") if path.exists()
        )
        values = {
            "keeper memory KiB": own_memory(keeper),
            "keeper descriptors": len([one for one in held if "memfd:" not in one]),
            "keeper threads": len(os.listdir(f"/proc/{keeper}/task")),
            "daemon memory KiB": own_memory(daemon),
            "daemon descriptors": len([one for one in descriptors(daemon) if "memfd:" not in one]),
            "daemon threads": len(os.listdir(f"/proc/{daemon}/task")),
            "slabs": len([one for one in held if "memfd:" in one]),
            "slab KiB": status.slab_bytes,
            # Without those that ask for the status: the node may have yet to see that the last one ended.
            "sessions": sum(session.pid != os.getpid() for session in status.sessions),
            SNAPSHOT: 0,  # see measured()
            "storage KiB": size,
            "files": files,
            "catalog KiB": catalog,
        }
        removed = sum(
            path.read_text(encoding="utf-8").count("removed")
            for path in self.folder.glob("notes.*")
        )
        history = self.killed_clients + removed
        return Sample(self.now(), daemon, values, history)

    # --- the verdict

    def measured(self) -> list[Sample]:
        """The journal's fill goes up, and with a snapshot down to what it must hold: that is its figure, of
        the last snapshot before a rest (before the first: of the next one).
        """
        snapshots = [now for before, now in itertools.pairwise(self.journal) if now[1] < before[1]]
        for sample in self.samples:
            known = [used for at, used in snapshots if at <= sample.at_s]
            known = known[-1:] or [used for _, used in snapshots[:1]] or [0]
            sample.values[SNAPSHOT] = known[0]
        return self.samples

    def compare(self) -> None:
        # A node that does nothing stays as it was.
        for what in ("saves", "loads", "removals"):
            if self.totals.get(what, 0) == 0:
                self.problems.append(f"there were no {what}")
        if len(self.refused) > 2 + self.totals.get("saves", 0) // 100:
            self.problems.append(f"{len(self.refused)} saves were refused: {self.refused[0]}")
        samples = self.measured()
        if len(samples) < 2:
            self.problems.append("there was no time to compare anything")
            return
        last = samples[-1]
        same_daemon = [sample for sample in samples if sample.daemon_pid == last.daemon_pid]
        begun = max((s.at_s for s in samples if s.daemon_pid != last.daemon_pid), default=0)
        warm = [s for s in same_daemon[:-1] if s.at_s >= begun + DAEMON_WARM_S] or same_daemon
        for figure in FIGURES:
            first = warm[0] if figure.of_daemon else samples[0]
            began, ended = first.values[figure.name], last.values[figure.name]
            more = figure.floor + figure.history * (last.history - first.history)
            if figure.of_daemon and first.at_s < begun + DAEMON_WARM_S:
                more += figure.cold
            if ended > began * GROWTH + more:
                self.problems.append(
                    f"{figure.name}: {began // figure.unit} after {first.at_s:.0f} s, "
                    f"{ended // figure.unit} after {last.at_s:.0f} s"
                )

    def end(self) -> None:
        for child in self.children:
            child.tell("end")
            if child.process.poll() is None and not self.problems:
                child.hear("ended")
            self.add(child)
            child.kill()
        self.node.kill_all()

    def table(self) -> str:
        shown = self.samples
        if len(shown) > 8:
            shown = [shown[round(i * (len(shown) - 1) / 7)] for i in range(8)]
        lines = [f"{'after s':24}" + "".join(f"{sample.at_s:10.0f}" for sample in shown)]
        lines.append(f"{'daemon':24}" + "".join(f"{sample.daemon_pid:10}" for sample in shown))
        for figure in FIGURES:
            row = "".join(f"{sample.values[figure.name] // figure.unit:10}" for sample in shown)
            lines.append(f"{figure.name:24}{row}")
        return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="a node under load for a while")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    log(f"soak: {arguments.minutes:g} minutes, --seed {arguments.seed}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # leaves no daemon
    folder = Path(tempfile.mkdtemp(prefix="cairn-soak-"))
    soak = Soak(arguments.minutes, arguments.seed, folder)
    try:
        soak.run()
        soak.end()
        soak.compare()
    except BaseException:
        log(soak.node.tail())
        raise
    finally:
        for child in soak.children:
            child.process.kill()
        soak.node.kill_all()
        log(soak.table())
        log(f"{soak.totals}; killed: {soak.killed_clients} clients, {soak.killed_daemons} daemons")
        if soak.refused:
            log(f"{len(soak.refused)} saves were refused, first: {soak.refused[0]}")
        if soak.problems:
            log(soak.node.tail())
        for problem in soak.problems:
            log(f"FAILED {problem}")
        log(f"ended after {soak.now():.0f} s")
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if soak.problems else 0


if __name__ == "__main__":
    sys.exit(main())
