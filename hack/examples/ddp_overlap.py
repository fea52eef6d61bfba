"""Ranks train one model and save every step while the next one is computed. One rank is killed while a save
goes on, torchrun starts all of them again, and they go on together from the last step that is complete.

With build/bin on the PATH, build/main/python on the PYTHONPATH, and any daemon:

    export CAIRN_SOCKET=/tmp/examples.s
    cairnd --socket=$CAIRN_SOCKET --memory.budget=1GiB 2>/tmp/examples.log &
    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    run="torchrun --standalone --nproc_per_node 2 --redirects 1 --tee 1"
    $run --max_restarts 3 hack/examples/ddp_overlap.py
    $run hack/examples/ddp_overlap.py --undisturbed

Both runs end with the same SHA-256 over model, optimizer and the random numbers of every rank, and say how
long the saves held up the training. Of torchrun's arguments see ddp.py.
"""

from __future__ import annotations

import time

import cairn
import torch
import torch.distributed as dist
from shared import BATCH, STEPS, WIDTH, Life, digest, make_model, parse_arguments
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    arguments = parse_arguments("ddp_overlap")
    dist.init_process_group("gloo")
    model, optimizer = make_model()

    c = cairn.connect(job=arguments.job)
    torch.manual_seed(c.rank)  # each rank has samples and dropout of its own
    first = 0
    checkpoint = c.resume_latest()  # the same answer on every rank
    if checkpoint is not None:
        model.load_state_dict(checkpoint.load("model.pt"))
        optimizer.load_state_dict(checkpoint.load("optimizer.pt"))
        torch.set_rng_state(checkpoint.load(f"rng{c.rank}.pt"))
        first = checkpoint.step + 1

    parallel = DistributedDataParallel(model)
    life = Life(first, arguments, c.rank)
    stalls: list[float] = []
    for step in range(first, STEPS):
        samples = torch.randn(BATCH, WIDTH)
        optimizer.zero_grad(set_to_none=True)
        (parallel(samples) - samples).square().mean().backward()

        begin = time.perf_counter()
        c.fence()  # what is saved may change from here on; with PyTorch 2 optimizer.step() does it by itself
        stall = time.perf_counter() - begin
        optimizer.step()

        state = {f"rng{c.rank}.pt": torch.get_rng_state()}
        if c.rank == 0:  # the same on every rank, so one saves it
            state |= {"model.pt": model.state_dict(), "optimizer.pt": optimizer.state_dict()}
        begin = time.perf_counter()
        saving = c.save_async(step, state, overlap=optimizer)
        stalls.append(stall + time.perf_counter() - begin)
        life.may_end(step)

    saving.wait()
    c.fence()  # tells of a save that failed
    dist.barrier()  # from here on the last step is complete
    if c.rank == 0:
        saved = f"{saving.bytes / 1e6:.1f} MB"
        stall_ms = sorted(stalls)[len(stalls) // 2] * 1e3
        print(f"each save of {saved} held up the training for {stall_ms:.1f} ms", flush=True)
        states = [c.load(f"{STEPS - 1}/rng{rank}.pt") for rank in range(c.world_size)]
        end = digest(model.state_dict(), optimizer.state_dict(), states)
        kept = digest(c.load(f"{STEPS - 1}/model.pt"), c.load(f"{STEPS - 1}/optimizer.pt"), states)
        print(f"saved is what was trained: {end == kept}", flush=True)
        print(f"done, sha256 {end}", flush=True)
    dist.barrier()
    c.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
