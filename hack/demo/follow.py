"""A consumer of hack/demo/weights.py: follows a job's versions, and takes each whole or half of each tensor.

What a user would write is in `follow` and `take`: wait for a version after the last one, stream it. The rest
tells the driver what arrived, one JSON object per line on stdout. With --halt-from N it stops in mid-stream
of the first version from N on, after its first bucket, says so, and goes on when a line arrives on stdin.

Times are of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time

import cairn
import torch
from cairn.weights import Shard, index, stream
from run import digest_of

BUCKET_BYTES = 1 << 20  # small: the model has many, so that mid-stream is far from both ends
FIRST_LAYER = "layers.layers.0."
NOTHING_SEEN = -1
WAIT_S = 60


def tell(event: str, **values: object) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


@dataclasses.dataclass
class Wanted:
    """What a consumer wants of each version; the names are the same in all."""

    names: set[str]
    first_layer: set[str]
    slices: dict[str, Shard] | None  # None: the whole of each tensor


def ask(c: cairn.Connection, step: int, half: bool) -> Wanted:
    tensors = index(c, step)
    # A Shard of a tensor that cannot be cut is an error, so these are not named here and come whole.
    cuts = {t.name: Shard(1, 2) for t in tensors if t.shape and t.shape[0] >= 2}
    names = {t.name for t in tensors}
    first_layer = {name for name in names if name.startswith(FIRST_LAYER)}
    return Wanted(names, first_layer, cuts if half else None)


def halt(step: int, taken: int, of: int, read_bytes: int) -> None:
    tell("halted", step=step, taken=taken, of=of, read_bytes=read_bytes)
    sys.stdin.readline()


def take(c: cairn.Connection, step: int, wanted: Wanted, halts: bool) -> None:
    """Streams one version and tells of it."""
    came: dict[str, torch.Tensor] = {}
    first_at = all_at = 0.0
    with stream(c, step, "cpu", slices=wanted.slices, bucket_bytes=BUCKET_BYTES) as s:
        for bucket in s.buckets():
            came |= bucket
            if not first_at and wanted.first_layer <= came.keys():
                first_at = time.monotonic()
            if wanted.names == came.keys():
                all_at = time.monotonic()
            if halts:
                halt(step, len(came), len(wanted.names), s.stats["bytes"])
                halts = False
    tell(
        "took",
        step=step,
        digest=digest_of(came),
        first_at=first_at,
        all_at=all_at,
        read_bytes=s.stats["bytes"],
        blocks=s.stats["blocks"],
    )


def follow(c: cairn.Connection, last: int, half: bool, halt_from: int | None) -> None:
    """Takes versions until it has taken `last`. Late, it skips to the newest."""
    seen: cairn.Latest | None = None
    wanted: Wanted | None = None
    while seen is None or seen.step < last:
        c.wait_after(NOTHING_SEEN if seen is None else seen, timeout=WAIT_S)
        seen = c.latest()
        if wanted is None:
            wanted = ask(c, seen.step, half)
        halts = halt_from is not None and seen.step >= halt_from
        take(c, seen.step, wanted, halts)
        if halts:
            halt_from = None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--last", type=int, required=True, help="the version to end with")
    parser.add_argument("--half", action="store_true", help="the second half of each tensor")
    parser.add_argument("--halt-from", type=int)
    arguments = parser.parse_args()
    with cairn.connect(job=arguments.job, rank=-1, socket=arguments.socket) as c:
        tell("ready")
        follow(c, arguments.last, arguments.half, arguments.halt_from)


if __name__ == "__main__":
    main()
