"""What publishing and streaming weights have in common: torch, and its element types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cairn.errors import InvalidArgument

# safetensors' names of element types, and torch's; which of them there are depends on the torch at hand.
DTYPES = {
    "BOOL": "bool",
    "F4": "float4_e2m1fn_x2",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "I64": "int64",
    "U64": "uint64",
    "F64": "float64",
}


def torch_module() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError("cairn.weights needs torch, which is not installed") from error
    return torch


def dtype_name(torch: Any, name: str, tensor: Any) -> str:
    for ours, theirs in DTYPES.items():
        if getattr(torch, theirs, None) is tensor.dtype:
            return ours
    raise InvalidArgument(f"tensor {name!r}: {tensor.dtype} has no place in a safetensors file")


def torch_dtype(torch: Any, name: str, dtype: str) -> Any:
    found = getattr(torch, DTYPES.get(dtype, ""), None)
    if found is None:
        raise InvalidArgument(
            f"tensor {name!r} is of {dtype}, which torch {torch.__version__} lacks"
        )
    return found


# How many elements torch has in one: its last dimension is so much shorter.
_PACKED = {"F4": 2}


def torch_shape(name: str, dtype: str, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of torch's tensor, of one that safetensors says."""
    packed = _PACKED.get(dtype, 1)
    if packed == 1:
        return tuple(shape)
    if not shape or shape[-1] % packed:
        raise InvalidArgument(
            f"tensor {name!r} is of {dtype} and shape {list(shape)}: torch has {packed} elements in one "
            "along the last dimension"
        )
    return *shape[:-1], shape[-1] // packed


def safetensors_shape(dtype: str, shape: Sequence[int]) -> list[int]:
    """The shape, or a place in it, that safetensors says, of torch's."""
    packed = _PACKED.get(dtype, 1)
    return [*shape[:-1], shape[-1] * packed] if packed > 1 and shape else list(shape)
