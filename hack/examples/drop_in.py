"""A script that saved with torch.save and went on with torch.load, with these two calls replaced. It is
killed while it saves, and goes on when it is started again.

With build/bin on the PATH, build/main/python on the PYTHONPATH, and a daemon with a folder for files:

    export CAIRN_SOCKET=/tmp/examples.s
    mkdir -p /tmp/examples
    cairnd --socket=$CAIRN_SOCKET --memory.budget=1GiB --storage.root=/tmp/examples 2>/tmp/examples.log &
    for life in 1 2 3 4; do python3 hack/examples/drop_in.py && break; done
    python3 hack/examples/drop_in.py --undisturbed

Both runs end with the same SHA-256 over model, optimizer and random numbers, and plain torch.load reads the
same from the file. A job that is done stays done: to see it again, give another --job.
"""

from __future__ import annotations

from pathlib import Path

import cairn
import torch
from shared import STEPS, Life, digest, make_model, parse_arguments, train


def main() -> None:
    arguments = parse_arguments("drop_in")
    model, optimizer = make_model()

    first = 0
    try:
        # Was: state = torch.load("state.pt")
        state = cairn.load(f"cairn://{arguments.job}/latest/state.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        first = state["step"] + 1
    except FileNotFoundError:
        pass

    life = Life(first, arguments)
    for step in range(first, STEPS):
        train(model, optimizer)
        state = {
            "step": step,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "rng": torch.get_rng_state(),
        }
        with life.may_end_during(step):
            # Was: torch.save(state, "state.pt"), which a kill in the middle would have left in pieces
            cairn.save(state, f"cairn://{arguments.job}/{step}/state.pt")

    print(f"done, sha256 {digest(state)}", flush=True)
    with cairn.connect(job=arguments.job, rank=-1) as c:
        if c.storage_root:
            c.persist()
            c.wait(timeout=60)
            file = Path(c.storage_root) / arguments.job / str(state["step"]) / "state.pt"
            print(f"file, sha256 {digest(torch.load(file))}")


if __name__ == "__main__":
    main()
