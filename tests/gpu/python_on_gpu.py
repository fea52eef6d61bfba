#!/usr/bin/env python3
"""The Python half of weights and saves on a GPU: one daemon, one process, torch's own tensors.

    python_on_gpu.py [cuda | cuda:1 | cpu]

CAIRN_BIN is the folder of cairnd, and the package `cairn` is on the path. Needs torch, and nothing else: it
runs on a GPU machine from the folder of `make gpu-bundle`, too. On "cpu" it takes the same ways through the
host device, and so is kept in order where there is no GPU. Exit status 1 when something is not as it must be.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import cairn
import torch
from cairn.weights import Part, Shard, Slice, publish, stream

MIB = 1 << 20
BUDGET = 512 * MIB
Check = Callable[[cairn.Connection, torch.device], None]
State = dict[str, torch.Tensor]


@contextlib.contextmanager
def daemon() -> Iterator[str]:
    """A node of its own; its socket."""
    folder = Path(tempfile.mkdtemp(prefix="cairn-gpu-"))
    (folder / "storage").mkdir()
    command = [
        str(Path(os.environ["CAIRN_BIN"]) / "cairnd"),
        f"--socket={folder / 's'}",
        f"--memory.budget={BUDGET}",
        f"--storage.root={folder / 'storage'}",
        "--persist.mode=on-demand",
        "--journal.bytes=16MiB",
    ]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                cairn.connect(job="probe", rank=-1, socket=str(folder / "s"), timeout=2).close()
                break
            except cairn.Unavailable:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((folder / "log").read_text()) from None
                time.sleep(0.05)
        yield str(folder / "s")
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def same(came: torch.Tensor, wanted: torch.Tensor) -> bool:
    if came.dtype != wanted.dtype or came.shape != wanted.shape:
        return False
    return bool(
        torch.equal(
            came.cpu().contiguous().flatten().view(torch.uint8),
            wanted.detach().cpu().contiguous().flatten().view(torch.uint8),
        )
    )


def expect_same(came: State, wanted: State) -> None:
    assert came.keys() == wanted.keys(), (sorted(came), sorted(wanted))
    for name, tensor in wanted.items():
        assert same(came[name], tensor), name


def model(device: torch.device, seed: int = 0) -> State:
    """On the device but for one; whole, transposed, a view, tiny, empty."""
    torch.manual_seed(seed)
    base = torch.randn(512, 1024, device=device)
    return {
        "embed.weight": torch.randn(1000, 64, device=device).half(),
        "layers.0.w": base,
        "layers.1.w": base.t(),
        "layers.2.w": base[100:200, 3:900],
        "layers.10.w": torch.randn(3 * MIB, device=device).bfloat16(),
        "layers.11.host": torch.randn(300_000),
        "layers.12.flag": torch.tensor([True, False, True], device=device),
        "norm.empty": torch.empty(0, 7, device=device),
        "norm.scalar": torch.tensor(3.5, device=device),
    }


# --- what is checked ---------------------------------------------------------------------------------


def published_from_there_and_streamed_back(c: cairn.Connection, device: torch.device) -> None:
    state = model(device)
    assert publish(c, 1, state).complete
    for target in (device, torch.device("cpu")):
        with stream(c, 1, target) as s:
            came = dict(s)
        assert all(t.device.type == target.type for t in came.values())
        expect_same(came, state)
    with stream(c, 1, device, bucket_bytes=MIB, ahead=0) as s:
        expect_same(dict(s), state)


def saved_from_there_as_torch_saves(c: cairn.Connection, device: torch.device) -> None:
    """Three times, so that the copies go straight into memory that is registered."""
    for step in range(1, 4):
        state = model(device, step)
        state["parameter"] = torch.nn.Parameter(state["layers.0.w"])
        with c.step(step) as s:
            s.save({"model": state, "step": step}, "model.pt")
            s.save([state["layers.10.w"], 7], "other.pt")
        assert s.ok, s.error
        with c.file(f"{step}/model.pt") as path, zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None, "a CRC-32 is wrong"
        back = c.load(f"{step}/model.pt", map_location="cpu", weights_only=False)
        expect_same(back["model"], state)
        assert back["step"] == step


def what_the_stream_was_asked_for_comes_first(c: cairn.Connection, device: torch.device) -> None:
    tensor = torch.zeros(8 * MIB, device=device)
    work = torch.randn(2048, 2048, device=device) if device.type == "cuda" else None
    for step in range(1, 5):
        if work is not None:
            for _ in range(50):  # tens of milliseconds that are still to come when publish begins
                work = work @ work / 2048
        tensor.fill_(step)
        assert publish(c, step, {"w": tensor}).ok
        tensor.fill_(-1)  # after the copy: the caller may write on
        synchronize(device)
        came = dict(stream(c, step, "cpu"))["w"]
        assert bool((came == step).all()), step


def parts_names_slices_and_views(c: cairn.Connection, device: torch.device) -> None:
    whole = torch.randn(64, 48, device=device)
    assert publish(
        c,
        1,
        {
            "w": whole,
            "top": Part(whole[:20], (64, 48), (0, 0)),
            "top.rest": torch.ones(3, device=device),
        },
    ).ok
    came = dict(stream(c, 1, device, names="w", slices=Shard(1, 4)))
    assert same(came["w"], whole[16:32])
    came = dict(stream(c, 1, device, names="w", slices={"w": Slice(5, 40, dim=1)}))
    assert same(came["w"], whole[:, 5:40])
    try:
        dict(stream(c, 1, device, names="top"))
        raise AssertionError("a hole was streamed")
    except ValueError as error:
        assert '"top"' in str(error), error
    state = model(device)
    assert publish(c, 2, state).ok
    seen = {}
    with stream(c, 2, device, views=True, bucket_bytes=8 * MIB) as s:
        for bucket in s.buckets():
            seen.update({name: tensor.clone() for name, tensor in bucket.items()})
    expect_same(seen, state)


def version_after_version(c: cairn.Connection, device: torch.device) -> None:
    """More than fit, so that slabs are written again: later ones come by standing mappings."""
    ways: set[str] = set()
    big = torch.empty(40 * MIB, device=device)
    for step in range(1, 13):
        big.fill_(step)
        assert publish(c, step, {"w": big}).ok
        with stream(c, step, device) as s:
            came = dict(s)["w"]
            assert bool((came == step).all()), f"version {step}"
        ways.update(str(s.stats["way"]).split(", "))
    print(f"    ways: {', '.join(sorted(ways))}")
    deadline = time.monotonic() + 20  # slabs are registered in the background
    while s.stats["way"] != "standing":
        assert time.monotonic() < deadline, f"no standing mapping: {s.stats['standing_because']}"
        time.sleep(0.1)
        with stream(c, 12, device) as s:
            assert bool((dict(s)["w"] == 12).all())


def a_device_that_is_not_there(c: cairn.Connection, device: torch.device) -> None:
    publish(c, 1, {"w": torch.zeros(3)})
    try:
        stream(c, 1, "cuda:99")
        raise AssertionError("it was opened")
    except cairn.Unavailable as error:
        assert "cuda:99" in str(error), error


def the_second_gpu(c: cairn.Connection, device: torch.device) -> None:
    if torch.cuda.device_count() < 2:
        print("    there is one at most")
        return
    first, second = torch.device("cuda:0"), torch.device("cuda:1")
    state = {"a": torch.randn(MIB, device=first), "b": torch.randn(MIB, device=second)}
    assert publish(c, 1, state).ok
    for target in (first, second):
        came = dict(stream(c, 1, target))
        assert all(tensor.device == target for tensor in came.values())
        expect_same(came, state)


CHECKS: list[Check] = [
    published_from_there_and_streamed_back,
    saved_from_there_as_torch_saves,
    what_the_stream_was_asked_for_comes_first,
    parts_names_slices_and_views,
    version_after_version,
    a_device_that_is_not_there,
    the_second_gpu,
]


def main() -> int:
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        print("no GPU that torch can use")
        return 0
    failed = 0
    with daemon() as socket:
        for number, check in enumerate(CHECKS):
            job = f"check-{number}"
            print(f"  {check.__name__.replace('_', ' ')}", flush=True)
            with cairn.connect(job=job, rank=0, world_size=1, socket=socket, timeout=60) as c:
                try:
                    check(c, device)
                except Exception:
                    failed += 1
                    traceback.print_exc()
    print(f"{len(CHECKS) - failed} of {len(CHECKS)} as they must be, on {device}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
