"""R12: another uid reopens descriptors, changes protections, truncates, guesses leases. All denied.

Promise 6."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cairn_daemon import MIB, Node
from cairn_raw import attempt_number, pattern
from patience import patient

pytestmark = pytest.mark.root
NOBODY = 65534

PREAMBLE = f"""
import sys, os
sys.path.insert(0, {str(Path(__file__).parent)!r})
os.setgroups([]); os.setgid(UID); os.setuid(UID)
import ctypes, errno, fcntl, mmap
from cairn_raw import *
libc = ctypes.CDLL(None, use_errno=True)
def denied(call, *errors):
    try:
        got = call()
    except OSError as error:
        assert error.errno in errors, error
    else:
        raise AssertionError("allowed, with %r" % (got,))
def c(name, *arguments):
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)
"""


def as_uid(uid: int, script: str, pass_fds: tuple[int, ...] = ()) -> str:
    source = PREAMBLE.replace("UID", str(uid)) + script + '\nprint("all denied")\n'
    result = subprocess.run(
        ["/usr/bin/python3", "-c", source],
        capture_output=True,
        text=True,
        timeout=patient(60),
        pass_fds=pass_fds,
    )
    assert "all denied" in result.stdout, result.stderr
    return result.stdout


@pytest.mark.parametrize("mode", ["map", "file", "read"])
def test_a_descriptor_that_leaks_to_another_uid_cannot_be_made_writable(
    daemon: Node, mode: str
) -> None:
    with daemon.writer("leak", attempt_number()) as writer:
        data = pattern("leak", MIB)
        writer.save(1, {"a": data})
        with daemon.session("leak") as reader:
            held = reader.open(1, "a", {"map": 1, "file": 2, "read": 3}[mode])
            fd = reader.leases[held.lease]
            as_uid(
                NOBODY,
                f"""
fd, size = {fd}, {held.slab_bytes}
denied(lambda: os.open(f"/proc/self/fd/{{fd}}", os.O_RDWR), errno.EACCES, errno.EPERM)
denied(lambda: os.open(f"/proc/self/fd/{{fd}}", os.O_WRONLY), errno.EACCES, errno.EPERM)
denied(lambda: os.open(f"/proc/self/fd/{{fd}}", os.O_RDONLY | os.O_TRUNC), errno.EACCES, errno.EPERM)
writable = mmap.PROT_READ | mmap.PROT_WRITE
denied(lambda: mmap.mmap(fd, size, mmap.MAP_SHARED, writable), errno.EACCES, errno.EPERM)
shared = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
libc.mmap.restype = ctypes.c_void_p
address = libc.mmap(None, ctypes.c_size_t(4096), 1, 1, fd, ctypes.c_long(0))
denied(lambda: c("mprotect", ctypes.c_void_p(address), ctypes.c_size_t(4096), 3), errno.EACCES)
denied(lambda: os.ftruncate(fd, 0), errno.EINVAL, errno.EPERM, errno.EBADF)
denied(lambda: os.ftruncate(fd, size * 2), errno.EINVAL, errno.EPERM, errno.EBADF)
denied(lambda: os.pwrite(fd, b"evil", 0), errno.EBADF)
denied(lambda: c("fallocate", fd, 3, ctypes.c_long(0), ctypes.c_long(4096)), errno.EBADF, errno.EPERM)
denied(lambda: os.fchmod(fd, 0o777), errno.EPERM)
denied(lambda: os.fchown(fd, {NOBODY}, {NOBODY}), errno.EPERM)
denied(lambda: fcntl.fcntl(fd, 1033, 0x0008), errno.EPERM)  # F_ADD_SEALS, F_SEAL_WRITE
denied(lambda: fcntl.fcntl(fd, 1024, fcntl.F_WRLCK), errno.EACCES, errno.EPERM, errno.EAGAIN)  # F_SETLEASE
""",
                pass_fds=(fd,),
            )
        assert writer.load(1, "a") == data


def test_another_uid_guesses_leases_and_sessions_in_vain(daemon: Node) -> None:
    with daemon.writer("guess", attempt_number()) as writer:
        data = pattern("guess", MIB)
        writer.save(1, {"a": data})
        held = writer.open(1, "a", 3)
        seals = writer.write(2, {"b": b"unsealed"})
        as_uid(
            NOBODY,
            f"""
thief = Raw({daemon.socket!r}, "theirs", {attempt_number()}, 0, 1)
def no(call):
    try:
        got = call()
    except CairnError as error:
        assert error.code in (NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT, FAILED_PRECONDITION), error
    else:
        raise AssertionError("allowed, with %r" % (got,))
for lease in range({held.lease} - 20, {held.lease} + 20):
    no(lambda: thief.do("readChunk", lease, 0, 16))
    no(lambda: thief.change("writeChunk", lease, 0, b"evil"))
    try:
        thief.change("release", [lease])
        thief.do("renew", [lease])
    except CairnError:
        pass
no(lambda: Raw({daemon.socket!r}).do("rejoin", {writer.hello.session}, b"0" * 16))
# The session's very secret, leaked: still another uid's.
no(lambda: Raw({daemon.socket!r}).do("rejoin", {writer.hello.session}, {writer.hello.secret!r}))
stolen = Raw({daemon.socket!r}, attach=False)
stolen.hello.session, stolen.hello.secret = {writer.hello.session}, {writer.hello.secret!r}
try:
    stolen.attach()
except (CairnError, OSError, struct.error, ConnectionError):
    pass
else:
    raise AssertionError("attached to another uid's session")
""",
        )
        assert writer.do("readChunk", held.lease, 0, 16) == data[:16]
        writer.commit(2, seals)
        assert writer.load(2, "b") == b"unsealed"


def test_no_slab_ever_goes_from_one_uid_to_another(daemon: Node) -> None:
    """Two uids in turn fill the budget; neither finds a byte of the other's in fresh memory."""
    script = """
for step in range(1, 5):
    with Raw({socket!r}, {job!r}, {attempt} + step, 0, 1) as w:
        reply = w.create(step, {{"a": 24 << 20}})
        m = w.map(reply.extents[0])
        assert {foreign!r} not in m[:], "bytes of the other uid"
        m[:] = {own!r} * (len(m) // 8)
        w.change("abort", ttypes.AbortRequest(step, w.attempt, 0, 0))
"""
    for turn in range(4):
        uid = (NOBODY, NOBODY - 1)[turn % 2]
        own, foreign = (b"AAAAAAAA", b"BBBBBBBB")[:: 1 if turn % 2 == 0 else -1]
        as_uid(
            uid,
            script.format(
                socket=daemon.socket,
                job=f"uid{uid}",
                attempt=attempt_number() + turn * 100,
                own=own,
                foreign=foreign,
            ),
        )


def test_files_belong_to_who_saved_them(daemon: Node) -> None:
    """Promise 9."""
    daemon.storage.chmod(0o777)
    as_uid(
        NOBODY,
        f"""
w = Raw({daemon.socket!r}, "mine", {attempt_number()}, 0, 1)
w.save(1, {{"a": b"x"}})
w.persist(1)
""",
    )
    for path in (daemon.storage / "mine", daemon.storage / "mine/1", daemon.storage / "mine/1/a"):
        assert path.stat().st_uid == NOBODY, path


def test_a_job_belongs_to_its_first_creator_for_good(daemon: Node) -> None:
    as_uid(
        NOBODY,
        f"""
w = Raw({daemon.socket!r}, "owned", {attempt_number()}, 0, 1)
w.save(1, {{"a": b"x"}})
""",
    )
    daemon.kill_daemon()
    as_uid(
        NOBODY - 1,
        f"""
def take():
    with Raw({daemon.socket!r}, "owned", {attempt_number()}, 0, 1) as w:
        w.create(2, {{"a": 1}})
refuses(PERMISSION_DENIED, take)
""",
    )
