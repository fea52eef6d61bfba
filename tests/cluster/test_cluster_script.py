"""hack/cluster.sh: a ring for people."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import mariadb
import pytest
from cairn_raw import ROOT
from patience import patient
from ring import until

SCRIPT = ROOT / "hack" / "cluster.sh"


def test_a_command_runs_beside_the_ring_and_its_status_is_the_end(tmp_path: Path) -> None:
    command = (
        "set -e; echo $RING; "
        "cairn put $0 run/1/file; cairn wait run/1 --level replicated --timeout 60; "
        "CAIRN_SOCKET=$RING/1/s cairn get run/1/file - | cmp - $0; exit 7"
    )
    data = tmp_path / "file"
    data.write_bytes(os.urandom(100_000))
    done = subprocess.run(
        [SCRIPT, "2", "--no-storage", "--budget", "64MiB", "--", "sh", "-c", command, str(data)],
        capture_output=True,
        text=True,
        timeout=patient(120),
    )
    assert done.returncode == 7, done.stderr
    folder = Path(done.stdout.splitlines()[0])
    assert not folder.exists()


@pytest.mark.skipif(bool(mariadb.unavailable()), reason=mariadb.unavailable())
def test_with_mysql_all_nodes_write_one_catalog(tmp_path: Path) -> None:
    command = (
        "set -e; "
        "cairn put $0 run/1/file; cairn wait run/1 --level replicated --timeout 60; "
        'ask() { mariadb --no-defaults --socket=$RING/mysql/mysql.sock -u root -BN cairn -e "$1"; }; '
        "rows='SELECT COUNT(*) FROM holders WHERE step=1 AND resident=1'; "
        'for i in $(seq 100); do [ "$(ask "$rows")" = 2 ] && break; sleep 0.1; done; '
        "ask 'SELECT job, step FROM steps'; ask \"$rows\""
    )
    data = tmp_path / "file"
    data.write_bytes(os.urandom(100_000))
    done = subprocess.run(
        [SCRIPT, "2", "--no-storage", "--budget", "64MiB", "--mysql"]
        + ["--", "sh", "-c", command, str(data)],
        capture_output=True,
        text=True,
        timeout=patient(120),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["run\t1", "2"], "two nodes hold the step"


@pytest.mark.skipif(bool(mariadb.unavailable()), reason=mariadb.unavailable())
def test_the_database_ends_with_a_ring_whose_script_was_killed() -> None:
    process = subprocess.Popen(
        [SCRIPT, "1", "--budget", "64MiB", "--mysql"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        said = ""
        while "Ctrl-C" not in said:
            line = process.stdout.readline()
            assert line, "the script ended"
            said += line
    finally:
        process.kill()
        process.wait()
    socket = Path(said.split("--socket=")[1].split()[0])
    server = int((socket.parent / "pid").read_text())
    try:
        until("the server has ended", lambda: not Path(f"/proc/{server}").exists(), 30)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)
        shutil.rmtree(socket.parent.parent, ignore_errors=True)


def test_it_stays_until_it_is_interrupted_and_leaves_nothing_but_shared_storage(
    tmp_path: Path,
) -> None:
    shared = tmp_path / "shared"
    with subprocess.Popen(
        [SCRIPT, "2", "--budget", "64MiB", "--shared", shared, "--rate", "1000"],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stdout is not None
        sockets = []
        for line in process.stdout:
            if "CAIRN_SOCKET=" in line:
                sockets.append(Path(line.split("=")[1].split()[0]))
            if line.startswith("Ctrl-C"):
                break
        assert len(sockets) == 2 and all(socket.is_socket() for socket in sockets)
        process.send_signal(signal.SIGINT)
        assert process.wait(patient(60)) == 0
    until("the folder has gone", lambda: not sockets[0].parent.parent.exists())
    assert (shared / ".cairn-root").exists()


def test_what_makes_no_sense_is_refused_by_name() -> None:
    for words in (["0"], ["65"], ["2", "--replicas", "2"], ["2", "--shared", "x", "--no-storage"]):
        done = subprocess.run([SCRIPT, *words], capture_output=True, text=True)
        assert done.returncode == 2, words
        assert done.stderr
