"""What Cairn answers: plain values, one class per question. Times are seconds since the epoch, lengths and
sizes are bytes."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

__all__ = ["CheckpointInfo", "Facts", "JobPolicy", "Latest", "Listing", "ObjectInfo"]


@dataclasses.dataclass(frozen=True)
class JobPolicy:
    """What a job wants done with its checkpoints.

    mode: "newest" writes the newest complete step to storage and skips those superseded before their turn;
        "every" writes steps with step % every == 0; "on-demand" writes what `persist` asks for.
    keep_last, keep_every: which files stay: the newest `keep_last` complete steps and those with
        step % keep_every == 0; keep_last 0 keeps all.
    replicas: copies of each part that other members of the ring hold; None: as many as the ring's default.
    """

    mode: Literal["newest", "every", "on-demand"] = "newest"
    every: int = 1
    keep_last: int = 0
    keep_every: int = 0
    replicas: int | None = None


@dataclasses.dataclass(frozen=True)
class Facts:
    """A checkpoint's facts: the least of those of its objects and manifests.

    `replicas_age_ms`: so many milliseconds ago the ring said how many replicas there are; -1 of a node alone,
    and before the ring has said anything."""

    complete: bool
    resident: bool
    persisted: bool
    broken: bool
    in_conflict: bool
    abandoned: bool
    pinned: bool
    replicas: int
    replicas_asked: int
    replicas_age_ms: int


@dataclasses.dataclass(frozen=True)
class Latest:
    """The highest complete step on the job's line. `source`: where its bytes are, "memory", "peer" or
    "storage"; `as_of`: when that was known to be so. `head`: the attempt that the line is of, or the number
    of a decision (`resume`, `use`). `recorded`, of an answer to `resume` or `use`: the decision stands in
    storage, too; else it lives as long as the node's memory. `passed_over`: a higher step that lost files in
    storage, and which of them; "" if there is none."""

    job: str
    step: int
    attempt: int
    revision: int
    world_size: int
    digest: str
    source: str
    as_of: float
    head: int
    recorded: bool
    passed_over: str


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """One checkpoint. `why` says in words what is wrong with it, if something is."""

    job: str
    step: int
    attempt: int
    revision: int
    world_size: int
    missing_writers: list[int]
    bytes: int
    objects: int
    facts: Facts
    level: str
    created: float
    why: str
    on_line: bool
    digest: str


@dataclasses.dataclass(frozen=True)
class ObjectInfo:
    """One object. `block_crcs`: CRC32C per 4 MiB block, only from `stat`; `verified`: when its bytes were
    last checked, 0 for not since they were sealed."""

    name: str
    writer: int
    kind: str
    length: int
    level: str
    block_crcs: list[int]
    verified: float
    facts: Facts


@dataclasses.dataclass(frozen=True)
class Listing:
    """Jobs, or one job's checkpoints, or one checkpoint's objects."""

    jobs: list[str]
    checkpoints: list[CheckpointInfo]
    objects: list[ObjectInfo]


def checkpoint_info(answer: dict[str, Any]) -> CheckpointInfo:
    return CheckpointInfo(**{**answer, "facts": Facts(**answer["facts"])})


def object_info(answer: dict[str, Any]) -> ObjectInfo:
    return ObjectInfo(**{**answer, "facts": Facts(**answer["facts"])})


def listing(answer: dict[str, Any]) -> Listing:
    return Listing(
        jobs=list(answer["jobs"]),
        checkpoints=[checkpoint_info(item) for item in answer["checkpoints"]],
        objects=[object_info(item) for item in answer["objects"]],
    )
