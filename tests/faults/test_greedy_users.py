"""One user harms only himself: another uid takes, sends and leaves behind what it likes.

Promises 4 and 8."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from cairn_daemon import MIB, Node, exit_status, node
from cairn_raw import (
    PERSISTED,
    CairnError,
    attempt_number,
    pattern,
)
from patience import patient, until
from stopped import stopped

pytestmark = pytest.mark.root
NOBODY = 65534
GIB = 1 << 30

PREAMBLE = f"""
import fcntl, os, socket, struct, sys, termios, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
from cairn_raw import *
from patience import patient, until
"""


@contextmanager
def nobody(script: str) -> Iterator[subprocess.Popen[str]]:
    """Runs as another uid, until the caller is done; it has said "ready" when this returns."""
    process = subprocess.Popen(
        ["/usr/bin/python3", "-c", PREAMBLE + script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        assert said.startswith("ready"), said
        yield process
    finally:
        process.kill()
        process.wait()


def as_nobody(script: str) -> subprocess.CompletedProcess[str]:
    """What the same script says when it ends instead of waiting to be killed."""
    script = PREAMBLE + script.replace("time.sleep(600)", "")
    command = ["/usr/bin/python3", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=patient(60), check=False)


def serves_others(instance: Node, job: str) -> None:
    """Another user saves and loads, without waiting for anybody."""
    begun = time.monotonic()
    with instance.writer(job, attempt_number()) as writer:
        data = pattern(job, MIB)
        writer.save(1, {"a": data})
        assert writer.load(1, "a") == data
    assert time.monotonic() - begun < patient(30)


def peak_mib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    raise AssertionError("no VmHWM")


# --- what lies in storage ---


def test_planted_manifests_stop_no_daemon() -> None:
    with node(persist="every") as instance:
        data = pattern("mine", MIB)
        with instance.writer("mine", attempt_number()) as writer:
            writer.save(1, {"a": data})
            writer.wait(1, PERSISTED, 30_000)
        instance.kill_all()
        plant = instance.storage / "mine" / "2" / ".cairn"
        plant.mkdir(parents=True)
        magic = b"CAIRNMF\x01" + struct.pack("<II", 1, GIB - 20)
        for writer_number, begin in enumerate((b"", magic, magic + bytes(4096))):
            path = plant / f"{writer_number}.manifest"
            path.write_bytes(begin)
            os.truncate(path, GIB)
        instance.start()
        with instance.session("mine") as reader:
            assert reader.load(1, "a") == data
        assert peak_mib(instance.daemon_pid()) < 64 + 64, "a budget of 64 MiB, and little beside it"
        serves_others(instance, "other")


def test_a_file_under_a_lease_delays_nobody_else() -> None:
    with node(persist="every") as instance:
        with instance.writer("leased", attempt_number()) as writer:
            writer.save(1, {"a": b"x"})
            writer.wait(1, PERSISTED, 30_000)
        instance.kill_all()
        manifest = next((instance.storage / "leased" / "1" / ".cairn").glob("*.manifest"))
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        held = os.open(manifest, os.O_RDWR)
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        instance.start()
        with instance.session("leased") as reader:
            begun = time.monotonic()
            with pytest.raises(CairnError) as error:
                reader.do("latest", "leased")
            assert "lease" in error.value.message, error.value
            assert time.monotonic() - begun < patient(60)
        serves_others(instance, "other")
        os.close(held)
        with instance.session("leased") as reader:

            def is_read() -> bool:
                try:
                    return bool(reader.latest("leased").step == 1)
                except CairnError:
                    return False

            until("it is read again", is_read)
        assert instance.stop() == 0


# --- what comes over the sockets ---


@pytest.mark.parametrize("kind", ["stream", "seqpacket"])
def test_a_descriptor_that_is_slow_to_close_delays_nobody_else(kind: str) -> None:
    script = f"""
listener = socket.create_server(("127.0.0.1", 0))
kept, sent = [], []
for _ in range(4):
    tcp = socket.create_connection(listener.getsockname())
    kept.append(listener.accept()[0])  # never read from
    tcp.setblocking(False)
    try:
        while True:
            tcp.send(bytes(1 << 20))
    except BlockingIOError:
        pass
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    if {kind == "stream"}:
        to = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        to.connect(SOCKET)
        socket.send_fds(to, [b"\\0\\0\\0\\1x"], [tcp.fileno()])
    else:
        to = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        to.connect(SOCKET + ".fd")
        send_fds(to, b"x" * 24, [tcp.fileno()])
    kept.append(to)
    sent.append(to)
    tcp.close()

def is_read(to):
    return struct.unpack("i", fcntl.ioctl(to, termios.TIOCOUTQ, bytes(4))) == (0,)

print("ready", flush=True)
until("the daemon has one", lambda: any(map(is_read, sent)))
print("it has one", flush=True)
time.sleep(600)
"""
    with node() as instance, ExitStack() as stack:
        # The daemon is to close the last copies of them: it takes them when the others are closed.
        with stopped(instance.daemon_pid()):
            script = f"SOCKET = {instance.socket!r}\n" + script
            process = stack.enter_context(nobody(script))
        assert process.stdout is not None and process.stdout.readline() == "it has one\n"
        serves_others(instance, "other")
        assert instance.daemon_pid()


def test_idle_connections_to_the_fd_socket_keep_nobody_out() -> None:
    script = """
kept = []
for _ in range(2000):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.settimeout(patient(20))
    try:
        one.connect(SOCKET + ".fd")
    except OSError:
        break
    kept.append(one)
    if len(kept) == 500:
        print("ready", flush=True)
time.sleep(600)
"""
    with node() as instance:
        resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
        with nobody(f"SOCKET = {instance.socket!r}\n" + script):
            serves_others(instance, "other")


def test_one_users_connections_leave_room_for_others_and_are_answered() -> None:
    script = """
kept = []
refused = ""
for _ in range(200):
    one = Raw.__new__(Raw)
    one.path, one.timeout_s = SOCKET, patient(20)
    one._connect()
    try:
        one.do("ping")
    except CairnError as error:
        assert error.code == RESOURCE_EXHAUSTED, error
        refused = error.message
        break
    kept.append(one)
print("ready", len(kept), refused, flush=True)
time.sleep(600)
"""
    with node(options=("--limits.connections=64",)) as instance:
        with nobody(f"SOCKET = {instance.socket!r}\n" + script):
            serves_others(instance, "other")
    with node(options=("--limits.connections=64",)) as instance:
        process = as_nobody(f"SOCKET = {instance.socket!r}\n" + script)
        words = process.stdout.split(maxsplit=2)
        assert int(words[1]) == 48, process.stdout + process.stderr
        assert "limits.user_percent" in words[2] and f"uid {NOBODY}" in words[2], words[2]


def test_one_users_sessions_and_waits_leave_room_for_others() -> None:
    options = ("--limits.sessions=8", "--limits.waiting=8")
    script = """
sessions = []
try:
    while True:
        sessions.append(Raw(SOCKET, takes_fds=False))
except CairnError as error:
    assert error.code == RESOURCE_EXHAUSTED and "limits.user_percent" in error.message, error
assert len(sessions) == 6, len(sessions)
print("ready", flush=True)
time.sleep(600)
"""
    with node(options=options) as instance:
        with nobody(f"SOCKET = {instance.socket!r}\n" + script):
            serves_others(instance, "other")


# Jobs of one step each: the newest of its job is never given up.
FILL = """
refused = ""
jobs = []
for i in range(1000):
    one = Raw(SOCKET, f"nobodys-{i}", attempt_number(), 0, 1)
    try:
        one.save(1, {"a": pattern("a", BYTES)}, timeout_ms=int(patient(500)))
    except CairnError as error:
        assert error.code == RESOURCE_EXHAUSTED, error
        refused = error.message
        break
    jobs.append(one if KEEP else one.vanish())
print("ready", len(jobs), refused, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("alive", [True, False])
def test_one_users_memory_leaves_room_for_others(alive: bool) -> None:
    with node() as instance:
        script = f"SOCKET, BYTES, KEEP = {instance.socket!r}, {4 * MIB}, {alive}\n" + FILL
        with nobody(script) as process:
            if not alive:
                process.kill()
                process.wait()
            serves_others(instance, "other")
            instance.kill_daemon()
            serves_others(instance, "another")


def test_one_users_slabs_leave_descriptors_for_others(tmp_path: Path) -> None:
    wrapper = ("prlimit", "--nofile=1024:1024")
    with node(wrapper=wrapper) as instance:
        script = f"SOCKET, BYTES, KEEP = {instance.socket!r}, 100, False\n" + FILL
        with nobody(script):
            serves_others(instance, "other")


def test_one_users_jobs_leave_room_for_others() -> None:
    with node(options=("--limits.jobs=20",)) as instance:
        script = f"SOCKET, BYTES, KEEP = {instance.socket!r}, 100, False\n" + FILL
        with nobody(script):
            serves_others(instance, "other")
            instance.kill_daemon()
            serves_others(instance, "another")


def test_status_shows_a_user_what_is_his() -> None:
    script = """
mine = Raw(SOCKET, "nobodys", attempt_number(), 0, 1)
mine.save(1, {"a": b"x"})
status = mine.do("status")
assert status.counters["user_jobs"] == status.counters["user_sessions"] == 1, status.counters
assert 4096 <= status.counters["user_memory_bytes"] < status.counters["user_memory_most_bytes"]
print("ready", sorted(j.job for j in status.jobs), sorted(s.uid for s in status.sessions), flush=True)
time.sleep(600)
"""
    with node() as instance, instance.writer("roots", attempt_number()) as writer:
        writer.save(1, {"a": b"x"})
        process = as_nobody(f"SOCKET = {instance.socket!r}\n" + script)
        assert process.stdout.strip() == f"ready ['nobodys'] [{NOBODY}]", process
        seen = writer.do("status")
        assert {"roots", "nobodys"} <= {job.job for job in seen.jobs}


# --- the machine's limits ---


def test_too_few_descriptors_are_refused_at_the_start(tmp_path: Path) -> None:
    instance = Node(tmp_path, wrapper=("prlimit", "--nofile=16:16"))
    instance.start(wait=False)
    assert instance.process is not None
    assert exit_status(instance.process) != 0
    assert "RLIMIT_NOFILE) is 16" in instance.tail()
    instance.process = None
