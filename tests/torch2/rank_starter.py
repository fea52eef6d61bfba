"""A program that has imported PyTorch once and starts ranks by fork: of each request, a line of JSON, it runs
the script as so many processes and answers with what they ended. PyTorch is most of what a process costs.

It has no threads and no connection of its own, so that a rank is as a process that was started anew.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import sys
import time
import traceback
import types
from typing import Any

import cairn
import cairn.dcp  # noqa: F401
import torch
import torch._dynamo  # DTensor asks for it late
import torch.distributed.checkpoint.state_dict
import torch.distributed.device_mesh
import torch.distributed.fsdp
import torch.distributed.tensor.parallel
import torch.nn.parallel

LOOKS_AGAIN_S = 0.01
LAST_WORDS_S = 0.5


def rank(script: str, arguments: list[str], output: str, most_s: float) -> None:
    """Never returns. Shortly before it is killed it says where it stands."""
    code = 1
    try:
        for number, path, flags in (
            (0, os.devnull, os.O_RDONLY),
            (1, output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        ):
            opened = os.open(path, flags, 0o600)
            os.dup2(opened, number)
            os.close(opened)
        os.dup2(1, 2)
        torch.set_num_threads(1)
        faulthandler.dump_traceback_later(0.9 * most_s)
        sys.argv = ["-c", *arguments]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(script, "<rank>", "exec"), main.__dict__)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        print(end.code)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ended(pids: list[int], expected: list[int], deadline: float) -> list[int | None]:
    """With what each ended, None where it had not: all had, or one otherwise than expected (which leaves the
    others waiting for it), or it is too late. Then none is left."""
    codes: list[int | None] = [None] * len(pids)
    until = deadline
    try:
        while None in codes and time.monotonic() < until:
            for at, pid in enumerate(pids):
                if codes[at] is None:
                    found, status = os.waitpid(pid, os.WNOHANG)
                    if found:
                        codes[at] = os.waitstatus_to_exitcode(status)
                        if codes[at] != expected[at]:
                            until = min(until, time.monotonic() + LAST_WORDS_S)
            if select.select([0], [], [], LOOKS_AGAIN_S)[0]:
                sys.exit(0)  # who asked is gone
    finally:
        for at, pid in enumerate(pids):
            if codes[at] is None:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    return codes


def answer(request: dict[str, Any]) -> list[int | None]:
    pids = []
    for number, output in enumerate(request["outputs"]):
        pid = os.fork()
        if pid == 0:
            world = len(request["outputs"])
            arguments = [str(number), str(world), *request["arguments"]]
            rank(request["script"], arguments, output, request["most_s"])
        pids.append(pid)
    return ended(pids, request["expected"], time.monotonic() + request["most_s"])


def main() -> None:
    while line := sys.stdin.readline():
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
