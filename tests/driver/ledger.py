"""Which things have passed, with which inputs and in which run. A thing that did not run is a debt.

The full tier does not repeat everything each time. A thing that it may leave out is named by its kind and a
name: "asan:engine_test", "mutants:lease_ignored", "tidy:common/version.cc", "seeds:ring_sim_test@2501",
"fuzz:keys_fuzz". The ledger has a row for each, in the user's cache folder, where the next run finds it.

A run takes the things of a kind in this order:

    overdue   things that missed two of their turns; the run is red if it does not reach them either
    changed   things whose inputs are not those with which they passed last, or that failed
    turn      from the rest a share, one in `stride`: the ones whose last pass is the longest ago

So turns go by run, never by date. A new machine has no ledger: all that its first run sees counts as
unchanged, and the commit decides which things have their turn first.

CAIRN_LEDGER says what a run takes: "turns", as above; "lacking", all that has not passed as it is (make
record); without the variable everything (make asan). In each case the ledger learns which things passed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import subprocess
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from driver import cache
from driver.process import ROOT

MODE = "CAIRN_LEDGER"
TURNS, LACKING = "turns", "lacking"
FORMAT = 1
OVERDUE_AFTER = 2  # turns that were missed
SHOWN = 10


@dataclasses.dataclass
class Row:
    digest: str  # of the inputs, as the last run saw them
    known: str  # with which it passed last; before its first pass, as it was first seen; "" after a failure
    run: int = 0  # the last one in which it passed; 0: none
    commit: str = ""  # of that run
    asked: int = 0  # turns since then

    @property
    def passed_as_it_is(self) -> bool:
        return self.run > 0 and self.known == self.digest

    @property
    def changed(self) -> bool:
        return self.known != self.digest


@dataclasses.dataclass(frozen=True)
class Due:
    name: str
    why: str  # "overdue", "changed", "turn", "asked"


class Ledger:
    """Several processes may use the file at a time."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or cache.folder() / "ledger.json"
        self._planned: dict[
            str, str
        ] = {}  # "kind:name" → the digest with which it was planned here

    def begin_run(self) -> int:
        """The number of the run that begins."""
        with self._changing() as state:
            state["run"] += 1
            return state["run"]

    def run_number(self) -> int:
        return int(self._read()["run"])

    def plan(
        self, kind: str, digests: Mapping[str, str], stride: int, *, repeat: bool = True
    ) -> list[Due]:
        """The things of a kind that are due, in their order. `digests` has all of the kind, by name without
        the kind; so have the answers. Without `repeat` what has passed as it is is never due."""
        self._planned |= {f"{kind}:{name}": digest for name, digest in digests.items()}
        with self._changing() as state:
            rows = self._update(state, kind, digests)
            lacking = {name: row for name, row in rows.items() if not row.passed_as_it_is}
            mode = os.environ.get(MODE, "")
            if mode != TURNS:
                everything = repeat and mode != LACKING
                return [Due(name, "asked") for name in (rows if everything else lacking)]
            due = self._due(rows if repeat else lacking, stride, state["salt"])
            for one in due:
                rows[one.name].asked += 1
            self._put(state, kind, rows)
            return due

    def ended(self, kind: str, name: str, passed: bool) -> None:
        """A thing that failed runs first until it passes. A pass counts only of a thing that this ledger has
        planned, with the inputs that it then had."""
        planned = self._planned.get(f"{kind}:{name}", "")
        with self._changing() as state:
            values = state["things"].get(f"{kind}:{name}")
            if values is None or (passed and not planned):
                return
            row = Row(**values)
            row.asked = 0
            row.known = planned if passed else ""
            if passed:
                row.run, row.commit = max(1, state["run"]), head()[:12]
            self._put(state, kind, {name: row})

    def overdue(self, left: list[str]) -> list[str]:
        """Those of the things that a run left ("kind:name") which were overdue when it began."""
        rows = self._read()["things"]
        return [name for name in left if rows.get(name, {}).get("asked", 0) > OVERDUE_AFTER]

    def lacking(self) -> dict[str, list[str]]:
        """Kind → names that have not passed with the inputs that the last run saw."""
        found: dict[str, list[str]] = {}
        for full, values in self._read()["things"].items():
            kind, _, name = full.partition(":")
            missing = found.setdefault(kind, [])
            if not Row(**values).passed_as_it_is:
                missing.append(name)
        return found

    def took(self, seconds: Mapping[str, float]) -> None:
        """How long programs took, so that the next run begins the longest first."""
        with self._changing() as state:
            state["seconds"] |= {name: round(value, 1) for name, value in seconds.items()}

    def took_last(self) -> dict[str, float]:
        return self._read()["seconds"]

    # --- the file ----------------------------------------------------------------------------------

    def _read(self) -> dict:
        try:
            state = json.loads(self._path.read_text(encoding="utf-8"))
            if state["format"] == FORMAT:
                return state
        except (OSError, ValueError, KeyError):
            pass  # absent, or of another version: as on a new machine
        return {"format": FORMAT, "run": 0, "salt": head(), "things": {}, "seconds": {}}

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path.with_suffix(".lock"), "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self._read()
            yield state
            new = self._path.with_suffix(f".{os.getpid()}")
            new.write_text(json.dumps(state, indent=0), encoding="utf-8")
            new.replace(self._path)

    @staticmethod
    def _put(state: dict, kind: str, rows: Mapping[str, Row]) -> None:
        for name, row in rows.items():
            state["things"][f"{kind}:{name}"] = dataclasses.asdict(row)

    def _update(self, state: dict, kind: str, digests: Mapping[str, str]) -> dict[str, Row]:
        """The rows of a kind, with the digests of now. A thing that is gone loses its row."""
        known = [name for name in state["things"] if name.startswith(f"{kind}:")]
        for name in known:
            if name.partition(":")[2] not in digests:
                del state["things"][name]
        rows = {}
        for name in sorted(digests):
            first_seen = (
                "" if known else digests[name]
            )  # new among known ones: it counts as changed
            values = state["things"].get(f"{kind}:{name}")
            rows[name] = Row(**values) if values else Row(digests[name], first_seen)
            rows[name].digest = digests[name]
        self._put(state, kind, rows)
        return rows

    @staticmethod
    def _due(rows: dict[str, Row], stride: int, salt: str) -> list[Due]:
        overdue = [name for name, row in rows.items() if row.asked >= OVERDUE_AFTER]
        changed = [n for n, row in rows.items() if row.changed and n not in overdue]
        rest = [name for name in rows if name not in {*overdue, *changed}]

        def age(name: str) -> tuple[int, int]:
            return rows[name].run, zlib.crc32(f"{salt}{name}".encode())

        share = -(-len(rest) // stride)
        turn = sorted(rest, key=age)[:share]
        groups = (("overdue", overdue), ("changed", changed), ("turn", turn))
        return [Due(name, why) for why, names in groups for name in names]


def head() -> str:
    """The commit, or "" outside a repository."""
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def begin_first(due: list[Due]) -> frozenset[str]:
    """Whatever takes longer: the time may be up before the last ones."""
    return frozenset(one.name for one in due if one.why == "overdue")


def describe(due: list[Due], total: int) -> str:
    """One line for the log of a stage."""
    count = {why: sum(one.why == why for one in due) for why in ("overdue", "changed", "turn")}
    return f"{len(due)} of {total} are due: " + ", ".join(f"{n} {why}" for why, n in count.items())
