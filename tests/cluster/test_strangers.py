"""R19 and what else a member must refuse: stale lives, stale tokens, other clusters, two daemons of one rank.

A stranger speaks the wire of proto/peer.thrift as it stands there, from a host of the ring.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import members
import pytest
from cairn_daemon import Node, exit_status
from cairn_raw import ROOT
from patience import patient
from ring import CONTROL_PORT, DATA_PORT, SOON_S, Ring, attempt_number, content, names, ring, until
from stopped import go_on, stop
from tap import Tap
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TException
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TFramedTransport

pytestmark = pytest.mark.full

JOB = "run"
CLUSTER = "ring"


@pytest.fixture(scope="module")
def wire() -> Iterator[Any]:
    """The Python types of the peers' contract."""
    folder = tempfile.mkdtemp(prefix="cairn-thrift-")
    contract = ROOT / "proto" / "peer.thrift"
    subprocess.run(["thrift", "-r", "--gen", "py", "-out", folder, str(contract)], check=True)
    sys.path.insert(0, folder)
    from cairn_peer_wire import Peer, ttypes

    ttypes.Peer = Peer
    yield ttypes
    sys.path.remove(folder)
    shutil.rmtree(folder)


class Stranger:
    """Says on `host` that it is rank `rank`."""

    def __init__(
        self, r: Ring, wire: Any, host: int, to: int, rank: int, incarnation: int, instance: bytes
    ) -> None:
        self.wire = wire
        self.address = f"{r.network.addresses[rank]}:{CONTROL_PORT}"
        self.sender = wire.Sender(CLUSTER, wire.Member(rank, incarnation, instance))
        transport = TSocket()
        transport.setHandle(r.network.connect(host, r.network.addresses[to], CONTROL_PORT))
        transport.setTimeout(patient(SOON_S) * 1000)
        self.client = wire.Peer.Client(TBinaryProtocol(TFramedTransport(transport)))

    def greet(self, **other: Any) -> Any:
        greeting = self.wire.Greeting(
            sender=other.get("sender", self.sender),
            protocol=other.get("protocol", 1),
            address=self.address,
            data_address=f"{self.address.rsplit(':', 1)[0]}:{DATA_PORT}",
            unix_ms=int(time.time() * 1000),
        )
        return self.client.greet(greeting)


def refuses(stranger: Stranger, **greeting: Any) -> bool:
    """The greeting is refused, or what is said after it is, and nothing of it is taken."""
    try:
        if stranger.greet(**greeting).refused is None:
            return False
        sender = greeting.get("sender", stranger.sender)
        stranger.client.say(sender, [])
    except (TException, EOFError, OSError):
        return True
    return False


@contextmanager
def unmoved(r: Ring, rank: int) -> Iterator[None]:
    """Meanwhile the others think of the rank as before, and it goes on saving."""
    writer = r[rank].writer(JOB, attempt_number())
    r[rank].save(writer, 1)
    r[rank].wait_replicated(JOB, 1)
    before = r[0].incarnation_of(rank)
    yield
    assert r[0].incarnation_of(rank) == before, "a stranger fenced a member"
    r[rank].save(writer, 2)
    r[rank].wait_replicated(JOB, 2)


def test_a_stale_life_of_a_rank_is_refused(wire: Any) -> None:
    with ring(2) as r, unmoved(r, 1):
        stale = r[0].incarnation_of(1) - 1
        assert refuses(Stranger(r, wire, 1, 0, 1, stale, os.urandom(16)))


def test_a_life_that_its_address_does_not_show_is_refused_and_fences_nobody(wire: Any) -> None:
    """However great its incarnation: also when it says so on the very host of the rank."""
    with ring(3) as r, unmoved(r, 1):
        greatest = 2**62
        for host in (1, 2):
            assert refuses(Stranger(r, wire, host, 0, 1, greatest, os.urandom(16)))


def test_other_clusters_protocols_and_ranks_are_refused(wire: Any) -> None:
    with ring(2) as r, unmoved(r, 1):
        now = r[0].incarnation_of(1)
        one = wire.Member(1, now, os.urandom(16))
        for greeting in (
            {"sender": wire.Sender("another", one)},
            {"protocol": 99},
            {"sender": wire.Sender(CLUSTER, wire.Member(9, now, os.urandom(16)))},
            {"sender": wire.Sender(CLUSTER, wire.Member(0, now, os.urandom(16)))},
            {"sender": wire.Sender(CLUSTER, wire.Member(1, -1, b"short"))},
        ):
            assert refuses(Stranger(r, wire, 1, 0, 1, now, os.urandom(16)), **greeting), greeting


def test_nothing_is_answered_before_a_greeting(wire: Any) -> None:
    with ring(2) as r, unmoved(r, 1):
        stranger = Stranger(r, wire, 1, 0, 1, r[0].incarnation_of(1), os.urandom(16))
        question = wire.GrantQuestion(JOB, wire.Part(1, 1, 0, 0), "", 1000)
        with pytest.raises((TException, EOFError, OSError)):
            stranger.client.grant(stranger.sender, question)


def test_what_an_earlier_life_said_is_refused_when_it_is_said_again() -> None:
    """R19: its greeting and all that followed, byte by byte as it was on the wire."""
    taps: list[Tap] = []

    def tap(r: Ring) -> None:
        taps.append(Tap(r.network, 1, 0, CONTROL_PORT))

    with ring(2, before=tap) as r:
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1)
        r[0].wait_replicated(JOB, 1)
        recorded = [said for said in taps[0].sent() if said]
        assert recorded, "node 1 connects to node 0, which the tap stands before"
        r[1].replace()
        r.await_met()
        until("replicated again", lambda: r[0].replicated(JOB, 1), 60)
        incarnation = r[0].incarnation_of(1)
        for said in recorded:
            play(r, 1, CONTROL_PORT, said)
        assert r[0].incarnation_of(1) == incarnation
        r.await_met()
        assert r[0].replicated(JOB, 1)
        r[0].save(writer, 2)
        r[0].wait_replicated(JOB, 2)


def test_a_token_that_was_used_opens_nothing_again() -> None:
    """R19 on the data port."""
    taps: list[Tap] = []

    def tap(r: Ring) -> None:
        taps.append(Tap(r.network, 1, 0, DATA_PORT))

    with ring(2, before=tap) as r:
        writer = r[0].writer(JOB, attempt_number())
        r[0].save(writer, 1)
        r[0].wait_replicated(JOB, 1)
        recorded = [said for said in taps[0].sent() if said]
        assert recorded, "node 1 reads node 0's memory, which the tap stands before"
        secret = content(JOB, 1, names(0)[0])[:4096]
        for said in recorded:
            until(
                "the grant has ended",
                lambda said=said: secret not in play(r, 1, DATA_PORT, said),
                30,
            )


def play(r: Ring, host: int, port: int, said: bytes) -> bytes:
    """What node 0 answers to these bytes until it hangs up."""
    answered = bytearray()
    with r.network.connect(host, r.network.addresses[0], port) as connection:
        connection.settimeout(patient(20))
        try:
            connection.sendall(said)
            while piece := connection.recv(1 << 20):
                answered += piece
        except (TimeoutError, ConnectionError):
            pass
    return bytes(answered)


def test_a_second_daemon_of_a_rank_on_another_host_harms_nobody() -> None:
    """A mistyped rank: on host 2 another cairnd says that it is rank 1."""
    with ring(3) as r, unmoved(r, 1):
        folder = r.folder / "mistyped"
        folder.mkdir()
        mistyped = Node(
            folder,
            storage=False,
            options=tuple(members.ring_options(r.network.addresses, 1)),
            wrapper=tuple(r.network.enter(2)),
        )
        try:
            mistyped.start(wait=False)

            def has_ended() -> bool:
                assert r[0].states().get(1) == "up"
                return mistyped.process is not None and mistyped.process.poll() is not None

            until("it refuses to start", has_ended)
            assert r[0].states().get(1) == "up"
        finally:
            mistyped.kill_all()


# As any user of the host, who takes a port in the moment in which nobody has it.
SQUATTER = """
import socket, sys, time
print("ready", flush=True)
while True:
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind((sys.argv[1], int(sys.argv[2])))
        taken.listen(1)
        break
    except OSError:
        taken.close()
        time.sleep(0.01)
print("bound", flush=True)
sys.stdin.read()
"""


@contextmanager
def squatter(r: Ring, rank: int, port: int) -> Iterator[Callable[[], str]]:
    """A process on the rank's host that takes the port once it is free; waits for what it says next."""
    address = r.network.addresses[rank]
    process = subprocess.Popen(
        [*r.network.enter(rank), "/usr/bin/python3", "-c", SQUATTER, address, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("port", [CONTROL_PORT, DATA_PORT])
def test_a_user_who_takes_a_port_while_the_daemon_restarts_stops_no_node(port: int) -> None:
    """The daemon could not start, again and again, until the node was in safe mode."""
    with ring(2) as r:
        writer = r[1].writer(JOB, attempt_number())
        r[1].save(writer, 1)
        r[1].wait_replicated(JOB, 1)
        with squatter(r, 1, port) as says:
            assert says() == "ready\n"
            stop(r[1].keeper_pid)  # it starts the next daemon too late
            os.kill(r[1].daemon_pid(), signal.SIGKILL)
            assert says() == "bound\n"
            go_on(r[1].keeper_pid)
            r[1].wait_ready()
            writer.reconnect()
            assert r[1].loads(JOB, 1)
            r[1].save(writer, 2)
            state = until("status says why", lambda: _problem(r[1].json("status")["state"]))
            assert f"{r.network.addresses[1]}:{port}: Address already in use" in state
            until("the log does", lambda: "this is tried until it succeeds" in r[1].tail())
        until("status says nothing", lambda: r[1].json("status")["state"] == "serving")
        r.await_met()
        r[1].save(writer, 3)
        r[1].wait_replicated(JOB, 3)
        assert r[0].loads(JOB, 3)


def _problem(state: str) -> str:
    return state if "other members cannot" in state else ""


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (["--ring.rank=5"], "ring.rank"),
        (["--ring.replicas=2"], "ring.replicas"),
        (["--ring.cluster="], "ring.cluster"),
        (["--ring.nodes=0=10.77.0.1:7400,0=10.77.0.2:7400"], "ring.nodes"),
        (["--ring.nodes=0=10.77.0.1,1=10.77.0.2:7400"], "ring.nodes"),
        (["--peers.insecure=false"], "peers."),
        (["--peers.ca=/nowhere/ca.pem"], "peers."),
        (["--memory.replicas=1TiB"], "memory.replicas"),
    ],
)
def test_options_that_contradict_each_other_keep_the_daemon_from_starting(
    changed: list[str], named: str, tmp_path: Path
) -> None:
    options = members.ring_options(["10.77.0.1", "10.77.0.2"], 0)
    for option in changed:
        name = option.split("=", 1)[0]
        options = [o for o in options if o.split("=", 1)[0] != name] + [option]
    instance = Node(tmp_path, storage=False, options=tuple(options))
    instance.start(wait=False)
    try:
        assert instance.process is not None
        assert exit_status(instance.process) != 0
        assert named in instance.tail()
    finally:
        instance.kill_all()
