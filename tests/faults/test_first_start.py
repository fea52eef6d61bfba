"""What a first start needs to be there, and what it makes: the socket's directory, the storage root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cairn_daemon import MIB, Node, binary, node
from cairn_raw import PERSISTED, Raw, attempt_number, pattern
from patience import patient, until

NOBODY = 65534


def save(writer: Raw, step: int) -> bytes:
    data = pattern(f"first-{step}", MIB)
    writer.save(step, {"a": data})
    return data


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def refusal(*options: str, **others: object) -> str:
    """Why cairnd ends at once."""
    ended = subprocess.run(
        [binary("cairnd"), "--memory.budget=64MiB", "--journal.bytes=16MiB", *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patient(60),
        **others,  # type: ignore[call-overload]
    )
    assert ended.returncode == 1, ended
    return str(ended.stderr)


@contextmanager
def rooted(root: str, *options: str) -> Iterator[tuple[Node, Path]]:
    """A daemon that persists every step below a root beside its own folder, which `root` may name."""
    with node(persist="every", storage=False) as other:
        path = other.folder / root
        with node(
            persist="every", storage=False, options=(f"--storage.root={path}", *options)
        ) as it:
            yield it, path


# --- the socket's directory


def test_the_sockets_directory_is_made_for_all_users(daemon: Node) -> None:
    folder = daemon.folder / "made"
    daemon.kill_all()
    daemon.socket = str(folder / "s")
    daemon.command[1] = f"--socket={daemon.socket}"
    daemon.start()
    assert mode(folder) == 0o755
    daemon.kill_all()
    daemon.start()  # it is there already


def test_no_directory_above_the_sockets_is_made_and_the_error_names_the_option(
    tmp_path: Path,
) -> None:
    socket = tmp_path / "no" / "ne" / "s"
    said = refusal(f"--socket={socket}")
    assert f"socket {socket} (flag): neither {tmp_path}/no/ne nor {tmp_path}/no exists" in said
    assert "socket_path" not in said, "there is no such option"
    assert not (tmp_path / "no").exists()


def test_a_file_where_the_sockets_directory_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("somebody's notes")
    assert f"{tmp_path}/f is not a directory" in refusal(f"--socket={tmp_path}/f/s")
    assert (tmp_path / "f").read_text() == "somebody's notes"


@pytest.mark.root
def test_the_sockets_directory_is_not_made_behind_a_strangers_link(daemon: Node) -> None:
    """Else whoever may write to /tmp decides where root makes a directory."""
    open_to_all = daemon.folder / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o1777)
    target = daemon.folder / "target"
    target.mkdir()
    link = open_to_all / "link"
    link.symlink_to(target)
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    said = refusal(f"--socket={link}/made/s")
    assert f"symbolic link of uid {NOBODY}" in said, said
    assert not list(target.iterdir())


@pytest.mark.root
def test_an_ordinary_users_daemon_and_clients_meet_in_the_users_runtime_directory(
    daemon: Node,
) -> None:
    """And where there is none the error of the daemon says what to do."""
    runtime = daemon.folder / "run"
    runtime.mkdir(mode=0o700)
    os.chown(runtime, NOBODY, NOBODY)
    as_nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": ()}
    environment = {"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(runtime)}
    small = ["--memory.budget=64MiB", "--journal.bytes=16MiB"]
    keeper = subprocess.Popen(
        [binary("cairnd"), *small],
        env=environment,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        **as_nobody,  # type: ignore[call-overload]
    )
    try:
        socket = runtime / "cairn" / "cairn.sock"
        status = [binary("cairn"), "status"]

        def answers() -> bool:
            ran = subprocess.run(status, env=environment, capture_output=True, **as_nobody)
            return ran.returncode == 0

        until("a client of the user's finds it, told nothing", answers, 60)
        assert socket.is_socket() and mode(runtime / "cairn") == 0o700
        # Root's client does not take a user's daemon for the machine's.
        seen = subprocess.run(
            [binary("cairn"), "--help"], env=environment, capture_output=True, text=True
        )
        assert "TEXT=/run/cairn/cairn.sock" in seen.stdout, seen.stdout
    finally:
        keeper.terminate()
        keeper.communicate(timeout=patient(60))
    assert keeper.returncode == 0
    os.chown(runtime, 0, 0)
    if not Path("/run/cairn").exists():
        said = refusal(env=environment, **as_nobody)
        assert f"XDG_RUNTIME_DIR is not used: {runtime} belongs to uid 0" in said, said
        assert "give `socket` a path" in said, said
        assert not Path("/run/cairn").exists()


# --- the storage root


def test_a_missing_root_is_made_and_its_storage_is_kept() -> None:
    with (
        rooted("files") as (instance, root),
        instance.writer("r", attempt_number()) as writer,
    ):
        save(writer, 1)
        writer.wait(1, PERSISTED, 30_000)
        assert mode(root) == 0o755
        assert (root / ".cairn-root").read_text().strip() == instance.status().storage_id


def test_a_root_that_goes_is_not_made_again_by_this_daemon_or_the_next() -> None:
    with (
        rooted("files") as (instance, root),
        instance.writer("r", attempt_number()) as writer,
    ):
        save(writer, 1)
        writer.wait(1, PERSISTED, 30_000)
        root.rename(root.with_name("aside"))
        until("status says so", lambda: "ENOENT" in instance.status().storage_problem, 30)
        instance.kill_daemon()
        writer.reconnect()
        until("status says so", lambda: "ENOENT" in instance.status().storage_problem, 30)
        save(writer, 2)
        assert not root.exists(), "made in the place of a file system that is not mounted, perhaps"
        root.with_name("aside").rename(root)
        writer.wait(2, PERSISTED, 30_000)


def test_a_root_in_an_empty_directory_is_not_made_and_both_cures_work() -> None:
    with node(persist="every", storage=False) as other:
        empty = other.folder / "mountpoint"
        empty.mkdir()
        for cure, root in (("mount", empty / "a"), ("mkdir", empty / "b")):
            options = (f"--storage.root={root}",)
            with (
                node(persist="every", storage=False, options=options) as instance,
                instance.writer("r", attempt_number()) as writer,
            ):
                problem = until("it is said", lambda: instance.status().storage_problem, 30)
                assert f"{empty} is empty, as a mount point is" in problem
                assert f"`mkdir {root}`" in problem
                save(writer, 1)
                assert not list(empty.iterdir())
                if cure == "mount":
                    (empty / "lost+found").mkdir()
                else:
                    root.mkdir()
                writer.wait(1, PERSISTED, 30_000)
            for left in (root / "r", root, empty / "lost+found"):
                subprocess.run(["rm", "-rf", left], check=True)


def test_a_root_that_must_have_a_marker_is_not_made() -> None:
    with (
        rooted("files", "--storage.require_marker=true") as (instance, root),
        instance.writer("r", attempt_number()) as writer,
    ):
        until("it is said", lambda: "ENOENT" in instance.status().storage_problem, 30)
        save(writer, 1)
        assert not root.exists()
