"""R15: the daemon is killed, or replaced by another binary; what was cached is there, whole, without a disk.

Promises 3 and 7.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess

import pytest
from cairn_daemon import MIB, Node, binary, children, exit_status, lives, node
from cairn_raw import (
    CACHED,
    DEADLINE_EXCEEDED,
    MAP,
    NOT_FOUND,
    CairnError,
    attempt_number,
    pattern,
    refuses,
)
from patience import until
from stopped import go_on, stop


def test_committed_steps_are_there_after_a_sigkill_without_storage() -> None:
    with node(storage=False) as instance, instance.writer("r15", attempt_number()) as writer:
        data = {f"o{i}": pattern(f"r15-{i}", 3 * MIB + i) for i in range(4)} | {
            "empty": b"",
            "tiny": b"t",
        }
        writer.save(1, data)
        instance.kill_daemon()
        with instance.session("r15") as reader:
            assert reader.latest().step == 1
            for name, content in data.items():
                assert reader.load(1, name) == content
        assert instance.status().restarts == 1


def test_a_session_goes_on_after_a_restart_and_a_repeated_commit_gets_the_first_answer() -> None:
    with node() as instance, instance.writer("goeson", attempt_number()) as writer:
        seals = writer.write(1, {"a": pattern("goeson", MIB)})
        first = writer.commit(1, seals, call=40)
        instance.kill_daemon()
        writer.reconnect()
        again = writer.commit(1, seals, call=40)
        assert (again.digest, again.complete) == (first.digest, first.complete)
        writer.save(2, {"a": b"further"})
        assert writer.latest().step == 2


def test_a_save_in_flight_goes_on_across_the_daemons_death() -> None:
    """The slab is mapped by the writer and held by the keeper: the copy does not even notice."""
    with node() as instance, instance.writer("inflight", attempt_number()) as writer:
        data = pattern("inflight", 2 * MIB)
        reply = writer.create(1, {"a": len(data)})
        mapping = writer.map(reply.extents[0])
        offset = reply.extents[0].offset
        mapping[offset : offset + MIB] = data[:MIB]
        instance.kill_daemon()
        mapping[offset + MIB : offset + 2 * MIB] = data[MIB:]
        writer.reconnect()
        writer.commit(1, [writer.sealed("a", data)])
        assert writer.load(1, "a") == data


def test_a_reader_keeps_its_lease_across_a_restart() -> None:
    with node() as instance, instance.writer("leased", attempt_number()) as writer:
        data = pattern("leased", MIB)
        writer.save(1, {"a": data})
        with instance.session("leased") as reader:
            held = reader.open(1, "a", MAP)
            instance.kill_daemon()
            reader.reconnect()
            assert [
                s
                for s in reader.status().sessions
                if s.leases >= 1 and s.session == reader.hello.session
            ]
            assert os.pread(reader.leases[held.lease], len(data), held.offset) == data
            reader.release(held)


def test_recovered_bytes_are_verified_before_they_are_first_handed_out() -> None:
    """Promise 2: a writer that kept its mapping scribbled while no daemon looked."""
    with node(storage=False) as instance, instance.writer("scribble", attempt_number()) as writer:
        data = pattern("scribble", 2 * MIB)
        reply = writer.create(1, {"a": len(data), "b": len(data)})
        for extent in reply.extents:
            writer.fill(extent, data)
        writer.commit(1, [writer.sealed("a", data), writer.sealed("b", data)])
        instance.kill_daemon()
        writer.map(reply.extents[0])[reply.extents[0].offset + 77] ^= 0xFF
        with instance.session("scribble") as reader:
            with pytest.raises(CairnError) as error:
                held = reader.open(1, "a", MAP)
                raise AssertionError(f"a bad copy was handed out: {held}")
            assert error.value.code == 15, error.value
            # What is whole beside it may be had or not, but never as other bytes.
            try:
                assert reader.load(1, "b") == data
            except CairnError as refusal:
                assert refusal.code == 15, refusal


def test_three_restarts_in_a_row_lose_nothing_and_a_fourth_death_means_safe_mode() -> None:
    with node() as instance, instance.writer("often", attempt_number()) as writer:
        data = pattern("often", MIB)
        writer.save(1, {"a": data})
        for _ in range(2):
            instance.kill_daemon()
            with instance.session("often") as reader:
                assert reader.load(1, "a") == data
        instance.kill_daemon()
        with instance.session("often") as reader:
            assert reader.load(1, "a") == data
            status = reader.status()
        assert status.state.startswith("safe mode"), status.state
        with (
            instance.writer("often", attempt_number()) as other,
            pytest.raises(CairnError) as error,
        ):
            other.create(2, {"a": 10}, timeout_ms=500)
        assert "safe mode" in error.value.message


def test_another_binary_takes_over_what_the_old_one_held() -> None:
    """Promise 7: replacing the file under the keeper and killing the daemon is an upgrade."""
    source = binary("cairnd").resolve()
    with node(storage=False) as first:
        folder = first.folder
        copy = folder / "cairnd"
        shutil.copy(source, copy)
        first.kill_all()
        instance = Node(folder, storage=False, program=copy)
        try:
            instance.start()
            with instance.writer("swap", attempt_number()) as writer:
                data = pattern("swap", 5 * MIB)
                writer.save(1, {"a": data})
                new = folder / "cairnd.new"
                shutil.copy(source, new)
                inode = new.stat().st_ino
                os.rename(new, copy)
                instance.kill_daemon()
                assert os.stat(f"/proc/{instance.daemon_pid()}/exe").st_ino == inode
                with instance.session("swap") as reader:
                    assert reader.load(1, "a") == data
        finally:
            instance.kill_all()


def test_the_death_of_the_keeper_takes_the_daemon_with_it_and_leaves_no_process() -> None:
    with node() as instance:
        daemon = instance.daemon_pid()
        os.kill(instance.keeper_pid, signal.SIGKILL)
        until("the daemon is gone", lambda: not lives(daemon))


def test_sigterm_persists_the_newest_complete_step_and_exits_0() -> None:
    """R26, the first half."""
    with node(persist="newest") as instance, instance.writer("term", attempt_number()) as writer:
        data = pattern("term", 4 * MIB)
        for step in range(1, 4):
            writer.save(step, {"a": data + bytes([step])})
        assert instance.stop() == 0
        assert (instance.storage / "term/3/a").read_bytes() == data + b"\x03"


def test_a_session_whose_process_died_with_the_daemon_is_gone_after_the_restart() -> None:
    with node() as instance:
        script = (
            f"import sys, time; sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
            "from cairn_raw import *\n"
            f"w = Raw({instance.socket!r}, 'both', {attempt_number()}, 0, 1)\n"
            "w.write(1, {'a': b'x' * 1000000})\nprint('written', flush=True)\ntime.sleep(600)\n"
        )
        child = subprocess.Popen(["/usr/bin/python3", "-c", script], stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline() == b"written\n"
        daemon = instance.daemon_pid()
        stop(instance.keeper_pid)  # so that no daemon sees the client die
        os.kill(daemon, signal.SIGKILL)
        child.kill()
        exit_status(child)
        go_on(instance.keeper_pid)
        until("another daemon", lambda: [c for c in children(instance.keeper_pid) if c != daemon])
        instance.wait_ready()
        until("its bytes are back", lambda: instance.status().writing_bytes == 0)
        with instance.session("both") as reader:
            refuses(NOT_FOUND, reader.checkpoint, 1)
            refuses(DEADLINE_EXCEEDED, reader.wait, 1, CACHED, 100)
