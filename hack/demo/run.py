#!/usr/bin/env python3
"""make demo: a real training job saves every step into memory, is killed, and goes on.

 1. The job runs once undisturbed, without Cairn, and torch.save is timed on it.
 2. It runs again and saves every step through Cairn. The driver SIGKILLs both trainers in the middle of a
    save, twice; then the daemon; then the trainers once more, and everything that is in memory with them.
 3. The end state must be the first run's, bit for bit.

Exit status 0 when it was, 1 when anything was not as promised. Everything lies in build/demo and in
temporary folders that go at the end.

One file: whoever is shown the demo reads in one place what it did, without our test helpers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import queue
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from patience import patient

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = ROOT / "build"
OUT = BUILD / "demo"
CAIRND = BUILD / "bin" / "cairnd"
PYTHON_PATH = BUILD / "main" / "python"
PYTHON = "/usr/bin/python3"

JOB = "demo"
WORLD_SIZE = 2
STEPS = 24
FIRST_KILL, SECOND_KILL, DAEMON_KILL, WIPE = 4, 9, 13, 17
STATE_BYTES = 210 << 20  # about what the two ranks save per step
BUDGET = "2GiB"
DEADLINE_S = patient(540)
CAUGHT = (0.10, 0.90)

sys.path.insert(0, str(PYTHON_PATH))

START = time.monotonic()


class DemoError(Exception):
    """Something was not as promised; the message says what."""


def say(text: str) -> None:
    print(f"{time.monotonic() - START:6.1f} s  {text}", flush=True)


class Timeline:
    def __init__(self) -> None:
        self.rows: list[tuple[float, str]] = []

    def add(self, text: str) -> None:
        self.rows.append((time.monotonic() - START, text))
        say("* " + text)


def check_deadline() -> None:
    if time.monotonic() - START > DEADLINE_S:
        raise DemoError(f"the demo did not finish in {DEADLINE_S:.0f} s; logs are in {OUT}")


# --- processes -------------------------------------------------------------------------------------


@dataclasses.dataclass
class Place:
    """Where a rank runs: what stands before its command, the network that ranks meet on, and options."""

    enter: list[str]
    interface: str
    local_world_size: int
    options: list[str]


HERE_BOTH = [Place([], "lo", WORLD_SIZE, [])] * WORLD_SIZE


class Trainers:
    """Both ranks of one life of the job."""

    def __init__(
        self, life: str, options: list[str], scratch: Path, places: list[Place] = HERE_BOTH
    ) -> None:
        self.life = life
        self.events: queue.Queue[dict] = queue.Queue()
        self.steps: dict[int, dict[int, dict]] = {}  # step → rank → what it told
        self.ready: dict[int, dict] = {}
        self.not_saved: set[int] = set()
        self.log = OUT / f"trainers-{life}.log"
        rendezvous = scratch / f"rendezvous-{life}"
        self.started = time.monotonic()
        self.processes = []
        with open(self.log, "wb") as log:
            for rank, place in enumerate(places):
                env = {
                    **os.environ,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(WORLD_SIZE),
                    "LOCAL_WORLD_SIZE": str(place.local_world_size),
                    "GLOO_SOCKET_IFNAME": place.interface,
                    "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": str(PYTHON_PATH),
                    "PYTHONPYCACHEPREFIX": str(BUILD / "pycache"),
                }
                command = [
                    *place.enter,
                    PYTHON,
                    str(HERE / "train.py"),
                    "--steps",
                    str(STEPS),
                    "--rendezvous",
                    str(rendezvous),
                    *options,
                    *place.options,
                ]
                process = subprocess.Popen(
                    command,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
                self.processes.append(process)
                threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                self.events.put(json.loads(line))
            except ValueError:
                continue  # a line cut short by SIGKILL
        self.events.put({"event": "eof"})

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        self.pump()

    def failed(self) -> str | None:
        for rank, process in enumerate(self.processes):
            if process.poll() not in (None, 0):
                return f"rank {rank} of {self.life} ended with {process.returncode}; see {self.log}"
        return None

    def finished(self) -> bool:
        return all(process.poll() == 0 for process in self.processes)

    def pump(self, wait_s: float = 0) -> None:
        """Takes in what the ranks told since the last call and prints the steps both have done."""
        deadline = time.monotonic() + wait_s
        while True:
            try:
                event = self.events.get(timeout=max(0.0, deadline - time.monotonic()) or 0.0001)
            except queue.Empty:
                return
            if event["event"] == "ready":
                self.ready[event["rank"]] = event
                if len(self.ready) == WORLD_SIZE:
                    self._say_ready()
            elif event["event"] == "not saved":
                self.not_saved.add(event["step"])
                say(f"  step {event['step']}: rank {event['rank']} could not save")
            elif event["event"] == "step":
                ranks = self.steps.setdefault(event["step"], {})
                ranks[event["rank"]] = event
                if len(ranks) == WORLD_SIZE:
                    self._say_step(event["step"], ranks)

    def _say_ready(self) -> None:
        ready = max(self.ready.values(), key=lambda event: event["load_ms"])
        if ready["source"] == "nothing":
            say(f"  {self.life}: from the beginning")
        else:
            say(
                f"  {self.life}: loaded from {ready['source']} in {ready['load_ms']:.0f} ms, "
                f"goes on with step {ready['step']}"
            )

    def _say_step(self, step: int, ranks: dict[int, dict]) -> None:
        loss = statistics.mean(event["loss"] for event in ranks.values())
        train = max(event["train_ms"] for event in ranks.values())
        saves = [event["stalls"]["cairn"] for event in ranks.values() if "cairn" in event["stalls"]]
        saved = f", saved in {max(saves):.0f} ms" if saves else ""
        say(f"  step {step:2d}  loss {loss:.4f}  trained {train:.0f} ms{saved}")

    def last_step(self) -> int:
        done = [step for step, ranks in self.steps.items() if len(ranks) == WORLD_SIZE]
        return max(done, default=-1)

    def wait_for(self, what: str, done, limit_s: float = 240) -> None:
        limit_s = patient(limit_s)
        deadline = time.monotonic() + limit_s
        while not done():
            self.pump(0.2)
            problem = self.failed()
            if problem:
                raise DemoError(problem)
            check_deadline()
            if time.monotonic() > deadline:
                raise DemoError(f"{what}: not within {limit_s:.0f} s; see {self.log}")


class Node:
    """cairnd: the keeper, which is what was started, and the daemon, its child."""

    def __init__(
        self,
        scratch: Path,
        storage: Path,
        life: int | str,
        enter: Sequence[str] = (),
        options: Sequence[str] = (),
        budget: str = BUDGET,
    ) -> None:
        self.directory = scratch / f"node{life}"
        self.directory.mkdir()
        self.socket = self.directory / "cairn.sock"
        self.log = OUT / f"cairnd-{life}.log"
        command = [
            *enter,
            str(CAIRND),
            f"--socket={self.socket}",
            f"--memory.budget={budget}",
            f"--storage.root={storage}",
            f"--catalog.path={self.directory / 'catalog.sqlite'}",
            *options,
        ]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def connect(self, limit_s: float = 30):
        import cairn

        deadline = time.monotonic() + limit_s
        while True:
            try:
                return cairn.connect(job=JOB, rank=-1, socket=str(self.socket))  # only looks
            except (cairn.Unavailable, FileNotFoundError) as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise DemoError(f"cairnd does not answer: {error}; see {self.log}") from error
                time.sleep(0.05)

    def daemon_pid(self) -> int:
        keeper = self.process.pid
        children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
        if len(children) != 1:
            raise DemoError(f"the keeper has {len(children)} children, not one daemon")
        return int(children[0])

    def kill_everything(self) -> None:
        """No warning to anyone: what was in memory is gone."""
        try:
            daemon = self.daemon_pid()
        except (DemoError, OSError):
            daemon = None
        self.process.kill()
        self.process.wait()
        if daemon:
            try:
                os.kill(daemon, signal.SIGKILL)
            except ProcessLookupError:
                pass


# --- what is watched for ---------------------------------------------------------------------------


def writing(session, min_step: int) -> tuple[int, float] | None:
    """(step, how much of it is written) as status shows it now, over the ranks that are writing."""
    total = done = 0
    step = -1
    for entry in session.status()["sessions"]:
        if entry["job"] == JOB and entry["writing_step"] >= min_step and entry["writing_total"] > 0:
            step = max(step, entry["writing_step"])
            total += entry["writing_total"]
            done += entry["writing_done"]
    return (step, done / total) if total else None


def catch_mid_save(trainers: Trainers, session, min_step: int, strike) -> tuple[int, float]:
    """Waits until status shows a step 10 to 90 % written, and strikes at once."""
    trainers.wait_for(f"step {min_step - 1}", lambda: trainers.last_step() >= min_step - 1)
    missed = 0
    seen = -1
    while True:
        now = writing(session, min_step)
        if now and CAUGHT[0] <= now[1] <= CAUGHT[1]:
            strike()
            return now
        if now and now[0] != seen:
            seen = now[0]
            missed += 1
        if not now:
            trainers.pump()
            problem = trainers.failed()
            if problem:
                raise DemoError(problem)
            if trainers.last_step() >= STEPS - 1 or missed > 8:
                raise DemoError(f"no save after step {min_step} was caught half-written")
            check_deadline()


def digest(path: Path) -> str:
    """Of a saved end state."""
    import torch

    return digest_of(torch.load(path))


def digest_of(state: object) -> str:
    """SHA-256 over every tensor's name, dtype, shape and bytes, in order of the names."""
    import torch

    sha = hashlib.sha256()

    def add(name: str, value: object) -> None:
        if isinstance(value, torch.Tensor):
            sha.update(name.encode() + str(value.dtype).encode() + str(tuple(value.shape)).encode())
            sha.update(value.contiguous().numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                add(f"{name}/{key}", value[key])
        elif isinstance(value, (list, tuple)):
            for i, item in enumerate(value):
                add(f"{name}/{i}", item)
        else:
            sha.update(f"{name}={value!r}".encode())

    add("", state)
    return sha.hexdigest()


@contextmanager
def scratch_folders() -> Iterator[tuple[Path, Path | None]]:
    """A short path for sockets, and a folder on tmpfs where there is room for what is timed there."""
    scratch = Path(tempfile.mkdtemp(prefix="cairn-demo-", dir="/tmp"))
    tmpfs = None
    shm = Path("/dev/shm")
    if shm.is_dir() and os.access(shm, os.W_OK) and shutil.disk_usage(shm).free > 3 * STATE_BYTES:
        tmpfs = Path(tempfile.mkdtemp(prefix="cairn-demo-", dir=shm))
    try:
        yield scratch, tmpfs
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if tmpfs:
            shutil.rmtree(tmpfs, ignore_errors=True)


def stalls(lives: list[Trainers], key: str, skip: int = 0) -> list[float]:
    """Milliseconds a step stood still, the slower rank of each; without the first `skip`, which warm up."""
    found = []
    for life in lives:
        mine = [
            max(event["stalls"][key] for event in ranks.values())
            for _, ranks in sorted(life.steps.items())
            if len(ranks) == WORLD_SIZE and all(key in event["stalls"] for event in ranks.values())
        ]
        found += mine[skip:]
    return found


# --- the story -------------------------------------------------------------------------------------


# One function: it is the plot, in the order in which things happen, and each scene needs what came before.
def play(scratch: Path, tmpfs: Path | None, running: list) -> int:
    timeline = Timeline()
    storage = OUT / "storage"
    storage.mkdir()
    disk = OUT / "torch-save"

    say(
        "the job once without Cairn, undisturbed: two ranks of a small transformer on the licence texts"
    )
    timed = ["--torch-save-to", str(disk)] + (["--torch-save-to", str(tmpfs)] if tmpfs else [])
    plain = Trainers("undisturbed", [*timed, "--write-final", str(OUT / "undisturbed.pt")], scratch)
    running.append(plain)
    plain.wait_for("the undisturbed run", plain.finished)
    plain.pump(0.5)
    shutil.rmtree(disk, ignore_errors=True)
    timeline.add(f"undisturbed run done, {STEPS} steps")

    node = Node(scratch, storage, 1)
    running.append(node)
    session = node.connect()
    options = ["--socket", str(node.socket), "--job", JOB]
    timeline.add(f"cairnd started with a budget of {BUDGET}; training starts, every step is saved")

    lives: list[Trainers] = []
    resumed: list[tuple[str, float, float]] = []  # (from, load ms, kill → loaded s)

    def start(life: str, extra: list[str]) -> Trainers:
        trainers = Trainers(life, extra, scratch)
        lives.append(trainers)
        running.append(trainers)
        return trainers

    def await_ready(trainers: Trainers, killed_at: float) -> None:
        trainers.wait_for("the trainers' start", lambda: len(trainers.ready) == WORLD_SIZE)
        ready = max(trainers.ready.values(), key=lambda event: event["load_ms"])
        source = "files (plain torch.load)" if ready["source"] == "files" else "memory"
        resumed.append((source, ready["load_ms"], time.monotonic() - killed_at))
        timeline.add(
            f"life {len(lives)} goes on with step {ready['step']}, loaded from {source} "
            f"in {ready['load_ms']:.0f} ms"
        )

    trainers = start("life-1", options)
    for number, min_step in ((1, FIRST_KILL), (2, SECOND_KILL)):
        step, part = catch_mid_save(trainers, session, min_step, trainers.kill)
        killed_at = time.monotonic()
        latest = session.latest()
        timeline.add(
            f"SIGKILL to both trainers with step {step} {100 * part:.0f} % written; "
            f"latest complete step: {latest.step}"
        )
        if latest.step not in (step - 1, step):
            raise DemoError(f"latest is {latest.step}, expected {step - 1}")
        trainers = start(f"life-{number + 1}", options)
        await_ready(trainers, killed_at)

    before: dict = {}

    def kill_daemon() -> None:
        before["pid"] = node.daemon_pid()
        os.kill(before["pid"], signal.SIGKILL)
        before["at"] = time.monotonic()

    step, part = catch_mid_save(trainers, session, DAEMON_KILL, kill_daemon)
    latest = session.latest()
    back_ms = 1000 * (time.monotonic() - before["at"])
    status = session.status()
    if node.daemon_pid() == before["pid"]:
        raise DemoError("the daemon was not killed")
    held = sum(entry["resident_bytes"] for entry in status["jobs"])
    timeline.add(
        f"SIGKILL to the daemon with step {step} {100 * part:.0f} % written; answers again after "
        f"{back_ms:.0f} ms, {held / 1e6:.0f} MB still in memory, latest step {latest.step}"
    )
    if latest.step < step - 1 or held == 0:
        raise DemoError(f"memory did not survive the daemon: latest {latest.step}, {held} bytes")
    trainers.wait_for(
        "training across the daemon's death", lambda: trainers.last_step() >= step + 1
    )
    timeline.add(f"the trainers never stopped: step {trainers.last_step()} is done")

    step, part = catch_mid_save(trainers, session, WIPE, trainers.kill)
    killed_at = time.monotonic()
    latest = session.latest()
    session.wait(latest.step, "PERSISTED", timeout=120)
    session.close()
    node.kill_everything()
    files = storage / JOB / str(latest.step)
    timeline.add(
        f"SIGKILL to both trainers with step {step} {100 * part:.0f} % written, then, once step "
        f"{latest.step} was PERSISTED, to keeper and daemon: memory is wiped"
    )
    names = sorted(path.name for path in files.iterdir() if path.is_file())
    say(f"  what is left: {files.relative_to(ROOT)}: {', '.join(names)}")

    node = Node(scratch, storage, 2)
    running.append(node)
    session = node.connect()
    trainers = start(
        "life-4",
        [
            "--socket",
            str(node.socket),
            "--job",
            JOB,
            "--from-files",
            str(files),
            "--write-final",
            str(OUT / "disturbed.pt"),
        ],
    )
    await_ready(trainers, killed_at)
    trainers.wait_for("the last life", trainers.finished)
    trainers.pump(0.5)
    final = session.latest()
    timeline.add(f"all {STEPS} steps are done; latest step is {final.step}")
    if final.step != STEPS - 1:
        raise DemoError(f"latest is {final.step}, expected {STEPS - 1}")
    session.close()

    same = (digest(OUT / "undisturbed.pt"), digest(OUT / "disturbed.pt"))
    report(timeline, plain, lives, resumed, disk, tmpfs, back_ms, same)
    if same[0] != same[1]:
        raise DemoError("the end states differ")
    return 0


def report(timeline, plain, lives, resumed, disk, tmpfs, back_ms, same) -> None:
    print("\nWhat happened\n")
    for at, text in timeline.rows:
        print(f"  {at:6.1f} s  {text}")

    cairn_ms = stalls(lives, "cairn", skip=2)
    rows = [("through Cairn, in memory, checksummed", statistics.median(cairn_ms), len(cairn_ms))]
    for name, key in (
        ("torch.save to disk (not synced)", str(disk)),
        ("torch.save to tmpfs", str(tmpfs)),
    ):
        samples = stalls([plain], key, skip=2)
        if samples:
            rows.append((name, statistics.median(samples), len(samples)))
        else:
            print(f"\n  {name}: not timed, no room on /dev/shm")
    size = sum(p.stat().st_size for p in [OUT / "undisturbed.pt"])
    print(
        f"\nTraining stood still per save ({size / 1e6:.0f} MB over {WORLD_SIZE} ranks, the slower rank)\n"
    )
    for name, value, count in rows:
        ratio = "" if value == rows[0][1] else f"   {value / rows[0][1]:5.1f} ×"
        print(f"  {name:42s} {value:8.1f} ms   median of {count:2d}{ratio}")

    print("\nTime to go on\n")
    print(f"  {'':42s} {'load':>11s}   kill → loaded (python, imports and gloo included)")
    for source, load_ms, total_s in resumed:
        print(
            f"  {'trainers killed, state from ' + source:42s} {load_ms:8.0f} ms   {total_s:5.1f} s"
        )
    print(f"  {'daemon killed, until it answered again':42s} {back_ms:8.0f} ms")

    print("\nEnd state (SHA-256 over every tensor of model and optimizer)\n")
    print(f"  undisturbed                {same[0]}")
    print(f"  killed, and wiped once     {same[1]}")
    verdict = "bit-identical" if same[0] == same[1] else "DIFFERENT"
    print(f"  → {verdict}\n", flush=True)
    (OUT / "result.json").write_text(
        json.dumps(
            {
                "timeline": timeline.rows,
                "stalls_ms": {name: value for name, value, _ in rows},
                "resumed": resumed,
                "daemon_back_ms": back_ms,
                "identical": same[0] == same[1],
            },
            indent=1,
        )
    )


def main() -> int:
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    running: list[Trainers | Node] = []
    with scratch_folders() as (scratch, tmpfs):
        try:
            return play(scratch, tmpfs, running)
        except DemoError as error:
            say(f"FAILED: {error}")
            return 1
        except KeyboardInterrupt:
            say("interrupted")
            return 130
        finally:
            for thing in running:
                if isinstance(thing, Trainers):
                    thing.kill()
                elif thing.process.poll() is None:
                    thing.kill_everything()


if __name__ == "__main__":
    sys.exit(main())
