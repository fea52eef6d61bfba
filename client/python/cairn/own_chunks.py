"""Tensors that say themselves which chunks of a whole tensor they are, by methods of DCP's protocol on the
value or on a DTensor's local tensor (Megatron-FSDP cuts equal tensors at different rows so). Two that are
equal in all else may answer differently, and the same one differently later: they are asked each time.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from torch.distributed.checkpoint.planner_helpers import _create_write_items

try:
    from torch.distributed.tensor import DTensor
except ImportError:  # before PyTorch 2.5
    from torch.distributed._tensor import DTensor

_METHODS = ("__create_write_items__", "__create_chunk_list__", "__get_tensor_shard__")


def answers_itself(value: Any) -> bool:
    """Whether one of the methods is the value's own. Those of class DTensor answer by the spec."""
    if type(value) is not DTensor:
        return _has_one(value)
    attributes = value.__dict__
    return _has_one(value._local_tensor) or any(name in attributes for name in _METHODS)


def _has_one(value: Any) -> bool:
    return (
        hasattr(value, "__create_write_items__")
        or hasattr(value, "__create_chunk_list__")
        or hasattr(value, "__get_tensor_shard__")
    )


def copied(tensor: Any) -> Any:
    """A copy of a tensor's elements, which answers as the tensor does now."""
    copy = tensor.detach().clone()
    if not answers_itself(tensor):
        return copy
    _carry(tensor, copy)
    shards_of = tensor
    if type(tensor) is DTensor:
        _carry(tensor._local_tensor, copy._local_tensor)
        if "__get_tensor_shard__" not in tensor.__dict__:
            shards_of = tensor._local_tensor
    if hasattr(
        shards_of, "__get_tensor_shard__"
    ):  # it may answer with memory that the copy does not have
        shards = {
            item.index.offset: tensor.__get_tensor_shard__(item.index).detach().clone()
            for item in _create_write_items("", tensor)
        }
        copy.__get_tensor_shard__ = lambda index: shards[index.offset]
    return copy


def _carry(tensor: Any, copy: Any) -> None:
    """Gives the copy the attributes that it lacks. What answers for the tensor answers for the copy."""
    for name, value in vars(tensor).items():
        if name not in vars(copy):
            own = deepcopy(value, {id(tensor): copy}) if name in _METHODS else value
            setattr(copy, name, own)
