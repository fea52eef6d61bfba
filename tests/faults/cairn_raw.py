"""A client of both sockets, written from proto/README.md alone: no line of libcairn is in it.

The fault tests use it because it does what a well-behaved library never would: it keeps descriptors,
scribbles after sealing, repeats calls, lies about lengths. Errors of the daemon arrive as CairnError.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import inspect
import itertools
import mmap
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from patience import patient

ROOT = Path(__file__).resolve().parents[2]
BLOCK = 4 << 20
NO_STEP = -1
PATIENCE_MS = int(patient(10_000))  # how long a call may take

INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, ALREADY_EXISTS = 3, 4, 5, 6
PERMISSION_DENIED, RESOURCE_EXHAUSTED, FAILED_PRECONDITION = 7, 8, 9
UNIMPLEMENTED, UNAVAILABLE, DATA_LOSS = 12, 14, 15

WRITING, CACHED, REPLICATED, PERSISTED, EVICTED, BROKEN = range(6)
MAP, FILE, READ = 1, 2, 3


def _generate() -> Path:
    """Python types of the contract, made once per test run."""
    folder = Path(tempfile.mkdtemp(prefix="cairn-thrift-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    subprocess.run(
        ["thrift", "--gen", "py", "-out", str(folder), str(ROOT / "proto" / "cairn.thrift")],
        check=True,
    )
    return folder


sys.path.insert(0, str(_generate()))
from cairn_wire import Cairn, ttypes  # noqa: E402
from thrift.protocol.TBinaryProtocol import TBinaryProtocol  # noqa: E402
from thrift.transport.TSocket import TSocket  # noqa: E402
from thrift.transport.TTransport import TFramedTransport, TTransportException  # noqa: E402, F401

_isal = ctypes.CDLL("libisal.so.2")
_isal.crc32_iscsi.restype = ctypes.c_uint32
_isal.crc32_iscsi.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32]


def crc32c(data: bytes | bytearray | memoryview) -> int:
    raw = bytes(data)
    return _isal.crc32_iscsi(raw, len(raw), 0xFFFFFFFF) ^ 0xFFFFFFFF


def block_crcs(data: bytes) -> list[int]:
    """As they travel: the bit pattern of a u32 in an i32."""
    crcs = [crc32c(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)]
    return [crc - (1 << 32) if crc >= 1 << 31 else crc for crc in crcs]


def pattern(tag: str, length: int) -> bytes:
    """Bytes that belong to one object and no other, cheap at any length."""
    seed = struct.pack("<Q", crc32c(tag.encode()) << 16 | len(tag))
    unit = b"".join(struct.pack("<Q", i) + seed for i in range(256))
    return (unit * (length // len(unit) + 1))[:length]


class CairnError(Exception):
    def __init__(self, code: int, message: str, superseded_by: int = 0) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.superseded_by = code, message, superseded_by


MAGIC, VERSION = 0x4E524143, 1
ATTACH, ATTACHED, SLAB_FD, FILE_FD = 1, 2, 3, 4


def header(kind: int, magic: int = MAGIC, version: int = VERSION) -> bytes:
    return struct.pack("<IHH", magic, version, kind)


def send_fds(channel: socket.socket, data: bytes, fds: Iterable[int]) -> None:
    fds = list(fds)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    channel.sendmsg([data], ancillary)


class Raw:
    """One session. Calls are the contract's; `call` numbers count by themselves unless given."""

    def __init__(
        self,
        path: str,
        job: str = "",
        attempt: int = 0,
        writer: int = -1,
        world_size: int = 0,
        *,
        local_writers: int = 1,
        process: bytes | None = None,
        takes_fds: bool = True,
        attach: bool = True,
        protocol: int = 1,
        policy: Any = None,
        timeout_s: float = patient(30),
        fence: bool = True,  # its attempt waits for nobody of an older one
    ) -> None:
        self.job, self.attempt, self.writer, self.world_size = job, attempt, writer, world_size
        self.path, self.timeout_s = path, timeout_s
        self.process = process or os.urandom(16)
        self.calls = itertools.count(1)
        self.slabs: dict[int, int] = {}  # our descriptors of them
        self.leases: dict[int, int] = {}  # a reader's, by lease
        self.arrived: dict[int, int] = {}  # come, and not asked for yet, by lease
        self.maps: dict[int, mmap.mmap] = {}
        self.unmapped: list[int] = []
        self.channel: socket.socket | None = None
        self.progress: mmap.mmap | None = None
        self._connect()
        self.fence = fence
        self.hello = self.do(
            "hello",
            ttypes.HelloRequest(
                protocol=protocol,
                job=job,
                attempt=attempt,
                writer=writer,
                world_size=world_size,
                local_writers=local_writers,
                process=self.process,
                takes_fds=takes_fds,
                policy=policy,
                client=f"fault test, pid {os.getpid()}",
            ),
        )
        if takes_fds and attach:
            self.attach()

    def _connect(self) -> None:
        self.socket = TSocket(unix_socket=self.path)
        self.socket.setTimeout(self.timeout_s * 1000)
        self.transport = TFramedTransport(self.socket)
        self.client = Cairn.Client(TBinaryProtocol(self.transport))
        self.transport.open()

    def attach(self, pidfd: int | None = None) -> None:
        self.channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.settimeout(self.timeout_s)
        # As in libcairn: in another mount namespace the two sockets are side by side, too.
        there = os.path.exists(self.hello.fd_socket)
        self.channel.connect(self.hello.fd_socket if there else f"{self.path}.fd")
        own = os.pidfd_open(os.getpid()) if pidfd is None else pidfd
        body = header(ATTACH) + struct.pack("<Q16s", self.hello.session, self.hello.secret)
        send_fds(self.channel, body, [own])
        if pidfd is None:
            os.close(own)
        data, fds = self.receive()
        if not data:
            raise EOFError("the daemon died before it answered")
        _, _, kind, code = struct.unpack("<IHHi", data[:12])
        assert kind == ATTACHED, data
        if code != 0:
            raise CairnError(code, "attach refused")
        if fds:
            self.progress = mmap.mmap(fds[0], mmap.PAGESIZE)
            os.close(fds[0])

    def receive(self) -> tuple[bytes, list[int]]:
        assert self.channel is not None
        data, ancillary, _, _ = self.channel.recvmsg(
            512, socket.CMSG_SPACE(4 * 4), socket.MSG_CMSG_CLOEXEC
        )
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) // 4 * 4])
        return data, list(fds)

    def do(self, method: str, *arguments: Any) -> Any:
        """A `timeout_ms` at the end that is not given is 0, as in the contract, of which Thrift's Python
        knows no defaults."""
        called = getattr(self.client, method)
        names = list(inspect.signature(called).parameters)
        if names[len(arguments) :] == ["timeout_ms"]:
            arguments += (0,)
        try:
            return called(*arguments)
        except ttypes.Error as error:
            raise CairnError(error.code, error.message, error.superseded_by or 0) from None

    def change(self, method: str, *arguments: Any, call: int | None = None) -> Any:
        return self.do(method, next(self.calls) if call is None else call, *arguments)

    def reconnect(self) -> None:
        """As after a lost connection: the same session by its secret; the fd channel is still there."""
        self.transport.close()
        self._connect()
        self.do("rejoin", self.hello.session, self.hello.secret)

    def _take(self, lease: int) -> int:
        """The descriptor that came with `lease`; those of other calls may stand before it."""
        while lease not in self.arrived:
            data, fds = self.receive()
            if not data:
                raise CairnError(UNAVAILABLE, "the fd channel closed")
            _, _, kind, got, _, _ = struct.unpack("<IHHQQQ", data)
            assert kind in (SLAB_FD, FILE_FD) and len(fds) == 1, (kind, fds)
            if got in self.arrived:  # a repeated call sends it again
                os.close(self.arrived.pop(got))
            self.arrived[got] = fds[0]
        return self.arrived.pop(lease)

    # --- saving ---------------------------------------------------------------------------------------

    def create(
        self,
        step: int,
        objects: dict[str, int],
        *,
        revision: int = 0,
        timeout_ms: int = PATIENCE_MS,
        call: int | None = None,
        can_pad: bool = False,
        to_come: tuple[int, int, int] | None = None,  # objects, bytes, bytes of names
        **other: int,
    ) -> Any:
        specs = [ttypes.ObjectSpec(name, length, 0, can_pad) for name, length in objects.items()]
        unmapped, self.unmapped = self.unmapped, []
        reply = self.change(
            "create",
            ttypes.CreateRequest(
                step=step,
                attempt=other.get("attempt", self.attempt),
                revision=revision,
                writer=other.get("writer", self.writer),
                world_size=other.get("world_size", self.world_size),
                objects=specs,
                timeout_ms=timeout_ms,
                unmapped=unmapped,
                to_come=ttypes.ToCome(*to_come) if to_come else None,
                fence=self.fence,
            ),
            call=call,
        )
        for slab in reply.retire or []:
            self.unmap(slab)
        if reply.retire and objects and not reply.extents:
            return self.create(  # what this session maps had to go first
                step, objects, revision=revision, timeout_ms=timeout_ms, can_pad=can_pad, **other
            )
        return reply

    def unmap(self, slab: int) -> None:
        mapping = self.maps.pop(slab, None)
        if mapping is not None:
            mapping.close()
        fd = self.slabs.pop(slab, None)
        if fd is not None:
            os.close(fd)
        self.unmapped.append(slab)

    def map(self, extent: Any) -> mmap.mmap:
        if extent.slab not in self.slabs:
            self.slabs[extent.slab] = self._take(extent.lease)
        if extent.slab not in self.maps:
            self.maps[extent.slab] = mmap.mmap(self.slabs[extent.slab], extent.slab_bytes)
        return self.maps[extent.slab]

    def fill(self, extent: Any, data: bytes) -> None:
        if data:
            self.map(extent)[extent.offset : extent.offset + len(data)] = data

    @staticmethod
    def sealed(name: str, data: bytes, **other: Any) -> Any:
        return ttypes.SealedObject(
            name=name,
            length=other.get("length", len(data)),
            block_crcs=other.get("block_crcs", block_crcs(data)),
            covered=other.get("covered", [0, len(data)] if data else []),
        )

    def seal(
        self,
        step: int,
        seals: list[Any],
        *,
        revision: int = 0,
        call: int | None = None,
        **other: int,
    ) -> None:
        self.change(
            "seal",
            ttypes.SealRequest(
                step,
                other.get("attempt", self.attempt),
                revision,
                other.get("writer", self.writer),
                seals,
            ),
            call=call,
        )

    def commit(
        self,
        step: int,
        seals: list[Any] | None = None,
        *,
        revision: int = 0,
        call: int | None = None,
        **other: int,
    ) -> Any:
        unmapped, self.unmapped = self.unmapped, []
        return self.change(
            "commit",
            ttypes.CommitRequest(
                step=step,
                attempt=other.get("attempt", self.attempt),
                revision=revision,
                writer=other.get("writer", self.writer),
                world_size=other.get("world_size", self.world_size),
                seals=seals or [],
                notes={},
                unmapped=unmapped,
                fence=self.fence,
            ),
            call=call,
        )

    def write(self, step: int, objects: dict[str, bytes], **options: Any) -> list[Any]:
        """Creates and fills; returns what commit() takes."""
        reply = self.create(step, {name: len(data) for name, data in objects.items()}, **options)
        for extent, data in zip(reply.extents, objects.values(), strict=True):
            self.fill(extent, data)
        return [self.sealed(name, data) for name, data in objects.items()]

    def save(
        self, step: int, objects: dict[str, bytes], *, revision: int = 0, **options: Any
    ) -> Any:
        return self.commit(
            step, self.write(step, objects, revision=revision, **options), revision=revision
        )

    # --- finding and loading ------------------------------------------------------------------------------

    def ref(
        self, step: int = NO_STEP, job: str | None = None, attempt: int = 0, revision: int = -1
    ) -> Any:
        return ttypes.CheckpointRef(self.job if job is None else job, step, attempt, revision)

    def open(
        self,
        step: int,
        name: str,
        mode: int = MAP,
        *,
        job: str | None = None,
        attempt: int = 0,
        revision: int = -1,
        verify: bool = False,
        timeout_ms: int = PATIENCE_MS,
    ) -> Any:
        reply = self.change(
            "open",
            ttypes.OpenRequest(
                self.ref(step, job, attempt, revision), name, mode, timeout_ms, verify
            ),
        )
        if reply.fd_sent:
            self.leases[reply.lease] = self._take(reply.lease)
        return reply

    def release(self, reply: Any) -> None:
        fd = self.leases.pop(reply.lease, None)
        if fd is not None:
            os.close(fd)
        if reply.lease:
            self.change("release", [reply.lease])

    def load(self, step: int, name: str, **options: Any) -> bytes:
        """The object's bytes, every block compared with its checksum: DATA_LOSS otherwise."""
        reply = self.open(step, name, MAP, **options)
        try:
            data = self.read(reply)
            crcs = self.stat(
                reply.step,
                name,
                attempt=reply.attempt,
                revision=reply.revision,
                job=options.get("job"),
            ).block_crcs
            if block_crcs(data) != list(crcs):
                raise CairnError(DATA_LOSS, f"{name}: bytes do not match their checksums")
            return data
        finally:
            self.release(reply)

    def read(self, reply: Any) -> bytes:
        """All bytes of what `open` answered: from what it lent, else in chunks."""
        length = reply.object.length
        data = b""
        while len(data) < length:
            if reply.fd_sent:
                fd = self.leases[reply.lease]
                data += os.pread(fd, length - len(data), reply.offset + len(data))
            else:
                chunk = min(BLOCK, length - len(data))
                data += self.do("readChunk", reply.lease, len(data), chunk)
        return data

    def stat(self, step: int, name: str, **ref: Any) -> Any:
        return self.do("stat", self.ref(step, **ref), name)

    def checkpoint(self, step: int = NO_STEP, **ref: Any) -> Any:
        return self.do("statCheckpoint", self.ref(step, **ref))

    def latest(self, job: str | None = None) -> Any:
        return self.do("latest", self.job if job is None else job)

    def wait(
        self, step: int, level: int, timeout_ms: int = 2 * PATIENCE_MS, after: int = -1, **ref: Any
    ) -> Any:
        return self.do("wait", self.ref(step, **ref), level, timeout_ms, after, 0, -1)

    def persist(self, step: int) -> Any:
        self.change("persist", self.ref(step))
        return self.wait(step, PERSISTED)

    def status(self) -> Any:
        return self.do("status")

    # --- leaving --------------------------------------------------------------------------------------------

    def vanish(self) -> None:
        """Drops everything without a word, as a dying process does."""
        for mapping in self.maps.values():
            mapping.close()
        for fd in itertools.chain(self.slabs.values(), self.leases.values(), self.arrived.values()):
            os.close(fd)
        self.maps, self.slabs, self.leases, self.arrived = {}, {}, {}, {}
        if self.channel is not None:
            self.channel.close()
        self.transport.close()

    def __enter__(self) -> Raw:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.vanish()


def attempt_number() -> int:
    """Greater than any chosen before in this process."""
    return next(_attempts)


_attempts = itertools.count(1_000)


def refuses(code: int, what: Any, *arguments: Any, **options: Any) -> str:
    """Calls; the daemon must refuse with `code`. Returns the message, for what it must name."""
    try:
        answer = what(*arguments, **options)
    except CairnError as error:
        assert error.code == code, f"expected code {code}: {error}"
        return error.message
    raise AssertionError(f"accepted, with {answer!r}; code {code} was due")
