"""One data-parallel rank of the demo's job; hack/demo/run.py starts two.

What a user would write to save every step through Cairn is between the two rulers below: connect, ask
where to go on from, load, and one `with` per step. The rest trains, and tells the driver what happened,
one JSON object per line on stdout.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from pathlib import Path

import model as job
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])


def tell(event: str, **values: object) -> None:
    print(json.dumps({"event": event, "rank": RANK, "at": time.time(), **values}), flush=True)


def my_part(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    """Ranks hold the same weights, so each saves a share: rank 0 the model, the last the optimizer. The
    state of the random numbers is each rank's own."""
    part: dict[str, object] = {f"rng-{RANK}.pt": torch.get_rng_state()}
    if RANK == 0:
        part["model.pt"] = net.state_dict()
    if RANK == WORLD_SIZE - 1:
        part["optimizer.pt"] = optimizer.state_dict()
    return part


# ---------------------------------------------------------------------------------------------------------
# With Cairn.


def go_on_from_cairn(c, net, optimizer) -> tuple[int, str]:
    """Loads the latest complete step; returns the step to do next, and where that one was: in the memory of
    this node ("memory") or of another one ("peer"), or in "storage"."""
    checkpoint = c.resume_latest()  # one rank asks, all act on its answer
    if checkpoint is None:
        return 0, "nothing"
    net.load_state_dict(checkpoint.load("model.pt"))
    optimizer.load_state_dict(checkpoint.load("optimizer.pt"))
    torch.set_rng_state(checkpoint.load(f"rng-{RANK}.pt"))
    return checkpoint.step + 1, checkpoint.source


def save_to_cairn(c, step: int, part: dict[str, object]) -> bool:
    with c.step(step) as s:
        for name, value in part.items():
            s.save(value, name)
    return s.ok


# ---------------------------------------------------------------------------------------------------------
# Without: what the files and the uninterrupted run are for.


def go_on_from_files(folder: Path, net, optimizer) -> int:
    """Plain torch.load of plain files; no daemon is asked."""
    net.load_state_dict(torch.load(folder / "model.pt"))
    optimizer.load_state_dict(torch.load(folder / "optimizer.pt"))
    torch.set_rng_state(torch.load(folder / f"rng-{RANK}.pt"))
    return int(folder.name) + 1


def save_to_folder(folder: Path, part: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in part.items():
        path = folder / name
        path.unlink(missing_ok=True)  # a new file each time, as with one folder per step
        torch.save(value, path)


# One function: a training script as users write them, so that what Cairn adds to one can be seen.
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--steps", type=int, required=True, help="do steps up to this one, exclusive"
    )
    parser.add_argument("--rendezvous", required=True)
    parser.add_argument("--socket", help="save through the Cairn daemon here")
    parser.add_argument("--job", default="demo")
    parser.add_argument(
        "--from-files", type=Path, help="go on from this folder of a persisted step"
    )
    parser.add_argument(
        "--torch-save-to",
        type=Path,
        action="append",
        default=[],
        help="time torch.save into this folder (the uninterrupted run)",
    )
    parser.add_argument("--write-final", type=Path, help="rank 0: torch.save the end state here")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group(
        "gloo", init_method=f"file://{arguments.rendezvous}", rank=RANK, world_size=WORLD_SIZE
    )
    text = job.read_text()
    net, optimizer = job.make(RANK)
    first = 0

    c = None
    if arguments.socket:
        import cairn

        c = cairn.connect(job=arguments.job, socket=arguments.socket)
    begin = time.perf_counter()
    source = "nothing"
    if arguments.from_files:
        first = go_on_from_files(arguments.from_files, net, optimizer)
        source = "files"
    elif c is not None:
        first, source = go_on_from_cairn(c, net, optimizer)
    tell(
        "ready",
        step=first,
        source=source if first else "nothing",
        load_ms=1000 * (time.perf_counter() - begin),
    )

    parallel = DistributedDataParallel(net)
    for step in range(first, arguments.steps):
        begin = time.perf_counter()
        inputs, targets = job.batch(text, step, RANK, WORLD_SIZE)
        optimizer.zero_grad(set_to_none=True)
        logits = parallel(inputs)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        trained = time.perf_counter()

        part = my_part(net, optimizer)
        stalls = {}
        if c is not None:
            dist.barrier()  # so that both ranks' stall is measured from the same moment
            begin_save = time.perf_counter()
            ok = save_to_cairn(c, step, part)
            stalls["cairn"] = 1000 * (time.perf_counter() - begin_save)
            if not ok:
                tell("not saved", step=step)
        for folder in arguments.torch_save_to:
            dist.barrier()
            begin_save = time.perf_counter()
            save_to_folder(folder, part)
            stalls[str(folder)] = 1000 * (time.perf_counter() - begin_save)
        tell("step", step=step, loss=loss.item(), train_ms=1000 * (trained - begin), stalls=stalls)

    if arguments.write_final and RANK == 0:
        torch.save(
            {"model": net.state_dict(), "optimizer": optimizer.state_dict()}, arguments.write_final
        )
    if c is not None:
        c.close()
    dist.barrier()
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()
    tell("done", step=arguments.steps)


if __name__ == "__main__":
    main()
