"""Whether this process can use a GPU, and why not."""

from __future__ import annotations

import dataclasses

from cairn import _native


@dataclasses.dataclass(frozen=True)
class Availability:
    """True or false, as `bool` says; `reason`: why not, "" if it is."""

    reason: str

    def __bool__(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        return "available" if self else f"not available: {self.reason}"


def available() -> Availability:
    """Looks for the CUDA driver, version 12 or newer, and a device; needs neither torch nor a toolkit.

    if not cairn.gpu.available():
        print(cairn.gpu.available().reason)
    """
    return Availability(_native.why_no_cuda())
