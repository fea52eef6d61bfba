"""Arrays of element types that another library made: a .npy file cannot say what they are, so torch pickles
them, and they come back as they were (promise 2)."""

from __future__ import annotations

import cairn
import ml_dtypes
import numpy
import pytest
from node import Node
from patience import patient

TYPES = (
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
    "float4_e2m1fn",
    "int4",
    "uint4",
)


@pytest.mark.parametrize("name", TYPES)
def test_comes_back_as_it_was(node: Node, name: str) -> None:
    array = numpy.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, name))
    with cairn.connect(job=f"array-{name}", socket=node.socket) as c:
        with c.step(1) as s:
            s.save(array, "a.npy")
        assert s.ok
        c.persist(1)
        c.wait(1, timeout=patient(60))
        for found in (
            c.load("1/a.npy", weights_only=False),
            c.resume_latest().load("a.npy", weights_only=False),
        ):
            assert found.dtype == array.dtype
            assert found.tobytes() == array.tobytes()


def test_a_type_that_numpy_can_name_stays_an_npy_file(node: Node) -> None:
    array = numpy.zeros(3, dtype=numpy.dtype([("x", ">i4"), ("y", "f8", (2,))], align=True))
    with cairn.connect(job="array-named", socket=node.socket) as c:
        with c.step(1) as s:
            s.save(array, "a.npy")
        c.persist(1)
        c.wait(1, timeout=patient(60))
        assert numpy.load(node.storage / c.job / "1" / "a.npy").dtype == array.dtype
        assert c.load("1/a.npy").dtype == array.dtype
