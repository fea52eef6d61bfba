#!/usr/bin/env python3
"""flood.py SOCKET UID CGROUP [--ways WAY...] [--spin]: one user does to a node whatever he can.

A process for each way of WAYS, all of uid UID and in the cgroup (v1 or v2) at CGROUP; needs root to become
so. Says "ready" when each has got through to the daemon. When its input ends it kills them and prints as
JSON, for each way, how many calls were answered, how many of those were refused, and how often a connection
was cut off, by either side.

With --spin they only use their processors: what part of a disturbance is not the daemon's.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "faults"))
from cairn_raw import CACHED, MAP, Cairn, Raw, header, send_fds, ttypes
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TTransport import TFramedTransport, TMemoryBuffer

KIB, MIB = 1 << 10, 1 << 20
JOB = "flood"
FIELDS = ("answered", "refused", "ended")
NEVER = 1 << 40  # a step that nobody saves
# Stand in a frame that is encoded once, for what each sending of it has anew.
CALL, STEP = 0x61B0_A55E_E0D0_0D11, 0x61B0_A005_7E90_0D22

# --- frames ----------------------------------------------------------------------------------------------


def frame(method: str, *arguments: Any) -> bytes:
    buffer = TMemoryBuffer()
    getattr(Cairn.Client(TBinaryProtocol(TFramedTransport(buffer))), f"send_{method}")(*arguments)
    return bytes(buffer.getvalue())


def numbered(template: bytes, call: int, step: int = 0) -> bytes:
    by_call = template.replace(struct.pack(">q", CALL), struct.pack(">q", call))
    return by_call.replace(struct.pack(">q", STEP), struct.pack(">q", step))


def hello(attempt: int = 0) -> bytes:
    """Of a session without descriptors: a reader, or with an attempt the job's only writer."""
    request = ttypes.HelloRequest(
        protocol=1,
        job=JOB,
        attempt=attempt,
        writer=0 if attempt else -1,
        world_size=1 if attempt else 0,
        process=os.urandom(16),
        takes_fds=False,
        client="flood",
    )
    return frame("hello", request)


def is_refusal(answer: bytes) -> bool:
    """In the struct of a result, field 0 is what was asked for, and field 1 the error."""
    at = 12 + int.from_bytes(answer[8:12], "big") + 4
    return answer[7] == 3 or (answer[at] != 0 and answer[at + 1 : at + 3] == b"\0\1")


class Flood:
    """Where to, and the counters of one way, which the parent reads."""

    def __init__(self, path: str, counters: mmap.mmap, place: int) -> None:
        self.path, self.counters, self.place = path, counters, place

    def count(self, field: str, by: int = 1) -> None:
        at = 8 * (len(FIELDS) * self.place + FIELDS.index(field))
        (had,) = struct.unpack_from("<Q", self.counters, at)
        struct.pack_into("<Q", self.counters, at, had + by)


class Connection:
    """Sends frames many at once, and only counts their answers."""

    def __init__(self, flood: Flood, first: bytes = b"") -> None:
        self.flood = flood
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(5)
        self.socket.connect(flood.path)
        self.unread = bytearray()
        if first:
            self.do(first)

    def send(self, frames: bytes) -> None:
        self.socket.sendall(frames)

    def read(self, answers: int) -> int:
        """Until so many have come; returns how many of them were refusals."""
        refused = at = 0
        for _ in range(answers):
            while len(self.unread) < (end := at + 4) or len(self.unread) < (
                end := end + int.from_bytes(self.unread[at : at + 4], "big")
            ):
                got = self.socket.recv(256 * KIB)
                if not got:
                    raise EOFError
                self.unread += got
            refused += is_refusal(bytes(self.unread[at:end]))
            at = end
        del self.unread[:at]
        self.flood.count("answered", answers)
        self.flood.count("refused", refused)
        return refused

    def do(self, frames: bytes, answers: int = 1) -> int:
        self.send(frames)
        return self.read(answers)

    def close(self) -> None:
        self.socket.close()


# --- ways ------------------------------------------------------------------------------------------------
# Each goes on until its connection breaks, and is then begun anew.


def small_calls(flood: Flood) -> None:
    connections = [Connection(flood, hello()) for _ in range(4)]
    nothing = ttypes.CheckpointRef(JOB, NEVER, 0, -1)
    calls = [
        frame("ping"),
        frame("stat", nothing, "a", 0),
        frame("statCheckpoint", nothing, 0),
        frame("ls", "", "", 10, 0),
        frame("renew", [1]),
    ]
    while True:
        for connection in connections:
            connection.send(b"".join(calls) * 20)
        for connection in connections:
            connection.read(len(calls) * 20)


def status_calls(flood: Flood) -> None:
    connections = [Connection(flood, hello()) for _ in range(4)]
    while True:
        for connection in connections:
            connection.send(frame("status") * 4)
        for connection in connections:
            connection.read(4)


def small_objects(flood: Flood) -> None:
    """A step of a thousand objects, and twenty of one, again and again. Of those before, a few are kept: that
    one user can fill memory is known (docs/security.md), and would hide all else."""
    attempt = time.time_ns() // 1_000_000
    connection = Connection(flood, hello(attempt))

    def saving(objects: int) -> tuple[bytes, bytes]:
        names = [f"layer.{i}" for i in range(objects)]
        specs = [ttypes.ObjectSpec(name, 1, 0, False) for name in names]
        create = ttypes.CreateRequest(STEP, attempt, 0, 0, 1, specs, 1000, [])
        seals = [ttypes.SealedObject(name, 1, [0x527D_5351], [0, 1]) for name in names]
        commit = ttypes.CommitRequest(STEP, attempt, 0, 0, 1, seals, {}, [])
        return frame("create", CALL, create), frame("commit", CALL, commit)

    steps = [saving(1000)] + [saving(1)] * 20
    remove = frame("remove", CALL, ttypes.CheckpointRef(JOB, STEP, 0, -1), False, True, 0)
    kept = 4 * len(steps)
    call = step = 0
    while True:
        frames = b""
        for create, commit in steps:
            step += 1
            frames += numbered(create, call + 1, step) + numbered(commit, call + 2, step)
            frames += numbered(remove, call + 3, max(0, step - kept))
            call += 3
        connection.do(frames, 3 * len(steps))


def an_object_to_open(flood: Flood) -> bytes:
    """Saves it in a job of this process's own; returns the frame that opens it."""
    job = f"{JOB}-{os.getpid()}"
    with Raw(flood.path, job, time.time_ns() // 1_000_000, 0, 1) as writer:
        writer.save(1, {"a": b"x"})
    ref = ttypes.CheckpointRef(job, 1, 0, -1)
    return frame("open", CALL, ttypes.OpenRequest(ref, "a", MAP, 1000))


def leases_unread(flood: Flood) -> None:
    """With an fd channel that nobody reads, until the daemon will not put more into it."""
    opening = an_object_to_open(flood)
    while True:
        with Raw(flood.path) as reader:
            connection = Connection(flood)
            connection.do(frame("rejoin", reader.hello.session, reader.hello.secret))
            call = refused = 0
            while refused < 1000:
                batch = b"".join(numbered(opening, call + i) for i in range(1, 65))
                refused += connection.do(batch, 64)
                call += 64
            connection.close()


def leases_held(flood: Flood) -> None:
    """Without a channel: up to as many as one user may have, all given back at once."""
    opening = an_object_to_open(flood)
    while True:
        connection = Connection(flood, hello())
        call = refused = 0
        while refused == 0 and call < 200_000:
            batch = b"".join(numbered(opening, call + i) for i in range(1, 65))
            refused += connection.do(batch, 64)
            call += 64
        connection.close()


def waits(flood: Flood) -> None:
    """Two hundred calls that park, half of which are left rather than answered."""
    ref = ttypes.CheckpointRef(JOB, NEVER, 0, -1)
    waiting = frame("wait", ref, CACHED, 100, -1, 0, -1)
    while True:
        connections = [Connection(flood, hello()) for _ in range(200)]
        for _ in range(3):
            for connection in connections:
                connection.send(waiting)
            for connection in connections[:100]:
                connection.read(1)
            for connection in connections[100:]:
                connection.close()
            connections[100:] = [Connection(flood, hello()) for _ in range(100)]
        for connection in connections:
            connection.close()


def connections_to_the_limit(flood: Flood) -> None:
    """Up to all that one user may have; then the oldest five hundred go and others come."""
    held: list[Connection] = []
    while True:
        while len(held) < 8000:
            connection = Connection(flood)
            held.append(connection)
            if connection.do(frame("ping")) > 0:
                break
        for connection in held[:500]:
            connection.close()
        del held[:500]


def half_frames(flood: Flood) -> None:
    """Messages of 8 MiB of which 512 KiB come, then a byte at a time; and lengths of which half comes."""
    while True:
        halves = [Connection(flood, hello()) for _ in range(64)]
        for half in halves:
            half.socket.setblocking(False)
        for half in halves[:32]:
            half.send(b"\0\0")
        for half in halves[32:]:
            half.send((8 * MIB).to_bytes(4, "big"))
        begin = time.monotonic()
        while time.monotonic() - begin < 2:
            for half in halves[32:]:
                try:
                    half.socket.send(bytes(16 * KIB))
                except (BlockingIOError, BrokenPipeError):
                    pass  # it is full, or was all there and no message
        for half in halves:
            half.close()
            flood.count("ended")


def garbage(flood: Flood) -> None:
    """What no client sends, on both sockets; every time on a new connection."""
    one_lease = struct.pack(">biq", 10, 1, 7)  # of i64, one, 7
    huge_list = frame("renew", [7]).replace(one_lease, struct.pack(">biq", 10, (1 << 31) - 1, 7))
    frames = [
        b"\x7f\xff\xff\xff" + bytes(64),  # a length beyond any limit
        (32 * KIB).to_bytes(4, "big") + os.urandom(32 * KIB),  # a message that is none
        b"GET / HTTP/1.1\r\n\r\n",
        huge_list,
    ]
    null = os.open("/dev/null", os.O_RDONLY)
    while True:
        for bytes_sent in frames:
            connection = Connection(flood)
            connection.send(bytes_sent)
            try:
                connection.socket.settimeout(0.2)
                connection.socket.recv(KIB)
            except OSError:
                pass
            connection.close()
            flood.count("ended")
        packets = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        packets.settimeout(1)
        packets.connect(flood.path + ".fd")
        send_fds(packets, header(1) + os.urandom(24), [null] * 200)
        packets.close()
        flood.count("ended")


WAYS: tuple[Callable[[Flood], None], ...] = (
    small_calls,
    status_calls,
    small_objects,
    leases_unread,
    leases_held,
    waits,
    connections_to_the_limit,
    half_frames,
    garbage,
)

# --- processes -------------------------------------------------------------------------------------------


def become(uid: int, cgroup: Path) -> None:
    (cgroup / "cgroup.procs").write_text(str(os.getpid()))
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    # After setuid, which forgets it.
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def run_way(way: Callable[[Flood], None], flood: Flood) -> None:
    said = False
    while True:
        try:
            way(flood)
        except Exception as error:  # whatever the daemon does to it, it goes on
            if not said:
                sys.stderr.write(f"flood: {way.__name__}: {type(error).__name__}: {error}\n")
                said = True
            flood.count("ended")
            time.sleep(0.01)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("socket")
    parser.add_argument("uid", type=int)
    parser.add_argument("cgroup", type=Path)
    names = [way.__name__ for way in WAYS]
    parser.add_argument("--ways", nargs="+", choices=names, default=names, help="only these")
    parser.add_argument("--spin", action="store_true")
    options = parser.parse_args()
    ways = [way for way in WAYS if way.__name__ in options.ways]
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    counters = mmap.mmap(-1, 8 * len(FIELDS) * len(ways))
    pids = []
    for place, way in enumerate(ways):
        pid = os.fork()
        if pid == 0:
            try:
                become(options.uid, options.cgroup)
                while options.spin:
                    pass
                run_way(way, Flood(options.socket, counters, place))
            finally:
                os._exit(1)
        pids.append(pid)

    def counted() -> list[tuple[int, ...]]:
        numbers = struct.unpack(f"<{len(FIELDS) * len(ways)}Q", counters)
        return [numbers[len(FIELDS) * i : len(FIELDS) * (i + 1)] for i in range(len(ways))]

    deadline = time.monotonic() + (0 if options.spin else 20)
    while time.monotonic() < deadline and not all(map(any, counted())):
        time.sleep(0.02)
    print("ready", flush=True)
    sys.stdin.read()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)
    report = {
        way.__name__: dict(zip(FIELDS, numbers, strict=True))
        for way, numbers in zip(ways, counted(), strict=True)
    }
    print(json.dumps(report), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
