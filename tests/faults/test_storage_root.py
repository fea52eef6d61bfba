"""R32: storage is replaced, unmounted, mounted again, restored from an older copy, under a running daemon.

Promise 1: nothing is PERSISTED on what is not the node's storage. It is said, and healed when it returns.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cairn_daemon import MIB, Node, binary, file_bytes, node
from cairn_raw import DEADLINE_EXCEEDED, PERSISTED, Raw, attempt_number, pattern, refuses
from patience import until

MARKER = ".cairn-root"


@contextmanager
def saving(*options: str, **others: Any) -> Iterator[tuple[Node, Raw]]:
    """A daemon that persists every step, and the writer of its job `r`."""
    with (
        node(persist="every", options=options, **others) as instance,
        instance.writer("r", attempt_number()) as writer,
    ):
        yield instance, writer


def save(writer: Raw, step: int) -> bytes:
    data = pattern(f"r32-{step}", MIB)
    writer.save(step, {"a": data})
    return data


def persisted(writer: Raw, step: int) -> bool:
    return bool(writer.checkpoint(step).facts.persisted)


def away(instance: Node) -> str:
    """What status says is wrong with storage, once it does."""
    return until("status says that storage is away", lambda: instance.status().storage_problem)


def back(instance: Node) -> None:
    until("status says that storage is back", lambda: not instance.status().storage_problem)


def replace(instance: Node) -> Path:
    """Renames the root, and puts an empty directory in its place. Where the root is now."""
    aside = instance.folder / "aside"
    instance.storage.rename(aside)
    instance.storage.mkdir()
    return aside


def put_back(instance: Node) -> None:
    shutil.rmtree(instance.storage, ignore_errors=True)
    (instance.folder / "aside").rename(instance.storage)


def test_an_empty_directory_in_the_roots_place_is_not_storage() -> None:
    with saving() as (instance, writer):
        first = save(writer, 1)
        writer.wait(1, PERSISTED, 20_000)
        replace(instance)
        assert MARKER in away(instance)
        assert not persisted(writer, 1)
        second = save(writer, 2)
        said = refuses(DEADLINE_EXCEEDED, writer.wait, 2, PERSISTED, 1_500)
        assert MARKER in said, said
        (job,) = [j for j in instance.status().jobs if j.job == "r"]
        assert job.latest_persisted_step == -1 and job.unprotected_checkpoints == 2
        assert MARKER in job.persist_problem
        assert not list(instance.storage.iterdir()), "something was written to what is not storage"
        shown = subprocess.run(
            [binary("cairn"), "--socket", instance.socket, "status"], capture_output=True, text=True
        ).stdout
        assert "is safe" not in shown and "AWAY" in shown, shown
        put_back(instance)
        writer.wait(2, PERSISTED, 20_000)
        writer.wait(1, PERSISTED, 20_000)
        assert file_bytes(instance, "r", 1, "a") == first
        assert file_bytes(instance, "r", 2, "a") == second
        back(instance)
        assert instance.log.read_text().count("storage is away") == 1


def test_a_root_that_is_removed_and_restored_from_an_older_copy_is_filled_from_memory() -> None:
    with saving() as (instance, writer):
        save(writer, 1)
        writer.wait(1, PERSISTED, 20_000)
        older = instance.folder / "older"
        shutil.copytree(instance.storage, older)
        second = save(writer, 2)
        writer.wait(2, PERSISTED, 20_000)
        shutil.rmtree(instance.storage)
        away(instance)
        assert not persisted(writer, 2)
        older.rename(instance.storage)
        writer.wait(2, PERSISTED, 20_000)
        assert file_bytes(instance, "r", 2, "a") == second
        assert persisted(writer, 1)


def test_a_copy_that_takes_the_roots_place_between_two_looks_is_read_anew() -> None:
    with saving() as (instance, writer):
        save(writer, 1)
        writer.wait(1, PERSISTED, 20_000)
        older = instance.folder / "older"
        shutil.copytree(instance.storage, older)
        second = save(writer, 2)
        writer.wait(2, PERSISTED, 20_000)
        instance.storage.rename(instance.folder / "aside")
        older.rename(instance.storage)
        until("step 2 is there again", lambda: (instance.storage / "r" / "2" / "a").exists())
        writer.wait(2, PERSISTED, 20_000)
        assert file_bytes(instance, "r", 2, "a") == second


def test_a_policy_deletes_nothing_while_the_newest_has_lost_files() -> None:
    with saving() as (instance, writer):
        first = save(writer, 1)
        save(writer, 2)
        for step in (1, 2):
            writer.wait(step, PERSISTED, 20_000)
        (instance.storage / "r" / "2" / "a").unlink()
        subprocess.run(
            [binary("cairn"), "--socket", instance.socket, "policy", "r", "--keep-last", "1"],
            check=True,
        )
        until("storage refuses", lambda: "stays as long as" in instance.log.read_text())
        assert file_bytes(instance, "r", 1, "a") == first


def test_what_a_user_deleted_is_not_written_again_unless_asked() -> None:
    with saving() as (instance, writer):
        for step in (1, 2):
            save(writer, step)
            writer.wait(step, PERSISTED, 20_000)
        deleted = instance.storage / "r" / "1"
        shutil.rmtree(deleted)
        for _ in range(2):
            instance.kill_daemon()
            writer.reconnect()
            writer.wait(2, PERSISTED, 20_000)  # once storage has been read
            assert not persisted(writer, 1)
        save(writer, 3)
        writer.wait(3, PERSISTED, 20_000)
        assert not deleted.exists()
        writer.change("persist", writer.ref(1))
        writer.wait(1, PERSISTED, 20_000)
        assert file_bytes(instance, "r", 1, "a") == pattern("r32-1", MIB)


def test_a_damaged_step_is_not_the_latest_once_memory_is_gone() -> None:
    """Promise 3, with the reason."""
    with saving() as (instance, writer):
        for step in (1, 2):
            save(writer, step)
            writer.wait(step, PERSISTED, 20_000)
        (instance.storage / "r" / "2" / "a").unlink()
        without_daemon = latest_of("r", f"--storage={instance.storage}")
        instance.kill_all()
        instance.start()
        with_daemon = latest_of("r", f"--socket={instance.socket}")
        for answer in (without_daemon, with_daemon):
            assert answer["step"] == 1
            assert "r/2: file a of writer 0 is gone" in answer["passed_over"]


def latest_of(job: str, where: str) -> dict[str, Any]:
    command = [binary("cairn"), where, "latest", job, "-o", "json"]
    answer: dict[str, Any] = json.loads(subprocess.check_output(command))
    return answer


def test_a_daemon_that_is_restarted_over_an_empty_directory_does_not_take_it_for_its_storage() -> (
    None
):
    with saving() as (instance, writer):
        save(writer, 1)
        writer.wait(1, PERSISTED, 20_000)
        replace(instance)
        instance.kill_daemon()
        writer.reconnect()
        away(instance)
        assert not persisted(writer, 1)
        assert writer.load(1, "a") == pattern("r32-1", MIB)
        save(writer, 2)
        assert not list(instance.storage.iterdir())
        put_back(instance)
        for step in (1, 2):
            writer.wait(step, PERSISTED, 20_000)
            assert file_bytes(instance, "r", step, "a") == pattern(f"r32-{step}", MIB)


def test_another_daemons_root_is_neither_written_nor_cleaned() -> None:
    with saving() as (instance, writer):
        save(writer, 1)
        writer.wait(1, PERSISTED, 20_000)
        replace(instance)
        subprocess.run([binary("cairn"), "storage", "init", instance.storage], check=True)
        until(
            "it is called another storage", lambda: "another" in instance.status().storage_problem
        )
        save(writer, 2)
        assert [entry.name for entry in instance.storage.iterdir()] == [MARKER]
        # The operator says that it is to be this node's storage from now on.
        (instance.storage / MARKER).unlink()
        known = instance.status().storage_id
        init = [binary("cairn"), "storage", "init", instance.storage, "--identity", known]
        subprocess.run(init, check=True)
        for step in (1, 2):
            writer.wait(step, PERSISTED, 20_000)
            assert file_bytes(instance, "r", step, "a") == pattern(f"r32-{step}", MIB)


def test_a_daemon_starts_and_serves_without_its_root() -> None:
    with saving("--storage.require_marker=true") as (instance, writer):
        assert "require_marker" in away(instance)
        data = save(writer, 1)
        assert not list(instance.storage.iterdir())
        instance.storage.rmdir()
        until("it is seen", lambda: "ENOENT" in instance.status().storage_problem)
        instance.kill_daemon()
        writer.reconnect()
        assert writer.load(1, "a") == data
        instance.storage.mkdir()
        subprocess.run([binary("cairn"), "storage", "init", instance.storage], check=True)
        writer.wait(1, PERSISTED, 20_000)
        assert file_bytes(instance, "r", 1, "a") == data


@pytest.mark.root
def test_a_mount_that_goes_and_comes_back() -> None:
    """A tmpfs over the root: `umount` succeeds, because the daemon keeps nothing open there."""
    with node(persist="every", storage=False) as other:
        root = other.folder / "mount"
        disk = other.folder / "disk"
        root.mkdir()
        disk.mkdir()
        subprocess.run(["mount", "--bind", disk, root], check=True)
        try:
            subprocess.run([binary("cairn"), "storage", "init", root], check=True)
            options = (f"--storage.root={root}", "--storage.require_marker=true")
            with (
                node(persist="every", storage=False, options=options) as instance,
                instance.writer("r", attempt_number()) as writer,
            ):
                save(writer, 1)
                writer.wait(1, PERSISTED, 20_000)
                until(
                    "it can be unmounted",
                    lambda: subprocess.run(["umount", root], capture_output=True).returncode == 0,
                )
                away(instance)
                assert not persisted(writer, 1)
                save(writer, 2)
                instance.kill_daemon()
                writer.reconnect()
                assert not list(root.iterdir()), "written below the mount"
                subprocess.run(["mount", "--bind", disk, root], check=True)
                for step in (1, 2):
                    writer.wait(step, PERSISTED, 20_000)
                    assert (disk / "r" / str(step) / "a").stat().st_size == MIB
        finally:
            subprocess.run(["umount", "-l", root], capture_output=True)
