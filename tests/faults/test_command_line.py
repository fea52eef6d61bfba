"""`cairn` as an operator uses it: against a daemon, against a dead one, on a terminal and off."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from cairn_command import Cairn, on_terminal
from cairn_daemon import MIB, Node, node
from cairn_raw import attempt_number, pattern
from patience import patient, until
from stopped import stopped


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
    assert cairn.run("get", "cli/3/model.bin", "/dev/stdout").stdout == data
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


def test_put_leaves_nothing_out_that_was_saved_while_it_waited(
    cairn: Cairn, tmp_path: Path
) -> None:
    (tmp_path / "b").write_bytes(b"b")
    with cairn.node.writer("two", attempt_number()) as writer:
        seals = writer.write(1, {"a": b"a"})
        second = cairn.start("put", tmp_path / "b", "two/1/b")
        until("it waits", lambda: "waits for the end" in cairn.node.tail(), 60)
        writer.commit(1, seals)
    errors = second.communicate(timeout=patient(60))[1]
    assert second.returncode == 1, errors
    assert b"two/1 was saved by another while this put waited" in errors, errors
    assert [o["name"] for o in cairn.json("ls", "two/1")["objects"]] == ["a"]
    assert cairn.run("get", "two/1/a", "-").stdout == b"a"


def test_put_beside_one_that_saves_names_no_option_that_it_lacks(
    cairn: Cairn, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"a")
    with cairn.node.writer("busy", attempt_number()) as writer:
        writer.save(1, {"a": b"a"})
        refusal = cairn.run("put", tmp_path / "a", "busy/2/a", "--timeout", "3s", code=1).stderr
    assert f"pid {os.getpid()} still saves; end it".encode() in refusal, refusal
    assert b"fence" not in refusal, refusal


def test_persist_wait_status_and_the_answer_in_words(cairn: Cairn, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * MIB)
    cairn.run("put", tmp_path / "a", "safe/1/a")
    status = cairn.json("status")
    assert status["safe"] is False and "memory only" in status["words"][0]
    cairn.run("wait", "safe/1", "--level", "cached")
    cairn.run("persist", "safe/1")
    cairn.run("wait", "safe/1", "--level", "persisted", "--timeout", f"{patient(60):g}s")
    assert cairn.run("status").stdout.startswith(b"safe: step 1, the latest, is safe")
    assert (cairn.node.storage / "safe/1/a").read_bytes() == b"x" * MIB


def test_wait_that_is_late_or_hopeless(cairn: Cairn, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    cairn.run("put", tmp_path / "a", "late/1/a")
    began = time.monotonic()
    cairn.run("wait", "late", "--after", "1", "--level", "cached", "--timeout", "300ms", code=7)
    assert time.monotonic() - began < patient(30)
    # A level that the policy can never reach fails at once. A wait that is late ends with 7.
    cairn.run("wait", "late/1", "--level", "replicated", "--timeout", "20s", code=1)


def test_rm_asks_before_the_last_copy(cairn: Cairn, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    cairn.run("put", tmp_path / "a", "rm/1/a")
    refusal = cairn.run("rm", "rm/1", code=1).stderr
    assert b"--yes removes it" in refusal and b"force" not in refusal
    assert on_terminal(cairn, "rm", "rm/1", answer="n\n")[0] == 1
    assert cairn.run("latest", "rm").stdout == b"1\n"
    code, text = on_terminal(cairn, "rm", "rm/1", answer="y\n")
    assert code == 0 and "last copy of rm/1" in text
    cairn.run("stat", "rm/1", code=3)


def test_rm_asks_for_what_an_older_life_left_of_the_step(cairn: Cairn) -> None:
    older, newer = attempt_number(), attempt_number()
    with cairn.node.writer("ab", older) as writer:
        writer.save(1, {"a": b"one"})
        writer.save(2, {"a": b"whole"})
    with cairn.node.writer("ab", newer, world_size=2) as writer:
        writer.change("resume", newer, 1, True, 0)
        writer.save(2, {"a": b"half"})
        refusal = cairn.run("rm", "ab/2", code=1).stderr.decode()
        assert f"attempt={older}" in refusal and "--yes removes it" in refusal, refusal
        code, text = on_terminal(cairn, "rm", "ab/2", answer="n\n")
        assert code == 1 and f"the last copy of ab/2, of attempt {older}, not on the line" in text
        assert cairn.run("get", "ab/2/a", "-", "--attempt", older).stdout == b"whole"
        cairn.run("rm", "ab/2", "--attempt", newer)  # what is not complete is nobody's last copy
        assert on_terminal(cairn, "rm", "ab/2", answer="y\n")[0] == 0
    assert [c["step"] for c in cairn.json("ls", "ab", "--all")["checkpoints"]] == [1]


def test_rm_names_every_last_copy_that_goes(cairn: Cairn) -> None:
    attempts = [attempt_number(), attempt_number()]
    for attempt in attempts:
        with cairn.node.writer("both", attempt) as writer:
            writer.save(1, {"a": b"x"})
    code, text = on_terminal(cairn, "rm", "both/1", answer="n\n")
    assert code == 1 and "the last copies of both/1, 2 complete checkpoints: " in text, text
    assert all(f"of attempt {attempt} " in text for attempt in attempts), text


def test_rm_of_a_job_asks_then_removes_every_checkpoint(cairn: Cairn, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    for step in (1, 2, 3, 2):  # the last life leaves 3 behind, and another 2
        cairn.run("put", tmp_path / "a", f"all/{step}/a")
    cairn.run("persist", "all/1")
    refusal = cairn.run("rm", "all", code=1).stderr
    assert b"--yes" in refusal and b"4 complete checkpoints have no other copy" in refusal
    assert on_terminal(cairn, "rm", "all", answer="n\n")[0] == 1
    assert len(cairn.json("ls", "all")["checkpoints"]) == 4
    code, text = on_terminal(cairn, "rm", "all", answer="y\n")
    assert code == 0 and "removed 4 checkpoints of all" in text, text
    assert cairn.json("ls", "all")["checkpoints"] == []
    until("its files are gone", lambda: not (cairn.node.storage / "all/1/a").exists(), 60)
    cairn.run("rm", "nosuchjob", "--yes", code=3)
    cairn.run("rm", "all/1/a", "--yes", code=2)


def test_rm_of_a_job_leaves_what_is_pinned_and_names_the_cure(cairn: Cairn, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    for step in (1, 2, 3):
        cairn.run("put", tmp_path / "a", f"some/{step}/a")
    cairn.run("pin", "some/2")
    assert b"`cairn unpin some/2`" in cairn.run("rm", "some/2", "--yes", code=1).stderr
    result = cairn.run("rm", "some", "--yes", code=1)
    assert b"some/2 stays: it is pinned; `cairn unpin some/2`" in result.stderr
    assert b"removed 2 checkpoints of some" in result.stdout
    assert [c["step"] for c in cairn.json("ls", "some")["checkpoints"]] == [2]
    cairn.run("unpin", "some/2")
    assert cairn.json("rm", "some", "--yes")["removed"] == 1
    assert cairn.json("ls", "some")["checkpoints"] == []


def test_rm_of_a_job_from_memory_keeps_the_files(cairn: Cairn, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"kept")
    for step in (1, 2):
        cairn.run("put", tmp_path / "a", f"mem/{step}/a", "--wait", "persisted")
    cairn.run("rm", "mem", "--memory-only")  # nothing is lost, so nothing is asked
    listed = cairn.json("ls", "mem")["checkpoints"]
    assert [c["facts"]["resident"] for c in listed] == [False, False]
    assert cairn.run("get", "mem/2/a", "-").stdout == b"kept"


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
    for said, means in (("newest", "newest"), ("on_demand", "on-demand"), ("every", "every")):
        cairn.run("policy", "pin", f"--mode={said}")
        policy = cairn.json("policy", "pin")
        assert (policy["persist"], policy["every"], policy["keep_last"]) == (means, 100, 3)
    assert b"persist     newest" in cairn.run("policy", "pin", "--persist", "newest").stdout
    assert b"sometimes" in cairn.run("policy", "pin", "--mode", "sometimes", code=2).stderr


def test_a_policy_of_a_job_without_a_save_is_not_taken_for_said(cairn: Cairn) -> None:
    trainer = cairn.node.writer("early", 1)
    refused = cairn.run("policy", "early", "--keep-last", "3", code=1).stderr
    assert b"has nothing in it yet" in refused
    trainer.save(1, {"a": b"x"})
    cairn.run("policy", "early", "--keep-last", "3")
    assert cairn.json("policy", "early")["keep_last"] == 3


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
    for command in (["ls"], ["stat", "down/7"], ["latest", "down"], ["status"]):
        assert b"--storage=DIR" in cairn.run(*command, code=6).stderr
    hint = cairn.run("get", "down/7/dir/a", tmp_path / "out", code=6).stderr
    assert b"--storage=DIR" in hint and b"CAIRN_STORAGE" in hint
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
    with_storage.run("get", "down/latest", tmp_path / "whole")
    assert (tmp_path / "whole/dir/a").read_bytes() == data
    assert b"down" in with_storage.run("ls", "-o", "wide").stdout
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


def test_progress_is_shown_on_a_terminal_and_only_there(cairn: Cairn, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(pattern("p", 40 * MIB))
    assert cairn.run("put", tmp_path / "a", "progress/1/a").stderr == b""
    assert cairn.run("get", "progress/1/a", tmp_path / "b").stderr == b""
    code, text = on_terminal(cairn, "get", "progress/1/a", tmp_path / "c")
    assert code == 0
    assert "40.0 MiB of 40.0 MiB  100 %" in text
    code, text = on_terminal(cairn, "get", "progress/1", tmp_path / "d")
    assert code == 0 and "1 object  40.0 MiB of 40.0 MiB  100 %" in text
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


def test_version_names_both_or_says_why_no_daemon_answers(cairn: Cairn) -> None:
    versions = cairn.json("version")
    assert versions["cairn"] and versions["daemon"]
    daemon = cairn.node.daemon_pid()
    with stopped(daemon):
        said = cairn.run("version", "--timeout", "500ms").stdout.decode()
    assert f"cairnd none answers at {cairn.node.socket}: " in said
    cairn.node.kill_all()
    assert cairn.json("version")["daemon"] is None
    assert "no daemon listens" in cairn.json("version")["problem"]
    said = cairn.run("version").stdout.decode()
    assert said.startswith("cairn ") and f"no daemon listens at {cairn.node.socket}" in said


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


def test_get_of_a_whole_step_makes_directories_and_replaces_files(
    cairn: Cairn, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(pattern(name, 5 * MIB + 3))
    cairn.run("put", tmp_path / "a", tmp_path / "b", "whole/1/")
    out = tmp_path / "deep/out"
    said = cairn.run("get", "whole/1", out).stdout
    assert b"made the directory" in said and b"2 objects, 10.0 MiB of whole/1, verified" in said
    assert {f.name: f.read_bytes() for f in out.iterdir()} == {
        name: pattern(name, 5 * MIB + 3) for name in ("a", "b")
    }
    (tmp_path / "c").write_bytes(b"new")
    cairn.run("put", tmp_path / "c", "whole/2/a")
    assert b"made" not in cairn.run("get", "whole/latest", out).stdout
    assert (out / "a").read_bytes() == b"new"
    assert sorted(f.name for f in out.iterdir()) == ["a", "b"], "nothing else is there, or gone"
    cairn.run("put", tmp_path / "c", "whole/3/sub/dir/c")
    assert cairn.json("get", "whole/3", str(out) + "/")["names"] == ["sub/dir/c"]
    assert (out / "sub/dir/c").read_bytes() == b"new"
    (out / "a").unlink()
    (out / "a").mkdir()
    assert b"is not a file" in cairn.run("get", "whole/2", out, code=2).stderr
    cairn.run("get", "whole/1", tmp_path / "c", code=2)
    cairn.run("get", "whole/1", "-", code=2)
    cairn.run("get", "whole", out, code=2)
    cairn.run("get", "whole/7", tmp_path / "none", code=3)
    assert not (tmp_path / "none").exists()


def test_get_of_a_whole_step_has_the_objects_of_one_attempt_alone(
    cairn: Cairn, tmp_path: Path
) -> None:
    attempts = [attempt_number(), attempt_number()]
    for attempt, names in zip(attempts, ("ab", "bc"), strict=True):
        with cairn.node.writer("one", attempt) as writer:
            writer.save(1, {name: f"{name} of {attempt}".encode() for name in names})
        cairn.run("persist", "one/1")
    cairn.run("get", "one/1", tmp_path / "newest")
    cairn.run("get", "one/1", tmp_path / "older", "--attempt", attempts[0])
    for folder, attempt, names in (("newest", attempts[1], "bc"), ("older", attempts[0], "ab")):
        got = {f.name: f.read_text() for f in (tmp_path / folder).iterdir()}
        assert got == {name: f"{name} of {attempt}" for name in names}


def test_ls_shows_ages_and_more_when_wide(cairn: Cairn, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1234)
    cairn.run("put", tmp_path / "a", "wide/1/a", "--attempt", "77")
    narrow = cairn.run("ls", "wide").stdout.decode()
    assert "AGE" in narrow and re.search(r" \d+ s\n", narrow), narrow
    assert not any(word in narrow for word in ("ATTEMPT", "REV", "SAVED", "77")), narrow
    wide = cairn.run("ls", "wide", "-o", "wide").stdout.decode()
    assert all(word in wide for word in ("AGE", "SAVED (UTC)", "ATTEMPT", "REV", " 77 ", "memory"))
    assert cairn.run("ls").stdout == b"wide\n"
    jobs = cairn.run("ls", "-o", "wide").stdout.decode()
    assert "OWNER" in jobs and f"uid {os.getuid()}" in jobs and "on-demand" in jobs
    assert "1,234" in cairn.run("ls", "wide/1", "-o", "wide").stdout.decode()
    assert b"none of table, wide and json" in cairn.run("ls", "-o", "narrow", code=2).stderr


def test_status_of_one_job(cairn: Cairn, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    for job in ("mine", "other"):
        cairn.run("put", tmp_path / "a", f"{job}/1/a")
    text = cairn.run("status", "mine").stdout.decode()
    assert text.startswith("mine: step 1, the latest, is in this node's memory only")
    assert "other" not in text and re.search(r"checkpoints +1\n", text), text
    shown = cairn.json("status", "mine")
    assert (shown["job"], shown["checkpoints"], shown["safe"]) == ("mine", 1, False)
    assert (shown["refused_saves"], shown["last_refusal"]) == (0, "")
    assert (shown["last_refusal_unix_ms"], shown["failed_persists"]) == (0, 0)
    assert shown["last_failed_persist_unix_ms"] == 0
    cairn.run("status", "nosuchjob", code=3)
    cairn.run("status", "mine/1", code=2)
    assert len(cairn.json("status")["jobs"]) == 2


def test_safe_mode_names_its_cure(cairn: Cairn, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    cairn.run("put", tmp_path / "a", "before/1/a")
    for _ in range(3):
        cairn.node.kill_daemon()
    until("safe mode", lambda: cairn.json("status")["state"].startswith("safe mode"), 60)
    assert b"SIGHUP to the keeper" in cairn.run("status").stdout
    assert b"SIGHUP to the keeper" in cairn.run("status", "before").stdout
    refusal = cairn.run("put", tmp_path / "a", "after/1/a", "--timeout", "3s", code=6).stderr
    assert b"safe mode" in refusal and b"SIGHUP to the keeper" in refusal, refusal
    assert cairn.run("get", "before/1/a", "-").stdout == b"x"


def test_help_knows_every_command(cairn: Cairn) -> None:
    overview = cairn.run("help").stdout.decode()
    assert overview == cairn.run("--help").stdout.decode()
    commands = re.findall(r"^  ([a-z]+)  +\S", overview.split("Subcommands:")[1], re.M)
    assert {"status", "ls", "put", "get", "rm", "policy", "version", "help"} <= set(commands)
    for command in commands:
        text = cairn.run("help", command).stdout.decode()
        assert text == cairn.run(command, "--help").stdout.decode()
        assert f"Usage: cairn {command}" in text, text
    assert b"cairn storage init /mnt" in cairn.run("help", "storage", "init").stdout
    assert b"frobnicate" in cairn.run("help", "frobnicate", code=2).stderr


def test_status_says_what_was_refused_and_what_failed(cairn: Cairn, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"\0" * (80 * MIB))  # the node has 64
    (tmp_path / "a").write_bytes(b"x")
    cairn.run("put", tmp_path / "a", "fine/1/a")
    cairn.run("put", tmp_path / "a", "trouble/1/a")
    assert b"refused" not in cairn.run("status").stdout
    for step in (2, 3):
        cairn.run("put", tmp_path / "big", f"trouble/{step}/a", "--timeout", "2s", code=5)
    text = cairn.run("status").stdout.decode()
    assert re.search(r"\n  trouble: 2 saves refused, the last \d+ \w+ ago: memory: ", text), text
    assert "fine: " not in text.split("\njobs\n")[1]
    text = cairn.run("status", "trouble").stdout.decode()
    assert re.search(r"\nrefused +2 saves since the daemon started, the last \d+ ", text), text
    shown = cairn.json("status", "trouble")
    assert shown["refused_saves"] == 2 and shown["last_refusal"].startswith("memory: ")
    assert 0 <= time.time() - shown["last_refusal_unix_ms"] / 1000 < patient(120)
    assert cairn.json("status", "fine")["refused_saves"] == 0

    (cairn.node.storage / "fine").write_text("a file where the job's directory should be")
    cairn.run("persist", "fine/1", "--no-wait")
    until("a persist failed", lambda: cairn.json("status", "fine")["failed_persists"] > 0, 60)
    text = cairn.run("status").stdout.decode()
    assert re.search(r"\n  fine: \d+ persists? failed, .*ago: ", text), text
    assert re.search(r"\nfailed +\d+ persist", cairn.run("status", "fine").stdout.decode())
