#!/usr/bin/env python3
"""Writes the first examples of thrift_socket_fuzz, fd_socket_fuzz, client_reads_fuzz, peer_message_fuzz and
tcp_wire_fuzz: calls, answers, packets, messages and frames as they should be, in the order that each fuzzer's
source describes.

One file: each contract's examples, with what they have in common.

To be run again, with Debian's Python, when that order or the contract changes.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests" / "fuzz" / "corpus"

_types = tempfile.mkdtemp(prefix="cairn-thrift-")
for _source in ("cairn.thrift", "peer.thrift"):
    _command = ["thrift", "--gen", "py", "-out", _types, str(ROOT / "proto" / _source)]
    subprocess.run(_command, check=True)
sys.path.insert(0, _types)
from cairn_peer_wire import ttypes as peer  # noqa: E402
from cairn_wire import Cairn, ttypes  # noqa: E402
from thrift.protocol.TBinaryProtocol import TBinaryProtocol  # noqa: E402
from thrift.transport.TTransport import TMemoryBuffer  # noqa: E402

# The order of kMethods in thrift_socket_fuzz.cc.
METHODS = [
    "hello",
    "rejoin",
    "goodbye",
    "ping",
    "chooseAttempt",
    "resume",
    "create",
    "seal",
    "commit",
    "abort",
    "open",
    "release",
    "renew",
    "readChunk",
    "latest",
    "statCheckpoint",
    "stat",
    "ls",
    "wait",
    "persist",
    "remove",
    "pin",
    "setPolicy",
    "previewPolicy",
    "writeChunk",
    "status",
    "useCheckpoint",
    "index",
]
ATTEMPT = 7
SLAB_BYTES = 64 << 10


def encoded(value: object) -> bytes:
    buffer = TMemoryBuffer()
    value.write(TBinaryProtocol(buffer))
    return buffer.getvalue()


def text(data: bytes) -> bytes:
    return struct.pack("<H", len(data)) + data


# --- thrift_socket_fuzz

RAW, FRAME, HALF_FRAME, CALL, LONG_CALL, HELLO, REJOIN, CREATE, WRITE_CHUNK, COMMIT, OPEN = range(
    11
)
READ_CHUNK, WAIT, STOP_WRITING, HANG_UP = range(11, 15)
SECOND, AT_ONCE = 16, 64
CHUNKS_HELLO = bytes([HELLO, 0])
FDS_HELLO = bytes([HELLO, 1])


def call(name: str, /, **fields: object) -> bytes:
    arguments = encoded(getattr(Cairn, f"{name}_args")(**fields))
    return bytes([CALL, METHODS.index(name)]) + text(arguments)


def thrift_socket() -> dict[str, bytes]:
    ref = ttypes.CheckpointRef(job="job", step=1)
    part = {"step": 1, "attempt": ATTEMPT, "revision": 0, "writer": 0}
    objects = [ttypes.ObjectSpec(name="a", length=4096), ttypes.ObjectSpec(name="b", length=0)]
    seals = [ttypes.SealedObject(name="b", length=0, block_crcs=[], covered=[])]
    create = ttypes.CreateRequest(**part, world_size=1, objects=objects, timeout_ms=0, unmapped=[])
    policy = ttypes.JobPolicy(mode=1, every=2, keep_last=3, keep_every=0, readers=0)
    save = (
        bytes([CREATE, 1, 0, 0])
        + struct.pack("<H", 400)
        + bytes([WRITE_CHUNK])
        + struct.pack("<hH", 0, 100)
        + bytes([COMMIT, 1, 4, 0])
        + struct.pack("<H", 400)
    )
    load = bytes([OPEN, 2, 0, 2, READ_CHUNK]) + struct.pack("<hi", 0, 400)
    return {
        "save_and_load": CHUNKS_HELLO + save + load,
        "save_raw": FDS_HELLO
        + call("create", call=1, request=create)
        + call("seal", call=2, request=ttypes.SealRequest(**part, seals=seals))
        + call("abort", call=3, request=ttypes.AbortRequest(**part))
        + call(
            "commit",
            call=4,
            request=ttypes.CommitRequest(
                **part, world_size=1, seals=seals, notes={"k": "v"}, unmapped=[]
            ),
        ),
        "find": CHUNKS_HELLO
        + save
        + call("latest", job="job")
        + call("statCheckpoint", checkpoint=ref)
        + call("stat", checkpoint=ref, name="objecta")
        + call("ls", path="job/1", cursor="", limit=10)
        + call("status"),
        "keep": CHUNKS_HELLO
        + save
        + call("setPolicy", call=5, job="job", policy=policy)
        + call("previewPolicy", request=ttypes.PreviewRequest(job="job", policy=policy))
        + call("pin", call=6, checkpoint=ref, pinned=True)
        + call("persist", call=7, checkpoint=ref)
        + call("remove", call=8, checkpoint=ref, memory_only=True, force=False),
        "line": bytes([HELLO, 12])
        + call("chooseAttempt", call=1)
        + call("resume", call=2, attempt=ATTEMPT, step=-1)
        + call("useCheckpoint", call=3, checkpoint=ref, fence=True),
        "lease": CHUNKS_HELLO
        + save
        + load
        + call("renew", leases=[1])
        + call("release", call=9, leases=[1]),
        "two_connections": FDS_HELLO
        + bytes([REJOIN | SECOND, 1, WAIT | SECOND, REJOIN | SECOND, 0, HANG_UP]),
        "hang_up": CHUNKS_HELLO + bytes([WAIT | AT_ONCE, WAIT | AT_ONCE, STOP_WRITING, HANG_UP]),
        "long": CHUNKS_HELLO
        + bytes([LONG_CALL, METHODS.index("ping"), 40])
        + text(b"\0")
        + bytes([WRITE_CHUNK])
        + struct.pack("<hH", 0, 60000),
        "half": CHUNKS_HELLO
        + bytes([HALF_FRAME])
        + struct.pack("<I", 60 << 20)
        + text(b"\x80\x01\0\x01\0\0\0\x04"),
        "no_type": bytes([FRAME]) + text(b"\x80\x01\0\xff\0\0\0\x04ping\0\0\0\1\0"),
        "raw": bytes([FRAME])
        + text(b"\x80\x01\0\x01\0\0\0\x04ping\0\0\0\1\0")
        + bytes([RAW])
        + text(b"\0\0\0\1x"),
    }


# --- fd_socket_fuzz

PACKET, ATTACH, GOOD_ATTACH, PERFECT_ATTACH, GUESSED_SECRET, OTHER_SESSION, BEGIN, END = range(8)
CLOSE_THRIFT, PUSH, PROGRESS, RECEIVE, STOP, FD_HANG_UP = range(8, 14)


def fd_socket() -> dict[str, bytes]:
    page = struct.pack("<QQQQ", 0x314752504E524143, 5, 100, 50)
    attach = struct.pack("<IHHQ", 0x4E524143, 1, 1, 1) + b"s" * 16
    return {
        "attach": bytes([PERFECT_ATTACH, PROGRESS]) + text(page) + bytes([PUSH, 3, RECEIVE, END]),
        "twice": bytes([PERFECT_ATTACH, PERFECT_ATTACH | SECOND, PERFECT_ATTACH]),
        "descriptors": bytes(
            [GOOD_ATTACH, 0, 0, GOOD_ATTACH, 253, 0, GOOD_ATTACH, 1, 3, GOOD_ATTACH, 2, 128]
        ),
        "wrong": bytes([GUESSED_SECRET, 3, 1, 1, 0, OTHER_SESSION])
        + struct.pack("<Q", 1)
        + bytes([1, 0]),
        "packets": bytes([PACKET])
        + text(attach)
        + bytes([1, 0, ATTACH])
        + text(attach[8:])
        + bytes([1, 0]),
        "ends": bytes(
            [
                PERFECT_ATTACH | AT_ONCE,
                CLOSE_THRIFT,
                BEGIN,
                1,
                GOOD_ATTACH | SECOND,
                1,
                0,
                STOP | SECOND,
            ]
        ),
        "full": bytes([PERFECT_ATTACH, PUSH | AT_ONCE, 255, PUSH | AT_ONCE, 255, FD_HANG_UP]),
    }


# --- client_reads_fuzz

TAKES_FDS, HONEST_HELLO, TWO_COPY_THREADS, FOR_EVER = 1, 2, 4, 8
RESULT, ANY_FRAME, BYTES, HALF, HANGS_UP, ERROR, SILENCE, TWO_RESULTS = range(8)
ONE_PACKET = 8
SLAB, FILE, ATTACHED, ANY_PACKET = range(4)
LOAD, SAVE, ASK = range(3)


def calls(options: int, *wanted: tuple[int, int]) -> bytes:
    return bytes([options, len(wanted) - 1]) + b"".join(bytes(one) for one in wanted)


def result(name: str, value: object, packet: bytes = b"") -> bytes:
    body = encoded(getattr(Cairn, f"{name}_result")(success=value))
    return bytes([RESULT | (ONE_PACKET if packet else 0)]) + packet + text(body)


def crc32c_of_zeros(length: int) -> int:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    crc = 0xFFFFFFFF
    for _ in range(length):
        crc = table[crc & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return crc - (1 << 32) if crc >= 1 << 31 else crc


FACTS = ttypes.Facts(complete=True, resident=True)
OF_CHECKPOINT = {"step": 3, "attempt": ATTEMPT, "revision": 0}
CLIENT = TAKES_FDS | HONEST_HELLO


def object_of(length: int) -> ttypes.ObjectInfo:
    crcs = [crc32c_of_zeros(length)]
    return ttypes.ObjectInfo(
        name="object", writer=0, kind=0, length=length, level=1, block_crcs=crcs, facts=FACTS
    )


def loads_and_saves() -> dict[str, bytes]:
    lent = ttypes.OpenReply(
        lease=1,
        slab=1,
        slab_bytes=SLAB_BYTES,
        offset=0,
        object=object_of(SLAB_BYTES),
        exact=True,
        fd_sent=True,
        **OF_CHECKPOINT,
    )
    chunked = ttypes.OpenReply(lease=1, slab=0, offset=0, object=object_of(500), **OF_CHECKPOINT)
    extent = ttypes.Extent(lease=1, slab=1, slab_bytes=SLAB_BYTES, offset=0, length=SLAB_BYTES)
    created = ttypes.CreateReply(extents=[extent], retire=[])
    slab, file = bytes([SLAB, 1, 1, 0]), bytes([FILE, 1, 0])
    return {
        "read": calls(CLIENT | TWO_COPY_THREADS, (LOAD, 0)) + result("open", lent, slab),
        "map": calls(CLIENT, (LOAD, 3)) + result("open", lent, slab),
        "path": calls(CLIENT, (LOAD, 7)) + result("open", lent, file),
        "chunks": calls(HONEST_HELLO, (LOAD, 2))
        + result("open", chunked)
        + result("readChunk", b"\0" * 500),
        "save": calls(CLIENT, (SAVE, 0))
        + result("create", created, slab)
        + result("commit", ttypes.CommitReply(digest="d", complete=True)),
        "retire": calls(CLIENT, (SAVE, 0))
        + result("create", ttypes.CreateReply(extents=[], retire=[1, 2])) * 2
        + result("create", created, slab),
    }


def questions() -> dict[str, bytes]:
    checkpoint = ttypes.CheckpointInfo(world_size=1, level=1, facts=FACTS, **OF_CHECKPOINT)
    latest = ttypes.Latest(world_size=1, digest="d", source=1, **OF_CHECKPOINT)
    files = [ttypes.FilesFate(bytes=9, now=True, why="w", **OF_CHECKPOINT)]
    listed = ttypes.ListReply(
        jobs=["job"], checkpoints=[checkpoint], objects=[object_of(1)], next_cursor="x"
    )
    another = ttypes.ListReply(jobs=[], checkpoints=[], objects=[], next_cursor="y")
    status = ttypes.NodeStatus(
        node="n",
        sessions=[ttypes.SessionStatus(session=1)],
        quarantined=[ttypes.QuarantineStatus(slab=1, pids=[1])],
        jobs=[ttypes.JobStatus(job="job", policy=ttypes.JobPolicy())],
        counters={"c": 1},
    )
    lies = [
        bytes([HALF]) + struct.pack("<I", 60 << 20) + text(b"\x80\x01"),
        bytes([ANY_FRAME]) + text(b"\x80\x01\0\x02\0\0\0\x06latest\0\0\0\0\x0b\0\x63\x40\0\0\0"),
        bytes([ERROR, 14]) + text(b"away"),
        bytes([HANGS_UP, SILENCE]),
    ]
    hello = ttypes.HelloReply(protocol=1, session=1, secret=b"s" * 16, fd_socket="")
    return {
        "ask": calls(CLIENT, (ASK, 3), (ASK, 4), (ASK, 7))
        + result("statCheckpoint", checkpoint)
        + result("stat", object_of(1))
        + result("wait", checkpoint),
        "list": calls(CLIENT, (ASK, 5)) + result("ls", listed),
        "endless": calls(CLIENT | FOR_EVER, (ASK, 5))
        + result("ls", listed)
        + result("ls", another),
        "status": calls(CLIENT, (ASK, 9), (ASK, 8))
        + result("status", status)
        + result("previewPolicy", ttypes.PolicyPreview(files=files)),
        "lies": calls(CLIENT, (ASK, 0), (ASK, 10)) + b"".join(lies),
        "hello": calls(TAKES_FDS, (ASK, 0))
        + result("hello", hello)
        + bytes([ATTACHED, 0, 2])
        + result("latest", latest),
    }


# --- peer_message_fuzz

MESSAGE, MEMBER, QUESTION, GRANTED = range(4)


DIGEST = "0123456789abcdef" * 2
PART = peer.Part(step=3, attempt=ATTEMPT, revision=0, writer=1)
CHECKPOINT = peer.Checkpoint(step=3, attempt=ATTEMPT, revision=0)
OLDER = peer.Checkpoint(step=2, attempt=ATTEMPT, revision=0)
A_MEMBER = peer.Member(rank=1, incarnation=5, instance=b"i" * 16)
OF_PART = {"job": "job", "part": PART, "digest": DIGEST}
OWNER = {"owner_uid": 1000, "owner_gid": -2}
REPORTED_ATTEMPT = peer.ReportedAttempt(
    attempt=ATTEMPT, first=1, lineage=struct.pack("<BIqqqq", 1, 2, 6, 5, 4, 3), unix_ms=1
)


def peer_report() -> object:
    return peer.Report(
        job="job",
        after=4,
        number=5,
        owned=True,
        policy=ttypes.JobPolicy(),
        attempts=[REPORTED_ATTEMPT],
        attempts_gone=[3],
        parts=[
            peer.ReportedPart(
                part=PART,
                world_size=2,
                digest=DIGEST,
                role=1,
                owner=1,
                bytes=7,
                in_memory=True,
                stored=False,
                names=struct.pack("<QQ", 1, 2),
            )
        ],
        parts_gone=[peer.Part(step=1, attempt=ATTEMPT, revision=0, writer=0)],
        writers=[
            peer.ReportedWriter(
                attempt=ATTEMPT,
                writer=1,
                reached_step=3,
                reached_revision=0,
                alive=True,
                given_up=[1, 0, 2, 1],
                world_size=2,
            )
        ],
        writers_gone=[peer.WriterId(attempt=3, writer=1, world_size=2)],
        published=[OLDER],
        published_gone=[CHECKPOINT],
        target=CHECKPOINT,
        **OWNER,
    )


def peer_verdict() -> object:
    of_checkpoint = peer.CheckpointVerdict(
        checkpoint=CHECKPOINT,
        world_size=2,
        complete=True,
        digest=DIGEST,
        bytes=7,
        in_memory=True,
        stored=False,
        replicas=1,
        hopeless=False,
        conflict="",
    )
    return peer.Verdict(
        job="job",
        reports=[peer.RestsOn(number=5, member=A_MEMBER)],
        silent=[2],
        conclusive=True,
        head=ATTEMPT,
        head_decided=False,
        checkpoints=[of_checkpoint],
        latest=CHECKPOINT,
        protect=OLDER,
        target=CHECKPOINT,
        asked=1,
        why="",
        owned=True,
        policy=ttypes.JobPolicy(),
        attempts=[REPORTED_ATTEMPT],
        **OWNER,
    )


def peer_message() -> dict[str, bytes]:
    want = peer.Want(manifest_bytes=9, bytes=4096, world_size=2, target=True, **OF_PART, **OWNER)
    haves = [peer.Have(state=state, why="why", done_bytes=state, **OF_PART) for state in range(3)]
    releases = [
        peer.Release(fate=fate, by=CHECKPOINT if fate == 3 else None, **OF_PART)
        for fate in range(4)
    ]
    of_step = {"job": "job", "checkpoint": CHECKPOINT, "name": "a/b"}
    place = peer.Place(writer=1, digest=DIGEST, world_size=2, bytes=4096, owner=1, holders=[0, 2])
    messages = {
        "want_list": peer.WantList(version=1, wants=[want]),
        "have_list": peer.HaveList(wants_version=1, version=2, haves=haves),
        "release_list": peer.ReleaseList(haves_version=2, releases=releases),
        "report": peer_report(),
        "report_wanted": peer.ReportWanted(job="job"),
        "verdict": peer_verdict(),
        "verdict_wanted": peer.VerdictWanted(job="job"),
        "record": peer.Record(job="job", encoded=b"decisions", number=7),
        "record_held": peer.RecordHeld(job="job", number=7),
        "places_wanted": peer.PlacesWanted(**of_step),
        "places": peer.PlacesSaid(places=[place], **of_step),
    }
    granted = peer.Granted(
        grant=1, token=b"t" * 16, manifest=b"manifest", regions=[b"a", b""], valid_ms=10_000
    )
    return {
        **{
            kind: bytes([MESSAGE]) + encoded(peer.Message(**{kind: value}))
            for kind, value in messages.items()
        },
        "two_kinds": bytes([MESSAGE])
        + encoded(peer.Message(record=messages["record"], verdict=messages["verdict"])),
        "member": bytes([MEMBER]) + encoded(A_MEMBER),
        "question": bytes([QUESTION]) + encoded(peer.GrantQuestion(timeout_ms=1, **OF_PART)),
        "granted": bytes([GRANTED]) + encoded(granted),
    }


# --- tcp_wire_fuzz

OPENING, OPENED, ASKED, ANSWER, REGION, CONVERSATION = range(6)
RIGHT_CHECKSUMS = 0x80
GOOD_TOKEN = b"\xff" * 16


def opening(version: int = 1, rank: int = 1) -> bytes:
    return b"CAIRNDAT" + struct.pack("<HHiqII", version, 0, rank, 7, 0, 0)


def question(
    sequence: int = 1,
    token: bytes = GOOD_TOKEN,
    slab: int = 3,
    offset: int = 4096,
    length: int = 100,
) -> bytes:
    head = b"READ" + struct.pack("<IQ", 0, sequence) + token
    return head + struct.pack("<QQII", slab, offset, length, 0)


def answer(sequence: int, code: int, length: int) -> bytes:
    return b"DATA" + struct.pack("<HHQII", code, 0, sequence, length, 0)


def tcp_wire() -> dict[str, bytes]:
    def right(kind: int, *frames: bytes) -> bytes:
        return bytes([RIGHT_CHECKSUMS | kind]) + b"".join(frames)

    refusals = [
        question(1),
        question(2, offset=0),
        question(3, token=b"\1" * 16),
        question(4, offset=12287, length=1),
        question(5, offset=12287, length=2),
        question(6, slab=4),
        question(7, offset=2**64 - 1, length=2),
    ]
    return {
        "opening": right(OPENING, opening()),
        "opened": right(OPENED, b"CAIRNDAT" + struct.pack("<HHI", 1, 12, 0)),
        "question": right(ASKED, question()),
        "wrong_checksum": bytes([ASKED]) + question(),
        "answer": right(ANSWER, answer(9, 0, 100)),
        "refusal": right(ANSWER, answer(9, 7, 0)),
        "region": bytes([REGION]) + struct.pack("<QQQ", 3, 4096, 8192),
        "read": right(CONVERSATION, opening(), question()),
        "reads_and_refusals": right(CONVERSATION, opening(), *refusals),
        "stranger": right(CONVERSATION, opening(), question(token=b"\2" * 16), question()),
        "another_peer": right(CONVERSATION, opening(rank=2), question()),
        "another_version": right(CONVERSATION, opening(version=2), question()),
        "half_a_question": right(CONVERSATION, opening(), question(), question()[:30]),
        "nonsense": bytes([CONVERSATION]) + b"GET / HTTP/1.1\r\n\r\n",
    }


def main() -> None:
    for name, seeds in (
        ("thrift_socket", thrift_socket()),
        ("fd_socket", fd_socket()),
        ("client_reads", {**loads_and_saves(), **questions()}),
        ("peer_message", peer_message()),
        ("tcp_wire", tcp_wire()),
    ):
        folder = CORPUS / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for seed, data in seeds.items():
            (folder / seed).write_bytes(data)
    shutil.rmtree(_types)


if __name__ == "__main__":
    main()
