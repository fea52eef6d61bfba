#!/usr/bin/env python3
"""make demo-weights: a trainer publishes its model after every step, and two consumers stream each version.

One consumer streams the whole model, the other the second half of each tensor. Each waits for the next
version; one that is late takes the newest and skips what came before.

 1. The first consumer is SIGKILLed in mid-stream, started again, and catches up.
 2. The daemon is SIGKILLed while the other consumer is in mid-stream. The consumer reads on at once, and the
    keeper starts another daemon; nobody else does anything about it.
 3. Every version that a consumer took must have the digest that the trainer wrote down, outside of Cairn, and
    both must have taken the last.

In mid-stream means: the consumer has been handed its first bucket, waits for a word from here, and is handed
the others after that.

Exit status 0 when all was so, 1 when anything was not.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import run
from run import (
    BUILD,
    HERE,
    JOB,
    PYTHON,
    PYTHON_PATH,
    DemoError,
    Node,
    Timeline,
    say,
    scratch_folders,
)

OUT = BUILD / "demo-weights"
VERSIONS = OUT / "versions.jsonl"
LAST = 10
CONSUMER_KILL, DAEMON_KILL = 3, 6  # in mid-stream of the first version from this one on
BUDGET = "256MiB"
LIMIT_S = 180  # on a machine that also compiles, the first version alone takes a minute
PARTS = {"whole": "the whole model", "half": "half of each tensor"}

run.OUT = OUT

Event = dict[str, Any]


# --- processes -------------------------------------------------------------------------------------


class Member:
    """One process of the demo, and what it told."""

    def __init__(
        self, name: str, script: str, options: list[str], inbox: queue.Queue[tuple[Member, Event]]
    ) -> None:
        self.name = name
        self.killed = False
        self.told: list[Event] = []
        self.log = OUT / f"{name}.log"
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(PYTHON_PATH),
            "PYTHONPYCACHEPREFIX": str(BUILD / "pycache"),
        }
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [PYTHON, str(HERE / script), *options],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        threading.Thread(target=self._read, args=(inbox,), daemon=True).start()

    def _read(self, inbox: queue.Queue[tuple[Member, Event]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                inbox.put((self, json.loads(line)))
            except ValueError:
                continue  # a line cut short by SIGKILL
        inbox.put((self, {"event": "eof"}))

    def event(self, kind: str) -> Event | None:
        """The first of its kind."""
        return next((event for event in self.told if event["event"] == kind), None)

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.killed = True
        self.process.kill()
        self.process.wait()

    def ended(self) -> bool:
        """It has ended well, and all that it told has been read."""
        return self.process.poll() == 0 and self.event("eof") is not None

    def problem(self) -> str | None:
        status = self.process.poll()
        if self.killed or status in (None, 0):
            return None
        lines = self.log.read_text(errors="replace").strip().splitlines()
        last = f": {lines[-1]}" if lines else ""
        return f"{self.name} ended with {status}{last}; see {self.log}"


@dataclasses.dataclass
class Kill:
    """A SIGKILL in mid-stream of a consumer."""

    whom: str
    part: str
    step: int
    taken: int
    of: int
    read_bytes: int


class Story:
    """The node, the members, and what happened to them."""

    def __init__(self, scratch: Path) -> None:
        storage = OUT / "storage"
        storage.mkdir()
        # Versions are for consumers, in memory only: nothing asks for their files.
        self.node = Node(scratch, storage, 1, options=["--persist.mode=on-demand"], budget=BUDGET)
        self.timeline = Timeline()
        self.inbox: queue.Queue[tuple[Member, Event]] = queue.Queue()
        self.members: list[Member] = []
        self.lives: dict[str, list[Member]] = {part: [] for part in PARTS}
        self.kills: list[Kill] = []

    def start(self, name: str, script: str, *options: str) -> Member:
        common = ["--socket", str(self.node.socket), "--job", JOB]
        member = Member(name, script, [*common, *options], self.inbox)
        self.members.append(member)
        return member

    def start_consumer(self, part: str, *options: str) -> Member:
        half = ["--half"] if part == "half" else []
        consumer = self.start(part, "follow.py", "--last", str(LAST), *half, *options)
        self.lives[part].append(consumer)
        return consumer

    def wait_for(self, what: str, done: Callable[[], bool]) -> None:
        """Takes in what members tell until it is done."""
        deadline = time.monotonic() + LIMIT_S
        while not done():
            try:
                member, event = self.inbox.get(timeout=0.1)
            except queue.Empty:
                pass
            else:
                member.told.append(event)
                show(member, event)
            for member in self.members:
                problem = member.problem()
                if problem:
                    raise DemoError(problem)
            if time.monotonic() > deadline:
                raise DemoError(f"{what}: not within {LIMIT_S} s; logs are in {OUT}")

    def catch_mid_stream(self, consumer: Member, whom: str) -> Kill:
        """Waits until the consumer has halted. It stands still until it is killed or told to go on."""

        def done() -> bool:
            return consumer.event("halted") is not None or consumer.ended()

        self.wait_for(f"{consumer.name} in mid-stream", done)
        event = consumer.event("halted")
        if event is None:
            raise DemoError(f"{consumer.name} was not caught in mid-stream: it has ended")
        told = {key: event[key] for key in ("step", "taken", "of", "read_bytes")}
        kill = Kill(whom, consumer.name, **told)
        if not 0 < kill.taken < kill.of:
            raise DemoError(
                f"{consumer.name} was not in mid-stream of version {kill.step}: it had {kill.taken} "
                f"of {kill.of} tensors"
            )
        return kill

    def end(self) -> None:
        for member in self.members:
            if member.process.poll() is None:
                member.kill()
        if self.node.process.poll() is None:
            self.node.kill_everything()

    def took(self, part: str) -> dict[int, Event]:
        """What each life of a consumer took, by version."""
        return {
            event["step"]: event
            for life in self.lives[part]
            for event in life.told
            if event["event"] == "took"
        }


def show(member: Member, event: Event) -> None:
    kind = event["event"]
    if kind == "published":
        say(
            f"  version {event['step']}  loss {event['loss']:.4f}  trained {event['train_ms']:.0f} ms, "
            f"{event['bytes'] / 1e6:.1f} MB published in {event['publish_ms']:.0f} ms"
        )
    elif kind == "took":
        say(f"  version {event['step']}  was taken: {PARTS[member.name]}")


# --- the story -------------------------------------------------------------------------------------


def kill_consumer(story: Story, consumer: Member) -> None:
    """SIGKILL in mid-stream; another one takes its place."""
    kill = story.catch_mid_stream(consumer, "consumer")
    consumer.kill()
    if consumer.process.returncode != -signal.SIGKILL:
        raise DemoError(f"{consumer.name} ended with {consumer.process.returncode}, not by SIGKILL")
    story.kills.append(kill)
    story.timeline.add(
        f"SIGKILL to the consumer of {PARTS[kill.part]} in mid-stream of version {kill.step}, "
        f"with {kill.taken} of {kill.of} tensors; another is started"
    )
    story.start_consumer(kill.part)


def kill_daemon(story: Story, consumer: Member) -> None:
    """SIGKILL while a consumer is in mid-stream, which then goes on at once."""
    kill = story.catch_mid_stream(consumer, "daemon")
    before = story.node.daemon_pid()
    os.kill(before, signal.SIGKILL)
    killed_at = time.monotonic()
    consumer.go_on()
    session = story.node.connect()
    latest = session.latest()
    back_ms = 1000 * (time.monotonic() - killed_at)
    session.close()
    if story.node.daemon_pid() == before:
        raise DemoError("the daemon was not killed")
    story.kills.append(kill)
    story.timeline.add(
        f"SIGKILL to the daemon with the consumer of {PARTS[kill.part]} in mid-stream of version "
        f"{kill.step}, with {kill.taken} of {kill.of} tensors; another daemon answers after "
        f"{back_ms:.0f} ms, latest version {latest.step}"
    )


def play(story: Story) -> None:
    story.node.connect().close()
    whole = story.start_consumer("whole", "--halt-from", str(CONSUMER_KILL))
    half = story.start_consumer("half", "--halt-from", str(DAEMON_KILL))
    story.wait_for("consumers", lambda: bool(whole.event("ready") and half.event("ready")))
    story.timeline.add(f"cairnd has a budget of {BUDGET}; two consumers wait for the first version")
    story.start("trainer", "publish.py", "--last", str(LAST), "--versions", str(VERSIONS))
    kill_consumer(story, whole)
    kill_daemon(story, half)
    story.wait_for(
        f"version {LAST}",
        lambda: all(member.killed or member.ended() for member in story.members),
    )
    story.timeline.add(f"version {LAST} was published; trainer and consumers have ended")


# --- what came of it -------------------------------------------------------------------------------


def same(version: Event, part: str, event: Event) -> bool:
    return event["digest"] == version[part]


def problems(story: Story, versions: list[Event]) -> list[str]:
    """What was not as promised."""
    found = []
    published = [version["step"] for version in versions]
    if published != list(range(1, LAST + 1)):
        found.append(f"the trainer published {published}, not 1 to {LAST}")
    for part, words in PARTS.items():
        took = story.took(part)
        if LAST not in took:
            found.append(f"the consumer of {words} missed version {LAST}, the last")
        for version in versions:
            event = took.get(version["step"])
            if event is not None and not same(version, part, event):
                found.append(
                    f"version {version['step']}, {words}: SHA-256 {event['digest']}, "
                    f"and the trainer published {version[part]}"
                )
    for kill in story.kills:
        read_in_all = max((e["read_bytes"] for e in story.took(kill.part).values()), default=0)
        if kill.read_bytes >= read_in_all:
            found.append(
                f"the {kill.whom} was not killed in mid-stream: all {read_in_all} bytes had been read"
            )
    if [kill.whom for kill in story.kills] != ["consumer", "daemon"]:
        found.append("consumer and daemon were not both killed")
    return found


def times_ms(version: Event, event: Event) -> tuple[float, float]:
    """From the commit to the first layer, and to all."""
    committed = version["committed"]
    return 1000 * (event["first_at"] - committed), 1000 * (event["all_at"] - committed)


def row(story: Story, version: Event) -> str:
    step = version["step"]
    took = {part: events[step] for part in PARTS if step in (events := story.took(part))}
    equal = "–"
    if took:
        equal = "yes" if all(same(version, part, took[part]) for part in took) else "NO"
    kills = [kill for kill in story.kills if kill.step == step]
    cells = []
    for part in PARTS:
        if part in took:
            first_ms, all_ms = times_ms(version, took[part])
            cells.append(f"{first_ms:8.1f} / {all_ms:8.1f}")
        else:
            killed = any(kill.part == part and kill.whom == "consumer" for kill in kills)
            cells.append(f"{'killed' if killed else 'skipped':>19s}")
    words = [
        f"SIGKILL to the {kill.whom}, {kill.part} had {kill.taken} of {kill.of} tensors"
        for kill in kills
    ]
    return f"  {step:7d}   {equal:7s}   {cells[0]}   {cells[1]}   {'; '.join(words)}".rstrip()


def report(story: Story, versions: list[Event], found: list[str]) -> None:
    print("\nWhat happened\n")
    for at, text in story.timeline.rows:
        print(f"  {at:6.1f} s  {text}")
    print("\nFrom the commit (publish returned) to the first layer / to all layers, in ms\n")
    print(f"  {'version':7s}   {'digest?':7s}   {'whole':>19s}   {'half':>19s}")
    for version in versions:
        print(row(story, version))
    print()
    halted = {kill.step for kill in story.kills}
    for part, words in PARTS.items():
        took = story.took(part)
        quiet = [
            times_ms(v, took[v["step"]])
            for v in versions
            if v["step"] in took and v["step"] not in halted
        ]
        if not quiet:
            continue
        some = next(iter(took.values()))
        first_ms, all_ms = (statistics.median(times) for times in zip(*quiet, strict=True))
        print(
            f"  {words:20s} {some['read_bytes'] / 1e6:5.1f} MB, {some['blocks']} blocks checked"
            f"   {first_ms:8.1f} / {all_ms:8.1f}   median of {len(quiet)}"
        )
    print("\n  below 0: there before publish had returned to the trainer")
    verdict = "; ".join(found) or "each version that was taken is the one that was published"
    print(f"\n  → {verdict}\n", flush=True)
    (OUT / "result.json").write_text(
        json.dumps(
            {
                "timeline": story.timeline.rows,
                "versions": versions,
                "took": {part: list(story.took(part).values()) for part in PARTS},
                "kills": [dataclasses.asdict(kill) for kill in story.kills],
                "problems": found,
            },
            indent=1,
        )
    )


def main() -> int:
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    with scratch_folders() as (scratch, _):
        story = Story(scratch)
        try:
            play(story)
            versions = [json.loads(line) for line in VERSIONS.read_text().splitlines()]
            found = problems(story, versions)
            report(story, versions, found)
            if found:
                raise DemoError("; ".join(found))
            return 0
        except DemoError as error:
            say(f"FAILED: {error}")
            return 1
        except KeyboardInterrupt:
            say("interrupted")
            return 130
        finally:
            story.end()


if __name__ == "__main__":
    sys.exit(main())
