#!/usr/bin/env python3
"""replicated, save_replicating, recover, multi_source: what the members of a ring do for each other.

    ring_bench.py [--mib N] [--pairs N] [row...]    one JSON object per row on stdout, for tests/bench/run.py

--mib is the size of a step, of which `recover` has four; smaller ones than the default only show that the
rows work. docs/benchmarks.md says what each row is.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import shutil
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import cairn
from bench_row import row, sized
from ring_measure import (
    BLOCK,
    JOB,
    MIB,
    NAME,
    PATIENCE_S,
    ROOT,
    TRANSPORT_PORT,
    CairnError,
    Raw,
    Ring,
    Source,
    alternate,
    connect,
    read_back,
    rest,
    ring,
    save,
    sent,
    too_slow,
    transport,
    unavailable,
    until,
    written,
)

LINK_MBIT = 1000
WARM_UP = sized(3, 1)  # pairs, until every slab has been written by this process
LIMITED_RATE = 256 * MIB
# What must have moved, each way, before `save_replicating` says that replication and persistence run: more
# than the quarter of a second of it that may go at once after a rest.
FLOWING = 96 * MIB


@dataclasses.dataclass
class Sizes:
    step: int
    pairs: int  # where a sample takes less than 20 s


def ring_of(sizes: Sizes, nodes: int, room: int, others: int, *options: str, **more: Any) -> Any:
    """`room` and `others`: how many steps a node has room for, in all and of others."""
    return ring(
        nodes,
        budget=room * sizes.step + 256 * MIB,
        options=(f"--memory.replicas={others * sizes.step + 64 * MIB}", *options),
        lost_after_s=30,
        **more,
    )


# --- replicated --------------------------------------------------------------------------------------------


def row_replicated(sizes: Sizes) -> dict[str, Any]:
    with ExitStack() as stack:
        r = stack.enter_context(ring_of(sizes, 2, room=4, others=2))
        alone = stack.enter_context(transport(r.network, 0, 1, sizes.step))
        trainer = stack.enter_context(connect(r[0], rank=0))
        source = Source(sizes.step)

        def ours(step: int) -> float:
            source.fill(step)
            rest(r)
            with trainer.step(step, strict=True) as s:
                s.save(source.bytes, f"{NAME}0")
                begin = time.perf_counter()  # the commit is on leaving
            trainer.wait(step, "REPLICATED")
            seconds = time.perf_counter() - begin
            read_back(r, 1, step, source, step)
            return seconds * 1e3

        def reference(seed: int) -> float:
            alone.fill(seed)
            rest(r)
            alone.begin()
            return alone.end() * 1e3

        alternate(WARM_UP, ours, reference)
        samples = alternate(sizes.pairs, ours, reference, first_seed=2 * WARM_UP + 1)
    return row(
        "replicated",
        "ms",
        1.25,
        samples,
        "the transport alone, the same bytes and hosts",
        invalid=too_slow([sizes.step / 1e3 / other for _, other in samples]),
        note=f"commit of {sizes.step // MIB} MiB to REPLICATED",
    )


# --- save_replicating --------------------------------------------------------------------------------------


class SaveReplicating:
    """A save into a ring at rest; and one while another job's step, twice as large, is sent and written."""

    def __init__(self, stack: ExitStack, sizes: Sizes, limited: bool) -> None:
        storage = Path(tempfile.mkdtemp(prefix="bench-storage-", dir=ROOT / "build"))  # on a disk
        stack.callback(shutil.rmtree, storage, ignore_errors=True)
        options = [f"--storage.root={storage}"]
        if limited:
            options.append(f"--peers.replication_rate={LIMITED_RATE}")
        # Of others: two steps of each job.
        self.ring: Ring = stack.enter_context(ring_of(sizes, 2, 7, 6, *options, persist="every"))
        self.trainer = stack.enter_context(connect(self.ring[0], rank=0))
        self.other = stack.enter_context(connect(self.ring[0], rank=0, job="other"))
        self.source = Source(sizes.step)
        self.flowing = min(FLOWING, sizes.step // 8)
        self.beside: list[tuple[float, float]] = []  # MB/s sent and written during the save
        self.too_late = 0

    def moved(self) -> tuple[int, int]:
        return sent(self.ring[0]), written(self.ring[0])

    def finish(self, step: int) -> None:
        read_back(self.ring, 0, step, self.source, step)
        secure(self.trainer, step)
        read_back(self.ring, 1, step, self.source, step)
        if step > 2:  # the disk does not have to hold them all
            self.trainer.remove(step - 2, force=True)

    def at_rest(self, step: int) -> float:
        self.source.fill(step)
        rest(self.ring)
        seconds = save(self.trainer, step, self.source)
        self.finish(step)
        return seconds * 1e3

    def begin_the_other(self, step: int) -> None:
        """Until it is both sent and written; what is to be saved beside it is in the source then."""
        with self.other.step(step, strict=True) as s:
            for part in range(2):
                self.source.fill(1000 + 2 * step + part)
                s.save(self.source.bytes, f"{NAME}{part}")
            self.source.fill(step)
            rest(self.ring)
            before = self.moved()
        until(
            "replication and persistence run",
            lambda: all(
                now >= then + self.flowing for now, then in zip(self.moved(), before, strict=True)
            ),
        )

    def busy(self, step: int) -> float:
        self.begin_the_other(step)
        before, at = self.moved(), time.perf_counter()
        seconds = save(self.trainer, step, self.source)
        after, took = self.moved(), time.perf_counter() - at
        facts = self.other.stat(step).facts
        self.too_late += facts.persisted or facts.replicas >= facts.replicas_asked
        self.beside.append(
            ((after[0] - before[0]) / 1e6 / took, (after[1] - before[1]) / 1e6 / took)
        )
        self.finish(step)
        secure(self.other, step)
        self.other.remove(step, force=True)
        return seconds * 1e3


def secure(trainer: cairn.Connection, step: int) -> None:
    for level in ("REPLICATED", "PERSISTED"):
        trainer.wait(step, level)


def row_save_replicating(sizes: Sizes, limited: bool) -> dict[str, Any]:
    with ExitStack() as stack:
        saves = SaveReplicating(stack, sizes, limited)
        alternate(WARM_UP, saves.busy, saves.at_rest)
        saves.beside, saves.too_late = [], 0
        samples = alternate(sizes.pairs, saves.busy, saves.at_rest, first_seed=2 * WARM_UP + 1)
    out, to_disk = (statistics.median(column) for column in zip(*saves.beside, strict=True))
    late = f"{saves.too_late} saves took longer than what they were to be beside"
    return row(
        "save_replicating/limited" if limited else "save_replicating",
        "ms",
        1.25 if limited else 1.6,
        samples,
        "the same save into a ring at rest",
        invalid=late if saves.too_late else "",
        note=f"beside it {out:.0f} MB/s of replicas go out and {to_disk:.0f} MB/s to the disk",
    )


# --- recover -----------------------------------------------------------------------------------------------


def save_anew(r: Ring, source: Source, step: int, parts: int) -> None:
    """An empty ring, whose node 0 saves a step of so many objects; it is REPLICATED then."""
    for member in r:
        member.replace(wait=False)
    for member in r:
        member.wait_ready()
    r.await_met()
    with connect(r[0], rank=0) as trainer:
        with trainer.step(step, strict=True) as s:
            for part in range(parts):
                source.fill(step * parts + part)
                s.save(source.bytes, f"{NAME}{part}")
        trainer.wait(step, "REPLICATED")


def time_to_recover(r: Ring, step: int, length: int) -> float:
    """Seconds from the replacement's meeting the holder until it has the step."""
    r[0].kill()
    r.network.run(0, "ip link set eth0 down")  # it meets nobody until its pool is ready
    options = r.options
    r.options = (*options, f"--pool.slabs={length}*1")
    r[0].replace()
    r.options = options
    until("its pool is ready", lambda: r[0].status().prefault_done, PATIENCE_S)
    r.network.run(0, "ip link set eth0 up")
    with Raw(r[0].socket, JOB, attach=False) as asking:
        until("it has met the holder", lambda: is_up(asking, 1), PATIENCE_S)
        begin = time.perf_counter()
        until("it holds the step again", lambda: holds(asking, step), PATIENCE_S)
        return time.perf_counter() - begin


def is_up(asking: Raw, rank: int) -> bool:
    members = asking.status().ring.members
    return any(m.rank == rank and m.state.startswith("up") for m in members)


def holds(asking: Raw, step: int) -> bool:
    try:
        return bool(asking.checkpoint(step).facts.resident)
    except CairnError:
        return False  # it has not heard of it yet


def row_recover(sizes: Sizes) -> dict[str, Any]:
    """Each sample is of a ring of its own, for memory does not hold two."""
    parts = 4
    whole = parts * sizes.step
    samples = []
    with ExitStack() as stack:
        r = stack.enter_context(ring_of(sizes, 2, 2 * parts, 2 * parts))
        alone = stack.enter_context(transport(r.network, 1, 0, sizes.step))
        source = Source(sizes.step)

        def ours(seed: int) -> float:
            save_anew(r, source, seed, parts)
            seconds = time_to_recover(r, seed, whole)
            for part in range(parts):
                read_back(r, 0, seed, source, seed * parts + part, part)
            return whole / 1e6 / seconds

        def reference(seed: int) -> float:
            alone.fill(seed)
            rest(r)
            alone.begin(whole)
            return whole / 1e6 / alone.end()

        samples = alternate(min(sizes.pairs, 5), ours, reference)
    return row(
        "recover",
        "MB/s",
        0.80,
        samples,
        "the transport alone, the same bytes and hosts",
        higher_is_better=True,
        invalid=too_slow([other for _, other in samples]),
        note=f"{whole // MIB} MiB, from meeting the holder with the pool ready",
    )


# --- multi_source ------------------------------------------------------------------------------------------


class MultiSource:
    """Nodes 0 to 2 hold a step behind links of 1 Gbit/s; node 3 has nothing of it and loads it."""

    HOLDERS, READER = (0, 1, 2), 3

    def __init__(self, stack: ExitStack, sizes: Sizes, slow: int | None) -> None:
        """`slow`: the holder whose link has a tenth."""
        self.step_bytes, self.slow = sizes.step, slow
        self.ring: Ring = stack.enter_context(ring_of(sizes, 4, 3, 2, replicas=2))
        # Of the transport alone, less memory; it reads that several times.
        piece = max(sizes.step // 8 // BLOCK, 1) * BLOCK
        self.links = [
            stack.enter_context(
                transport(self.ring.network, holder, self.READER, piece, TRANSPORT_PORT + holder)
            )
            for holder in self.HOLDERS
        ]
        self.trainer = stack.enter_context(connect(self.ring[0], rank=0))
        self.source = Source(sizes.step)

    @contextmanager
    def limited(self) -> Iterator[None]:
        for holder in self.HOLDERS:
            self.ring.rate(holder, LINK_MBIT / 10 if holder == self.slow else LINK_MBIT)
        try:
            yield
        finally:
            for holder in self.HOLDERS:
                self.ring.rate(holder, 0)

    def load(self, step: int) -> float:
        """Seconds."""
        self.source.fill(step)
        save(self.trainer, step, self.source)
        self.trainer.wait(step, "REPLICATED")
        self.ring.await_same_latest(JOB, step, (self.READER,))
        rest(self.ring)
        with connect(self.ring[self.READER]) as reader, self.limited():
            begin = time.perf_counter()
            found = reader.load(f"{step}/{NAME}0", mmap=True)
            seconds = time.perf_counter() - begin
            self.source.check(found, step)
            del found
        return seconds

    def load_rate(self, step: int) -> float:
        return self.step_bytes / 1e6 / self.load(step)

    def sum_of_links(self, seed: int) -> float:
        """MB/s, one after another."""
        for link in self.links:
            link.fill(seed)
        rest(self.ring)
        length, total = self.step_bytes // 4, 0.0
        with self.limited():
            for link in self.links:
                link.begin(length)
                total += length / 1e6 / link.end()
        return total

    def time_of_others(self, seed: int) -> float:
        """Seconds for all of it, through the links that are not slow, at once."""
        others = [self.links[holder] for holder in self.HOLDERS if holder != self.slow]
        for link in others:
            link.fill(seed)
        rest(self.ring)
        with self.limited():
            for link in others:
                link.begin(self.step_bytes // len(others))
            return max([link.end() for link in others])


def row_multi_source(sizes: Sizes) -> dict[str, Any]:
    with ExitStack() as stack:
        loads = MultiSource(stack, sizes, slow=None)
        samples = alternate(sizes.pairs, loads.load_rate, loads.sum_of_links)
    nominal = LINK_MBIT / 8 * len(MultiSource.HOLDERS)
    return row(
        "multi_source",
        "MB/s",
        0.85,
        samples,
        "the transport alone by each link, added up",
        higher_is_better=True,
        invalid=too_slow([other for _, other in samples], 0.8 * nominal),
        note=f"{sizes.step // MIB} MiB from 3 holders; their links have {nominal:g} MB/s with all headers",
    )


def row_multi_source_slow(sizes: Sizes) -> dict[str, Any]:
    with ExitStack() as stack:
        loads = MultiSource(stack, sizes, slow=1)
        samples = alternate(sizes.pairs, loads.load, loads.time_of_others)
    rates = [sizes.step / 1e6 / seconds for _, seconds in samples]
    return row(
        "multi_source/slow",
        "s",
        1.2,
        samples,
        "the transport alone, by the two fast links at once",
        invalid=too_slow(rates, 0.8 * LINK_MBIT / 8 * 2),
        note=f"{sizes.step // MIB} MiB from 3 holders, one of them behind a tenth of the others' link",
    )


# --- all of them -------------------------------------------------------------------------------------------

ROWS: dict[str, Callable[[Sizes], dict[str, Any]]] = {
    "replicated": row_replicated,
    "save_replicating": lambda sizes: row_save_replicating(sizes, limited=False),
    "save_replicating/limited": lambda sizes: row_save_replicating(sizes, limited=True),
    "recover": row_recover,
    "multi_source": row_multi_source,
    "multi_source/slow": row_multi_source_slow,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help=", ".join(ROWS))
    parser.add_argument("--mib", type=int, default=sized(1024, 32), help="size of a step [1024]")
    parser.add_argument("--pairs", type=int, default=sized(9, 1), help="of samples [9]")
    options = parser.parse_args()
    # Of connecting before the daemon listens.
    logging.getLogger("thrift").setLevel(logging.CRITICAL)
    unknown = [name for name in options.rows if name not in ROWS]
    if unknown:
        raise SystemExit(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}")
    if options.mib < 32 or options.mib % 32 or options.pairs < 1:
        raise SystemExit("--mib: a multiple of 32; --pairs: at least 1")
    cannot = unavailable()
    if cannot:
        for name in options.rows or ROWS:
            print(json.dumps(row(name, "", 0, [], "", invalid=cannot)), flush=True)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # leaves no daemon
    sizes = Sizes(options.mib * MIB, options.pairs)
    failed = 0
    for name in options.rows or ROWS:
        try:
            print(json.dumps(ROWS[name](sizes)), flush=True)
        except Exception:  # the other rows are measured all the same
            traceback.print_exc()
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
