"""What cairn.save writes and cairn.load reads, against stock torch, without a daemon: the writer here makes
the file with Python's own zipfile. test_saving.py does the same through the real one."""

from __future__ import annotations

import ctypes
import gc
import io
import pickle
import subprocess
import sys
import warnings
import weakref
import zipfile
from pathlib import Path
from typing import Any

import cairn
import kinds
import pytest
import torch
from cairn import _native, kept_archives, torch_format


class Fresh:
    def __init__(self, size: Any) -> None:
        self.size = size


class FileWriter:
    """Stands for _native.Step; keeps what a payload hands over as the bytes of a file."""

    def __init__(self) -> None:
        self.bytes = b""
        self.fast = False

    @staticmethod
    def _at(where: Any, length: int) -> bytes:
        return ctypes.string_at(where, length) if isinstance(where, int) else bytes(where)

    def write(self, name: str, kind: str, sources: list[Any]) -> None:
        self.bytes = b"".join(self._at(*source) for source in sources)

    def write_zip(self, name: str, kind: str, records: list[Any]) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for path, where, length in records:
                archive.writestr(path, self._at(where, length))
        self.bytes = buffer.getvalue()
        self.fast = True


def saved(obj: Any, **arguments: Any) -> FileWriter:
    writer = FileWriter()
    payload = torch_format.encode(obj, **arguments)
    gc.collect()  # what nothing but the payload keeps
    payload.write_to(writer, "name")
    return writer


def region(content: bytes) -> Any:
    memory = _native.Region(len(content))
    memoryview(memory)[:] = content
    return memory


def stock_save(obj: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(obj, buffer)
    return buffer.getvalue()


def stock_load(content: bytes, **arguments: Any) -> Any:
    return torch.load(io.BytesIO(content), **arguments)


@kinds.every_kind
def test_stock_torch_loads_what_we_write(kind: str) -> None:
    obj = kinds.make(kind)
    writer = saved(obj)
    assert writer.fast
    result = stock_load(writer.bytes, weights_only=False)
    expected = stock_load(stock_save(obj), weights_only=False)
    kinds.assert_same(expected, result)
    assert kinds.sharing(result) == kinds.sharing(expected)


@kinds.every_kind
def test_we_load_what_stock_torch_writes(kind: str) -> None:
    content = stock_save(kinds.make(kind))
    expected = stock_load(content, weights_only=False)
    result = torch_format.decode(region(content), weights_only=False)
    kinds.assert_same(expected, result)
    assert kinds.sharing(result) == kinds.sharing(expected)


@kinds.every_kind
def test_we_load_what_we_write(kind: str) -> None:
    obj = kinds.make(kind)
    result = torch_format.decode(region(saved(obj).bytes), weights_only=False)
    kinds.assert_same(stock_load(stock_save(obj), weights_only=False), result)


@kinds.every_kind
def test_weights_only_allows_and_refuses_what_stock_torch_does(kind: str) -> None:
    content = saved(kinds.make(kind)).bytes
    try:
        expected = stock_load(content, weights_only=True)
    except Exception as error:
        with pytest.raises(type(error)) as refused:
            torch_format.decode(region(content), weights_only=True)
        assert str(refused.value) == str(error)
    else:
        kinds.assert_same(expected, torch_format.decode(region(content), weights_only=True))


def test_the_default_of_weights_only_is_the_installed_torchs() -> None:
    content = stock_save(kinds.make("module"))
    try:
        stock_load(content)
    except pickle.UnpicklingError:
        with pytest.raises(pickle.UnpicklingError):
            torch_format.decode(region(content))
    else:
        torch_format.decode(region(content))


def test_weights_only_refuses_a_pickle_module_as_stock_torch_does() -> None:
    content = stock_save({})
    with pytest.raises(RuntimeError) as stock:
        stock_load(content, weights_only=True, pickle_module=pickle)
    with pytest.raises(RuntimeError) as ours:
        torch_format.decode(region(content), weights_only=True, pickle_module=pickle)
    assert str(ours.value) == str(stock.value)


def test_the_environment_forces_weights_only(monkeypatch: pytest.MonkeyPatch) -> None:
    content = saved(kinds.make("module")).bytes
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")
    with pytest.raises(pickle.UnpicklingError):
        torch_format.decode(region(content), weights_only=False)


@pytest.mark.torch2
def test_the_environment_forces_no_weights_only(monkeypatch: pytest.MonkeyPatch) -> None:
    content = saved(kinds.make("module")).bytes
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert isinstance(torch_format.decode(region(content)), kinds.Net)


def test_the_archive_has_the_records_of_a_stock_one() -> None:
    obj = {"a": torch.ones(3), "b": torch.zeros(2)}
    with zipfile.ZipFile(io.BytesIO(stock_save(obj))) as archive:
        stock = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(io.BytesIO(saved(obj).bytes)) as archive:
        ours = {name: archive.read(name) for name in archive.namelist()}
    # Offsets are looked up, never computed from the spacing of torch's own writer.
    stock.pop("archive/.format_version", None)
    assert list(ours) == list(stock)
    identity = ours.pop("archive/.data/serialization_id", None)
    assert identity is None or (len(identity) == 40 and identity.isdigit())
    stock.pop("archive/.data/serialization_id", None)
    assert ours == stock


def test_equal_content_is_equal_bytes() -> None:
    obj = {"a": torch.arange(5), "b": [1, 2]}
    assert torch_format.encode(obj).records is not None
    first, second = saved(obj), saved(obj)
    with (
        zipfile.ZipFile(io.BytesIO(first.bytes)) as a,
        zipfile.ZipFile(io.BytesIO(second.bytes)) as b,
    ):
        assert [a.read(name) for name in a.namelist()] == [b.read(name) for name in b.namelist()]


def test_storages_are_not_copied_on_the_way() -> None:
    tensor = torch.arange(100_000)
    payload = torch_format.encode({"t": tensor[10:]})
    assert payload.records is not None
    wheres = {path: (where, length) for path, where, length in payload.records}
    assert wheres["archive/data/0"] == (tensor.data_ptr(), 800_000)


def test_nothing_is_kept_once_the_payload_is_gone() -> None:
    made = []

    class Watched(Fresh):
        def __reduce__(self) -> Any:
            tensor = torch.arange(self.size)
            made.append(weakref.ref(tensor))
            return Fresh, (tensor,)

    gc.disable()
    try:
        payload = torch_format.encode([Watched(2000), torch.ones(3)])
        assert made[0]() is not None
        del payload
        assert made[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickle_protocols(protocol: int) -> None:
    obj = kinds.make("nested")
    writer = saved(obj, pickle_protocol=protocol)
    assert writer.fast
    kinds.assert_same(stock_load(writer.bytes, weights_only=False), obj)


class CountingPickle:
    """A pickle module of the user's own."""

    dumped = 0
    Unpickler = pickle.Unpickler
    load, loads, dump, dumps = pickle.load, pickle.loads, pickle.dump, pickle.dumps
    __name__ = "counting"

    class Pickler(pickle._Pickler):
        def dump(self, obj: Any) -> None:
            CountingPickle.dumped += 1
            super().dump(obj)


def test_a_custom_pickle_module_pickles() -> None:
    before = CountingPickle.dumped
    obj = kinds.make("nested")
    writer = saved(obj, pickle_module=CountingPickle)
    assert CountingPickle.dumped > before
    kinds.assert_same(stock_load(writer.bytes, weights_only=False), obj)
    kinds.assert_same(
        torch_format.decode(region(writer.bytes), pickle_module=CountingPickle, weights_only=False),
        obj,
    )


def test_a_pickler_that_is_replaced_pickles_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    saved(kinds.make("nested"), pickle_module=CountingPickle)
    monkeypatch.setattr(CountingPickle, "Pickler", pickle._Pickler)
    before = CountingPickle.dumped
    obj = kinds.make("nested")
    writer = saved(obj, pickle_module=CountingPickle)
    assert CountingPickle.dumped == before
    kinds.assert_same(stock_load(writer.bytes, weights_only=False), obj)


def test_the_format_of_before_zip_goes_through_stock_torch() -> None:
    obj = kinds.make("views_and_aliases")
    writer = saved(obj, _use_new_zipfile_serialization=False)
    assert not writer.fast
    kinds.assert_same(stock_load(writer.bytes), obj)
    kinds.assert_same(torch_format.decode(region(writer.bytes)), obj)


def test_a_torch_that_saves_otherwise_falls_back_to_torch_save(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stock = torch.serialization._save

    def other(obj: Any, zip_file: Any, *rest: Any) -> None:
        zip_file.some_new_call("x") if not hasattr(zip_file, "write_end_of_file") else None
        stock(obj, zip_file, *rest)

    monkeypatch.setattr(torch.serialization, "_save", other)
    kept_archives.forget()
    obj = kinds.make("nested")
    writer = saved(obj)
    assert not writer.fast
    kinds.assert_same(stock_load(writer.bytes, weights_only=False), obj)


def test_a_torch_that_loads_otherwise_falls_back_to_torch_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stock = torch.serialization._load

    def other(zip_file: Any, *arguments: Any, **rest: Any) -> Any:
        if isinstance(zip_file, torch_format._Reader):
            zip_file.some_new_call("x")
        return stock(zip_file, *arguments, **rest)

    monkeypatch.setattr(torch.serialization, "_load", other)
    obj = kinds.make("views_and_aliases")
    kinds.assert_same(torch_format.decode(region(saved(obj).bytes)), obj)


def test_what_cannot_be_pickled_raises_what_torch_save_raises() -> None:
    with pytest.raises(Exception) as stock:
        stock_save({"f": lambda: None})
    with pytest.raises(type(stock.value)) as ours:
        torch_format.encode({"f": lambda: None})
    assert type(ours.value) is type(stock.value)


def test_the_same_bytes_under_two_dtypes_raise_what_torch_save_raises() -> None:
    base = torch.arange(4, dtype=torch.float32)
    obj = [base.storage(), base.view(torch.int32).storage()]
    with pytest.raises(RuntimeError, match="view the same data as different types"):
        torch_format.encode(obj)


def test_loaded_tensors_are_private_and_writable() -> None:
    memory = region(saved(torch.zeros(100_000)).bytes)
    one, two = torch_format.decode(memory), torch_format.decode(region(bytes(memory)))
    one.fill_(7)
    assert not two.any()


def test_each_storage_is_its_own() -> None:
    result = torch_format.decode(
        region(saved({"a": torch.ones(50_000), "b": torch.ones(50_000)}).bytes)
    )
    assert result["a"].storage().nbytes() == 200_000
    assert kinds.sharing(result) == [0, 1]


def test_tensors_keep_the_memory_alive_and_only_they() -> None:
    memory = region(saved({"a": torch.arange(50_000), "b": torch.arange(60_000)}).bytes)
    tensors = torch_format.decode(memory)
    references = sys.getrefcount(memory)
    assert references > 3
    kept = tensors.pop("a")
    del tensors
    gc.collect()
    assert sys.getrefcount(memory) == references - 1
    assert kept.sum().item() == 49_999 * 25_000
    del kept
    gc.collect()
    assert sys.getrefcount(memory) == references - 2


def test_a_small_tensor_does_not_keep_the_buffer() -> None:
    memory = region(saved({"big": torch.zeros(100_000), "step": torch.tensor(12)}).bytes)
    before = sys.getrefcount(memory)
    step = torch_format.decode(memory)["step"]
    gc.collect()
    assert sys.getrefcount(memory) == before
    assert step.item() == 12


def test_map_location_is_torchs_own() -> None:
    obj = {"a": torch.arange(3)}
    content = saved(obj).bytes
    seen = []

    def where(storage: Any, location: str) -> Any:
        seen.append(location)
        return storage

    kinds.assert_same(torch_format.decode(region(content), where), obj)
    assert seen == ["cpu"]
    for location in ("cpu", torch.device("cpu"), {"cuda:0": "cpu"}):
        kinds.assert_same(torch_format.decode(region(content), location), obj)


@pytest.mark.torch2
def test_map_location_meta_allocates_nothing() -> None:
    result = torch_format.decode(region(saved({"a": torch.arange(100_000)}).bytes), "meta")
    assert result["a"].is_meta and result["a"].shape == (100_000,)


@pytest.mark.torch2
def test_fake_tensors_find_their_bytes_in_our_file(tmp_path: Path) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    obj = {"a": torch.arange(1000), "b": torch.arange(1000) + 7}
    content = saved(obj).bytes
    path = tmp_path / "f"
    path.write_bytes(content)
    with FakeTensorMode():
        fake = torch.load(path, weights_only=True)
    offset = fake["b"].untyped_storage()._checkpoint_offset
    assert content[offset : offset + 8] == (7).to_bytes(8, "little")


@pytest.mark.torch2
def test_another_alignment_is_stock_torchs_to_write() -> None:
    from torch.utils.serialization import config

    before = config.save.storage_alignment
    config.save.storage_alignment = 4096
    try:
        writer = saved(torch.ones(10))
    finally:
        config.save.storage_alignment = before
    assert not writer.fast
    kinds.assert_same(stock_load(writer.bytes), torch.ones(10))


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\x03\x04" + bytes(100), b"garbage" * 100])
def test_what_is_no_archive_raises_what_torch_load_raises(content: bytes) -> None:
    with pytest.raises(Exception) as stock:
        stock_load(content)
    with pytest.raises(type(stock.value)):
        torch_format.decode(region(content))


def test_a_pickle_that_wants_more_bytes_than_its_record_has_is_refused() -> None:
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(saved(torch.arange(100)).bytes)) as whole,
        zipfile.ZipFile(buffer, "w") as cut,
    ):
        for name in whole.namelist():
            content = whole.read(name)
            cut.writestr(name, content[:10] if name.endswith("data/0") else content)
    with pytest.raises(cairn.Corrupt, match="data/0 has 10 bytes, its tensor wants 800"):
        torch_format.decode(region(buffer.getvalue()))


def test_importing_cairn_imports_neither_torch_nor_numpy_and_starts_nothing() -> None:
    code = (
        "import sys, threading, signal\n"
        "before = [signal.getsignal(n) for n in range(1, 32)]\n"
        "import cairn\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
        "assert len(open('/proc/self/status').read().split('Threads:')[1].split()[0]) == 1\n"
        "assert threading.active_count() == 1\n"
        "assert [signal.getsignal(n) for n in range(1, 32)] == before\n"
        "import os; assert len(os.listdir('/proc/self/task')) == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_torch_the_error_says_what_needs_it() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from cairn import torch_format\n"
        "try:\n    torch_format.encode({})\n"
        "except ImportError as error:\n    assert 'torch is not installed' in str(error)\n"
        "else:\n    raise SystemExit(1)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
