"""Arrays as .npy files, and bytes as they are. Only the header is new; the data is saved from where it is."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Any

from cairn.errors import Corrupt
from cairn.payload import Payload, RegionFile

if TYPE_CHECKING:
    from cairn import _native


def encode(obj: Any) -> Payload | None:
    """The payload of a plain numpy array or a bytes-like object; None for anything else.

    Arrays that hold Python objects, subclasses of ndarray, and arrays of a dtype that another library made
    (bfloat16) are None too, because a .npy file cannot say what they are: torch's format pickles them. A
    contiguous array, in C or in Fortran order, is not copied.
    """
    if isinstance(obj, (bytes, bytearray)):
        return Payload("raw", sources=[(obj, len(obj))])
    if isinstance(obj, memoryview):
        held = obj if obj.c_contiguous else memoryview(obj.tobytes())
        return Payload("raw", sources=[(held, held.nbytes)])
    numpy = sys.modules.get("numpy")
    if numpy is None or type(obj) not in (numpy.ndarray, numpy.memmap) or obj.dtype.hasobject:
        return None
    if not _can_be_named(numpy, obj.dtype):
        return None
    if not (obj.flags.c_contiguous or obj.flags.f_contiguous):
        obj = numpy.ascontiguousarray(obj)
    header = io.BytesIO()
    try:
        numpy.lib.format.write_array_header_1_0(
            header, numpy.lib.format.header_data_from_array_1_0(obj)
        )
    except ValueError:
        # Fields with names beyond Latin-1, or thousands of them: numpy picks a later version by itself.
        whole = io.BytesIO()
        numpy.save(whole, obj)
        return Payload("numpy", sources=[(whole.getbuffer(), whole.tell())], keep=whole)
    literal = header.getvalue()
    return Payload(
        "numpy", sources=[(literal, len(literal)), (obj.ctypes.data, obj.nbytes)], keep=obj
    )


def _can_be_named(numpy: Any, dtype: Any) -> bool:
    """Whether what a .npy file says of the dtype is read as the same one."""
    if dtype.isbuiltin == 1:
        return True
    try:
        named = numpy.lib.format.dtype_to_descr(dtype)
        return bool(numpy.lib.format.descr_to_dtype(named) == dtype)
    except (TypeError, ValueError):
        return False


def decode(region: _native.Region) -> Any:
    """The array in the .npy file that `region` holds: writable, over the region's own memory.

    Raises:
      cairn.Corrupt: it holds no such file.
    """
    import numpy

    file = RegionFile(region)
    length = len(memoryview(region))
    try:
        if numpy.lib.format.read_magic(file) != (1, 0):
            file.seek(0)
            return numpy.lib.format.read_array(file, allow_pickle=False)
        shape, fortran, dtype = numpy.lib.format.read_array_header_1_0(file)
        if dtype.hasobject:
            raise ValueError("the array holds pickled Python objects")
        count = 1
        for extent in shape:
            count *= extent
        if count * dtype.itemsize > length - file.tell():
            raise ValueError("the file is shorter than its header says")
        return numpy.ndarray(
            shape, dtype, buffer=region, offset=file.tell(), order="F" if fortran else "C"
        )
    except ValueError as error:
        raise Corrupt(f"not a .npy file: {error}") from error
