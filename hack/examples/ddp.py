"""Ranks train one model (DistributedDataParallel). One rank is killed in the middle of a save, torchrun
starts all of them again, and they go on together with the step that was lost.

With build/bin on the PATH, build/main/python on the PYTHONPATH, and any daemon:

    export CAIRN_SOCKET=/tmp/examples.s
    cairnd --socket=$CAIRN_SOCKET --memory.budget=1GiB 2>/tmp/examples.log &
    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --standalone --nproc_per_node 2 --max_restarts 3 --redirects 1 --tee 1 hack/examples/ddp.py
    torchrun --standalone --nproc_per_node 2 --redirects 1 --tee 1 hack/examples/ddp.py --undisturbed

Both runs end with the same SHA-256 over model, optimizer and the random numbers of every rank. A job
that is done stays done: to see it again, give another --job. Debian 12's torchrun fails without --redirects
and --tee; the variable gives each start of the ranks a store of its own where PyTorch is newer, without which
gloo may try to reach ranks of the start before.
"""

from __future__ import annotations

import cairn
import torch
import torch.distributed as dist
from shared import STEPS, Life, digest, make_model, parse_arguments, train
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    arguments = parse_arguments("ddp")
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
    for step in range(first, STEPS):
        train(parallel, optimizer)
        with c.step(step) as s:  # complete once every rank has left the `with`
            s.save(torch.get_rng_state(), f"rng{c.rank}.pt")
            life.may_end(step)
            if c.rank == 0:  # the same on every rank, so one saves it
                s.save(model.state_dict(), "model.pt")
                s.save(optimizer.state_dict(), "optimizer.pt")
        if not s.ok:
            print(f"step {step} was not saved: {s.error}", flush=True)

    dist.barrier()  # from here on the last step is complete
    if c.rank == 0:
        states = [c.load(f"{STEPS - 1}/rng{rank}.pt") for rank in range(c.world_size)]
        end = digest(model.state_dict(), optimizer.state_dict(), states)
        print(f"done, sha256 {end}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
