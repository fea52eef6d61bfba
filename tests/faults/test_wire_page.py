"""A client of a few lines, written from proto/README.md alone: it takes no descriptors, saves, loads, lists,
waits, and says calls again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from cairn_daemon import Node
from cairn_raw import Cairn, attempt_number, crc32c, ttypes
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TFramedTransport

MIB = 1 << 20
WAITS_MS = 30_000
CHUNK, BLOCK = 8 * MIB, 4 * MIB
INVALID_ARGUMENT, NOT_FOUND, OUT_OF_RANGE = 3, 5, 11
LATEST, MEMORY_LEVEL, PERSISTED, READ = -1, 1, 3, 3


def as_i32(crc: int) -> int:
    return crc - (1 << 32) if crc >= 1 << 31 else crc


def blocks_of(data: bytes) -> Iterator[bytes]:
    return (data[at : at + BLOCK] for at in range(0, len(data), BLOCK))


class Client:
    """proto/README.md, "Saving" and "Loading", without descriptors."""

    def __init__(self, socket: str, job: str, process: bytes | None = None) -> None:
        self.transport = TFramedTransport(TSocket(unix_socket=socket))
        self.transport.open()
        self.calls = Cairn.Client(TBinaryProtocol(self.transport))
        self.job, self.attempt, self.last = job, attempt_number(), 0
        self.process = process or os.urandom(16)
        self.me = self.calls.hello(
            ttypes.HelloRequest(
                protocol=1,
                job=job,
                attempt=self.attempt,
                writer=0,
                world_size=1,
                process=self.process,
                takes_fds=False,
            )
        )

    def number(self) -> int:
        self.last += 1
        return self.last

    def who(self, step: int, revision: int = 0) -> dict[str, Any]:
        return {
            "step": step,
            "attempt": self.attempt,
            "revision": revision,
            "writer": 0,
            "world_size": 1,
        }

    def ref(self, step: int = LATEST, attempt: int = 0, revision: int = -1) -> Any:
        return ttypes.CheckpointRef(self.job, step, attempt, revision)

    def save(self, step: int, data: dict[str, bytes]) -> Any:
        specs = [ttypes.ObjectSpec(name=name, length=len(data[name])) for name in data]
        request = ttypes.CreateRequest(**self.who(step), objects=specs, timeout_ms=WAITS_MS)
        reply = self.calls.create(self.number(), request)
        seals = []
        for (name, bytes_), extent in zip(data.items(), reply.extents, strict=True):
            for at in range(0, len(bytes_), CHUNK):
                piece = bytes_[at : at + CHUNK]
                self.calls.writeChunk(self.number(), extent.lease, at, piece)
            crcs = [as_i32(crc32c(block)) for block in blocks_of(bytes_)]
            covered = [0, len(bytes_)] if bytes_ else []
            seals.append(ttypes.SealedObject(name, len(bytes_), crcs, covered))
        self.commit = ttypes.CommitRequest(**self.who(step), seals=seals)
        return self.calls.commit(self.number(), self.commit)

    def open(self, name: str) -> Any:
        found = self.calls.latest(self.job, WAITS_MS)
        ref = self.ref(found.step, found.attempt, found.revision)
        request = ttypes.OpenRequest(checkpoint=ref, name=name, mode=READ, timeout_ms=WAITS_MS)
        return self.calls.open(self.number(), request)

    def load(self, name: str) -> bytes:
        opened = self.open(name)
        length, data = opened.object.length, b""
        while len(data) < length:
            data += self.calls.readChunk(opened.lease, len(data), min(CHUNK, length - len(data)))
        ref = self.ref(opened.step, opened.attempt, opened.revision)
        crcs = self.calls.stat(ref, name, WAITS_MS).block_crcs
        assert [as_i32(crc32c(block)) for block in blocks_of(data)] == crcs
        self.calls.release(self.number(), [opened.lease])
        return data


@pytest.fixture
def client(daemon: Node, request: pytest.FixtureRequest) -> Iterator[Client]:
    made = Client(daemon.socket, "page." + request.node.name[-40:].replace("[", ".").strip("_]"))
    yield made
    made.transport.close()


DATA = {"model.bin": os.urandom(9 * MIB + 5), "meta.json": b"{}", "empty": b""}


def test_the_check_values_are_those_of_the_page() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(4 * MIB)) == 0xBC29E3A2


def test_what_it_saves_it_loads(client: Client) -> None:
    assert client.save(12, DATA).complete
    for name, data in DATA.items():
        assert client.load(name) == data


def test_calls_that_are_said_again_do_what_the_page_says(client: Client) -> None:
    digest = client.save(12, DATA).digest
    assert client.calls.commit(client.number(), client.commit).digest == digest
    client.save(13, DATA)
    used = client.calls.useCheckpoint(
        client.number(), client.ref(12, client.attempt), True, WAITS_MS
    )
    again = client.calls.useCheckpoint(
        client.number(), client.ref(12, client.attempt), True, WAITS_MS
    )
    assert again.head == used.head and client.calls.latest(client.job, WAITS_MS).step == 12
    for call in (client.calls.persist, lambda n, ref: client.calls.pin(n, ref, False)):
        for _ in range(2):
            call(client.number(), client.ref(12, client.attempt))
    client.calls.remove(client.number(), client.ref(13, client.attempt), False, True, WAITS_MS)
    with pytest.raises(ttypes.Error) as error:
        client.calls.remove(client.number(), client.ref(13, client.attempt), False, True, WAITS_MS)
    assert error.value.code == NOT_FOUND


def test_a_piece_beyond_the_end_is_refused_whole(client: Client) -> None:
    client.save(1, {"a": b"0123456789"})
    lease = client.open("a").lease
    assert client.calls.readChunk(lease, 4, 6) == b"456789"
    with pytest.raises(ttypes.Error) as error:
        client.calls.readChunk(lease, 4, 7)
    assert error.value.code == OUT_OF_RANGE
    client.calls.renew([lease])
    client.calls.release(client.number(), [lease])
    with pytest.raises(ttypes.Error) as error:
        client.calls.renew([lease])
    assert error.value.code == NOT_FOUND


def test_a_message_that_is_too_long_is_answered_and_the_session_goes_on(client: Client) -> None:
    with pytest.raises(ttypes.Error) as error:
        client.calls.writeChunk(client.number(), 1, 0, bytes(65 * MIB))
    assert error.value.code == INVALID_ARGUMENT and "limit" in error.value.message
    assert client.save(1, {"a": b"x"}).complete


def test_lists_are_walked_by_their_cursor(client: Client) -> None:
    for step in range(5):
        client.save(step, {f"o{i}": b"" for i in range(3)})
    steps, cursor = [], ""
    while True:
        page = client.calls.ls(client.job, cursor, 2, WAITS_MS)
        steps += [found.step for found in page.checkpoints]
        cursor = page.next_cursor
        if not cursor:
            break
    assert steps == list(range(5))
    exact = client.calls.ls(f"{client.job}/4@{client.attempt}.0", "", 100, WAITS_MS)
    assert [found.name for found in exact.objects] == ["o0", "o1", "o2"]


def test_a_waiter_is_woken_by_a_step_and_by_a_way_back(client: Client) -> None:
    client.save(6, {"a": b""})
    client.save(9, {"a": b""})
    head = client.calls.latest(client.job, WAITS_MS).head
    wait = client.calls.wait
    assert wait(client.ref(), MEMORY_LEVEL, WAITS_MS, 6, 0, -1).step == 9
    with pytest.raises(ttypes.Error) as error:
        wait(client.ref(), MEMORY_LEVEL, 50, 9, 0, -1)
    assert error.value.code == 4
    client.calls.useCheckpoint(client.number(), client.ref(6, client.attempt), True, WAITS_MS)
    assert wait(client.ref(), MEMORY_LEVEL, WAITS_MS, 9, head, -1).step == 6


def test_a_lost_connection_ends_the_session_and_what_it_had_not_committed(
    daemon: Node, client: Client
) -> None:
    client.save(1, {"a": b"kept"})
    request = ttypes.CreateRequest(
        **client.who(2), objects=[ttypes.ObjectSpec(name="a", length=3)], timeout_ms=WAITS_MS
    )
    client.calls.create(client.number(), request)
    client.transport.close()
    again = Client(daemon.socket, client.job, client.process)
    with pytest.raises(ttypes.Error) as error:
        again.calls.rejoin(client.me.session, client.me.secret)
    assert error.value.code in (NOT_FOUND, 9)
    again.transport.close()
    again = Client(daemon.socket, client.job, client.process)
    again.attempt = client.attempt
    assert again.calls.latest(again.job, WAITS_MS).step == 1 and again.load("a") == b"kept"
    again.transport.close()
