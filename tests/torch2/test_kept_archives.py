"""An archive that is made from what torch wrote before is the one that torch would write now."""

from __future__ import annotations

import collections
import io
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import kinds
import numpy
import pytest
import torch
from cairn import kept_archives, torch_format
from test_torch_format import saved


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    kept_archives.forget()
    yield
    kept_archives.forget()


def records(obj: Any) -> list[tuple[str, bytes]]:
    """Of the archive that is saved for it."""
    with zipfile.ZipFile(io.BytesIO(saved(obj).bytes)) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def state(values: float = 0.0) -> dict[str, Any]:
    """A model's and an optimizer's, with a view, tied tensors and a parameter."""
    base = torch.full((4, 6), values)
    tied = torch.full((3,), values)
    return {
        "base": base,
        "view": base[1:3, ::2],
        "transposed": base.t(),
        "tied": [tied, tied],
        "alias": tied[:],
        "parameter": torch.nn.Parameter(torch.full((2,), values)),
        "half": torch.full((5,), values, dtype=torch.float16),
        "numbers": {"lr": 0.1, "step": 3, "on": True, "none": None, "betas": (0.9, 0.99)},
        "dtype": torch.float32,
        "size": torch.Size([1, 2]),
    }


def other_dtype(s: dict[str, Any]) -> None:
    s["half"] = s["half"].bfloat16()


def other_shape(s: dict[str, Any]) -> None:
    s["base"] = s["base"].reshape(6, 4)


def other_strides(s: dict[str, Any]) -> None:
    s["view"] = s["base"][1:3, :3]


def other_offset(s: dict[str, Any]) -> None:
    s["view"] = s["base"][2:4, ::2]


def no_longer_an_alias(s: dict[str, Any]) -> None:
    s["alias"] = s["alias"].clone()


def tied_by_storage_alone(s: dict[str, Any]) -> None:
    s["tied"][1] = s["tied"][0].detach()


def needs_grad(s: dict[str, Any]) -> None:
    s["half"].requires_grad_()


def no_parameter(s: dict[str, Any]) -> None:
    s["parameter"] = s["parameter"].detach()


def other_name(s: dict[str, Any]) -> None:
    s["other"] = s.pop("size")


def other_number(s: dict[str, Any]) -> None:
    s["numbers"]["lr"] = 0.2


def negative_zero(s: dict[str, Any]) -> None:
    s["numbers"]["lr"] = -0.0


def one_instead_of_true(s: dict[str, Any]) -> None:
    s["numbers"]["on"] = 1


def list_instead_of_tuple(s: dict[str, Any]) -> None:
    s["numbers"]["betas"] = [0.9, 0.99]


def attribute_of_a_tensor(s: dict[str, Any]) -> None:
    s["half"].note = "x"


def larger_storage(s: dict[str, Any]) -> None:
    s["half"] = torch.zeros(50, dtype=torch.float16)[:5]


def empty(s: dict[str, Any]) -> None:
    s["half"] = torch.zeros(0)


CHANGES = [
    other_dtype,
    other_shape,
    other_strides,
    other_offset,
    no_longer_an_alias,
    tied_by_storage_alone,
    needs_grad,
    no_parameter,
    other_name,
    other_number,
    negative_zero,
    one_instead_of_true,
    list_instead_of_tuple,
    attribute_of_a_tensor,
    larger_storage,
    empty,
]


def test_other_values_in_the_same_structure_are_written_without_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = records(state(1.0))
    expected = records(state(2.0))
    kept_archives.forget()
    assert records(state(1.0)) == first

    def never(*_: Any) -> Any:
        raise AssertionError("torch was asked")

    monkeypatch.setattr(torch_format, "_collect", never)
    assert records(state(2.0)) == expected


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_differs_is_written_as_torch_writes_it(
    change: Callable[[dict[str, Any]], None],
) -> None:
    changed = state()
    change(changed)
    expected = records(changed)
    kept_archives.forget()
    records(state())
    assert records(changed) == expected
    assert records(changed) == expected  # from what is kept of it, if anything is


@kinds.every_kind
def test_every_kind_is_the_same_the_second_time(kind: str) -> None:
    obj = kinds.make(kind)
    assert records(obj) == records(obj)


def test_the_metadata_of_a_state_dict_is_part_of_it() -> None:
    a = torch.nn.Linear(3, 3).state_dict()
    b = collections.OrderedDict(a)
    assert a.__dict__ and not b.__dict__
    expected = records(b)
    kept_archives.forget()
    records(a)
    assert records(b) == expected


def with_attributes(**attributes: Any) -> collections.OrderedDict[str, Any]:
    found: collections.OrderedDict[str, Any] = collections.OrderedDict()
    found.__dict__.update(attributes)
    return found


def test_attributes_of_one_are_not_taken_for_the_next_element() -> None:
    a = [with_attributes(x=1), with_attributes(), {"x": 2}]
    b = [with_attributes(), {"x": 1}, with_attributes(x=2)]
    expected = records(b)
    kept_archives.forget()
    records(a)
    assert records(b) == expected


def test_two_storages_over_one_memory_stay_two() -> None:
    array = numpy.zeros(4, dtype=numpy.float32)
    two = [torch.from_numpy(array), torch.from_numpy(array)]
    one = torch.zeros(4)
    expected = records(two)
    kept_archives.forget()
    records([one, one.view(4)])
    assert records(two) == expected


def test_nan_equals_itself_and_no_other() -> None:
    nan = float("nan")
    expected = records({"x": -nan})
    kept_archives.forget()
    records({"x": nan})
    assert records({"x": -nan}) == expected
