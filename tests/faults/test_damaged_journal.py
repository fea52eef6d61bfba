"""R38: the journal's memory is damaged, or a later binary wrote what this one cannot read.

Promises 3, 4, 6 and 7. The journal is a memfd of the keeper; the tests write to it as bad memory would.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

import pytest
from cairn_daemon import MIB, Node, node
from cairn_raw import (
    NOT_FOUND,
    UNAVAILABLE,
    CairnError,
    attempt_number,
    crc32c,
    pattern,
    refuses,
)
from cairn_trainer import Trainer

PAGE = 4096
FRAME_HEADER = 20
NONCE = 32


class Journal:
    def __init__(self, instance: Node) -> None:
        folder = f"/proc/{instance.keeper_pid}/fd"
        names = {name: os.readlink(f"{folder}/{name}") for name in os.listdir(folder)}
        (journal,) = {name for name, target in names.items() if "cairn-journal" in target}
        self.fd = os.open(f"{folder}/{journal}", os.O_RDWR)

    def half(self) -> int:
        """Where the half in use begins."""
        (generation,) = struct.unpack("<I", os.pread(self.fd, 4, 24))
        bytes_of_half = (os.fstat(self.fd).st_size - PAGE) // 2 // PAGE * PAGE
        return PAGE + generation % 2 * bytes_of_half

    def frames(self) -> Iterator[tuple[int, int]]:
        """(offset, length of the payload) of each."""
        at = self.half()
        while True:
            magic, length = struct.unpack("<4sI", os.pread(self.fd, 8, at))
            if magic != b"JFRM":
                return
            yield at, length
            at += (FRAME_HEADER + length + 7) // 8 * 8

    def flip(self, at: int) -> None:
        os.pwrite(self.fd, bytes([os.pread(self.fd, 1, at)[0] ^ 0x10]), at)

    def set_kind(self, at: int, length: int, kind: int) -> int:
        """Gives the first fact of a frame another kind, as if another binary had written it."""
        frame = bytearray(os.pread(self.fd, FRAME_HEADER + length, at))
        old = frame[FRAME_HEADER + 4]
        frame[FRAME_HEADER + 4] = kind
        nonce = os.pread(self.fd, 8, NONCE)
        crc = crc32c(nonce + frame[4:16] + frame[FRAME_HEADER:])
        frame[16:20] = struct.pack("<I", crc)
        os.pwrite(self.fd, bytes(frame), at)
        return old


def behind(journal: Journal, last: int) -> int:
    """The first frame behind that one."""
    return next(at for at, _ in journal.frames() if at > last)


def test_a_flipped_bit_costs_the_sessions_and_what_was_committed_is_found_again() -> None:
    with (
        node(storage=False) as instance,
        instance.writer("bit", attempt := attempt_number(), 0, 2) as writer,
        instance.writer("bit", attempt, 1, 2) as second,
    ):
        one, three, four = (pattern(f"bit-{i}", 2 * MIB) for i in (1, 3, 4))
        two = {"large": pattern("bit-2", 9 * MIB + 77), "small": b"small", "none": b""}
        for rank, name in ((writer, "a"), (second, "b")):
            rank.save(1, {name: one})
        journal = Journal(instance)
        last = list(journal.frames())[-1][0]
        writer.save(2, two)
        second.save(2, {"b": b"of the second"})
        writer.save(3, {"a": three})
        journal.flip(behind(journal, last) + 33)
        instance.kill_daemon()

        state = instance.status().state
        assert state.startswith("serving; facts were lost: journal: the frame at byte"), state
        assert "3 committed parts were found again" in state, state
        with instance.session("bit") as reader:
            assert reader.latest().step == 2  # of step 3 a part was never committed
            assert reader.load(1, "a") == one
            for name, data in two.items():
                assert reader.load(2, name) == data
            assert reader.load(2, "b") == b"of the second"
        # What the session was lent behind the damage is not known: it is over.
        with pytest.raises((CairnError, OSError)):
            writer.reconnect()
            writer.save(4, {"a": four})
        with instance.writer("bit", attempt_number()) as other:
            other.save(4, {"a": four})

        instance.kill_daemon()
        assert instance.status().state == "serving"
        with instance.session("bit") as reader:
            assert reader.latest().step == 4
            assert reader.load(2, "large") == two["large"]
            assert reader.load(4, "a") == four


def test_what_was_written_over_behind_the_damage_stays_away() -> None:
    """Promise 2: a process that lives may write into what it maps."""
    with node(storage=False) as instance, instance.writer("over", attempt_number()) as writer:
        one, two = (pattern(f"over-{i}", 2 * MIB) for i in (1, 2))
        writer.save(1, {"a": one})
        journal = Journal(instance)
        last = list(journal.frames())[-1][0]
        extent = writer.create(2, {"a": len(two)}).extents[0]
        writer.fill(extent, two)
        writer.commit(2, [writer.sealed("a", two)])
        writer.fill(extent, b"x")
        journal.flip(behind(journal, last) + 33)
        instance.kill_daemon()
        assert "; 0 committed parts were found again" in instance.status().state
        with instance.session("over") as reader:
            assert reader.latest().step == 1
            assert reader.load(1, "a") == one
            refuses(NOT_FOUND, reader.checkpoint, 2)


@pytest.mark.parametrize("at", [3, 9, 17, 24, 30])
def test_a_flipped_bit_in_the_header_costs_nothing_but_the_sessions(at: int) -> None:
    with node(storage=False) as instance, instance.writer("head", attempt_number()) as writer:
        data = pattern("head", MIB)
        writer.save(1, {"a": data})
        Journal(instance).flip(at)
        instance.kill_daemon()
        assert "facts were lost: journal: the header" in instance.status().state
        with instance.session("head") as reader:
            assert reader.load(1, "a") == data
        with instance.writer("head", attempt_number()) as other:
            other.save(2, {"a": data})
            assert other.load(2, "a") == data


def test_a_rolled_back_binary_serves_what_it_knows_and_leaves_the_rest_to_the_newer_one() -> None:
    with node(storage=False) as instance, instance.writer("back", attempt_number()) as writer:
        one, two = (pattern(f"back-{i}", 2 * MIB) for i in (1, 2))
        writer.save(1, {"a": one})
        journal = Journal(instance)
        last = list(journal.frames())[-1]
        writer.save(2, {"a": two})
        unknown = next(frame for frame in journal.frames() if frame[0] > last[0])
        kind = journal.set_kind(*unknown, 99)
        for _ in range(2):
            instance.kill_daemon()
            state = instance.status().state
            assert state.startswith("safe mode: journal: the frame at byte"), state
            assert "kind 99 version" in state, state
            with instance.session("back") as reader:
                assert reader.load(1, "a") == one
                refuses(NOT_FOUND, reader.checkpoint, 2)
            with instance.writer("back", attempt_number()) as other:
                refuses(UNAVAILABLE, other.create, 3, {"a": 10})
        journal.set_kind(*unknown, kind)
        instance.kill_daemon()
        with instance.session("back") as reader:
            assert reader.load(1, "a") == one
            assert reader.load(2, "a") == two


def test_a_trainer_and_a_reader_go_on_over_a_damaged_journal_in_little_memory() -> None:
    """Every session has ended: the library begins another, and what it had mapped comes back."""
    with node(storage=False, budget=32 * MIB) as instance:
        journal = Journal(instance)
        with (
            Trainer(instance.socket, "train") as trainer,
            Trainer(instance.socket, "train", -1) as reader,
        ):
            assert trainer.do("save", step=1, tag="1")["error"] is None
            assert reader.do("map", step=1)["error"] is None
            for life in range(2):
                last = list(journal.frames())[-1]
                for step in (2, 3):
                    at = life * 10 + step
                    assert trainer.do("save", step=at, tag=str(at))["error"] is None
                behind = [at for at, _ in journal.frames() if at > last[0]]
                journal.flip(behind[len(behind) // 2] + 33)
                instance.kill_daemon()
                assert "facts were lost" in instance.status().state
                for at in range(life * 10 + 4, life * 10 + 10):
                    answer = trainer.do("save", step=at, tag=str(at))
                    assert answer["error"] is None, (at, answer)
                assert trainer.do("latest")["step"] == life * 10 + 9
                assert len(reader.do("compare", tag="1")["same"]) == 2
