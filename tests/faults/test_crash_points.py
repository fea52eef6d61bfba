"""R1: the daemon dies at every failpoint, as by SIGKILL; then again while it recovers. Promises 1, 2, 3, 7.

One life of a job (save, commit, persist, evict, replace, delete) is lived by a client that repeats its
calls, as libcairn does. What was acknowledged is written down outside; afterwards it must all be true, twice
over: after one more death, and after memory is lost as well.

The failpoints are read from common/failpoint.h, so that a new one is a case here or a failure. Those of a
ring have theirs in tests/cluster/test_ring_crash_points.py.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from cairn_daemon import KIB, MIB, Node, all_failpoints, node
from cairn_raw import NOT_FOUND, PERSISTED, CairnError, attempt_number, pattern, refuses
from cairn_stubborn import Stubborn
from patience import until

FULL = os.environ.get("CAIRN_TIER") == "all"

FAILPOINTS = [name for name in all_failpoints() if not name.startswith("ring.")]
# At which reach of it the point ends the daemon: the first, and some in the middle of things.
REACHES = {
    "storage.open": (1, 9),
    "storage.rename": (1, 2),
    "storage.fsync": (1, 4),
    "storage.close": (1, 3),
    "node.lend": (2, 5, 11),
    "node.lent": (2, 5, 11),
    "node.manifest": (2, 5, 11),
    "node.manifest_written": (2, 5, 11),
    "node.persist": (2, 4),
    "node.publish": (2, 4),
    "node.published": (2, 4),
}
NODE_REACHES = (2, 11, 29)
ONCE = (
    "node.recover",
    "node.recovered",
    "node.switch",
    "node.switched",
    "node.delete",
    "node.deleted",
    "node.attached",
)
# Points that this life does not come by, with the reason.
UNREACHED = {
    "storage.ftruncate": "O_DIRECT's tail is cut only where the file system takes O_DIRECT"
}

OLD = 256 * KIB
LARGE = 3 * MIB


class Lived(Stubborn):
    """The client's side, and what it may rely on."""

    def __init__(self, instance: Node, job: str) -> None:
        super().__init__(instance, job, attempt_number())
        self.latest: tuple[int, int, dict[str, bytes]] | None = None  # step, revision, objects
        self.persisted: dict[int, tuple[int, dict[str, bytes]]] = {}
        self.removed: set[int] = set()

    def save(self, step: int, objects: dict[str, bytes], revision: int = 0) -> None:
        super().save(step, objects, revision)
        self.latest = (step, revision, objects)

    def persist(self, step: int, revision: int, objects: dict[str, bytes]) -> None:
        assert self.session is not None
        self.repeated("persist", self.session.ref(step))
        self.repeated("wait", self.session.ref(step), PERSISTED, 20_000, -1, 0, -1)
        self.persisted[step] = (revision, objects)

    def remove(self, step: int) -> None:
        assert self.session is not None
        self.removed.add(step)  # from here on it may be gone
        self.persisted.pop(step, None)
        try:
            self.repeated("remove", self.session.ref(step), False, True)
        except CairnError as error:
            assert error.code == NOT_FOUND  # the first answer was lost with the daemon

    def live(self) -> None:
        def objects(step: int, revision: int = 0, size: int = LARGE) -> dict[str, bytes]:
            tag = f"{self.job}-{step}-{revision}"
            return {
                "large": pattern(tag, size),
                "dir/small": pattern(tag + "s", 1000),
                "empty": b"",
            }

        self.save(1, objects(1, size=OLD))
        self.persist(1, 0, objects(1, size=OLD))
        for step in range(2, 8):  # 16 MiB hold five of these: the old ones go
            self.save(step, objects(step))
        self.save(7, objects(7, 1), revision=1)
        self.persist(7, 1, objects(7, 1))
        self.save(7, objects(7, 2), revision=2)  # replaces the files as well
        self.persist(7, 2, objects(7, 2))
        self.remove(1)
        # Many names: the journal changes halves.
        for step in range(8, 11):
            self.save(
                step,
                {f"n/{i:04}": b"%d" % i for i in range(800)}
                if "switch" in self.job
                else objects(step),
            )
        self.persist(10, 0, self.latest[2] if self.latest else {})

    # --- afterwards ---

    def check(self) -> None:
        assert self.latest is not None
        step, revision, objects = self.latest
        with self.node.session(self.job) as reader:
            latest = reader.latest()
            assert (latest.step, latest.revision) == (step, revision)
            for name, content in list(objects.items())[:20]:
                assert reader.load(step, name) == content
            for stored, (revision, objects) in self.persisted.items():
                info = reader.checkpoint(stored)
                assert info.facts.persisted and info.revision == revision, info
                for name, content in list(objects.items())[:20]:
                    assert reader.load(stored, name) == content
                    assert (
                        self.node.storage / self.job / str(stored) / name
                    ).read_bytes() == content
            for step in self.removed:
                refuses(NOT_FOUND, reader.checkpoint, step)
                files = self.node.storage / self.job / str(step)
                until("its files are gone", lambda files=files: not files.exists())
            for info in reader.do("ls", self.job, "", 1000).checkpoints:
                assert info.facts.complete, f"half a step is visible: {info}"
        status = self.node.status()
        assert status.slab_bytes <= status.budget_bytes


def cases() -> list[Any]:
    every = []
    for point in FAILPOINTS:
        reaches: tuple[int, ...] = REACHES.get(
            point, (1,) if point.startswith("storage") else NODE_REACHES
        )
        if point in ONCE:
            reaches = (1,)
        for reach in reaches if FULL else reaches[:1]:
            for second in ("", "node.recover@1", "node.recovered@1"):
                brief = second == "" or (second == "node.recovered@1" and point.startswith("node"))
                if not FULL and not brief:
                    continue
                every.append(
                    pytest.param(
                        point, reach, second, id=f"{point}:{reach}{second and '+' + second}"
                    )
                )
    return every


def live_and_check(spec: str, expect_deaths: int) -> None:
    job = "switch" if "switch" in spec else "r1"
    journal = MIB if job == "switch" else 16 * MIB
    with node(budget=16 * MIB, failpoints=spec, journal=journal) as instance:
        lived = Lived(instance, job)
        lived.live()
        deaths = instance.status().restarts
        assert deaths >= expect_deaths, f"{spec}: the daemon died {deaths} times"
        lived.check()
        if deaths < 3:
            instance.kill_daemon()
        lived.check()
        lived.leave()
        instance.kill_all()
        survivor = Node(instance.folder, budget=16 * MIB)
        instance.process, survivor.process = None, None
        try:
            survivor.start()
            only_files = Lived(survivor, job)
            only_files.latest = max((s, r, o) for s, (r, o) in lived.persisted.items())
            only_files.persisted, only_files.removed = lived.persisted, lived.removed
            only_files.check()
        finally:
            survivor.kill_all()


@pytest.mark.parametrize(("point", "reach", "second"), cases())
def test_the_daemon_dies_at_a_failpoint_and_nothing_acknowledged_is_lost(
    point: str, reach: int, second: str
) -> None:
    if point in UNREACHED:
        with node(budget=16 * MIB, failpoints=point) as instance:
            lived = Lived(instance, "r1")
            lived.live()
            lived.check()
            lived.leave()
        return
    spec = f"{point}:{reach}" + (f",{second}" if second else "")
    live_and_check(spec, 2 if second else 1)


@pytest.mark.parametrize("reach", range(1, 400, 13) if FULL else range(5, 300, 60))
def test_the_daemon_dies_at_the_nth_reach_of_any_failpoint(reach: int) -> None:
    live_and_check(f"any:{reach}", 0)


@pytest.mark.parametrize(
    "fault",
    [
        "storage.fsync=EIO",
        "storage.close=EIO",
        "storage.write=ENOSPC",
        "storage.open=EMFILE",
        "storage.rename=EIO",
        "storage.mkdir=EIO",
        "storage.fallocate=ENOSPC",
    ],
)
def test_a_storage_call_that_fails_once_is_tried_anew_and_never_believed(fault: str) -> None:
    """R4 in little: after an fsync or close error the file is written anew."""
    with node(failpoints=fault) as instance, instance.writer("once", attempt_number()) as writer:
        data = pattern(fault, MIB)
        writer.save(1, {"a": data})
        writer.change("persist", writer.ref(1))
        writer.wait(1, 3, 20_000)
        assert (instance.storage / "once/1/a").read_bytes() == data


def test_every_failpoint_of_the_header_is_a_case() -> None:
    covered = {case.values[0] for case in cases()}
    assert covered == set(FAILPOINTS)
    assert set(UNREACHED) <= set(FAILPOINTS)
