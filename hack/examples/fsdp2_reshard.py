"""Four ranks train a model that FSDP2 shards, and save every step while the next one is computed. All are
killed; two ranks go on from the last complete step, each with twice as much of the model.

With build/bin on the PATH, build/main/python on the PYTHONPATH, PyTorch 2.6 or newer, and any daemon:

    export CAIRN_SOCKET=/tmp/examples.s
    cairnd --socket=$CAIRN_SOCKET --memory.budget=1GiB 2>/tmp/examples.log &
    torchrun --standalone --nproc_per_node 4 hack/examples/fsdp2_reshard.py --die-at 6
    torchrun --standalone --nproc_per_node 2 hack/examples/fsdp2_reshard.py

The second run says whether the state that it found is bit for bit the one that the four ranks had: the
SHA-256 of it lies in the checkpoint.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import time
from typing import Any

import cairn
import cairn.dcp
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

STEPS = 10
WIDTH = 512


def digest(state: dict[str, Any]) -> str:
    """SHA-256 over every tensor, whole. Every rank calls it."""
    sha = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value):
                sha.update(key.encode())
                add(value[key])
        elif isinstance(value, torch.Tensor):
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            sha.update(whole.contiguous().numpy().tobytes())

    add(state)
    return sha.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", default="fsdp2_reshard")
    parser.add_argument("--die-at", type=int, default=-1, help="step in whose save all ranks end")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)

    torch.manual_seed(20251)
    model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    c = cairn.connect(job=arguments.job)

    def state() -> dict[str, Any]:
        of_model, of_optimizer = get_state_dict(model, optimizer)
        return {"model": of_model, "optimizer": of_optimizer}

    first = 0
    if c.resume_latest() is not None:  # the same answer on every rank
        found = {**state(), "sha256": ""}
        checkpoint = cairn.dcp.load(found, c)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=found["model"],
            optim_state_dict=found["optimizer"],
        )
        same = digest(state()) == found["sha256"]
        first = checkpoint.step + 1
        if rank == 0:
            print(
                f"{world} ranks go on with step {first}, from what {checkpoint.world_size} ranks saved; "
                f"bit for bit the same: {same}",
                flush=True,
            )

    stalls: list[float] = []
    for step in range(first, STEPS):
        torch.manual_seed(1000 * step + rank)
        samples = torch.randn(16, WIDTH)
        optimizer.zero_grad()
        (model(samples) - samples).square().mean().backward()
        optimizer.step()  # waits until the save before is copied

        saved = state()
        sha256 = digest(saved)  # only to show that nothing is lost
        begin = time.perf_counter()
        done = cairn.dcp.async_save({**saved, "sha256": sha256}, c, step, overlap=optimizer)
        stalls.append(time.perf_counter() - begin)
        if step == arguments.die_at:
            if rank == 0:
                print(f"killed in the save of step {step}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    done.result()  # raises what the save failed with
    dist.barrier()
    if rank == 0:
        stall_ms = sorted(stalls)[len(stalls) // 2] * 1e3
        saved_mb = sum(object.length for object in c.ls(f"{c.job}/{STEPS - 1}").objects) / 1e6
        print(f"each save of {saved_mb:.1f} MB held up the training for {stall_ms:.1f} ms")
        print(f"done, sha256 {sha256}", flush=True)
    c.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
