"""The trainer of hack/demo/weights.py: one process that publishes the model after every step.

What a user would write is the call of cairn.weights.publish. The rest trains, and notes what each version
is: a line of --versions has its digest, the digest of the second halves of its tensors, and when it was
committed. Consumers never see that file.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import cairn
import model as job
import torch
from run import digest_of

SAMPLES = 2  # per step: a second or less on one processor


def second_half(tensor: torch.Tensor) -> torch.Tensor:
    """What Shard(1, 2) selects; of what cannot be cut all."""
    return tensor.chunk(2)[1] if tensor.dim() and tensor.shape[0] >= 2 else tensor


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--last", type=int, required=True, help="publish versions 1 to this one")
    parser.add_argument("--versions", type=Path, required=True)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    text = job.read_text()
    net, optimizer = job.make(0, job.SIX_LAYERS)
    c = cairn.connect(job=arguments.job, rank=0, world_size=1, socket=arguments.socket)
    with open(arguments.versions, "w", encoding="utf-8") as versions:
        for step in range(1, arguments.last + 1):
            begin = time.monotonic()
            inputs, targets = job.batch(text, step, 0, 1, SAMPLES)
            optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(net(inputs).flatten(0, 1), targets.flatten())
            loss.backward()
            optimizer.step()
            trained = time.monotonic()

            weights = {**net.state_dict(), "step": torch.tensor(step)}
            halves = {name: second_half(tensor) for name, tensor in weights.items()}
            version = {"step": step, "whole": digest_of(weights), "half": digest_of(halves)}

            begin_publish = time.monotonic()
            published = cairn.weights.publish(c, step, weights)
            committed = time.monotonic()
            if not published.ok:
                raise SystemExit(f"version {step} was not published: {published.error}")
            versions.write(json.dumps({**version, "committed": committed}) + "\n")
            versions.flush()
            told = {
                "event": "published",
                "step": step,
                "loss": loss.item(),
                "train_ms": 1000 * (trained - begin),
                "publish_ms": 1000 * (committed - begin_publish),
                "bytes": sum(t.numel() * t.element_size() for t in weights.values()),
            }
            print(json.dumps(told), flush=True)
    c.close()


if __name__ == "__main__":
    main()
