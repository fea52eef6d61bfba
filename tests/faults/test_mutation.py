"""R11: a writer that keeps its mapping changes bytes after sealing. It is caught at persist or load and
never passed on.

Promise 2: what you load is what you saved.
"""

from __future__ import annotations

import ctypes
import mmap
import subprocess
from pathlib import Path

import pytest
from cairn_daemon import MIB, Node, binary
from cairn_raw import (
    BLOCK,
    DATA_LOSS,
    FILE,
    MAP,
    READ,
    CairnError,
    Raw,
    attempt_number,
    block_crcs,
    pattern,
    refuses,
)
from patience import until

PLACES = {"first byte": 0, "last byte": -1, "second block": BLOCK + 5}


def saved_and_scribbled(node: Node, job: str, place: int) -> tuple[Raw, bytes]:
    writer = node.writer(job, attempt_number())
    data = pattern(job, 2 * BLOCK + 1234)
    reply = writer.create(1, {"a": len(data), "b": 10})
    writer.fill(reply.extents[0], data)
    writer.fill(reply.extents[1], b"0123456789")
    writer.commit(1, [writer.sealed("a", data), writer.sealed("b", b"0123456789")])
    at = reply.extents[0].offset + (place if place >= 0 else len(data) + place)
    writer.map(reply.extents[0])[at] ^= 0x01
    return writer, data


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_a_changed_byte_is_caught_by_the_daemons_own_look(daemon: Node, place: int) -> None:
    writer, data = saved_and_scribbled(daemon, "read", place)
    bad = (place if place >= 0 else len(data) + place) // BLOCK
    with daemon.session("read") as reader:
        message = refuses(DATA_LOSS, reader.open, 1, "a", verify=True)
        assert f"block {bad}" in message, message
        # Found once, it is never handed out again, whoever asks and however.
        for mode in (MAP, FILE, READ):
            refuses(DATA_LOSS, reader.open, 1, "a", mode)
    writer.vanish()


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_a_changed_byte_is_caught_by_whoever_copies_in_chunks(daemon: Node, place: int) -> None:
    """readChunk hands out bytes as they are; the checksums of `open` tell their block."""
    writer, data = saved_and_scribbled(daemon, "chunks", place)
    bad = (place if place >= 0 else len(data) + place) // BLOCK
    with daemon.session("chunks", takes_fds=False) as reader:
        held = reader.open(1, "a", READ)
        for block, crc in enumerate(held.object.block_crcs):
            offset, length = block * BLOCK, min(BLOCK, len(data) - block * BLOCK)
            (got,) = block_crcs(reader.do("readChunk", held.lease, offset, length))
            assert (got == crc) == (block != bad)
    writer.vanish()


def test_a_changed_byte_is_caught_by_the_library_and_names_the_block(
    daemon: Node, tmp_path: Path
) -> None:
    writer, _ = saved_and_scribbled(daemon, "library", BLOCK)
    out = tmp_path / "out"
    result = subprocess.run(
        [binary("cairn"), "--socket", daemon.socket, "get", "library/1/a", out],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 4, result.stderr
    assert "block 1" in result.stderr
    assert not out.exists()
    writer.vanish()


def test_a_changed_byte_is_never_persisted_and_the_step_says_why(daemon: Node) -> None:
    writer, data = saved_and_scribbled(daemon, "persist", 100)
    writer.change("persist", writer.ref(1))

    def known() -> bool:
        info = writer.checkpoint(1)
        assert not info.facts.persisted
        return info.facts.broken

    until("the step is known to be broken", known)
    assert not (daemon.storage / "persist" / "1").exists()
    for path in (daemon.storage / "persist").rglob("*"):
        assert (
            not path.is_file()
            or path.read_bytes()[: len(data)] != data[:100] + bytes([data[100] ^ 1]) + data[101:]
        )
    assert writer.checkpoint(1).why
    writer.vanish()


def test_latest_moves_back_to_the_last_good_step(daemon: Node) -> None:
    """Promise 3: `latest` names only what can be had now."""
    attempt = attempt_number()
    with daemon.writer("back", attempt) as writer:
        good = pattern("good", MIB)
        writer.save(1, {"a": good})
        reply = writer.create(2, {"a": MIB})
        writer.fill(reply.extents[0], good)
        writer.commit(2, [writer.sealed("a", good)])
        writer.map(reply.extents[0])[reply.extents[0].offset] ^= 0xFF
        with pytest.raises(CairnError) as error:
            writer.open(2, "a", verify=True)
        assert error.value.code == DATA_LOSS
        assert writer.latest().step == 1
        assert writer.load(1, "a") == good


def test_a_broken_copy_is_mended_from_storage(daemon: Node) -> None:
    with daemon.writer("mend", attempt_number()) as writer:
        data = pattern("mend", MIB)
        reply = writer.create(1, {"a": MIB})
        writer.fill(reply.extents[0], data)
        writer.commit(1, [writer.sealed("a", data)])
        writer.persist(1)
        writer.map(reply.extents[0])[reply.extents[0].offset + 9] ^= 0xFF
        try:
            writer.open(1, "a", verify=True)
        except CairnError as error:
            assert error.code == DATA_LOSS
        with daemon.session("mend", takes_fds=False) as reader:
            held = reader.open(1, "a", READ)
            assert reader.do("readChunk", held.lease, 0, MIB) == data


def test_a_reader_that_scribbles_changes_only_its_own_pages(daemon: Node) -> None:
    with daemon.writer("cow", attempt_number()) as writer:
        data = pattern("cow", MIB)
        writer.save(1, {"a": data})
        with daemon.session("cow") as reader:
            held = reader.open(1, "a")
            fd = reader.leases[held.lease]
            with pytest.raises(PermissionError):
                mmap.mmap(fd, held.slab_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            private = mmap.mmap(
                fd, held.slab_bytes, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE
            )
            private[held.offset : held.offset + 4] = b"evil"
            assert writer.load(1, "a") == data
            private.close()


def test_a_punched_hole_is_data_loss_not_a_crash(daemon: Node) -> None:
    """R10 in little: the seals stop truncation, not hole punching."""

    with daemon.writer("hole", attempt_number()) as writer:
        data = pattern("hole", 2 * MIB)
        reply = writer.create(1, {"a": len(data)})
        writer.fill(reply.extents[0], data)
        writer.commit(1, [writer.sealed("a", data)])
        libc = ctypes.CDLL(None, use_errno=True)
        fd = writer.slabs[reply.extents[0].slab]
        keep_size_and_punch = 3
        assert libc.fallocate(fd, keep_size_and_punch, ctypes.c_long(0), ctypes.c_long(4096)) == 0
        with daemon.session("hole", takes_fds=False) as reader:
            held = reader.open(1, "a", READ)
            assert reader.do("readChunk", held.lease, 0, 4096) == bytes(4096)
        with daemon.session("hole") as reader:
            refuses(DATA_LOSS, reader.open, 1, "a", verify=True)
        writer.save(2, {"a": b"alive"})
