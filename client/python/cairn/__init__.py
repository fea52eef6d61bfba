"""Cairn: checkpoints of large jobs, safe in memory.

    import cairn

    c = cairn.connect(job="run7")                     # or CAIRN_JOB, RANK, WORLD_SIZE, CAIRN_ATTEMPT
    checkpoint = c.resume_latest()                    # None: there is none yet
    if checkpoint is not None:
        model.load_state_dict(checkpoint.load("model.pt"))
    with c.step(12) as s:
        s.save(model.state_dict(), "model.pt")
    if not s.ok:
        print("training goes on; not saved:", s.error)

    state = cairn.load("cairn://run7/latest/model.pt")   # from any process, without connect()
    cairn.latest("run7"), cairn.ls("run7"), cairn.exists("cairn://run7/12/model.pt"), cairn.status()

    cairn.weights.publish(c, 13, model)                   # a model, as safetensors files
    for name, tensor in cairn.weights.stream(c, 13, "cuda"): ...

What is saved is a file that stock torch.load opens; see `Connection.step`, `save` and `load`. Importing this
starts no thread, installs no signal handler and needs neither torch nor numpy.
"""

from __future__ import annotations

from cairn import distributed, gpu, planning, weights
from cairn.api import connect, current, exists, latest, load, ls, save, status
from cairn.checkpoint import Checkpoint
from cairn.connection import VERSION as __version__
from cairn.connection import Connection
from cairn.errors import (
    AlreadyExists,
    CairnWarning,
    Corrupt,
    Error,
    FailedPrecondition,
    Full,
    InvalidArgument,
    MissingObject,
    NotFound,
    PermissionDenied,
    Removed,
    Superseded,
    Timeout,
    Unavailable,
)
from cairn.info import CheckpointInfo, Facts, JobPolicy, Latest, Listing, ObjectInfo
from cairn.overlap import Saving
from cairn.step import Step

__all__ = [
    "AlreadyExists",
    "CairnWarning",
    "Checkpoint",
    "CheckpointInfo",
    "Connection",
    "Corrupt",
    "Error",
    "Facts",
    "FailedPrecondition",
    "Full",
    "InvalidArgument",
    "JobPolicy",
    "Latest",
    "Listing",
    "MissingObject",
    "NotFound",
    "ObjectInfo",
    "PermissionDenied",
    "Removed",
    "Saving",
    "Step",
    "Superseded",
    "Timeout",
    "Unavailable",
    "__version__",
    "connect",
    "current",
    "distributed",
    "exists",
    "gpu",
    "latest",
    "load",
    "ls",
    "planning",
    "save",
    "status",
    "weights",
]
