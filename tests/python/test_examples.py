"""hack/examples: each is killed in the middle of saves, and ends with the bits of a run that was not."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from node import MIB, ROOT, Node, held_port
from pages import children
from patience import patient

EXAMPLES = ROOT / "hack" / "examples"
MOST_KILLS = 3
SEED = "7"
PATIENCE_S = 240
# The second: a store of its own for each start of the ranks, as the example says.
SETTINGS = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@pytest.fixture(scope="module")
def examples_node() -> Iterator[Node]:
    node = Node(budget=768 * MIB).start()
    yield node
    node.remove()


def run(node: Node, command: list[str]) -> tuple[int, str]:
    """Its exit status, and what it printed."""
    process = subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "CAIRN_SOCKET": node.socket, **SETTINGS},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        printed, _ = process.communicate(timeout=patient(PATIENCE_S))
    except subprocess.TimeoutExpired:
        for pid in (*children(process.pid), process.pid):  # the ranks of a launcher, too
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        printed, _ = process.communicate()
        raise AssertionError(f"has not ended after {patient(PATIENCE_S):g} s:\n{printed}") from None
    return process.returncode, printed


def run_until_done(node: Node, name: str, job: str) -> list[str]:
    """Started again after each kill; what each life printed."""
    lives = []
    for _ in range(MOST_KILLS + 1):
        script = str(EXAMPLES / f"{name}.py")
        code, printed = run(node, [script, f"--job={job}", f"--seed={SEED}"])
        lives.append(printed)
        if code == 0:
            return lives
        assert code == -signal.SIGKILL, printed
    raise AssertionError("it was killed too often:\n" + "\n".join(lives))


def undisturbed(node: Node, name: str, job: str) -> str:
    script = str(EXAMPLES / f"{name}.py")
    code, printed = run(node, [script, f"--job={job}.undisturbed", "--undisturbed"])
    assert code == 0, printed
    assert "goes on" not in printed and "killed" not in printed
    return end_state(printed)


def end_state(printed: str) -> str:
    (digest,) = re.findall(r"done, sha256 ([0-9a-f]{64})$", printed, re.M)
    return digest


def steps(printed: str, words: str) -> list[int]:
    return [int(step) for step in re.findall(rf"\b{words} (\d+)\b", printed)]


def test_one_process_that_is_killed_goes_on_and_ends_with_the_same_bits(
    examples_node: Node, job: str
) -> None:
    """Promise 3."""
    *killed, last = run_until_done(examples_node, "one_process", job)
    assert killed
    for ended, begun in zip(killed, [*killed[1:], last], strict=True):
        # The step that was half-saved is done again, and no other.
        assert steps(ended, "saving step") == steps(begun, "goes on with step")
    assert end_state(last) == undisturbed(examples_node, "one_process", job)


def test_the_drop_in_that_is_killed_goes_on_and_ends_with_the_same_bits(
    examples_node: Node, job: str
) -> None:
    *killed, last = run_until_done(examples_node, "drop_in", job)
    assert killed
    for ended, begun in zip(killed, [*killed[1:], last], strict=True):
        # It ends at some moment of the save, and at the last of them all is saved.
        (step,) = steps(ended, "killed while step")
        assert steps(begun, "goes on with step") in ([step], [step + 1])
    digest = end_state(last)
    assert digest == undisturbed(examples_node, "drop_in", job)
    assert f"file, sha256 {digest}" in last


@pytest.mark.parametrize("name", ["ddp", "ddp_overlap"])
def test_ranks_that_torchrun_starts_again_go_on_and_end_with_the_same_bits(
    examples_node: Node, job: str, tmp_path: Path, name: str
) -> None:
    """Promise 3, R13."""
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--redirects=1", "--tee=1"]
    launcher += ["--monitor_interval=1", f"--log_dir={tmp_path}", "--rdzv_backend=c10d"]
    script = str(EXAMPLES / f"{name}.py")

    def launch(restarts: int, *arguments: str) -> str:
        rendezvous = [f"--rdzv_endpoint=127.0.0.1:{held_port()}", f"--rdzv_id={job}.{restarts}"]
        command = [*launcher, *rendezvous, f"--max_restarts={restarts}", script, *arguments]
        code, printed = run(examples_node, command)
        assert code == 0, printed
        return printed

    printed = launch(MOST_KILLS + 2, f"--job={job}", f"--seed={SEED}")
    killed = steps(printed, "killed in the middle of saving step")
    begun = steps(printed, "goes on with step")
    assert killed, printed
    assert len(begun) == 2 * len(set(begun)), printed  # every rank goes on, and from the same step
    if name == "ddp":
        # With the step that one of them had half-saved.
        assert sorted(set(begun)) == sorted(set(killed)), printed
    else:
        # The save that went on is complete or not; the other rank's one before may have gone on, too.
        assert all(any(abs(ended - again) <= 1 for ended in killed) for again in begun), printed
        assert "saved is what was trained: True" in printed
        assert "held up the training for" in printed
    whole = launch(0, f"--job={job}.undisturbed", "--undisturbed")
    assert end_state(printed) == end_state(whole)
