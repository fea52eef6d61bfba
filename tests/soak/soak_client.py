"""One client of the soak, as a process of its own: `trainer` saves a job, `reader` loads all of them.

Told by lines on stdin (pause, go, end), it answers by lines of JSON on stdout. What it means to do and what
was acknowledged stands in a file per job, one line of JSON each, written before the one and after the
other: the next life and the reader hold `latest` and every loaded byte against it. The bytes of an object
follow from its name and checkpoint.

    soak_client.py KIND SOCKET FOLDER JOB LIFE SEED
"""

from __future__ import annotations

import json
import random
import select
import sys
import time
from pathlib import Path
from typing import Any

import cairn

LIMIT_S = 60.0  # of a call: the daemon may die in it
KEEP_LAST = 3
REMOVE_OF = 12  # one save in so many removes a step afterwards
PAUSE_S = 0.2  # between two things done: the machine is not to be full
# Small, for files that a policy deletes wait an hour for somebody to want them back.
LARGE, MEDIUM, TINY = 300 << 10, 60 << 10, 4000
FEW = {"large": LARGE, **{f"layer{i}": MEDIUM for i in range(2)}}
MANY = {"large": LARGE, **{f"layers/{i // 8}/w{i % 8}": TINY for i in range(8)}}
JOBS = {"one": (FEW, 1), "two": (FEW, 1), "many": (MANY, 1), "ranks": (FEW, 2)}


def names_of(job: str, rank: int) -> dict[str, int]:
    objects, world = JOBS[job]
    return objects if world == 1 else {f"rank{rank}/{name}": n for name, n in objects.items()}


def content(job: str, step: int, attempt: int, name: str, length: int) -> bytes:
    return random.Random(f"{job} {step} {attempt} {name}").randbytes(length)


# Read a byte at a time: a second line that came with the first would lie in a buffer that select() does not
# see.
STDIN = open(sys.stdin.fileno(), "rb", buffering=0)  # noqa: SIM115


class Wrong(Exception):
    """A promise was broken."""


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


class Notes:
    """What is known of a job from outside; read on from where it was read last."""

    def __init__(self, folder: Path, job: str) -> None:
        self.path = folder / f"notes.{job}"
        self.at = 0
        self.saved: set[int] = set()
        self.removed: set[int] = set()
        self.newest_saved = self.newest_begun = -1

    def add(self, **what: int) -> None:
        # A line that its writer was killed in ends here.
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n" + json.dumps(what) + "\n")

    def read(self) -> Notes:
        if not self.path.exists():
            return self
        with self.path.open("rb") as file:
            file.seek(self.at)
            text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        self.at += len(text)
        for line in text.splitlines():
            try:
                note = json.loads(line)
            except ValueError:
                continue
            if "saved" in note:
                self.saved.add(note["saved"])
                self.newest_saved = max(self.newest_saved, note["saved"])
            if "removed" in note:
                self.removed.add(note["removed"])
            self.newest_begun = max(self.newest_begun, note.get("begun", -1))
        return self

    def least_latest(self) -> int:
        """`latest` may not be below this: the newest that was acknowledged and not removed since."""
        step = self.newest_saved
        while step >= 0 and (step not in self.saved or step in self.removed):
            step -= 1
        return step


class Client:
    def __init__(self, socket: str, folder: Path, seed: str) -> None:
        self.socket, self.folder = socket, folder
        self.random = random.Random(seed)
        self.counts = {"saves": 0, "loads": 0, "removals": 0, "refused": 0}
        self.paused = False
        self.notes_of = {job: Notes(folder, job) for job in JOBS}

    def listen(self) -> None:
        """Does what it was told; returns when it may go on."""
        while select.select([STDIN], [], [], 0.5 if self.paused else 0)[0]:
            word = STDIN.readline().strip().decode()
            if word in ("", "end"):
                say(counts=self.counts, ended=True)
                sys.exit(0)
            if word == "pause":
                self.rest()
                self.paused = True
                say(counts=self.counts, paused=True)
            if word == "go":
                self.paused = False

    def run(self) -> None:
        while True:
            self.listen()
            if self.paused:
                continue
            self.turn()
            time.sleep(PAUSE_S)

    def rest(self) -> None:
        pass

    def turn(self) -> None:
        raise NotImplementedError

    def look(self, connection: Any, job: str) -> Any:
        """`latest`, held against what was noted before it was asked; None: there is nothing yet."""
        notes = self.notes_of[job]
        least = notes.read().least_latest()
        try:
            latest = connection.latest(job)
        except cairn.NotFound:
            latest = None
        notes.read()
        found = -1 if latest is None else latest.step
        if found < least and least not in notes.removed:
            raise Wrong(f"latest of {job} is {found}, but {least} was acknowledged")
        if found > notes.newest_begun:
            raise Wrong(f"latest of {job} is {found}, which nobody has begun")
        return latest

    def load(self, connection: Any, job: str, step: int, attempt: int, name: str, n: int) -> bool:
        """False: it is gone, and may be."""
        try:
            data = connection.load(f"cairn://{job}/{step}/{name}", mmap=self.random.random() < 0.3)
        except cairn.NotFound:
            notes = self.notes_of[job].read()
            # The files of the newest KEEP_LAST that are left stay; more may have gone meanwhile.
            newer = [s for s in range(step + 1, notes.newest_saved + 1) if s not in notes.removed]
            if step not in notes.removed and len(newer) < KEEP_LAST:
                raise Wrong(
                    f"{job}/{step}/{name} is not found; the newest is {notes.newest_saved}"
                ) from None
            return False
        self.counts["loads"] += 1
        if bytes(data) != content(job, step, attempt, name, n):
            raise Wrong(f"{job}/{step}/{name} of attempt {attempt} has other bytes than were saved")
        return True


class Trainer(Client):
    def __init__(self, socket: str, folder: Path, job: str, life: int, seed: str) -> None:
        super().__init__(socket, folder, f"{seed} {job} {life}")
        self.job, self.life = job, life
        self.notes = self.notes_of[job]
        world = JOBS[job][1]
        self.ranks = [
            cairn.connect(
                job,
                rank=rank,
                world_size=world,
                local_writers=world,
                attempt=life,
                socket=socket,
                timeout=LIMIT_S,
                policy=cairn.JobPolicy(mode="every", keep_last=KEEP_LAST),
            )
            for rank in range(world)
        ]
        self.look(self.ranks[0], job)
        self.step = self.notes.read().newest_begun

    def turn(self) -> None:
        self.step += 1
        self.notes.add(begun=self.step)
        try:
            for rank, connection in enumerate(self.ranks):
                with connection.step(self.step, strict=True) as part:
                    for name, length in names_of(self.job, rank).items():
                        part.save(content(self.job, self.step, self.life, name, length), name)
        except cairn.Full as error:
            self.counts["refused"] += 1
            say(refused=str(error))
            return
        self.notes.add(saved=self.step)
        self.counts["saves"] += 1
        latest = self.look(self.ranks[0], self.job)
        if latest is None or latest.step != self.step:
            raise Wrong(f"latest of {self.job} is {latest}, {self.step} was just acknowledged")
        if self.random.randrange(4) == 0:
            self.check(self.step)
        if self.random.randrange(REMOVE_OF) == 0:
            self.remove(self.step - self.random.randrange(KEEP_LAST))

    def check(self, step: int) -> None:
        rank = self.random.randrange(len(self.ranks))
        name, length = self.random.choice(list(names_of(self.job, rank).items()))
        self.load(self.ranks[0], self.job, step, self.life, name, length)

    def remove(self, step: int) -> None:
        if step < 0:
            return
        self.notes.add(removed=step)
        try:
            self.ranks[0].remove(step, force=True)
            self.counts["removals"] += 1
        except (cairn.NotFound, cairn.FailedPrecondition):
            pass  # it was removed before, or never was

    def rest(self) -> None:
        """Nothing is owed any more."""
        latest = self.look(self.ranks[0], self.job)
        if latest is not None:
            self.ranks[0].wait(latest.step, "PERSISTED", timeout=LIMIT_S)


class Reader(Client):
    def __init__(self, socket: str, folder: Path, life: int, seed: str) -> None:
        super().__init__(socket, folder, f"{seed} reader {life}")
        self.connection = cairn.connect("one", rank=-1, socket=socket, timeout=LIMIT_S)
        self.seen: dict[str, int] = {}

    def turn(self) -> None:
        job = self.random.choice(list(JOBS))
        latest = self.look(self.connection, job)
        if latest is None:
            return
        removed = self.notes_of[job].read().removed
        before = self.seen.get(job, -1)
        if latest.step < before and before not in removed:
            raise Wrong(f"latest of {job} went back from {before} to {latest.step}")
        self.seen[job] = latest.step
        objects = names_of(job, self.random.randrange(JOBS[job][1]))
        for name in self.random.sample(list(objects), min(4, len(objects))):
            if not self.load(
                self.connection, job, latest.step, latest.attempt, name, objects[name]
            ):
                return


def main() -> None:
    kind, socket, folder, job, life, seed = sys.argv[1:]
    try:
        client = (
            Reader(socket, Path(folder), int(life), seed)
            if kind == "reader"
            else Trainer(socket, Path(folder), job, int(life), seed)
        )
        say(ready=True)
        client.run()
    except Wrong as wrong:
        say(wrong=str(wrong))
    except cairn.Error as error:
        say(wrong=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
