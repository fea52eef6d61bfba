"""Tensors on a GPU as sources of a save: their bytes go from there straight to the node's memory."""

from __future__ import annotations

import functools
import logging
import sys
from typing import Any

from cairn import _native

log = logging.getLogger("cairn")


def in_use() -> bool:
    """Whether torch has anything on a GPU."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def source(device: Any, address: int) -> _native.OnDevice | None:
    """Where the bytes at `address` of a torch device are, as its current stream leaves them. None: they are
    in the host's memory, or on a device that only torch can copy from."""
    if not is_source(device):
        return None
    index, torch = _index(device), sys.modules["torch"]
    return _native.OnDevice(index, address, torch.cuda.current_stream(index).cuda_stream)


def is_source(device: Any) -> bool:
    """Whether what is on a torch device is saved from there."""
    return device.type == "cuda" and not _problem(_index(device))


def _index(device: Any) -> int:
    return sys.modules["torch"].cuda.current_device() if device.index is None else device.index


@functools.lru_cache
def _problem(index: int) -> str:
    # As where torch's "cuda" is another maker's GPU.
    problem = _native.why_not_saved_from(index)
    if problem:
        log.info("tensors on cuda:%d are saved by way of this process's memory: %s", index, problem)
    return problem
