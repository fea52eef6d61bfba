"""R37: nothing but SIGTERM, SIGINT and SIGKILL ends the keeper, and nothing that was acknowledged is lost.

Signals, SIGHUP, logs that nobody reads, a keeper without descriptors. Promises 7 and 8.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from cairn_daemon import MIB, Node, binary, node
from cairn_raw import RESOURCE_EXHAUSTED, CairnError, Raw, attempt_number, pattern
from cairn_trainer import Trainer
from patience import patient, until

# What only stops or continues a process, what the keeper is asked to stop with, and what nobody can ignore.
NOT_STRAY = {
    signal.SIGKILL,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGSTOP,
    signal.SIGTSTP,
    signal.SIGCONT,
}
FAULTS = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGILL,
    signal.SIGFPE,
    signal.SIGABRT,
    signal.SIGTRAP,
    signal.SIGSYS,
}
# glibc keeps the first two real-time signals for itself, so Python does not list them.
STRAY = sorted({*map(int, signal.valid_signals()), 32, 33} - set(map(int, NOT_STRAY)))


def save(instance: Node, job: str, step: int = 1, size: int = MIB) -> bytes:
    data = pattern(f"{job}-{step}", size)
    with instance.writer(job, attempt_number()) as writer:
        writer.save(step, {"a": data})
    return data


def loads(instance: Node, job: str, data: bytes, step: int = 1) -> None:
    with instance.session(job) as reader:
        assert reader.load(step, "a") == data


def log_says(instance: Node, text: str) -> None:
    until(f"the log says {text!r}", lambda: text in instance.log.read_text(errors="replace"))


# --- standard descriptors -----------------------------------------------------------------------------------


def test_a_log_that_is_closed_is_not_written_into_the_journal() -> None:
    with node(storage=False) as instance:
        instance.stop()
        # By the shell: Popen opens what it hands on.
        instance.command = ["/bin/sh", "-c", 'exec "$0" "$@" 2>&-', *instance.command]
        instance.start()
        data = save(instance, "closed")
        for pid in (instance.keeper_pid, instance.daemon_pid()):
            assert os.readlink(f"/proc/{pid}/fd/2") == "/dev/null"
        for _ in range(2):
            instance.kill_daemon()
        loads(instance, "closed", data)


# --- signals ------------------------------------------------------------------------------------------------


def test_no_stray_signal_does_anything_to_the_keeper() -> None:
    with node(storage=False) as instance:
        data = save(instance, "stray")
        keeper, daemon = instance.keeper_pid, instance.daemon_pid()
        for number in STRAY:
            if number != signal.SIGHUP:
                os.kill(keeper, number)
        loads(instance, "stray", data)
        assert (instance.keeper_pid, instance.daemon_pid()) == (keeper, daemon)
        assert instance.stop() == 0


def test_no_stray_signal_does_anything_to_the_daemon() -> None:
    with node(storage=False) as instance:
        data = save(instance, "stray")
        daemon = instance.daemon_pid()
        for number in set(STRAY) - set(map(int, FAULTS)):
            os.kill(daemon, number)
        loads(instance, "stray", data)
        assert instance.daemon_pid() == daemon


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGABRT, signal.SIGSEGV])
def test_a_daemon_that_was_ended_alone_is_started_again(number: int) -> None:
    with node(storage=False) as instance:
        data = save(instance, "alone")
        keeper = instance.keeper_pid
        instance.kill_daemon(number)
        loads(instance, "alone", data)
        assert instance.keeper_pid == keeper
        assert instance.status().restarts == 1


def test_a_daemon_that_holds_nothing_is_started_again_too() -> None:
    with node(storage=False) as instance:
        keeper = instance.keeper_pid
        instance.kill_daemon(signal.SIGTERM)
        assert instance.keeper_pid == keeper


def test_the_kernel_is_told_to_take_the_daemon_before_the_keeper() -> None:
    def score(pid: int) -> int:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

    own = score(os.getpid())
    with node(storage=False) as instance:
        assert score(instance.daemon_pid()) == own
        privileged = int(
            next(
                line.split()[1]
                for line in Path("/proc/self/status").read_text().splitlines()
                if line.startswith("CapEff")
            ),
            16,
        ) & (1 << 24)  # CAP_SYS_RESOURCE
        assert score(instance.keeper_pid) == (min(-999, own) if privileged else own)


# --- SIGHUP -------------------------------------------------------------------------------------------------


@contextmanager
def configured(text: str, program: Path | None = None) -> Iterator[tuple[Node, Path]]:
    """A node whose budget comes from a file."""
    folder = Path(tempfile.mkdtemp(prefix="cairn-"))
    config = folder / "cairnd.toml"
    config.write_text(text)
    instance = Node(folder, storage=False, program=program, options=(f"--config={config}",))
    flags = ("--memory.budget=", "--journal.bytes=")
    instance.command = [word for word in instance.command if not word.startswith(flags)]
    try:
        yield instance.start(), config
    except BaseException:
        print(f"--- {instance.log}\n{instance.tail()}")
        raise
    finally:
        instance.kill_all()
        shutil.rmtree(folder, ignore_errors=True)


def reload(instance: Node) -> None:
    """SIGHUP that is accepted; returns once another daemon serves."""
    old = instance.daemon_pid()
    os.kill(instance.keeper_pid, signal.SIGHUP)
    until("another daemon", lambda: instance.daemon_pid() not in (0, old))
    instance.wait_ready()


SMALL = '[memory]\nbudget = "64MiB"\n[journal]\nbytes = "16MiB"\n'
LARGE = SMALL.replace("64MiB", "96MiB")


def test_sighup_takes_the_file_as_it_is_now_and_is_no_death() -> None:
    with configured(SMALL) as (instance, config):
        data = save(instance, "hup")
        keeper = instance.keeper_pid
        assert instance.status().budget_bytes == 64 * MIB
        config.write_text(LARGE)
        for _ in range(4):  # as deaths these would mean safe mode
            reload(instance)
        status = instance.status()
        assert (status.budget_bytes, status.restarts) == (96 * MIB, 0)
        assert not status.state.startswith("safe mode"), status.state
        loads(instance, "hup", data)
        assert instance.keeper_pid == keeper
        # What killed it later has the new options too.
        instance.kill_daemon()
        assert instance.status().budget_bytes == 96 * MIB


def test_sighup_with_less_memory_than_is_held_keeps_what_is_held() -> None:
    with configured(LARGE) as (instance, config):
        datas = {f"less{i}": save(instance, f"less{i}", size=8 * MIB) for i in range(5)}
        config.write_text(SMALL.replace("64MiB", "16MiB"))
        reload(instance)
        for job, data in datas.items():
            loads(instance, job, data)


@pytest.mark.parametrize(
    "text",
    [
        '[memory]\nbudget = "lots"\n',
        '[memory]\nbugdet = "64MiB"\n',
        '[memory]\nbudget = "4096TiB"\n',
        "not toml",
        None,
    ],
)
def test_sighup_with_a_file_that_is_refused_changes_nothing(text: str | None) -> None:
    with configured(SMALL) as (instance, config):
        data = save(instance, "refused")
        daemon = instance.daemon_pid()
        if text is None:
            config.unlink()
        else:
            config.write_text(text)
        os.kill(instance.keeper_pid, signal.SIGHUP)
        log_says(instance, "reload refused, the daemon goes on as it is: cairnd: ")
        assert instance.daemon_pid() == daemon
        loads(instance, "refused", data)
        config.write_text(LARGE)
        reload(instance)
        assert instance.status().budget_bytes == 96 * MIB
        loads(instance, "refused", data)


def test_sighup_does_not_change_what_the_keeper_was_started_with() -> None:
    with configured(SMALL) as (instance, config):
        data = save(instance, "fixed")
        config.write_text(LARGE.replace("16MiB", "32MiB") + '[socket]\nmode = "0600"\n')
        reload(instance)
        log_says(instance, "--journal.bytes=32MiB holds from the keeper's next start on")
        assert instance.status().budget_bytes == 96 * MIB
        loads(instance, "fixed", data)


def test_a_save_in_flight_goes_on_across_sighup() -> None:
    with configured(SMALL) as (instance, _), instance.writer("flight", attempt_number()) as writer:
        data = pattern("flight", 2 * MIB)
        reply = writer.create(1, {"a": len(data)})
        mapping = writer.map(reply.extents[0])
        offset = reply.extents[0].offset
        mapping[offset : offset + MIB] = data[:MIB]
        reload(instance)
        mapping[offset + MIB : offset + 2 * MIB] = data[MIB:]
        writer.reconnect()
        writer.commit(1, [writer.sealed("a", data)])
        assert writer.load(1, "a") == data


def test_a_trainer_that_saves_all_the_time_notices_only_a_pause() -> None:
    with (
        configured(SMALL) as (instance, _),
        Trainer(instance.socket, "busy", limit_s=20) as trainer,
    ):
        for step in range(1, 7):
            trainer.tell(do="save", step=step, tag=f"busy-{step}")
            reload(instance)
            saved = trainer.hear(("save", step))
            assert saved["error"] is None and saved["complete"], saved
            assert trainer.do("latest")["step"] == step
        assert instance.status().restarts == 0


def test_sighup_brings_in_the_binary_that_is_on_disk_now() -> None:
    folder = Path(tempfile.mkdtemp(prefix="cairn-"))
    program = folder / "cairnd"
    shutil.copy(binary("cairnd").resolve(), program)
    try:
        with configured(SMALL, program) as (instance, _):
            data = save(instance, "upgrade")
            daemon = instance.daemon_pid()
            # One that does not even run is refused.
            broken = folder / "broken"
            broken.write_bytes(program.read_bytes()[:100_000])
            broken.chmod(0o755)
            shutil.copy(program, folder / "good")
            os.rename(broken, program)
            os.kill(instance.keeper_pid, signal.SIGHUP)
            log_says(instance, "reload refused")
            assert instance.daemon_pid() == daemon
            os.rename(folder / "good", program)
            inode = program.stat().st_ino
            reload(instance)
            assert os.stat(f"/proc/{instance.daemon_pid()}/exe").st_ino == inode
            loads(instance, "upgrade", data)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_new_daemon_that_refuses_to_start_is_tried_again_and_loses_nothing() -> None:
    with configured(SMALL) as (instance, config):
        data = save(instance, "again")
        keeper = instance.keeper_pid
        # Seen at start only, in each of its next lives.
        bad = ",".join(f"no.such.point@{life}" for life in range(20))
        config.write_text(f'{SMALL}[test]\nfailpoints = "{bad}"\n')
        os.kill(keeper, signal.SIGHUP)
        log_says(instance, "died with exit code 2; next one in 100 ms")
        log_says(instance, "next one in 200 ms")
        config.write_text(LARGE)
        os.kill(keeper, signal.SIGHUP)
        until("it serves again", lambda: serves(instance) and instance.status().budget_bytes)
        assert instance.keeper_pid == keeper
        status = instance.status()
        assert status.budget_bytes == 96 * MIB
        assert not status.state.startswith("safe mode"), status.state
        loads(instance, "again", data)


def serves(instance: Node) -> bool:
    try:
        with Raw(instance.socket, attach=False, timeout_s=patient(5)) as session:
            session.do("ping")
        return True
    except Exception:
        return False


# --- the log ------------------------------------------------------------------------------------------------


@contextmanager
def logging_to(log: int) -> Iterator[Node]:
    folder = Path(tempfile.mkdtemp(prefix="cairn-"))
    instance = Node(folder, storage=False)
    try:
        yield instance.start(log_to=log)
    finally:
        instance.kill_all()
        shutil.rmtree(folder, ignore_errors=True)


def outlives_a_death(instance: Node) -> None:
    keeper = instance.keeper_pid
    data = save(instance, "log")
    instance.kill_daemon()
    loads(instance, "log", data)
    instance.kill_daemon()
    loads(instance, "log", data)
    assert instance.keeper_pid == keeper
    assert instance.stop() == 0


def test_the_death_of_the_logs_reader_ends_nothing() -> None:
    reader, writer = os.pipe()
    with logging_to(writer) as instance:
        os.close(writer)
        os.close(reader)
        outlives_a_death(instance)


def fill(descriptor: int) -> None:
    os.set_blocking(descriptor, False)
    for size in (65536, 1024, 1):
        try:
            while True:
                os.write(descriptor, b"x" * size)
        except BlockingIOError:
            pass
    os.set_blocking(descriptor, True)


def test_a_reader_of_the_log_that_has_stopped_stops_nothing() -> None:
    reader, writer = os.pipe()
    fill(writer)
    with logging_to(writer) as instance:
        outlives_a_death(instance)
    os.close(reader)
    os.close(writer)


def test_a_log_socket_that_nobody_reads_stops_nothing_for_long() -> None:
    reader, writer = socket.socketpair()
    fill(writer.fileno())
    with logging_to(writer.fileno()) as instance:
        outlives_a_death(instance)
    reader.close()
    writer.close()


def test_a_full_disk_under_the_log_stops_nothing() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    with logging_to(full) as instance:
        outlives_a_death(instance)
    os.close(full)


# --- descriptors --------------------------------------------------------------------------------------------


def limit_keeper(instance: Node, soft: int) -> None:
    _, hard = resource.prlimit(instance.keeper_pid, resource.RLIMIT_NOFILE)
    resource.prlimit(instance.keeper_pid, resource.RLIMIT_NOFILE, (soft, hard))


def test_a_save_that_the_keeper_has_no_descriptor_for_is_refused_and_nothing_acknowledged_is_lost() -> (
    None
):
    with node(storage=False, budget=256 * MIB) as instance:
        saved = {"few0": save(instance, "few0")}
        limit_keeper(instance, 40)
        refusal: CairnError | None = None
        for i in range(1, 40):
            job = f"few{i}"
            try:
                saved[job] = save(instance, job)
            except CairnError as error:
                refusal = error
                break
        assert refusal is not None and refusal.code == RESOURCE_EXHAUSTED, refusal
        assert "the keeper has no descriptor left: its limit (RLIMIT_NOFILE) is 40" in (
            refusal.message + instance.log.read_text()
        )
        with ExitStack() as sessions, pytest.raises(CairnError) as attach:
            for _ in range(20):
                sessions.enter_context(instance.session("few0"))
        assert attach.value.code == RESOURCE_EXHAUSTED, attach.value
        keeper = instance.keeper_pid
        instance.kill_daemon()
        for job, data in saved.items():
            loads_or_is_refused(instance, job, data)
        limit_keeper(instance, 1024)
        for job, data in saved.items():
            loads(instance, job, data)
        save(instance, "more")
        assert instance.keeper_pid == keeper


def loads_or_is_refused(instance: Node, job: str, data: bytes) -> None:
    """The keeper has descriptors for one session, but frees those of the last one when it likes."""
    try:
        loads(instance, job, data)
    except CairnError as error:
        assert error.code == RESOURCE_EXHAUSTED, error


def test_a_keeper_that_cannot_start_a_daemon_tries_again() -> None:
    with node(storage=False) as instance:
        data = save(instance, "later")
        keeper = instance.keeper_pid
        limit_keeper(instance, 3)
        os.kill(instance.daemon_pid(), signal.SIGKILL)
        log_says(instance, "keeper: starting the daemon: ")
        assert instance.daemon_pid() == 0
        limit_keeper(instance, 1024)
        instance.wait_ready()
        assert instance.keeper_pid == keeper
        loads(instance, "later", data)
