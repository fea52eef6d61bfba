"""R36: faults in pairs, with real processes: keepers, daemons, trainers, files, SIGKILL.

One fault at a time is what the other files try. Here every value of every factor below meets every value of
every other one in some run. A run notes what was acknowledged to whom; when all faults are over, the promises
are held against the notes: 1 (PERSISTED survives the loss of memory), 3 (`latest` is what docs/line.md says
of this history, and loads), 4 (no call of a trainer hangs, dies, or raises what is not Cairn's),
7 (after the death of the daemon alone memory has what it had), 8 (slabs stay within the budget).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from cairn_daemon import MIB, Node, binary, node
from cairn_history import History, Name
from cairn_raw import NOT_FOUND, PERSISTED, CairnError
from cairn_trainer import OBJECTS, Trainer, content
from covering_array import Row, covering_array, every_pair, pairs_of
from patience import patient, until
from storage_faults import Storage, spoil_catalog

FACTORS: dict[str, tuple[str, ...]] = {
    "storage": ("well", "away", "slow", "full", "replaced"),
    "daemon": ("lives", "killed-saving", "killed-persisting"),
    "life": ("none", "completes", "nothing", "resumes", "is-undone"),
    "other": ("none", "newer"),
    "catalog": ("well", "deleted", "garbled"),
    "reader": ("none", "stopped"),
    "memory": ("enough", "two-steps"),
    "policy": ("every", "two-now", "two-a-day"),
}
MOST_ROWS = 40


def test_the_array_holds_every_pair_of_values_in_few_rows() -> None:
    rows = covering_array(FACTORS)
    assert len(rows) <= MOST_ROWS, len(rows)
    assert rows == covering_array(FACTORS), "the numbers of the rows would mean nothing"
    for row in rows:
        assert all(v in values for v, values in zip(row, FACTORS.values(), strict=True))
    covered = set().union(*map(pairs_of, rows))
    for (i, one), (j, other) in every_pair(FACTORS):
        assert ((i, one), (j, other)) in covered, f"{one} never meets {other}"


# --- a run ---------------------------------------------------------------------------------------------

JOB = "pairs"
FIRST, SECOND, THIRD, FOURTH = 10, 20, 30, 40


class Run:
    """One row: a job on node A, perhaps on node B meanwhile, and then on A again."""

    def __init__(self, row: Row, folder: Path, stack: ExitStack) -> None:
        self.f = dict(zip(FACTORS, row, strict=True))
        self.folder, self.stack = folder, stack
        self.storage = Storage(self.f["storage"], folder)
        stack.callback(self.storage.remove)
        two = self.f["policy"] != "every"
        self.history = History(2 if two else 0, self.f["policy"] == "two-now")
        self.catalog = folder / "catalog"
        self.catalog.mkdir()
        self.node = self.start("a", self.storage.root)
        self.others_number = 0

    def start(self, name: str, root: Path) -> Node:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        two = self.f["policy"] != "every"
        seconds = 0 if self.f["policy"] == "two-now" else 86_400
        node = Node(
            folder,
            budget=(16 if self.f["memory"] == "two-steps" else 64) * MIB,
            storage=False,
            persist="newest" if two else "every",
            options=(
                f"--storage.root={root}",
                *(("--storage.keep_last=2",) if two else ()),
                f"--storage.keep_abandoned_seconds={seconds}",
            ),
        )
        node.storage = root
        if name != "b":
            node.command = [
                f"--catalog.path={self.catalog / 'c.db'}" if part.startswith("--catalog") else part
                for part in node.command
            ]
        self.stack.callback(node.kill_all)
        return node.start()

    def trainer(self, node: Node, rank: int = 0) -> Trainer:
        return self.stack.enter_context(Trainer(node.socket, JOB, rank))

    # --- what a trainer does, noted ---

    def accept(self, who: str, answer: dict[str, Any]) -> bool:
        """True when it was done. What may be refused, and why, is the row's."""
        self.history.say(f"{who}: {answer}")
        error = answer["error"]
        if error is None:
            return True
        allowed = {
            "Full": self.f["memory"] == "two-steps",
            "Superseded": self.f["other"] == "newer",
            "FailedPrecondition": self.f["other"] == "newer",
        }
        assert allowed.get(error, False), f"{who} was refused: {answer}"
        return False

    def save(self, trainer: Trainer, step: int, tag: str, origin: Name | None) -> bool:
        number = trainer.do("attempt")["attempt"]
        if not self.accept(f"save {tag}", trainer.do("save", step=step, tag=tag)):
            return False
        self.history.saved(number, step, tag, origin)
        return True

    def persisted(self, trainer: Trainer, step: int, timeout: float = 15) -> None:
        timeout = patient(timeout)
        trainer.deadline_s += timeout
        answer = trainer.do("wait", step=step, timeout=timeout)
        trainer.deadline_s -= timeout
        self.history.say(f"wait {step}: {answer}")
        assert answer["error"] is None and answer["persisted"], answer
        self.history.persisted.add((step, answer["attempt"]))

    # --- promises that hold at any time ---

    def check_budget(self, node: Node) -> None:
        status = node.status()
        assert status.slab_bytes <= status.budget_bytes, "promise 8"

    def resident(self) -> set[Name]:
        with self.node.session(JOB) as reader:
            found = reader.do("ls", JOB, "", 1000).checkpoints
        return {(c.step, c.attempt) for c in found if c.facts.complete and c.facts.resident}

    def loads(self, node: Node, name: Name) -> None:
        with node.session(JOB) as reader:
            for part in OBJECTS:
                data = reader.load(name[0], part, attempt=name[1])
                assert data == content(self.history.tags[name], part), f"other bytes: {name} {part}"

    def kill_daemon(self) -> None:
        """Promise 7: what was committed loads afterwards as before."""
        before = self.resident()
        self.node.kill_daemon()
        newest = self.history.latest()
        assert newest in before, "the newest complete step was not in memory"
        for name in before:
            self.loads(self.node, name)
        with self.node.session(JOB) as reader:
            assert reader.checkpoint(newest[0], attempt=newest[1]).facts.resident, "promise 7"

    # --- the parts of the history ---

    def first_life(self) -> Trainer:
        """Three steps, the third of them into the faults."""
        trainer = self.trainer(self.node)
        for step in (FIRST, SECOND):
            assert self.save(trainer, step, f"one-{step}", None)
            self.persisted(trainer, step)
        if self.f["reader"] == "stopped":
            self.reader = self.trainer(self.node, rank=-1)
            assert self.reader.do("map", step=SECOND)["error"] is None
            self.reader.stop()
        self.storage.spoil(self.node)
        spoil_catalog(self.f["catalog"], self.catalog)
        tag = f"one-{THIRD}"
        if self.f["daemon"] == "killed-saving":
            number = trainer.do("attempt")["attempt"]
            trainer.tell(do="save", step=THIRD, tag=tag, pause=True)
            half = trainer.hear("half a step")
            assert half.get("half"), half
            self.kill_daemon()
            trainer.tell()
            assert self.accept("the save in flight", trainer.hear("the other half")), "promise 7"
            self.history.saved(number, THIRD, tag, None)
        else:
            self.save(trainer, THIRD, tag, None)
        if self.f["daemon"] == "killed-persisting":
            self.await_partial()
            self.kill_daemon()
        return trainer

    def await_partial(self) -> None:
        """Until the step's files are begun, or there, or the node says why they cannot be."""
        meta = self.storage.root / JOB / ".cairn"

        def how_far() -> str:
            if list(meta.glob(f"writing/{THIRD}.*")) or list(meta.glob(f"partial/{THIRD}.*")):
                return "in the middle of persisting"
            if (self.storage.root / JOB / str(THIRD)).exists():
                return "after persisting"
            status = self.node.status()
            if status.storage_problem or any(job.persist_problem for job in status.jobs):
                return "while persisting could not begin"
            return ""

        self.history.say(f"killed {until('it is seen how far persisting came', how_far)}")

    def on_another_node(self) -> None:
        """The job goes on from storage elsewhere, and nobody tells node A."""
        self.other = self.start("b", self.storage.place)
        self.others_trainer = self.trainer(self.other)
        at = self.others_trainer.do("latest")
        self.history.say(f"other: {at}")
        assert at["error"] is None, at
        origin = at["step"], at["attempt"]
        assert origin in self.history.tags, "storage has what nobody saved"
        for step in (at["step"] + 3, at["step"] + 4):
            assert self.save(self.others_trainer, step, f"other-{step}", origin)
        self.others_number = self.others_trainer.do("attempt")["attempt"]
        if self.storage.kind != "full":
            self.others_persist()

    def others_persist(self) -> None:
        # Named by its attempt: a decision on node A may have taken it off the line meanwhile.
        step = max(self.history.lives[self.others_number].steps)
        with self.other.session(JOB) as reader:
            until(
                "the other node's step is in storage",
                lambda: reader.checkpoint(step, attempt=self.others_number).facts.persisted,
            )
        self.history.persisted.add((step, self.others_number))
        self.others_trainer.kill()
        self.check_budget(self.other)
        self.other.kill_all()

    def next_life(self, before: Trainer) -> None:
        """On node A again, which may know of the other node's attempt or not."""
        kind = self.f["life"]
        if kind == "none":
            self.save(before, FOURTH, f"one-{FOURTH}", None)
            self.check_budget(self.node)
            before.kill()
            return
        before.kill()
        trainer = self.trainer(self.node)
        at = trainer.do("latest")
        self.history.say(f"next life: {at}")
        assert at["error"] is None, at
        origin = at["step"], at["attempt"]
        known = self.history.latest(), self.history.latest(unknown=self.others_number)
        assert origin in known, f"promise 3: latest is {origin}, of {known}"
        number = trainer.do("attempt")["attempt"]
        if kind == "completes":
            self.save(trainer, at["step"] + 7, "two", origin)
        if kind == "nothing":
            trainer.tell(do="save", step=at["step"] + 7, tag="two", pause=True)
            trainer.hear("half a step")
        if kind == "resumes":
            self.decide(number, "resume", trainer.do("resume", step=SECOND))
        if kind == "is-undone":
            answer = trainer.do("resume", step=FIRST)
            self.decide(number, "resume", answer)
            gone_on_from = (FIRST, answer["attempt"]) if answer["error"] is None else None
            self.save(trainer, FIRST + 5, "two", gone_on_from)
        self.check_budget(self.node)
        trainer.kill()
        if kind == "is-undone":
            self.used = self.use(self.node, THIRD)

    def decide(self, number: int, kind: str, answer: dict[str, Any]) -> None:
        self.history.say(f"{kind}: {answer}")
        if answer["error"] is None:
            self.history.decided(number, kind, (answer["step"], answer["attempt"]))
        else:  # nothing keeps a decision from being heard
            assert answer["error"] == "NotFound", answer

    def use(self, node: Node, step: int) -> bool:
        """Chooses what the first life left at `step`."""
        target = step, min(self.history.lives)
        with self.trainer(node, rank=-1) as person:
            # The daemon may not have noticed yet that the trainer is dead.
            answer = until(
                "the writers of the newest attempt are gone",
                lambda: (
                    (said := person.do("use", step=target[0], attempt=target[1]))["error"]
                    != "FailedPrecondition"
                    and said
                ),
            )
        self.history.say(f"use {target}: {answer}")
        if answer["error"] is None:
            self.history.decided(answer["head"], "use", target)
        else:
            # Abandoned, and not in storage or not to be read there now.
            assert answer["error"] in ("NotFound", "Unavailable"), answer
        return answer["error"] is None

    # --- the end ---

    def mend(self) -> None:
        self.storage.mend()
        if self.f["catalog"] != "well":
            self.catalog.mkdir(exist_ok=True)
        if self.f["reader"] == "stopped":
            self.reader.go_on()
            same = self.reader.do("compare", tag=f"one-{SECOND}")["same"]
            assert same == list(OBJECTS), "leased bytes were reused"
            self.reader.kill()
        until("storage is back", lambda: not self.node.status().storage_problem)
        if self.f["other"] == "newer":
            if self.storage.kind == "full":
                self.others_persist()
            self.catch_up()
        if self.f["life"] == "is-undone" and not self.used:
            target = SECOND, min(self.history.lives)
            if target not in self.history.may_go:
                assert self.use(self.node, SECOND), "what was PERSISTED cannot be chosen"

    def catch_up(self) -> None:
        """Until node A knows which files the other node has deleted."""

        def knows() -> bool:
            with self.node.session(JOB) as reader:
                reader.latest()  # has storage read again
                found = reader.do("ls", JOB, "", 1000).checkpoints
            files = self.storage.root / JOB
            return all((files / str(c.step)).exists() for c in found if c.facts.persisted)

        until("node A has seen what the other node deleted", knows)

    def check_latest(self, node: Node) -> None:
        """Promise 3. As of storage, which is read again when it was not for two seconds."""
        expected = self.history.latest()

        def latest() -> Name | None:
            try:
                found = node_session.latest()
                return found.step, found.attempt
            except CairnError as error:
                return error.code, -1

        seen: list[Any] = []
        with node.session(JOB) as node_session:
            try:
                until("", lambda: seen.append(latest()) or seen[-1] == expected, 6)
            except AssertionError:
                raise AssertionError(f"latest is {seen[-1]}, not {expected}") from None
        self.loads(node, expected)

    def record_all(self) -> None:
        """Until storage has what is latest, and the decision that says so."""
        step, attempt = self.history.latest()
        with self.node.session(JOB) as session:
            session.change("persist", session.ref(step, attempt=attempt))
            session.wait(step, PERSISTED, 15_000, attempt=attempt)
        self.history.persisted.add((step, attempt))
        lines = self.storage.root / JOB / ".cairn" / "line"
        for number, kind in self.history.kinds.items():
            record = lines / f"{number}.{kind}"
            until(f"{record.name} is written", record.exists)

    def check_files(self) -> None:
        """Promise 1, and line rule 23: the reader of bare files says what the daemon says."""
        self.node.kill_all()
        shown = subprocess.run(
            [binary("cairn"), f"--socket={self.folder / 'none'}", "latest", JOB],
            env={**os.environ, "CAIRN_STORAGE": str(self.storage.root)},
            capture_output=True,
            text=True,
        )
        assert shown.stdout.strip() == str(self.history.latest()[0]), shown
        survivor = self.start("c", self.storage.root)
        self.check_latest(survivor)
        for name in sorted(self.history.persisted):
            try:
                self.loads(survivor, name)
            except CairnError as error:
                assert error.code == NOT_FOUND and name in self.history.may_go, (
                    f"promise 1: {name} was PERSISTED: {error}"
                )

    def live(self) -> None:
        trainer = self.first_life()
        self.check_budget(self.node)
        if self.f["other"] == "newer":
            self.on_another_node()
        self.next_life(trainer)
        self.check_budget(self.node)
        self.mend()
        self.check_latest(self.node)
        self.check_budget(self.node)
        self.record_all()
        self.check_files()


@pytest.mark.full
def test_a_decision_on_one_node_about_what_another_node_has_just_deleted() -> None:
    """Promise 1. Node B goes on and keeps its newest two steps. Node A, which has not looked since, goes back
    to an older one, which it has in memory; it hears that this is PERSISTED, and loses its memory."""
    keep = ("--storage.keep_last=2",)
    with (
        node(persist="every", options=keep) as a,
        node(persist="every", storage=False, options=(f"--storage.root={a.storage}", *keep)) as b,
    ):

        def lives(where: Node, *steps: int) -> None:
            with where.session("r", writer=0, world_size=1) as writer:
                writer.attempt = writer.change("chooseAttempt")
                for step in steps:
                    writer.save(step, {"a": b"step%d" % step})
                    writer.wait(step, PERSISTED)

        lives(a, 10, 20)
        with a.session("r") as reader:
            assert reader.latest().step == 20  # storage is read, and not again for two seconds
        lives(b, 33, 34)
        until("its files are gone", lambda: not (a.storage / "r" / "20").exists())
        with a.session("r", writer=0, world_size=1) as writer:
            writer.attempt = writer.change("chooseAttempt")
            writer.change("resume", writer.attempt, 20, writer.fence, 0)
            writer.persist(20)
            a.kill_all()
        a.start()
        with a.session("r") as reader:
            assert reader.latest().step == 20
            assert reader.load(20, "a") == b"step20"


@contextmanager
def running(row: Row) -> Iterator[Run]:
    folder = Path(tempfile.mkdtemp(prefix="cairn-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        run = Run(row, folder, stack)
        try:
            yield run
        except BaseException:
            for log in sorted(folder.glob("*/cairnd.log")):
                print(f"--- {log}\n{log.read_text(errors='replace')[-3000:]}")
            raise
        finally:
            print("\n".join(run.history.told))


def marked(row: Row) -> Any:
    needs_root = row[0] in ("slow", "full")
    marks = [pytest.mark.full, *([pytest.mark.root] if needs_root else [])]
    return pytest.param(row, id="+".join(row), marks=marks)


@pytest.mark.parametrize("row", map(marked, covering_array(FACTORS)))
def test_no_pair_of_faults_breaks_a_promise(row: Row) -> None:
    with running(row) as run:
        run.live()
