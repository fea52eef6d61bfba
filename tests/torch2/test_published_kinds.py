"""Tensors that people have in a state dict and no safetensors file can hold: refused by name, before anything
is saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cairn
import pytest
import torch
from node import Node
from torch._subclasses.fake_tensor import FakeTensorMode

pytestmark = pytest.mark.filterwarnings("ignore")


class Wrapper(torch.Tensor):
    """As torchao's: it has no storage of its own."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.size(), strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __repr__(self) -> str:  # type: ignore[override]
        return "Wrapper"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = torch.utils._pytree.tree_map(lambda one: getattr(one, "inner", one), args)
        found = func(*args, **(kwargs or {}))
        return cls(found) if isinstance(found, torch.Tensor) else found


def nested(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)


KINDS: dict[str, tuple[Callable[[], Any], str]] = {
    "wrapper": (lambda: Wrapper(torch.arange(6.0)), "a Wrapper without storage of its own"),
    "part of a wrapper": (
        lambda: cairn.weights.Part(Wrapper(torch.arange(6.0)), (6,), (0,)),
        "a Wrapper without storage of its own",
    ),
    "fake": (lambda: FakeTensorMode().from_tensor(torch.ones(3)), "FakeTensor"),
    "nested": (lambda: nested(torch.strided), "a nested tensor"),
    "jagged": (lambda: nested(torch.jagged), "a nested tensor"),
    "lazy": (lambda: torch.nn.LazyLinear(4).weight, "a lazy tensor, which has no shape yet,"),
    "meta": (lambda: torch.empty(3, device="meta"), "on the meta device"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "a tensor of layout torch.sparse_coo"),
    "number": (lambda: 3, "is a int, no tensor"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_is_refused_by_name(node: Node, kind: str) -> None:
    make, said = KINDS[kind]
    with cairn.connect(job=f"kind-{kind.replace(' ', '-')}", socket=node.socket) as c:
        with pytest.raises(ValueError, match=r"tensor 'layer\.w'") as error:
            cairn.weights.publish(c, 1, {"x": torch.ones(2), "layer.w": make()})
        assert said in str(error.value)
        assert cairn.weights.publish(c, 1, {"x": torch.ones(2)}).ok
