"""`store` and `openStream`, spoken as proto/README.md has them: what a writer who lies, is slow or dies gets.

Promises 2, 3, 6, 8.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cairn_daemon import MIB, Node, node
from cairn_raw import (
    ALREADY_EXISTS,
    DATA_LOSS,
    DEADLINE_EXCEEDED,
    FAILED_PRECONDITION,
    INVALID_ARGUMENT,
    NOT_FOUND,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    CairnError,
    Raw,
    attempt_number,
    block_crcs,
    pattern,
    ttypes,
)
from patience import patient, until

UNIX_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def shared() -> Iterator[Node]:
    with node() as instance:
        yield instance


@pytest.fixture
def writer(shared: Node, request: pytest.FixtureRequest) -> Iterator[Raw]:
    job = request.node.name.translate(str.maketrans("[]", "--"))[:100].rstrip("-")
    with shared.writer(job, attempt_number()) as session:
        yield session


def stream_of(writer: Raw) -> tuple[int, socket.socket]:
    lease = writer.change("openStream")
    return lease, socket.socket(fileno=writer._take(lease))


def serve(stream: socket.socket, data: list[bytes], most: int = 1 << 62) -> None:
    """Answers until the node closes it, or `most` bytes are sent."""
    with stream:
        while most > 0:
            frame = stream.recv(24, socket.MSG_WAITALL)
            if len(frame) < 24:
                return
            index, offset, length = struct.unpack("<QQQ", frame)
            try:
                stream.sendall(data[index][offset : offset + length][:most])
            except OSError:
                return
            most -= length


def request_of(writer: Raw, step: int, objects: dict[str, bytes], stream: int, **other: Any) -> Any:
    names = other.pop("names", sorted(objects))
    return ttypes.StoreRequest(
        step=step,
        attempt=other.pop("attempt", writer.attempt),
        revision=other.pop("revision", 0),
        writer=writer.writer,
        world_size=writer.world_size,
        objects=[
            ttypes.StoreObject(
                name, 0, len(objects[name]), other.get("crcs", block_crcs(objects[name]))
            )
            for name in names
        ],
        notes=other.get("notes", {}),
        created_unix_ms=other.get("created_unix_ms", UNIX_MS),
        stream=stream,
        timeout_ms=other.get("timeout_ms", int(patient(20_000))),
        fence=True,
    )


def store(writer: Raw, step: int, objects: dict[str, bytes], **other: Any) -> Any:
    lease, stream = stream_of(writer)
    sent = other.pop("sends", [objects[name] for name in sorted(objects)])
    most = other.pop("most", 1 << 62)
    thread = threading.Thread(target=serve, args=(stream, sent, most))
    thread.start()
    try:
        return writer.change("store", request_of(writer, step, objects, lease, **other))
    finally:
        with contextlib.suppress(OSError):  # the thread has closed it
            stream.shutdown(socket.SHUT_RDWR)
        thread.join(patient(60))
        assert not thread.is_alive()


def refused(code: int, call: Any, *words: str) -> None:
    with pytest.raises(CairnError) as error:
        call()
    assert error.value.code == code, error.value
    for word in words:
        assert word in error.value.message, error.value


def test_what_is_sent_is_stored(shared: Node, writer: Raw) -> None:
    objects = {"b": pattern("b", 9 * MIB + 3), "a": b"", "deep/c": b"c"}
    done = store(writer, 3, objects)
    assert done.complete
    for name, data in objects.items():
        assert (shared.storage / writer.job / "3" / name).read_bytes() == data
    assert writer.do("latest", writer.job).step == 3
    again = store(writer, 3, objects)  # as after a lost connection
    assert again.digest == done.digest and again.complete
    refused(ALREADY_EXISTS, lambda: store(writer, 3, {"other": b"x"}), "revision")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"names": ["b", "a"]}, ("objects", "ascend")),
        ({"names": ["a", "a"]}, ("objects", "ascend")),
        ({"crcs": []}, ("block_crcs", "blocks")),
        ({"created_unix_ms": 0}, ("created_unix_ms",)),
        ({"timeout_ms": -1}, ("timeout_ms",)),
        ({"notes": {"n": "x" * (17 * MIB)}}, ("note",)),
    ],
)
def test_a_field_that_is_wrong_is_named(
    writer: Raw, change: dict[str, Any], words: tuple[str, ...]
) -> None:
    objects = {"a": b"a", "b": b"b"}
    refused(INVALID_ARGUMENT, lambda: store(writer, 1, objects, **change), *words)
    refused(NOT_FOUND, lambda: writer.do("latest", writer.job))


def test_names_that_leave_the_step_are_refused(writer: Raw) -> None:
    for name in ("../a", "/a", "a/../b", ".cairn/a", "a\nb", ""):
        refused(INVALID_ARGUMENT, lambda name=name: store(writer, 1, {name: b"a"}), "name")


def test_other_bytes_than_were_said_are_stored_nowhere(shared: Node, writer: Raw) -> None:
    data = pattern("right", 5 * MIB)
    wrong = data[: 4 * MIB + 7] + b"!" + data[4 * MIB + 8 :]
    refused(DATA_LOSS, lambda: store(writer, 1, {"a": data}, sends=[wrong]), "a: block 1")
    refused(NOT_FOUND, lambda: writer.do("latest", writer.job))
    assert not (shared.storage / writer.job / "1").exists()
    assert store(writer, 1, {"a": data}, revision=1).complete


def test_a_writer_that_stops_in_the_middle_leaves_nothing(shared: Node, writer: Raw) -> None:
    data = pattern("half", 9 * MIB)
    refused(UNAVAILABLE, lambda: store(writer, 1, {"a": data}, most=3 * MIB), "writer has gone")
    meta = shared.storage / writer.job / ".cairn"
    left = [path for path in meta.rglob("*") if path.is_file() and path.stat().st_size > MIB]
    assert not left
    assert store(writer, 2, {"a": data}).complete


def test_a_stream_is_its_sessions_and_serves_one_store(shared: Node, writer: Raw) -> None:
    lease, stream = stream_of(writer)
    with stream, shared.writer("thief", attempt_number()) as other:
        refused(
            UNAVAILABLE,
            lambda: other.change("store", request_of(other, 1, {"a": b"a"}, lease)),
            "stream",
        )
        for number in (0, 7, 1 << 62):
            call = request_of(writer, 1, {"a": b"a"}, number, revision=number % 5)
            refused(UNAVAILABLE, lambda call=call: writer.change("store", call), "stream")
        refused(
            INVALID_ARGUMENT,
            lambda: writer.change("store", request_of(writer, 9, {"a": b"a"}, -1)),
            "stream",
        )
    with shared.session(writer.job, takes_fds=False) as chunks:
        refused(FAILED_PRECONDITION, lambda: chunks.change("openStream"))


def test_streams_that_nobody_uses_are_bounded(shared: Node, writer: Raw) -> None:
    before = len(os.listdir(f"/proc/{shared.daemon_pid()}/fd"))
    held = [stream_of(writer)[1] for _ in range(50)]
    descriptors = f"/proc/{shared.daemon_pid()}/fd"
    until("few are held", lambda: len(os.listdir(descriptors)) <= before + 3)
    assert sum(stream.recv(1, socket.MSG_DONTWAIT) == b"" for stream in held[:-2]) == 48
    for stream in held:
        stream.close()
    assert store(writer, 1, {"a": b"a"}).complete


def test_a_call_is_answered_in_time_and_a_repeat_hears_the_end(writer: Raw) -> None:
    data = pattern("slow", 2 * MIB)
    lease, stream = stream_of(writer)
    call = request_of(writer, 1, {"a": data}, lease, timeout_ms=300)
    begin = time.monotonic()
    refused(DEADLINE_EXCEEDED, lambda: writer.change("store", call), "still being written")
    assert time.monotonic() - begin < patient(30)
    thread = threading.Thread(target=serve, args=(stream, [data]))
    thread.start()
    call.timeout_ms = int(patient(20_000))
    assert writer.change("store", call).complete
    thread.join()


def test_ranks_that_are_slow_hold_up_no_other_one(shared: Node) -> None:
    """Bug: four of a user's writers held up the others, as the fifth to eighth of a node with eight GPUs."""
    attempt, world = attempt_number(), 8
    slow: list[tuple[Raw, socket.socket]] = []
    threads = []
    for rank in range(world - 1):
        session = shared.writer("slow-ranks", attempt, rank, world)
        lease, stream = stream_of(session)
        call = request_of(session, 1, {f"of-{rank}": b"x"}, lease)
        threads.append(threading.Thread(target=lambda s=session, c=call: s.change("store", c)))
        threads[-1].start()
        slow.append((session, stream))
    with shared.writer("slow-ranks", attempt, world - 1, world) as last:
        assert not store(last, 1, {"of-last": b"x"}).complete
    with shared.writer("beside-them", attempt_number()) as other:
        assert store(other, 1, {"a": b"a"}).complete
    servers = [threading.Thread(target=serve, args=(stream, [b"x"])) for _, stream in slow]
    for server in servers:
        server.start()
    for thread in threads:
        thread.join(patient(30))
    for session, _ in slow:
        with session:
            assert session.do("latest", "slow-ranks").step == 1
    for server in servers:
        server.join(patient(30))


def test_a_newer_attempt_fences_it(shared: Node, writer: Raw) -> None:
    store(writer, 1, {"a": b"1"})
    with shared.writer(writer.job, writer.attempt + 1) as newer:
        assert store(newer, 2, {"a": b"2"}).complete
        refused(FAILED_PRECONDITION, lambda: store(writer, 3, {"a": b"3"}), "superseded by")
        assert newer.do("latest", newer.job).step == 2


def sockets(instance: Node) -> int:
    count = 0
    folder = f"/proc/{instance.daemon_pid()}/fd"
    for descriptor in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(f"{folder}/{descriptor}").startswith("socket:")
    return count


def test_streams_of_a_session_that_ended_are_closed(shared: Node) -> None:
    """Though its process keeps its ends of them."""
    kept = []
    before = sockets(shared)
    for _ in range(20):
        with shared.writer("many", attempt_number()) as session:
            kept += [stream_of(session)[1] for _ in range(2)]
    until("the streams are closed", lambda: sockets(shared) < before + 10)
    for stream in kept:
        assert stream.recv(1) == b""
        stream.close()


def test_streams_that_are_not_taken_are_refused(writer: Raw) -> None:
    """Descriptors on their way count against the daemon's limit."""
    with pytest.raises(CairnError) as error:
        for _ in range(100_000):
            writer.change("openStream")
    assert error.value.code == RESOURCE_EXHAUSTED
    assert "do not take" in error.value.message or "does not take" in error.value.message


def test_stores_that_nobody_waits_for_are_few(shared: Node, writer: Raw) -> None:
    """Each holds descriptors and its checksums until it ends."""
    before = sockets(shared)
    streams = []
    for step in range(1, 5):
        lease, stream = stream_of(writer)
        streams.append(stream)
        request = request_of(writer, step, {"a": b"a"}, lease, timeout_ms=1)
        refused(DEADLINE_EXCEEDED, lambda request=request: writer.change("store", request))
    for _ in range(50):
        lease, stream = stream_of(writer)
        request = request_of(writer, 9, {"a": b"a"}, lease, timeout_ms=1)
        refused(
            RESOURCE_EXHAUSTED,
            lambda request=request: writer.change("store", request),
            "this session",
        )
        stream.close()
    until("the refused streams are closed", lambda: sockets(shared) < before + 10)
    for stream in streams:
        stream.close()

    def there_is_room() -> bool:
        try:
            return store(writer, 10, {"a": b"a"}).complete
        except CairnError as error:  # the node has yet to see that they are closed
            assert error.code == RESOURCE_EXHAUSTED, error
            return False

    until("there is room", there_is_room)


def test_a_part_longer_than_the_disk_costs_other_jobs_nothing(tmp_path: Path) -> None:
    """Bug: what waited in every job's trash to be wanted back was emptied for it."""
    if subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode != 0:
        pytest.skip("this kernel lets no ordinary user make namespaces")
    script = 'mkdir -p "$0" && mount -t tmpfs -o size=16m none "$0" && exec "$@"'
    folder = tmp_path / "disk"
    folder.mkdir()
    wrapper = ("unshare", "-Urm", "sh", "-c", script, str(folder))
    options = (f"--storage.root={folder}", "--storage.keep_last=1")
    with (
        node(storage=False, wrapper=wrapper, options=options) as instance,
        instance.writer("a-careful", attempt_number()) as careful,
        instance.writer("b-greedy", attempt_number()) as greedy,
    ):
        inside = Path(f"/proc/{instance.keeper_pid}/root{folder}")

        def deleted(job: str) -> list[str]:
            return os.listdir(inside / job / ".cairn/trash")

        for writer in (careful, greedy):
            for step in (1, 2):
                assert store(writer, step, {"a": pattern("a", MIB)}).complete
            until("it is in the trash", lambda writer=writer: deleted(writer.job))
        kept = deleted("a-careful")
        too_long = {"a": pattern("too long", 20 * MIB)}
        refused(RESOURCE_EXHAUSTED, lambda: store(greedy, 3, too_long), "space")
        until("its own trash is emptied", lambda: not deleted("b-greedy"))
        assert store(greedy, 4, {"a": b"a"}).complete  # and its own sweep has begun
        assert deleted("a-careful") == kept
        assert (inside / "b-greedy/4/a").read_bytes() == b"a"
