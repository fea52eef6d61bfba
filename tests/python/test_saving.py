"""Saves and loads through a real daemon: every kind of object, files as stock tools see them, steps.

One file: each case saves in one way and loads in all ways, with the helpers at the top.
"""

from __future__ import annotations

import io
import pickle
import struct
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import cairn
import kinds
import numpy as np
import pytest
import torch
from in_call import in_call
from node import Node, binary
from patience import patient, until


@pytest.fixture
def c(node: Node, job: str) -> cairn.Connection:
    return cairn.connect(job)


def save_one(
    c: cairn.Connection, step: int, obj: Any, name: str = "obj.pt", **options: Any
) -> None:
    with c.step(step, strict=True) as s:
        s.save(obj, name, **options)
    assert s.ok and s.complete


def through_torch(obj: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(obj, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


# --- torch's format ------------------------------------------------------------------------------------


@kinds.every_kind
def test_every_kind_comes_back_as_through_stock_torch(c: cairn.Connection, kind: str) -> None:
    """Promise 2: what you load is what you saved."""
    obj = kinds.make(kind)
    expected = through_torch(obj)
    save_one(c, 1, obj)
    for mmap in (False, True):
        result = c.load("1/obj.pt", weights_only=False, mmap=mmap)
        kinds.assert_same(expected, result)
        assert kinds.sharing(result) == kinds.sharing(expected)


@kinds.every_kind
def test_stock_torch_opens_the_slab_itself(c: cairn.Connection, kind: str) -> None:
    """Promise 9: the bytes are a file that torch.load opens."""
    obj = kinds.make(kind)
    save_one(c, 1, obj)
    with c.file("1/obj.pt") as path:
        kinds.assert_same(through_torch(obj), torch.load(path, weights_only=False))


@kinds.every_kind
def test_every_record_has_a_true_crc32(c: cairn.Connection, kind: str) -> None:
    save_one(c, 1, kinds.make(kind))
    with c.file("1/obj.pt") as path, zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert {"archive/data.pkl", "archive/version"} <= set(archive.namelist())
        for entry in archive.infolist():
            assert entry.compress_type == zipfile.ZIP_STORED


def test_records_are_aligned_to_64_bytes(c: cairn.Connection) -> None:
    save_one(c, 1, kinds.make("forty_layers"))
    with c.file("1/obj.pt") as path:
        content = Path(path).read_bytes()
        with zipfile.ZipFile(path) as archive:
            headers = [entry.header_offset for entry in archive.infolist()]
    # A local header is 30 bytes, then the name and the extra fields, whose lengths stand at 26 and 28.
    offsets = [h + 30 + sum(struct.unpack_from("<HH", content, h + 26)) for h in headers]
    assert len(offsets) > 40
    assert all(offset % 64 == 0 for offset in offsets)


@pytest.mark.torch2
@pytest.mark.parametrize("kind", ["forty_layers", "views_and_aliases", "tied_parameters", "fp8"])
def test_stock_torch_maps_the_slab_with_weights_only(c: cairn.Connection, kind: str) -> None:
    obj = kinds.make(kind)
    save_one(c, 1, obj)
    with c.file("1/obj.pt") as path:
        result = torch.load(path, weights_only=True, mmap=True)
    kinds.assert_same(through_torch(obj), result)


@pytest.mark.torch2
def test_stock_torch_computes_no_offsets_in_our_files(c: cairn.Connection) -> None:
    from torch.utils.serialization import config

    obj = kinds.make("forty_layers")
    save_one(c, 1, obj)
    config.load.calculate_storage_offsets = True
    try:
        with c.file("1/obj.pt") as path:
            result = torch.load(path, weights_only=True, mmap=True)
            kinds.assert_same(obj, c.load("1/obj.pt"))
    finally:
        config.load.calculate_storage_offsets = False
    kinds.assert_same(obj, result)


def test_persisted_files_are_the_saved_bytes(c: cairn.Connection, node: Node) -> None:
    obj = kinds.make("forty_layers")
    save_one(c, 1, obj, "deep/model.pt")
    c.persist(1)
    assert c.wait(1, "persisted", timeout=patient(30)).facts.persisted
    path = node.storage / c.job / "1" / "deep" / "model.pt"
    kinds.assert_same(obj, torch.load(path))
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    with c.file("1/deep/model.pt") as slab:
        assert Path(slab).read_bytes() == path.read_bytes()


def test_arguments_of_torch_save_mean_what_they_mean_there(c: cairn.Connection) -> None:
    obj = kinds.make("nested")
    save_one(c, 1, obj, pickle_protocol=5)
    kinds.assert_same(obj, c.load("1/obj.pt", weights_only=False))
    save_one(c, 2, obj, pickle_module=pickle, _use_new_zipfile_serialization=False)
    kinds.assert_same(obj, c.load("2/obj.pt", weights_only=False))


def test_a_training_job_goes_on_exactly(c: cairn.Connection) -> None:
    def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
        return net, torch.optim.AdamW(net.parameters(), lr=0.01)

    def train(net: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            torch.manual_seed(step)
            optimizer.zero_grad()
            net(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()

    straight = make()
    train(*straight, range(10))

    net, optimizer = make()
    train(net, optimizer, range(5))
    with c.step(4) as s:
        s.save(net.state_dict(), "model.pt")
        s.save(optimizer.state_dict(), "optimizer.pt")
    assert s.ok

    net, optimizer = make()
    net.load_state_dict(c.load("4/model.pt"))
    optimizer.load_state_dict(c.load("4/optimizer.pt"))
    train(net, optimizer, range(5, 10))
    kinds.assert_same(straight[0].state_dict(), net.state_dict())


def test_loaded_tensors_are_private(c: cairn.Connection) -> None:
    """A process that writes into what it loaded changes nothing for others."""
    save_one(c, 1, torch.zeros(300_000))
    for mmap in (False, True):
        tensor = c.load("1/obj.pt", mmap=mmap)
        tensor.fill_(1)
        assert not c.load("1/obj.pt").any() and not c.load("1/obj.pt", mmap=True).any()


def leases(c: cairn.Connection) -> int:
    return sum(session["leases"] for session in c.status()["sessions"] if session["job"] == c.job)


def test_load_drops_its_lease_and_mmap_keeps_it_until_the_last_tensor_dies(
    node: Node, c: cairn.Connection
) -> None:
    save_one(c, 1, {"a": torch.arange(300_000), "b": torch.arange(300_000)})
    reader = node.reader(c.job)
    before = leases(c)
    private = reader.load("1/obj.pt")
    assert leases(c) == before
    mapped = reader.load("1/obj.pt", mmap=True)
    kept = mapped["b"]
    assert leases(c) == before + 1
    del mapped
    assert leases(c) == before + 1
    assert kept[-1].item() == 299_999
    del kept
    assert leases(c) == before
    assert private["a"][-1].item() == 299_999


def test_mapped_tensors_outlive_their_connection(node: Node, c: cairn.Connection) -> None:
    save_one(c, 1, torch.arange(300_000))
    reader = node.reader(c.job)
    tensor = reader.load("1/obj.pt", mmap=True)
    reader.close()
    assert tensor.sum().item() == 300_000 * 299_999 // 2


# --- arrays and bytes ----------------------------------------------------------------------------------

ARRAYS = {
    "c_order": np.arange(12.0).reshape(3, 4),
    "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "strided": np.arange(100)[::7],
    "negative_stride": np.arange(10)[::-1],
    "transposed": np.arange(24).reshape(2, 3, 4).transpose(1, 2, 0),
    "scalar": np.array(3.5),
    "empty": np.empty((0, 3), np.int16),
    "big_endian": np.arange(5, dtype=">i4"),
    "datetime": np.array(["2026-01-01", "2027-01-01"], "datetime64[D]"),
    "text": np.array(["a", "ключ"]),
    "structured": np.array([(1, 2.5)], dtype=[("a", "i2"), ("b", "f8")]),
    "unicode_fields": np.array([(1,)], dtype=[("ключ", "i2")]),
    "bool": np.array([True, False]),
    "complex": np.array([1 + 2j]),
    "half": np.arange(5, dtype=np.float16),
    "read_only": np.frombuffer(b"abcdefgh", np.uint8),
    "large": np.arange(1_000_003, dtype=np.int32),
}


@pytest.mark.parametrize("name", sorted(ARRAYS))
def test_arrays_are_npy_files(c: cairn.Connection, name: str) -> None:
    array = ARRAYS[name]
    save_one(c, 1, array, "a.npy")
    assert c.stat(1, "a.npy").kind == "numpy"
    with c.file("1/a.npy") as path, open(path, "rb") as file:
        content = file.read()
    stock = io.BytesIO()
    np.save(stock, array)
    assert content == stock.getvalue()
    for mmap in (False, True):
        result = c.load("1/a.npy", mmap=mmap)
        assert result.dtype == array.dtype and result.shape == array.shape
        np.testing.assert_array_equal(result, array)
        assert result.flags.writeable


@pytest.mark.parametrize(
    "array", [np.array([{"a": 1}, None], object), np.ma.array([1, 2], mask=[0, 1])]
)
def test_arrays_npy_cannot_hold_are_pickled_by_torch(c: cairn.Connection, array: Any) -> None:
    save_one(c, 1, array, "a")
    assert c.stat(1, "a").kind == "torch"
    result = c.load("1/a", weights_only=False)
    assert type(result) is type(array) and result.tolist() == array.tolist()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x",
        b"bytes" * 1000,
        bytearray(b"array"),
        memoryview(b"view"),
        memoryview(b"abcdef")[::2],
        memoryview(np.arange(6, dtype=np.int32).reshape(2, 3)),
        bytes(range(256)) * 40_000,
    ],
    ids=["empty", "one", "some", "bytearray", "memoryview", "strided", "typed", "large"],
)
def test_bytes_stay_as_they_are(c: cairn.Connection, content: Any) -> None:
    expected = bytes(content)
    save_one(c, 1, content, "raw.bin")
    info = c.stat(1, "raw.bin")
    assert (info.kind, info.length) == ("raw", len(expected))
    result = c.load("1/raw.bin")
    assert type(result) is bytes and result == expected
    assert c.load("1/raw.bin", mmap=True) == expected


# --- steps ---------------------------------------------------------------------------------------------


def test_latest_is_the_highest_complete_step(c: cairn.Connection) -> None:
    with pytest.raises(cairn.NotFound):
        c.latest()
    for step in (3, 7, 5):
        save_one(c, step, {"step": step})
    latest = c.latest()
    assert (latest.job, latest.step, latest.attempt, latest.world_size) == (c.job, 7, c.attempt, 1)
    assert latest.source == "memory" and latest.digest
    assert cairn.load(f"cairn://{c.job}/latest/obj.pt") == {"step": 7}


def test_an_exception_leaves_nothing(c: cairn.Connection) -> None:
    """Promise 3: complete or absent."""
    with pytest.raises(KeyError):
        with c.step(1) as s:
            s.save(torch.ones(300_000), "a")
            raise KeyError
    with pytest.raises(cairn.NotFound):
        c.latest()
    with pytest.raises(cairn.NotFound):
        c.load("1/a")


def test_a_step_is_not_seen_before_it_is_committed(c: cairn.Connection) -> None:
    with c.step(1) as s:
        s.save({"a": 1}, "a")
        with pytest.raises(cairn.NotFound):
            c.latest()
    assert c.latest().step == 1


def test_saving_a_step_again_replaces_it(c: cairn.Connection) -> None:
    save_one(c, 1, {"life": 1})
    first = c.latest()
    save_one(c, 1, {"life": 2})
    assert c.latest().revision == first.revision + 1
    assert c.load("1/obj.pt") == {"life": 2}


def test_a_step_with_nothing_to_save_is_complete(c: cairn.Connection) -> None:
    with c.step(1) as s:
        pass
    assert s.ok and s.complete
    assert c.latest().step == 1
    assert c.ls(f"{c.job}/1").objects == []


def test_many_objects_of_all_kinds_in_one_step(c: cairn.Connection) -> None:
    with c.step(2, notes={"loss": "0.5"}) as s:
        for i in range(30):
            s.save({"i": torch.full((i,), i)}, f"layers/{i:02}.pt")
        s.save(np.arange(10), "array.npy")
        s.save(b"text", "notes.txt")
        assert s.bytes_written > 0
    assert s.ok
    names = [o.name for o in c.ls(f"{c.job}/2").objects]
    assert sorted(names) == sorted(
        [*(f"layers/{i:02}.pt" for i in range(30)), "array.npy", "notes.txt"]
    )
    for i in range(30):
        kinds.assert_same({"i": torch.full((i,), i)}, c.load(f"2/layers/{i:02}.pt"))
    info = c.stat(2)
    assert info.facts.complete and info.objects == 32 and info.level == "CACHED"
    assert [checkpoint.step for checkpoint in c.ls().checkpoints] == [2]
    assert c.job in c.ls("").jobs


def test_one_name_twice_in_a_step_is_refused(c: cairn.Connection) -> None:
    with pytest.raises((ValueError, FileExistsError)):
        with c.step(1) as s:
            s.save({}, "a")
            s.save({}, "a")


def test_a_name_that_is_anothers_directory_is_refused(c: cairn.Connection) -> None:
    with pytest.raises((ValueError, FileExistsError)):
        with c.step(1) as s:
            s.save({}, "a")
            s.save({}, "a/b")


def test_two_ranks_complete_a_step_together(node: Node, job: str) -> None:
    one = cairn.connect(job, rank=0, world_size=2, attempt=5, local_writers=2)
    two = cairn.connect(job, rank=1, world_size=2, attempt=5, local_writers=2)
    with one.step(1) as s:
        s.save({"rank": 0}, "0.pt")
    assert s.ok and not s.complete
    with pytest.raises(cairn.NotFound):
        one.latest()
    assert one.stat(1).missing_writers == [1]
    with two.step(1) as s:
        s.save({"rank": 1}, "1.pt")
    assert s.ok and s.complete
    assert one.latest().world_size == 2
    assert [two.load(f"1/{rank}.pt")["rank"] for rank in (0, 1)] == [0, 1]


def test_one_name_from_two_writers_is_refused_to_the_second(node: Node, job: str) -> None:
    one = cairn.connect(job, rank=0, world_size=2, attempt=5)
    two = cairn.connect(job, rank=1, world_size=2, attempt=5)
    with pytest.raises(FileExistsError, match="writer 0"):
        with one.step(1) as s, two.step(1) as t:
            s.save({}, "same")
            t.save({}, "same")


def test_another_world_size_in_a_step_is_refused(node: Node, job: str) -> None:
    one = cairn.connect(job, rank=0, world_size=2, attempt=5)
    other = cairn.connect(job, rank=1, world_size=3, attempt=5)
    with one.step(1) as s:
        s.save({}, "a")
    with pytest.raises((ValueError, cairn.FailedPrecondition), match="world"):
        with other.step(1) as s:
            s.save({}, "b")


def test_one_rank_may_save_a_step_alone(node: Node, job: str) -> None:
    c = cairn.connect(job, rank=3, world_size=4, attempt=5)
    with c.step(1, writers=1) as s:
        s.save({"alone": True}, "a")
    assert s.complete and c.latest().world_size == 1


def test_a_superseded_attempt_raises(node: Node, job: str) -> None:
    old = cairn.connect(job, rank=0, world_size=2, attempt=5)
    new = cairn.connect(job, rank=0, world_size=2, attempt=9)
    with old.step(1) as s:
        s.save({}, "a")
    with new.step(2) as s:
        s.save({}, "a")
    with pytest.raises(cairn.Superseded, match="superseded by 9") as error:
        with old.step(3) as s:
            s.save({}, "a")
    assert error.value.by == 9 and not s.ok
    assert old.failures == {}


def test_resume_moves_the_line(node: Node, job: str) -> None:
    old = cairn.connect(job, attempt=5)
    for step in (1, 2, 3):
        save_one(old, step, {"life": 5})
    old.close()
    new = cairn.connect(job, attempt=6)
    answer = new.resume(1)
    assert answer is not None and answer.step == 1
    assert new.latest().step == 1  # at once
    save_one(new, 2, {"life": 6})
    assert (new.latest().step, new.latest().attempt) == (2, 6)
    assert new.load("1/obj.pt") == {"life": 5}
    new.close()
    last = cairn.connect(job, attempt=7)
    assert last.resume(None) is None


def test_resume_from_what_is_not_complete_is_refused(c: cairn.Connection) -> None:
    with pytest.raises(cairn.Error):
        c.resume(12)


def test_a_lone_writer_chooses_one_attempt_per_process(node: Node, job: str) -> None:
    one = cairn.connect(job)
    save_one(one, 1, {})
    two = cairn.connect(job)
    save_one(two, 2, {})
    assert one.attempt == two.attempt > 0
    save_one(one, 3, {})


def test_waiting_for_the_next_step(node: Node, c: cairn.Connection) -> None:
    reader = node.reader(c.job)
    found: list[cairn.CheckpointInfo] = []
    thread = threading.Thread(
        target=lambda: found.append(reader.wait_after(1, timeout=patient(30)))
    )
    save_one(c, 1, {})
    thread.start()
    until("it waits", lambda: in_call(thread.ident or 0, "_in_slices"))
    save_one(c, 2, {})
    thread.join()
    assert found[0].step == 2
    with pytest.raises(cairn.Timeout):
        c.wait_after(2, timeout=0.05)


def test_waiting_for_what_the_policy_never_does_fails_at_once(c: cairn.Connection) -> None:
    save_one(c, 1, {})
    with pytest.raises(cairn.FailedPrecondition):
        c.wait(1, "REPLICATED", timeout=patient(30))
    with pytest.raises(ValueError, match="level"):
        c.wait(1, "HOPED")


def test_a_policy_is_followed(node: Node, job: str) -> None:
    c = cairn.connect(job, policy=cairn.JobPolicy(mode="every", every=2))
    for step in (2, 3):
        save_one(c, step, {})
    assert c.wait(2, "PERSISTED", timeout=patient(30)).level == "PERSISTED"
    c.set_policy(cairn.JobPolicy(mode="newest"))
    save_one(c, 5, {})
    assert c.wait(5, "PERSISTED", timeout=patient(30)).facts.persisted


def test_remove_asks_before_the_last_copy(c: cairn.Connection) -> None:
    save_one(c, 1, {})
    save_one(c, 2, {})
    with pytest.raises(cairn.FailedPrecondition):
        c.remove(1)
    c.remove(1, force=True)
    with pytest.raises(cairn.NotFound):
        c.load("1/obj.pt")
    assert c.latest().step == 2


@pytest.mark.parametrize("rest", [0, 1])
@pytest.mark.parametrize("whole", [True, False])
def test_removing_a_step_that_is_being_saved_stops_no_training(
    node: Node, job: str, whole: bool, rest: int
) -> None:
    c = cairn.connect(job)
    save_one(c, 1, {})
    with (
        pytest.warns(cairn.CairnWarning, match=f"step: 2 of job {job} was removed"),
        c.step(2) as s,
    ):
        s.save(b"1", "a")
        path = job if whole else f"{job}/2"
        subprocess.run([binary("cairn"), "rm", path, "--yes"], check=True, capture_output=True)
        for _ in range(rest):
            s.save(b"2", "b")
    assert not s.ok and type(s.error) is cairn.Removed and c.failures == {"Removed": 1}
    with pytest.raises(cairn.Removed), c.step(2, strict=True):
        pass
    with pytest.raises(cairn.Removed):
        cairn.save(b"", "2/a")
    save_one(c, 3, {})
    assert c.latest().step == 3


def test_status_tells_of_a_job_that_only_storage_has(own_node: Node, job: str) -> None:
    with cairn.connect(job) as c:
        save_one(c, 7, {})
        c.persist(7)
        c.wait(7, timeout=patient(30))
    own_node.kill()  # memory is gone
    own_node.start()
    told = cairn.status(job)
    assert told["job"] == job and told["latest_step"] == told["latest_persisted_step"] == 7
    with pytest.raises(cairn.NotFound, match="nothing-of-it"):
        cairn.status("nothing-of-it")


def test_status_says_of_a_job_that_it_cannot_tell(own_node: Node, job: str) -> None:
    c = cairn.connect(job)
    save_one(c, 1, {})
    kept = own_node.storage.rename(own_node.folder / "elsewhere")
    until("it says that storage is away", lambda: c.status()["storage_problem"], 30)
    assert c.status(job)["latest_step"] == 1
    with pytest.raises((cairn.Unavailable, cairn.Timeout)):
        own_node.reader(job).status("nothing-of-it")
    kept.rename(own_node.storage)


def test_status_speaks_of_this_process(c: cairn.Connection) -> None:
    save_one(c, 1, torch.zeros(300_000))
    status = c.status()
    assert status["budget_bytes"] > 0 and status["used_bytes"] >= 1_200_000
    mine = [session for session in status["sessions"] if session["job"] == c.job]
    assert len(mine) == 1 and "python" in mine[0]["client"]


# --- cairn.save ----------------------------------------------------------------------------------------


def test_save_and_load_by_path_need_no_connect(
    node: Node, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")  # whatever RANK says
    monkeypatch.setenv("WORLD_SIZE", "8")
    obj = kinds.make("forty_layers")
    cairn.save(obj, f"cairn://{job}/12/model.pt")
    kinds.assert_same(obj, cairn.load(f"cairn://{job}/12/model.pt"))
    kinds.assert_same(obj, cairn.load(f"cairn://{job}/latest/model.pt", mmap=True))
    cairn.save(np.arange(3), f"cairn://{job}/13/a.npy")
    assert cairn.load(f"cairn://{job}/latest/a.npy").tolist() == [0, 1, 2]


def test_save_by_step_and_name_once_connected(c: cairn.Connection) -> None:
    cairn.save({"a": 1}, "12/model.pt")
    assert cairn.load("12/model.pt") == {"a": 1}
    assert c.latest().world_size == 1


def test_save_onto_other_names_is_refused(c: cairn.Connection) -> None:
    cairn.save({"a": 1}, "12/model.pt")
    cairn.save({"a": 2}, "12/model.pt")
    assert cairn.load("12/model.pt") == {"a": 2}
    with pytest.raises(cairn.FailedPrecondition, match=r"model\.pt.*step\(\)"):
        cairn.save({}, "12/optimizer.pt")
    assert cairn.load("12/model.pt") == {"a": 2}


SAVES_WHEN_TOLD = """
import sys, cairn
c = cairn.connect(sys.argv[1])
for step in (0, 1):
    with c.step(step, strict=True) as s:
        s.save(b"mine", "a")
    print(step, flush=True)
    sys.stdin.readline()
"""


def test_what_was_saved_while_a_save_waited_is_not_replaced(node: Node, job: str) -> None:
    """A new attempt waits for the end of the process that saves; that one may save the same step first."""
    other = subprocess.Popen(
        [sys.executable, "-c", SAVES_WHEN_TOLD, job],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdin is not None and other.stdout is not None
    assert other.stdout.readline() == "0\n"
    refused: list[cairn.Error] = []

    def save() -> None:
        try:
            cairn.save(b"other", f"cairn://{job}/1/b")
        except cairn.Error as error:
            refused.append(error)

    saver = threading.Thread(target=save)
    saver.start()
    waits = f"of job {job} waits for the end of pid {other.pid}"
    until("the save waits", lambda: waits in node.log.read_text(), 30)
    other.stdin.write("\n")
    other.stdin.flush()
    assert other.stdout.readline() == "1\n"
    other.communicate("\n", timeout=patient(60))
    saver.join(patient(60))
    (error,) = refused
    assert type(error) is cairn.FailedPrecondition and "already holds a" in str(error)
    reader = node.reader(job)
    assert [entry.name for entry in reader.ls(f"{job}/1").objects] == ["a"]
    assert reader.load("1/a") == b"mine" and reader.stat(1).facts.complete
    cairn.save(b"next", f"cairn://{job}/2/b")  # and nothing of what was refused is in the way


def test_what_was_left_behind_at_a_step_is_not_in_the_way_of_a_save(node: Node, job: str) -> None:
    with cairn.connect(job, attempt=1) as c:
        for step in (1, 2):
            save_one(c, step, {})
    with cairn.connect(job, attempt=2) as c:
        c.resume(1)
        cairn.save(b"", "2/other")
        assert [entry.name for entry in c.ls(f"{job}/2").objects] == ["other"]


def test_one_who_has_saved_goes_on_saving_while_storage_is_away(own_node: Node, job: str) -> None:
    """Nothing else can be in a step above those of an attempt that this process chose and began itself."""
    cairn.save(b"1", f"cairn://{job}/1/a")
    kept = own_node.storage.rename(own_node.folder / "elsewhere")
    reader = own_node.reader(job)
    until("it says that storage is away", lambda: reader.status()["storage_problem"], 30)
    for step in (2, 3):
        cairn.save(b"more", f"cairn://{job}/{step}/a")
    assert reader.load("3/a") == b"more"
    with pytest.raises(cairn.FailedPrecondition, match="already holds a"):
        cairn.save(b"", f"cairn://{job}/3/b")
    # What storage may have cannot be told of a lower step, nor by a life that has saved nothing yet.
    with pytest.raises((cairn.Unavailable, cairn.Timeout)):
        cairn.save(b"", f"cairn://{job}/0/b")
    code = f"import cairn; cairn.connect({job!r}, timeout=3); cairn.save(b'', '4/b')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )
    assert "cairn.errors.Unavailable" in done.stderr or "cairn.errors.Timeout" in done.stderr
    kept.rename(own_node.storage)


def test_save_onto_several_writers_step_is_refused(node: Node, job: str) -> None:
    for rank in (0, 1):
        c = cairn.connect(job, rank=rank, world_size=2, attempt=5)
        with c.step(1) as s:
            s.save({}, f"{rank}.pt")
    with pytest.raises(cairn.FailedPrecondition, match=r"2 writers.*step\(\)"):
        cairn.save({}, "1/0.pt")


def test_a_commit_has_memory_for_its_record(request: pytest.FixtureRequest, job: str) -> None:
    """Promise 4: all memory is in slabs that the saver maps, and only a create tells it to unmap any."""
    node = Node(budget=48 << 20, storage=False).start()
    request.addfinalizer(node.remove)
    c = cairn.connect(job, socket=node.socket)
    random = Random(1)
    for step in range(4500):
        began = time.monotonic()
        with c.step(step, strict=True) as s:
            for i in range(random.randint(1, 4)):
                sizes = [40, 400_000] if random.random() < 0.9 else [40]
                s.save({"a": b"x" * random.choice(sizes)}, f"m{i}.pt")
        assert s.ok and time.monotonic() - began < patient(30), step


def test_save_raises_when_it_cannot(node: Node, job: str) -> None:
    with pytest.raises(cairn.Full, match="budget"):
        cairn.save(torch.zeros(1 << 28), f"cairn://{job}/1/too-big.pt")
    with pytest.raises(cairn.NotFound):
        cairn.load(f"cairn://{job}/1/too-big.pt")


@pytest.mark.parametrize("path", ["1/none", "99/obj.pt", "cairn://unknown-job/1/x"])
def test_what_is_not_there_is_not_found(c: cairn.Connection, path: str) -> None:
    save_one(c, 1, {})
    with pytest.raises(FileNotFoundError):
        cairn.load(path)


def test_chunks_through_the_socket_are_the_same(node: Node, job: str) -> None:
    c = cairn.connect(job, takes_fds=False)
    obj = kinds.make("forty_layers")
    save_one(c, 1, obj)
    kinds.assert_same(obj, c.load("1/obj.pt"))
    kinds.assert_same(obj, node.reader(job).load("1/obj.pt", mmap=True))
