"""What the rows of rings are measured with: bytes that can be told apart, members at rest, and the transport
alone.

Members are real keepers and daemons on hosts of their own (tests/cluster/ring.py); this process saves and
loads, by libcairn.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cairn  # before cairn_raw, whose generated types lie in a folder of that name
import numpy

ROOT = Path(__file__).resolve().parents[2]
for folder in ("tests", "tests/faults", "hack/cluster", "tests/cluster"):
    sys.path.insert(0, str(ROOT / folder))
from cairn_raw import CairnError, Raw  # noqa: E402
from network import Network, unavailable  # noqa: E402
from ring import MIB, Member, Ring, attempt_number, ring, until  # noqa: E402

JOB, NAME = "bench", "checkpoint"
BLOCK = 4 * MIB
PATIENCE_S = 300
TRANSPORT_PORT = 7500
# A memory that other nodes read at less than this is on a machine that does something else.
ABSURD_TRANSPORT_MB_S = 250

__all__ = [
    "CairnError",
    "Raw",
    "ring",
    "unavailable",
]  # from here, for they lie in folders of their own


# --- bytes -----------------------------------------------------------------------------------------------


class Source:
    """Memory that is saved: other bytes, in every page, for every seed."""

    WORDS = BLOCK // 8

    def __init__(self, length: int) -> None:
        self.words = numpy.zeros(length // 8, numpy.uint64)
        self.random = numpy.frombuffer(os.urandom(2 * BLOCK), numpy.uint64)

    def _block(self, seed: int, block: int) -> Any:
        shift = (seed * 8191 + block) % self.WORDS
        return self.random[shift : shift + self.WORDS]

    def fill(self, seed: int) -> Source:
        for block in range(len(self.words) // self.WORDS):
            at = block * self.WORDS
            self.words[at : at + self.WORDS] = self._block(seed, block)
        return self

    def check(self, found: Any, seed: int) -> None:
        """Raises unless these are the bytes that `fill` writes for the seed."""
        words = numpy.frombuffer(found, numpy.uint64)
        if len(words) != len(self.words):
            raise RuntimeError(f"{len(words) * 8} bytes were read back, not {len(self.words) * 8}")
        for block in range(len(words) // self.WORDS):
            at = block * self.WORDS
            if not numpy.array_equal(words[at : at + self.WORDS], self._block(seed, block)):
                raise RuntimeError(f"read back a wrong byte in the 4 MiB at {at * 8}")

    @property
    def bytes(self) -> memoryview:
        return memoryview(self.words).cast("B")


# --- members ---------------------------------------------------------------------------------------------


def connect(member: Member, rank: int = -1, job: str = JOB) -> cairn.Connection:
    """Rank 0 is the job's trainer on that node, in an attempt of its own."""
    attempt = attempt_number() if rank == 0 else None
    return cairn.connect(
        job, rank=rank, world_size=1, attempt=attempt, socket=member.socket, timeout=PATIENCE_S
    )


def received(member: Member) -> int:
    """Bytes that have come to the node over its link."""
    return wire(member)[0]


def sent(member: Member) -> int:
    return wire(member)[1]


def wire(member: Member) -> tuple[int, int]:
    for line in Path(f"/proc/{member.daemon_pid()}/net/dev").read_text().splitlines():
        device, _, fields = line.partition(":")
        if device.strip() == "eth0":
            return int(fields.split()[0]), int(fields.split()[8])
    raise RuntimeError(f"node {member.rank} has no eth0")


def written(member: Member) -> int:
    """Bytes that the daemon has sent to the disk."""
    io = Path(f"/proc/{member.daemon_pid()}/io").read_text()
    return int(next(line.split()[1] for line in io.splitlines() if line.startswith("write_bytes:")))


def rest(r: Ring) -> None:
    """Until no daemon has memory to make ready, moves anything, or uses more than a tenth of a processor."""

    def ticks() -> int:
        total = 0
        for member in r:
            fields = Path(f"/proc/{member.daemon_pid()}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        return total

    def rests() -> bool:
        for member in r:
            status = member.status()
            busy = status.quarantined_bytes or status.ring.fetches_under_way
            if busy or not status.prefault_done:
                return False
        before = ticks()
        time.sleep(0.1)
        return ticks() <= before + len(r.members)

    until("the daemons are at rest", rests, PATIENCE_S)


def save(trainer: cairn.Connection, step: int, *sources: Source) -> float:
    """How many seconds that took."""
    begin = time.perf_counter()
    with trainer.step(step, strict=True) as s:
        for i, source in enumerate(sources):
            s.save(source.bytes, f"{NAME}{i}")
    return time.perf_counter() - begin


def read_back(r: Ring, rank: int, step: int, source: Source, seed: int, number: int = 0) -> None:
    """Compares what that node has in its own memory; raises, too, when it has to fetch it."""
    before = received(r[rank])
    with connect(r[rank]) as reader:
        found = reader.load(f"{step}/{NAME}{number}", mmap=True)
        source.check(found, seed)
        del found
    came = received(r[rank]) - before
    if came > len(source.bytes) / 20:
        raise RuntimeError(f"node {rank} did not have step {step}: {came} bytes came for it")


# --- the transport alone -----------------------------------------------------------------------------------


class Transport:
    """A process on each of two hosts; `length` bytes of the owner's memory that the reader reads."""

    def __init__(self, network: Network, owner: int, reader: int, length: int, port: int) -> None:
        self.length = length
        listen = f"listen={network.addresses[owner]}:{port}"
        self.owner = self._start(network, owner, "transport_owner", listen, f"bytes={length}")
        self.reader = self._start(network, reader, "transport_reader", f"bytes={length}")
        self.owned: dict[str, Any] = {}

    @staticmethod
    def _start(network: Network, host: int, *words: str) -> subprocess.Popen[bytes]:
        build = Path(os.environ.get("CAIRN_BUILD", ROOT / "build" / "main"))
        program = build / "tests" / "bench" / "cairn_bench"
        pipe = subprocess.PIPE
        # Like a daemon in a session of its own: where the kernel shares processors out by sessions, each has
        # the same share.
        return network.popen(
            host,
            [str(program), "--child", *words],
            stdin=pipe,
            stdout=pipe,
            start_new_session=True,
        )

    @staticmethod
    def _tell(process: subprocess.Popen[bytes], **request: Any) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()

    @staticmethod
    def _hear(process: subprocess.Popen[bytes]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith(b"{"):
            raise RuntimeError(f"the transport's end said {line!r}")
        return dict(json.loads(line))

    def fill(self, seed: int) -> None:
        self._tell(self.owner, seed=seed)
        self.owned = {**self._hear(self.owner), "seed": seed}

    def begin(self, length: int = 0) -> None:
        """`length`: if it is more than there is, all is read several times."""
        self._tell(self.reader, **self.owned, length=length or self.length)

    def end(self) -> float:
        """Seconds; every byte has been compared since."""
        return float(self._hear(self.reader)["ms"]) / 1e3

    def close(self) -> None:
        for process in (self.owner, self.reader):
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


@contextmanager
def transport(
    network: Network, owner: int, reader: int, length: int, port: int = TRANSPORT_PORT
) -> Iterator[Transport]:
    made = Transport(network, owner, reader, length, port)
    try:
        yield made
    finally:
        made.close()


def too_slow(mb_per_s: Sequence[float], least: float = ABSURD_TRANSPORT_MB_S) -> str:
    middle = sorted(mb_per_s)[len(mb_per_s) // 2]
    if middle >= least:
        return ""
    return f"the reference had {middle:.4g} MB/s, on a machine fit for this it has above {least:g}"


def alternate(
    pairs: int,
    ours: Callable[[int], float],
    reference: Callable[[int], float],
    first_seed: int = 1,
) -> list[tuple[float, float]]:
    """Pairs of samples, each side first in turn; each sample is told a seed greater than all before."""
    samples, seed = [], first_seed
    for i in range(pairs):
        figures = {}
        for which in (reference, ours) if i % 2 == 0 else (ours, reference):
            figures[which] = which(seed)
            seed += 1
        samples.append((figures[ours], figures[reference]))
    return samples
