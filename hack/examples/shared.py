"""What the examples share: a small model, a life that ends in the middle of a save, a digest of the end.

Nothing in this file is about Cairn.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

STEPS = 20
WIDTH = 256
BATCH = 32
# A life that is killed ends so many steps after it began: at most three lives of 20 steps end early.
LEAST_STEPS, MOST_STEPS = 5, 9


def parse_arguments(name: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", help=f"name of the job [{name}, or {name}.undisturbed]")
    parser.add_argument("--undisturbed", action="store_true", help="nothing is killed")
    parser.add_argument("--seed", help="chooses when lives end [each time anew]")
    arguments = parser.parse_args()
    arguments.job = arguments.job or name + (".undisturbed" if arguments.undisturbed else "")
    return arguments


def make_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The same weights in every process. One thread, so that every run adds in the same order."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(20251)
    model = nn.Sequential(
        nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Dropout(0.1), nn.Linear(2 * WIDTH, WIDTH)
    )
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One step. Samples and dropout come from torch's own random numbers, so their state counts too."""
    samples = torch.randn(BATCH, WIDTH)
    optimizer.zero_grad(set_to_none=True)
    (model(samples) - samples).square().mean().backward()
    optimizer.step()


class Life:
    """When this process ends itself: a few steps after the first, in the middle of a save."""

    def __init__(self, first: int, arguments: argparse.Namespace, rank: int = 0) -> None:
        seed = arguments.seed
        self._random = random.Random(None if seed is None else f"{seed} {rank} {first}")
        steps = self._random.randint(LEAST_STEPS, MOST_STEPS)
        self._last = STEPS if arguments.undisturbed else first + steps
        self._saving_took_s = 0.0
        print(f"goes on with step {first}" if first else "begins with step 0", flush=True)

    def may_end(self, step: int) -> None:
        """To be called between two parts of a save."""
        if step == self._last:
            print(f"killed in the middle of saving step {step}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    @contextlib.contextmanager
    def may_end_during(self, step: int) -> Iterator[None]:
        """For a save that is one call: the life ends at some moment of it, or of the time that it takes."""
        killer = threading.Thread(target=self._end_soon, args=(step,), daemon=True)
        begin = time.perf_counter()
        if step == self._last:
            killer.start()
        yield
        if step == self._last:
            killer.join()
        self._saving_took_s = time.perf_counter() - begin

    def _end_soon(self, step: int) -> None:
        print(f"killed while step {step} is saved", flush=True)
        time.sleep(self._saving_took_s * self._random.random())
        os.kill(os.getpid(), signal.SIGKILL)


def digest(*states: Any) -> str:
    """SHA-256 over every tensor and number in them, by name."""
    sha = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                sha.update(str(key).encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for item in value:
                add(item)
        elif isinstance(value, torch.Tensor):
            sha.update(f"{value.dtype} {tuple(value.shape)}".encode())
            sha.update(value.contiguous().numpy().tobytes())
        else:
            sha.update(repr(value).encode())

    add(states)
    return sha.hexdigest()
