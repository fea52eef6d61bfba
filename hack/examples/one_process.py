"""One process saves every step, is killed in the middle of saves, and goes on when it is started again.

With build/bin on the PATH, build/main/python on the PYTHONPATH, and any daemon:

    export CAIRN_SOCKET=/tmp/examples.s
    cairnd --socket=$CAIRN_SOCKET --memory.budget=1GiB 2>/tmp/examples.log &
    for life in 1 2 3 4; do python3 hack/examples/one_process.py && break; done
    python3 hack/examples/one_process.py --undisturbed

Both runs end with the same SHA-256 over model, optimizer and random numbers. A job that is done stays done:
to see it again, give another --job.
"""

from __future__ import annotations

import cairn
import torch
from shared import STEPS, Life, digest, make_model, parse_arguments, train


def main() -> None:
    arguments = parse_arguments("one_process")
    model, optimizer = make_model()

    c = cairn.connect(job=arguments.job)
    first = 0
    checkpoint = c.resume_latest()
    if checkpoint is not None:
        model.load_state_dict(checkpoint.load("model.pt"))
        optimizer.load_state_dict(checkpoint.load("optimizer.pt"))
        torch.set_rng_state(checkpoint.load("rng.pt"))
        first = checkpoint.step + 1

    life = Life(first, arguments)
    for step in range(first, STEPS):
        train(model, optimizer)
        with c.step(step) as s:
            s.save(model.state_dict(), "model.pt")
            life.may_end(step)
            s.save(optimizer.state_dict(), "optimizer.pt")
            s.save(torch.get_rng_state(), "rng.pt")
        if not s.ok:
            print(f"step {step} was not saved: {s.error}", flush=True)

    end = digest(model.state_dict(), optimizer.state_dict(), torch.get_rng_state())
    print(f"done, sha256 {end}")


if __name__ == "__main__":
    main()
