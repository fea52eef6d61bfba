"""Every kind of thing people torch.save, and what "the same" means for it."""

from __future__ import annotations

import collections
import copyreg
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

TORCH2 = int(torch.__version__.split(".")[0]) >= 2


class Tagged(torch.Tensor):
    """A tensor subclass with state of its own."""

    @staticmethod
    def make(values: torch.Tensor, tag: str) -> Tagged:
        tagged = values.as_subclass(Tagged)
        tagged.tag = tag
        return tagged


class Net(torch.nn.Module):
    """Two layers that share a parameter, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(7, 5)
        self.out = torch.nn.Linear(5, 7, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("seen", torch.tensor(3))


class Fresh:
    """Its __reduce__ makes a tensor that nothing else holds: it must outlive the pickling."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __reduce__(self) -> tuple[Any, ...]:
        return _sized, (torch.arange(self.size, dtype=torch.int64),)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fresh) and other.size == self.size


def _sized(values: torch.Tensor) -> Fresh:
    assert torch.equal(values, torch.arange(len(values)))
    return Fresh(len(values))


Point = collections.namedtuple("Point", "x y")


def _optimizer_state() -> Any:
    torch.manual_seed(3)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    net.out(net.embed(torch.arange(7))).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


def _tied() -> Any:
    torch.manual_seed(1)
    return Net().state_dict()


def _views() -> Any:
    base = torch.arange(24.0).reshape(4, 6)
    return {
        "base": base,
        "row": base[1],
        "column": base[:, 2],
        "transposed": base.t(),
        "strided": base[::2, 1::3],
        "expanded": base[:1].expand(5, 6),
    }


def _big() -> Any:
    torch.manual_seed(5)
    return {f"layer{i}.weight": torch.randn(257, 129) for i in range(40)}


KINDS: dict[str, Callable[[], Any]] = {
    "tensor": lambda: torch.randn(3, 4),
    "scalar": lambda: torch.tensor(2.5),
    "dtypes": lambda: {
        str(dtype): torch.arange(6).to(dtype)
        for dtype in (
            torch.float64,
            torch.float32,
            torch.float16,
            torch.bfloat16,
            torch.int64,
            torch.int32,
            torch.int16,
            torch.int8,
            torch.uint8,
            torch.bool,
            torch.complex64,
            torch.complex128,
        )
    },
    "zero_size": lambda: {"a": torch.empty(0), "b": torch.empty(3, 0, 2), "c": torch.ones(2)},
    "views_and_aliases": _views,
    "shared_storage": lambda: (lambda t: {"whole": t, "same": t, "half": t[: len(t) // 2]})(
        torch.arange(10_000)
    ),
    "non_contiguous": lambda: torch.arange(60.0).reshape(3, 4, 5).permute(2, 0, 1),
    "channels_last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "tied_parameters": _tied,
    "parameter": lambda: torch.nn.Parameter(torch.randn(4), requires_grad=False),
    "requires_grad": lambda: torch.randn(4, requires_grad=True),
    "conjugate": lambda: torch.randn(5, dtype=torch.complex64).conj(),
    "negative_bit": lambda: torch.randn(5, dtype=torch.complex64).conj().imag,
    "nested": lambda: {
        "list": [torch.ones(2), [torch.zeros(1), {"deep": (torch.eye(2), None)}]],
        "ordered": collections.OrderedDict(b=torch.ones(1), a=torch.zeros(1)),
        "plain": [1, 2.5, "text", None, True, b"bytes", 1 << 80, {"ключ": 1}],
        (1, 2): torch.tensor([1, 2]),
    },
    "optimizer_state": _optimizer_state,
    "storage": lambda: torch.arange(5.0).storage(),
    "empty_dict": dict,
    "none": lambda: None,
    "forty_layers": _big,
    "large_record": lambda: torch.arange(3_000_001, dtype=torch.uint8),
    "random_state": torch.get_rng_state,
    # What weights_only refuses, or torch 1.13's does:
    "subclass": lambda: Tagged.make(torch.arange(4.0), "kept"),
    "module": lambda: (torch.manual_seed(2), Net())[1],
    "named_tuple": lambda: Point(torch.ones(3), torch.zeros(3)),
    "sparse_coo": lambda: torch.eye(4).to_sparse(),
    "sparse_csr": lambda: torch.eye(4).to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(torch.randn(8), 0.1, 3, torch.qint8),
    "per_channel": lambda: torch.quantize_per_channel(
        torch.randn(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.qint8
    ),
    "made_while_pickling": lambda: [Fresh(1000 + i) for i in range(50)],
    "size_and_dtype": lambda: (torch.Size([1, 2]), torch.float16, torch.device("cpu")),
}
if hasattr(torch, "float8_e4m3fn"):
    KINDS["fp8"] = lambda: {
        "e4m3": torch.randn(16).to(torch.float8_e4m3fn),
        "e5m2": torch.randn(16).to(torch.float8_e5m2),
    }
if hasattr(torch, "uint16"):
    KINDS["wide_unsigned"] = lambda: torch.arange(5).to(torch.uint16)
if hasattr(torch, "nested") and TORCH2:
    KINDS["meta"] = lambda: torch.empty(1 << 40, device="meta")

copyreg.pickle(type(sys), lambda module: (__import__, (module.__name__,)))  # for modules in objects

every_kind = pytest.mark.parametrize("kind", sorted(KINDS))


def make(kind: str) -> Any:
    torch.manual_seed(11)
    return KINDS[kind]()


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's values as bytes, for dtypes that do not compare."""
    return tensor.detach().contiguous().view(torch.uint8)


def assert_same(a: Any, b: Any, where: str = "it") -> None:
    """Same types, values, dtypes, strides and flags, all the way down."""
    assert type(a) is type(b), where
    if isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape, a.layout, a.device, a.requires_grad) == (
            b.dtype,
            b.shape,
            b.layout,
            b.device,
            b.requires_grad,
        ), where
        if a.device.type == "meta":
            return
        if a.is_quantized:
            assert a.qscheme() == b.qscheme(), where
            assert torch.equal(a.int_repr(), b.int_repr()), where
            assert torch.equal(a.dequantize(), b.dequantize()), where
            return
        if a.layout is not torch.strided:
            assert torch.equal(a.to_dense(), b.to_dense()), where
            return
        assert a.stride() == b.stride() and a.storage_offset() == b.storage_offset(), where
        assert (a.is_conj(), a.is_neg()) == (b.is_conj(), b.is_neg()), where
        if a.is_conj() or a.is_neg():
            assert torch.equal(a.resolve_conj().resolve_neg(), b.resolve_conj().resolve_neg()), (
                where
            )
        elif a.dim() == 0:
            assert a.item() == b.item(), where
        else:
            assert torch.equal(_raw(a), _raw(b)), where
        if hasattr(a, "tag"):
            assert a.tag == b.tag, where
    elif isinstance(a, torch.nn.Module):
        assert_same(a.state_dict(), b.state_dict(), where)
    elif isinstance(a, dict):
        assert list(a) == list(b), where
        for key in a:
            assert_same(a[key], b[key], f"{where}[{key!r}]")
    elif isinstance(a, (list, tuple)) and not isinstance(a, torch.Size):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{where}[{i}]")
    elif "Storage" in type(a).__name__:
        assert a.tolist() == b.tolist(), where
    else:
        assert a == b, where


def tensors(obj: Any) -> list[torch.Tensor]:
    """Every tensor in containers, in order."""
    if isinstance(obj, torch.Tensor):
        return [obj]
    if isinstance(obj, dict):
        return [t for value in obj.values() for t in tensors(value)]
    if isinstance(obj, (list, tuple)):
        return [t for value in obj for t in tensors(value)]
    return []


def sharing(obj: Any) -> list[int]:
    """Which tensors share a storage, as the index of the first that has it."""
    seen: dict[int, int] = {}
    storages = []
    for i, tensor in enumerate(tensors(obj)):
        if (
            tensor.layout is not torch.strided
            or tensor.is_quantized
            or tensor.device.type == "meta"
        ):
            continue
        pointer = tensor.storage().data_ptr()
        storages.append(seen.setdefault(pointer, i) if pointer else i)
    return storages
