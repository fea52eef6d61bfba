"""`cairn` as an operator uses it: against a daemon, against a dead one, on a terminal and off."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from cairn_daemon import MIB, Node, binary, node, until
from cairn_raw import attempt_number, pattern


class Cairn:
    def __init__(self, node: Node, **environment: str) -> None:
        self.node = node
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("CAIRN")},
            "CAIRN_SOCKET": node.socket,
            **environment,
        }

    def run(self, *arguments: object, code: int = 0) -> subprocess.CompletedProcess[bytes]:
        result = subprocess.run(
            [binary("cairn"), *map(str, arguments)],
            env=self.environment,
            capture_output=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
        assert result.returncode == code, (
            result.returncode,
            result.stdout[-500:],
            result.stderr[-500:],
        )
        if code:
            assert result.stderr.startswith(b"cairn: ")
        return result

    def json(self, *arguments: object) -> Any:
        return json.loads(self.run(*arguments, "-o", "json").stdout)


@pytest.fixture
def cairn(daemon: Node) -> Cairn:
    return Cairn(daemon)


def test_put_get_ls_stat_latest(cairn: Cairn, tmp_path: Path) -> None:
    data = pattern("cli", 9 * MIB + 7)
    (tmp_path / "in").write_bytes(data)
    cairn.run("put", tmp_path / "in", "cli/3/model.bin")
    cairn.run("get", "cli/3/model.bin", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == data
    assert cairn.run("get", "cairn://cli/latest/model.bin", "-").stdout == data
    assert cairn.run("latest", "cli").stdout == b"3\n"
    assert cairn.json("ls")["jobs"] == ["cli"]
    (step,) = cairn.json("ls", "cli")["checkpoints"]
    assert (step["step"], step["level"], step["bytes"]) == (3, "CACHED", len(data))
    assert [o["name"] for o in cairn.json("ls", "cli/3")["objects"]] == ["model.bin"]
    assert cairn.json("stat", "cli/3/model.bin")["length"] == len(data)
    assert b"in this node's memory only" in cairn.run("stat", "cli/3").stdout


def test_put_again_replaces_and_put_beside_is_refused_naming_step(
    cairn: Cairn, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"one")
    cairn.run("put", tmp_path / "a", "again/1/a")
    (tmp_path / "a").write_bytes(b"two")
    cairn.run("put", tmp_path / "a", "again/1/a")
    assert cairn.run("get", "again/1/a", "-").stdout == b"two"
    assert b"step()" in cairn.run("put", tmp_path / "a", "again/1/b", code=1).stderr
    assert cairn.run("get", "again/1/a", "-").stdout == b"two"


def test_persist_wait_status_and_the_answer_in_words(cairn: Cairn, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * MIB)
    cairn.run("put", tmp_path / "a", "safe/1/a")
    status = cairn.json("status")
    assert status["safe"] is False and "memory only" in status["words"][0]
    cairn.run("wait", "safe/1", "--level", "cached")
    cairn.run("persist", "safe/1")
    cairn.run("wait", "safe/1", "--level", "persisted", "--timeout", "10s")
    assert cairn.run("status").stdout.startswith(b"safe: step 1, the latest, is safe")
    assert (cairn.node.storage / "safe/1/a").read_bytes() == b"x" * MIB


def test_wait_that_is_late_or_hopeless(cairn: Cairn, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    cairn.run("put", tmp_path / "a", "late/1/a")
    began = time.monotonic()
    cairn.run("wait", "late", "--after", "1", "--level", "cached", "--timeout", "300ms", code=7)
    assert time.monotonic() - began < 10
    cairn.run("wait", "late/1", "--level", "replicated", "--timeout", "20s", code=1)
    assert time.monotonic() - began < 15, "what the policy can never reach fails at once"


def test_rm_asks_before_the_last_copy(cairn: Cairn, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    cairn.run("put", tmp_path / "a", "rm/1/a")
    assert b"--yes" in cairn.run("rm", "rm/1", code=1).stderr
    assert on_terminal(cairn, "rm", "rm/1", answer="n\n")[0] == 1
    assert cairn.run("latest", "rm").stdout == b"1\n"
    code, text = on_terminal(cairn, "rm", "rm/1", answer="y\n")
    assert code == 0 and "last copy of rm/1" in text
    cairn.run("stat", "rm/1", code=3)


def test_rm_of_memory_alone_keeps_the_file(cairn: Cairn, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"kept")
    cairn.run("put", tmp_path / "a", "mem/1/a", "--wait", "persisted")
    cairn.run("rm", "mem/1", "--memory-only")
    assert cairn.json("stat", "mem/1")["facts"]["resident"] is False
    assert cairn.run("get", "mem/1/a", "-").stdout == b"kept"


def test_pin_unpin_policy(cairn: Cairn, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    cairn.run("put", tmp_path / "a", "pin/1/a")
    cairn.run("pin", "pin/1")
    assert cairn.json("stat", "pin/1")["facts"]["pinned"] is True
    cairn.run("unpin", "pin/1")
    assert cairn.json("stat", "pin/1")["facts"]["pinned"] is False
    assert cairn.json("policy", "pin")["persist"] == "on-demand"
    cairn.run("policy", "pin", "--every", "100", "--keep-last", "3")
    policy = cairn.json("policy", "pin")
    assert (policy["persist"], policy["every"], policy["keep_last"]) == ("every", 100, 3)
    cairn.run("policy", "pin", "--every", "-1", code=2)


def test_policy_dry_run_shows_what_that_policy_then_deletes(cairn: Cairn, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x")
    for step in (1, 2, 3):  # a life each, which comes from the step before
        cairn.run("put", tmp_path / "in", f"dry/{step}/a")
        cairn.run("persist", f"dry/{step}")
        cairn.run("wait", f"dry/{step}")
    shown = cairn.json("policy", "dry", "--keep-last", 1, "--dry-run")
    assert [(files["step"], files["now"]) for files in shown["files"]] == [(1, True), (2, True)]
    assert (shown["stay"], shown["go_now"], shown["go_later"]) == (1, 2, 0)
    assert (
        b"older than the newest 1"
        in cairn.run("policy", "dry", "--keep-last", 1, "--dry-run").stdout
    )
    assert cairn.json("policy", "dry")["keep_last"] == 0
    assert {c["level"] for c in cairn.json("ls", "dry")["checkpoints"]} == {"PERSISTED"}
    cairn.run("policy", "dry", "--keep-last", 1)

    def persisted() -> list[int]:
        listed = cairn.json("ls", "dry")["checkpoints"]
        return [c["step"] for c in listed if c["level"] == "PERSISTED"]

    until("the older ones are deleted", lambda: persisted() == [3])


def test_exit_codes(cairn: Cairn, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"\0" * (80 * MIB))
    cairn.run("latest", "nosuchjob", code=3)
    cairn.run("get", "nosuchjob/1/a", tmp_path / "x", code=3)
    cairn.run("get", "../1/a", tmp_path / "x", code=2)
    cairn.run("put", tmp_path / "big", "big/1/a", "--timeout", "2s", code=5)
    cairn.run("--socket", tmp_path / "none", "status", code=6)
    assert not (tmp_path / "x").exists()


def test_get_from_storage_when_the_daemon_is_down(cairn: Cairn, tmp_path: Path) -> None:
    data = pattern("down", 5 * MIB)
    (tmp_path / "in").write_bytes(data)
    cairn.run("put", tmp_path / "in", "down/7/dir/a", "--wait", "persisted", "--kind", "torch")
    cairn.node.kill_all()
    cairn.run("get", "down/7/dir/a", tmp_path / "out", code=6)
    with_storage = Cairn(cairn.node, CAIRN_STORAGE=str(cairn.node.storage))
    note = with_storage.run("get", "down/latest/dir/a", tmp_path / "out").stderr
    assert b"reading" in note
    assert (tmp_path / "out").read_bytes() == data
    assert with_storage.run("latest", "down").stdout == b"7\n"
    assert with_storage.json("ls", "down")["checkpoints"][0]["facts"]["persisted"] is True
    assert with_storage.json("stat", "down/7/dir/a")["kind"] == "torch"
    with_storage.run("get", "down/8/dir/a", tmp_path / "none", code=3)
    with_storage.run("latest", "nosuchjob", code=3)
    with_storage.run("status", code=6)
    stored = cairn.node.storage / "down/7/dir/a"
    with open(stored, "r+b") as file:
        file.seek(4 * MIB + 3)
        file.write(b"\xff\x00")
    assert b"block 1" in with_storage.run("get", "down/7/dir/a", tmp_path / "bad", code=4).stderr
    assert not (tmp_path / "bad").exists()


def test_a_get_that_cannot_finish_leaves_the_old_file(cairn: Cairn, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * MIB)
    cairn.run("put", tmp_path / "a", "full/1/a")
    assert cairn.run("get", "full/1/a", "/dev/full", code=5)
    reader = subprocess.Popen(
        [binary("cairn"), "get", "full/1/a", "-"],
        env=cairn.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert reader.stdout is not None
    reader.stdout.close()
    assert reader.wait(20) == 1


def on_terminal(cairn: Cairn, *arguments: object, answer: str = "") -> tuple[int, str]:
    """Exit code and everything shown, with a terminal on all three streams."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [binary("cairn"), *map(str, arguments)],
        env=cairn.environment,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    os.write(controller, answer.encode())
    shown = b""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if not select.select([controller], [], [], 1)[0]:
            if process.poll() is not None:
                break
            continue
        try:
            piece = os.read(controller, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(controller)
    return process.wait(20), shown.decode(errors="replace")


def test_progress_is_shown_on_a_terminal_and_only_there(cairn: Cairn, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(pattern("p", 40 * MIB))
    assert cairn.run("put", tmp_path / "a", "progress/1/a").stderr == b""
    assert cairn.run("get", "progress/1/a", tmp_path / "b").stderr == b""
    code, text = on_terminal(cairn, "get", "progress/1/a", tmp_path / "c")
    assert code == 0
    assert "40.0 MiB of 40.0 MiB  100 %" in text
    code, text = on_terminal(cairn, "get", "progress/1/a", "-")
    assert code == 2, "bytes are not thrown at a terminal"


def test_status_shows_a_save_in_flight_and_who_holds_what() -> None:
    with node(budget=64 * MIB) as instance, instance.writer("flight", attempt_number()) as writer:
        writer.save(1, {"a": b"x"})
        reply = writer.create(2, {"a": 8 * MIB})
        writer.map(reply.extents[0])
        assert writer.progress is not None
        words = [
            0x314752504E524143 if i == 0 else v for i, v in enumerate((0, 2, 8 * MIB, 2 * MIB))
        ]
        for i, word in enumerate(words):
            writer.progress[8 * i : 8 * i + 8] = word.to_bytes(8, "little")
        text = Cairn(instance).run("status").stdout.decode()
        assert "step 2 [####............] 25 % of 8.00 MiB" in text, text
        assert str(os.getpid()) in text
        assert "being written 8.00 MiB" in text


def test_version_names_both(cairn: Cairn) -> None:
    versions = cairn.json("version")
    assert versions["cairn"] and versions["daemon"]
    cairn.node.kill_all()
    assert cairn.json("version")["daemon"] is None


def test_use_brings_back_what_a_later_life_left(cairn: Cairn, tmp_path: Path) -> None:
    """Line rule 14, by hand alone: ls --all says what there is, use chooses."""
    for attempt, step in ((1, 1), (2, 2), (3, 3), (4, 2)):  # each put is a life of its own
        (tmp_path / "a").write_bytes(f"{attempt}.{step}".encode())
        cairn.run("put", tmp_path / "a", f"use/{step}/a", "--attempt", attempt)
    assert cairn.run("latest", "use").stdout == b"2\n"
    assert b"--all shows them" in cairn.run("ls", "use").stdout
    everything = cairn.run("ls", "use", "--all").stdout
    assert b"LINE" in everything
    assert everything.count(b"abandoned") >= 2
    said = cairn.run("use", "use/3", "--attempt", "3").stdout
    assert b"use/3 of attempt 3 is latest" in said
    assert cairn.run("get", "use/latest/a", "-").stdout == b"3.3"
    cairn.run("use", "use/17", "--attempt", "1", code=3)
