"""Files of the format: what the stock library loads is published and streamed, equal; what it refuses is
refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import cairn
import pytest
import safetensors.torch
import torch
from node import Node

DATA = struct.pack("<4f", 1, 2, 3, 4)
W = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


def file_of(header: Any, data: bytes = DATA, padding: bytes = b"") -> bytes:
    text = header if isinstance(header, str) else json.dumps(header, separators=(",", ":"))
    raw = text.encode() + padding
    return struct.pack("<Q", len(raw)) + raw + data


def one(dtype: str, shape: list[int], length: int) -> bytes:
    header = {"w": {"dtype": dtype, "shape": shape, "data_offsets": [0, length]}}
    return file_of(header, bytes(range(1, length + 1)))


FILES = {
    "plain": file_of({"w": W}),
    "metadata of nothing": file_of({"__metadata__": {}, "w": W}),
    "metadata null": file_of({"__metadata__": None, "w": W}),
    "metadata of a number": file_of({"__metadata__": {"a": 1}, "w": W}),
    "metadata of null": file_of({"__metadata__": {"a": None}, "w": W}),
    "metadata last": file_of({"w": W, "__metadata__": {"a": "b"}}),
    "another field": file_of({"w": {**W, "note": "x"}}),
    "another field of a list": file_of({"w": {"strides": [1], **W}}),
    "another field of a tree": file_of({"w": {**W, "more": {"a": [1, {"b": None}], "c": -1.5}}}),
    "spaces before": file_of(" \n" + json.dumps({"w": W})),
    "an empty name": file_of({"": W}),
    "padded with spaces": file_of({"w": W}, padding=b" " * 13),
    "padded with lines": file_of({"w": W}, padding=b"\n\t \r"),
    "padded with zeros": file_of({"w": W}, padding=b"\0" * 8),
    "bytes behind": file_of({"w": W}, DATA + b"xxxx"),
    "a tensor of null": file_of({"w": None}),
    "an escaped name": file_of('{"\\u0077\\/":' + json.dumps(W) + "}"),
    "a lone surrogate": file_of('{"\\ud83d":' + json.dumps(W) + "}"),
    "a float in a shape": file_of('{"w":{"dtype":"F32","shape":[4.0],"data_offsets":[0,16]}}'),
    "F4": one("F4", [2, 8], 8),
    "F8_E8M0": one("F8_E8M0", [16], 16),
    "C64": one("C64", [2], 16),
    "U16": one("U16", [8], 16),
    "a type in small letters": file_of({"w": {**W, "dtype": "f32"}}),
}


def stocks(path: Path) -> dict[str, torch.Tensor] | None:
    try:
        return safetensors.torch.load_file(str(path))
    except Exception:
        return None


def as_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("what", FILES)
def test_is_taken_as_stock_takes_it(node: Node, tmp_path: Path, what: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(FILES[what])
    expected = stocks(path)
    with cairn.connect(job=f"file-{what.replace(' ', '-')}", socket=node.socket) as c:
        if expected is None:
            with pytest.raises(ValueError, match=r"model\.safetensors"):
                cairn.weights.publish(c, 1, str(path))
            return
        assert cairn.weights.publish(c, 1, str(path)).ok
        found = {name: tensor.clone() for name, tensor in cairn.weights.stream(c, 1, "cpu")}
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert as_bytes(found[name]) == as_bytes(tensor)


def test_a_name_twice_is_refused_though_stock_takes_the_last(node: Node, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of('{"w":' + json.dumps(W) + ',"w":' + json.dumps(W) + "}"))
    assert stocks(path) is not None
    with cairn.connect(job="file-twice", socket=node.socket) as c:
        with pytest.raises(ValueError, match='model.safetensors: safetensors: "w" is there twice'):
            cairn.weights.publish(c, 1, str(path))


def test_four_bits_of_a_state_dict_come_back(node: Node) -> None:
    made = torch.arange(8, dtype=torch.uint8).view(2, 4).view(torch.float4_e2m1fn_x2)
    with cairn.connect(job="four-bits", socket=node.socket) as c:
        assert cairn.weights.publish(c, 1, {"w": made}).ok
        found = {name: tensor.clone() for name, tensor in cairn.weights.stream(c, 1, "cpu")}
        assert found["w"].shape == made.shape and as_bytes(found["w"]) == as_bytes(made)
