"""How `cairn` ends: at Ctrl-C, when the reader of its pipe leaves, when its input ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cairn_command import Cairn
from cairn_daemon import MIB, Node, exit_status, node
from cairn_raw import pattern
from patience import patient, until
from stopped import stop

BIG = 96 * MIB
LIMIT_S = 60


@pytest.fixture
def cairn(daemon: Node) -> Cairn:
    return Cairn(daemon)


@pytest.fixture
def roomy() -> Cairn:
    with node(budget=512 * MIB) as instance:
        yield Cairn(instance)


def caught(
    start: Callable[[], subprocess.Popen[bytes]], in_the_middle: Callable[[], bool]
) -> subprocess.Popen[bytes]:
    """The command, stopped in the middle of its work. One that was faster than this test runs again."""
    for _ in range(50):
        process = start()
        while process.poll() is None:
            if not in_the_middle():
                continue
            stop(process.pid)
            if state_of(process) == "T" and in_the_middle():
                return process
            process.send_signal(signal.SIGCONT)
            break
        assert exit_status(process, LIMIT_S) == 0, process.communicate()
        process.communicate()
    raise AssertionError("50 times it was done before it could be stopped")


def state_of(process: subprocess.Popen[bytes]) -> str:
    stat = Path(f"/proc/{process.pid}/stat").read_text()
    return stat.rsplit(")", 1)[1].split()[0]


def end(process: subprocess.Popen[bytes], number: int) -> bytes:
    """Sends the signal, wakes it; it died of the signal. Returns what it said on standard error."""
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    errors = process.communicate(timeout=patient(LIMIT_S))[1]
    assert process.returncode == -number, (process.returncode, errors)
    return errors


def parts(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if ".part-" in path.name]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_get_that_a_signal_ends_leaves_no_part_and_the_old_file(
    roomy: Cairn, tmp_path: Path, number: int
) -> None:
    (tmp_path / "in").write_bytes(pattern("big", BIG))
    roomy.run("put", tmp_path / "in", "ctrl/1/a")
    out = tmp_path / "out"
    out.mkdir()
    (out / "a").write_bytes(b"old")

    def start() -> subprocess.Popen[bytes]:
        (out / "a").write_bytes(b"old")
        return roomy.start("get", "ctrl/1/a", out / "a")

    process = caught(start, lambda: bool(parts(out)))
    assert end(process, number) == b""
    assert [path.name for path in out.iterdir()] == ["a"]
    assert (out / "a").read_bytes() == b"old"


def test_a_get_of_a_step_that_a_signal_ends_leaves_nothing(roomy: Cairn, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(pattern("big", BIG))
    (tmp_path / "small").write_bytes(b"small")
    roomy.run("put", tmp_path / "small", tmp_path / "big", "ctrl/1/")
    out = tmp_path / "to/out"

    def start() -> subprocess.Popen[bytes]:
        for name in ("small", "big"):
            (out / name).unlink(missing_ok=True)
        for folder in (out, out.parent):
            folder.rmdir() if folder.exists() else None
        return roomy.start("get", "ctrl/1", out)

    process = caught(start, lambda: out.exists() and bool(parts(out)))
    assert end(process, signal.SIGINT) == b""
    assert not out.parent.exists()


def test_a_get_that_ignores_ctrl_c_goes_on(roomy: Cairn, tmp_path: Path) -> None:
    """As one that a shell without job control put into the background does."""
    (tmp_path / "in").write_bytes(pattern("big", BIG))
    roomy.run("put", tmp_path / "in", "nohup/1/a")
    out = tmp_path / "out"

    def start() -> subprocess.Popen[bytes]:
        out.unlink(missing_ok=True)
        return roomy.start(
            "get",
            "nohup/1/a",
            out,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        )

    process = caught(start, lambda: bool(parts(tmp_path)))
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    assert process.communicate(timeout=patient(LIMIT_S)) is not None
    assert process.returncode == 0
    assert out.read_bytes() == pattern("big", BIG)


def test_a_failed_get_of_a_step_leaves_nothing(cairn: Cairn, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(pattern(name, MIB))
    cairn.run("put", tmp_path / "a", tmp_path / "b", "bad/1/", "--wait", "persisted")
    cairn.node.kill_all()
    with open(cairn.node.storage / "bad/1/b", "r+b") as file:
        file.seek(1000)
        file.write(b"not what was saved")
    stored = Cairn(cairn.node, CAIRN_STORAGE=str(cairn.node.storage))
    out = tmp_path / "out"
    stored.run("get", "bad/1", out, code=4)
    assert not out.exists()
    out.mkdir()
    (out / "a").write_bytes(b"old")
    stored.run("get", "bad/1", out, code=4)
    assert [path.name for path in out.iterdir()] == ["a"]
    assert (out / "a").read_bytes() == b"old"


def test_ctrl_c_in_a_put_drops_the_step(roomy: Cairn, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(pattern("big", BIG))

    def start() -> subprocess.Popen[bytes]:
        roomy.run("rm", "put", "--yes") if "put" in roomy.json("ls")["jobs"] else None
        return roomy.start("put", tmp_path / "in", "put/1/a")

    process = caught(start, lambda: roomy.node.status().writing_bytes > 0)
    assert end(process, signal.SIGINT) == b""
    until("its memory is free", lambda: roomy.node.status().writing_bytes == 0, LIMIT_S)
    until("no step is left", lambda: roomy.json("ls", "put")["checkpoints"] == [], LIMIT_S)
    roomy.run("latest", "put", code=3)


def test_put_takes_standard_input_of_any_length(cairn: Cairn, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    piping = Cairn(cairn.node, TMPDIR=str(spool))
    for step, data in enumerate((b"", b"short", pattern("input", 9 * MIB + 5))):
        process = piping.start("put", "-", f"input/{step}/dir/a", stdin=subprocess.PIPE)
        out, errors = process.communicate(data, timeout=patient(LIMIT_S))
        assert (process.returncode, errors) == (0, b""), out
        assert cairn.run("get", f"input/{step}/dir/a", "-").stdout == data
    assert list(spool.iterdir()) == [], "the copy of the input has no name"
    assert b"no name" in cairn.run("put", "-", "input/3/", code=2).stderr
    nowhere = Cairn(cairn.node, TMPDIR=str(tmp_path / "nowhere"))
    assert b"TMPDIR" in nowhere.run("put", "-", "input/3/a", code=2).stderr


def test_ctrl_c_while_standard_input_is_read_saves_nothing(cairn: Cairn, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    process = Cairn(cairn.node, TMPDIR=str(spool)).start(
        "put", "-", "half/1/a", stdin=subprocess.PIPE
    )
    assert process.stdin is not None
    # More than a pipe holds: it was read when this returns.
    process.stdin.write(b"x" * MIB)
    process.stdin.flush()
    process.send_signal(signal.SIGINT)
    assert process.wait(patient(LIMIT_S)) == -signal.SIGINT
    assert process.communicate()[1] == b""
    assert list(spool.iterdir()) == []
    assert cairn.json("ls")["jobs"] == []


@pytest.mark.parametrize(
    "command",
    [
        ["ls"],
        ["ls", "pipe"],
        ["ls", "-o", "json"],
        ["status"],
        ["status", "pipe"],
        ["status", "--watch=100ms"],
        ["help"],
        ["get", "pipe/1/a", "-"],
    ],
    ids=" ".join,
)
def test_a_reader_that_leaves_is_no_error(cairn: Cairn, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "a").write_bytes(pattern("pipe", MIB))
    cairn.run("put", tmp_path / "a", "pipe/1/a")
    reading, writing = os.pipe()
    os.close(reading)
    process = cairn.start(*command, stdout=writing)
    os.close(writing)
    errors = process.communicate(timeout=patient(LIMIT_S))[1]
    assert (process.returncode, errors) == (0, b"")


def test_a_full_standard_output_is_an_error(cairn: Cairn) -> None:
    with open("/dev/full", "wb") as full:
        process = cairn.start("status", stdout=full)
        errors = process.communicate(timeout=patient(LIMIT_S))[1]
    assert process.returncode == 1 and b"standard output" in errors


@pytest.mark.parametrize(
    "arguments",
    [["--watch=200ms"], ["--watch", "0.2"], ["w", "--watch=0.2"], ["--watch", "w"], ["--watch"]],
    ids=" ".join,
)
def test_status_watch_goes_on_until_ctrl_c(
    cairn: Cairn, tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "a").write_bytes(b"x")
    cairn.run("put", tmp_path / "a", "w/1/a")
    process = cairn.start("status", *arguments)
    assert process.stdout is not None
    shown = b""
    while shown.count(b"w: step 1, the latest,") < 3:
        assert select.select([process.stdout], [], [], patient(LIMIT_S))[0], shown
        piece = os.read(process.stdout.fileno(), 65536)
        assert piece, (shown, process.communicate())
        shown += piece
    assert (b"\nnode " in shown) == ("w" not in arguments)
    assert end(process, signal.SIGINT) == b""


def test_status_watch_outlives_a_daemon_and_refuses_what_is_no_time(cairn: Cairn) -> None:
    for wrong in ("--watch=-1", "--watch=never!"):
        assert b"is not a time" in cairn.run("status", wrong, code=2).stderr
    process = cairn.start("status", "--watch=100ms", "--timeout", "2s")
    assert process.stdout is not None and process.stderr is not None
    assert select.select([process.stdout], [], [], patient(LIMIT_S))[0]
    cairn.node.kill_all()
    assert b"no daemon" in process.stderr.readline()
    assert process.poll() is None
    process.stdout.close()
    assert process.wait(patient(LIMIT_S)) == 0, "its reader left"
