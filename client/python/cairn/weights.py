"""Models as steps: published as safetensors files, streamed into GPUs, every block checked.

    cairn.weights.publish(c, 12, model)                        # the trainer, each rank its own part
    for name, tensor in cairn.weights.stream(c, 12, "cuda"):   # a consumer on the same node
        ...

The step's objects are safetensors files that stock tools open, from memory (`files`) and from storage.
docs/weights.md says what each way of streaming costs.
"""

from __future__ import annotations

from cairn.publishing import Part, publish
from cairn.streaming import Shard, Slice, Stream, TensorInfo, files, follow, index, stream

__all__ = [
    "Part",
    "Shard",
    "Slice",
    "Stream",
    "TensorInfo",
    "files",
    "follow",
    "index",
    "publish",
    "stream",
]
