"""The hosts and links that the other tests of this folder stand on do what they say."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import network
import pytest
from network import Network
from patience import until
from tap import Tap

BYTES = 4 << 20
PORT = 7001
# What it sends to everybody who connects, all zeros.
SERVER = f"""
import socket
with socket.create_server(('', {PORT})) as server:
    print('listens', flush=True)
    while True:
        connection, _ = server.accept()
        with connection:
            try:
                connection.sendall(bytes({BYTES}))
            except OSError:
                pass
"""
# Reads all that comes: how many bytes, how many of them are not zero.
READER = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5) as connection:
        got = bytearray()
        while piece := connection.recv(1 << 20):
            got += piece
    print(len(got), len(got) - got.count(0))
except TimeoutError:
    print('timeout')
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Network]:
    """Three of them; host 1 listens."""
    with Network(3) as made:
        server = made.popen(1, [sys.executable, "-c", SERVER], stdout=subprocess.PIPE)
        assert server.stdout is not None and server.stdout.readline() == b"listens\n"
        yield made


@pytest.fixture
def net(hosts: Network) -> Iterator[Network]:
    yield hosts
    hosts.heal()
    hosts.rate(1, 0)


def read(net: Network, host: int, of: int = 1) -> str:
    command = [*net.enter(host), sys.executable, "-c", READER, net.addresses[of], str(PORT)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_hosts_reach_each_other_and_nobody_else_reaches_them(net: Network) -> None:
    assert read(net, 0) == read(net, 2) == f"{BYTES} 0"
    with pytest.raises(subprocess.CalledProcessError):  # there is no such network outside
        subprocess.run(
            [sys.executable, "-c", READER, "127.0.0.1", str(PORT)],
            check=True,
            capture_output=True,
        )


def test_a_cut_link_loses_everything_and_healing_mends_it(net: Network) -> None:
    net.cut(0, 1)
    assert read(net, 0) == "timeout"
    assert read(net, 2) == f"{BYTES} 0", "another link is whole"
    net.heal()
    assert read(net, 0) == f"{BYTES} 0"


def test_a_link_can_be_cut_one_way_and_for_one_port(net: Network) -> None:
    net.cut(1, 0, one_way=True)
    assert read(net, 0) == "timeout"
    assert net.counted(0, "lost") > 0
    assert net.counted(1, "lost") == 0, "what host 0 sends arrives"
    net.heal()
    net.cut(0, 1, port=PORT + 1)
    assert read(net, 0) == f"{BYTES} 0"
    net.cut(0, 1, port=PORT)
    assert read(net, 0) == "timeout"


def test_a_limited_link_takes_its_time(net: Network) -> None:
    net.rate(1, 100)
    begin = time.monotonic()
    assert read(net, 0) == f"{BYTES} 0"
    ideal_s = BYTES * 8 / 100e6
    assert time.monotonic() - begin > 0.8 * ideal_s


def test_bits_change_on_the_wire_and_nobody_below_notices(net: Network) -> None:
    """Into zeros two bytes of 0xa55a are written, each time."""
    net.spoil(1, 0, port=PORT, one_in=5)
    got, wrong = map(int, read(net, 0).split())
    assert got == BYTES and wrong > 0 and wrong == 2 * net.counted(0, "spoiled")
    assert read(net, 2) == f"{BYTES} 0"


def test_a_connection_can_be_led_to_the_switch(net: Network) -> None:
    with subprocess.Popen(
        [*net.enter_switch(), sys.executable, "-c", SERVER.replace(str(BYTES), "7")],
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdout is not None and server.stdout.readline() == b"listens\n"
        net.lead(0, 1, port=PORT, to_port=PORT)
        assert read(net, 0) == "7 0"
        assert read(net, 2) == f"{BYTES} 0"
        server.kill()


def test_a_tap_passes_everything_on_and_keeps_what_was_sent(net: Network) -> None:
    echo = SERVER.replace(f"sendall(bytes({BYTES}))", "sendall(connection.recv(100))")
    with net.popen(
        2, [sys.executable, "-c", echo.replace(str(PORT), str(PORT + 1))], stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None and server.stdout.readline() == b"listens\n"
        tap = Tap(net, 0, 2, PORT + 1)
        with net.connect(0, net.addresses[2], PORT + 1) as connection:
            connection.settimeout(10)
            connection.sendall(b"a greeting")
            assert connection.recv(100) == b"a greeting"
            assert connection.recv(100) == b"", "the end is passed on, too"
        assert tap.sent() == [b"a greeting"]
        tap.close()
        server.kill()


def test_nothing_outlives_the_one_who_made_the_network(tmp_path: Path) -> None:
    """Killed, it cannot clean up: the janitor does."""
    here = Path(network.__file__).parent
    script = (
        f"import subprocess, sys, time; sys.path.insert(0, {str(here)!r})\n"
        "from network import Network\n"
        "net = Network(2)\n"
        # It is on its host once it speaks: who has not entered yet is nobody the janitor could find.
        "command = ['sh', '-c', 'echo here && exec sleep 1000']\n"
        "child = net.popen(1, command, stdout=subprocess.PIPE, start_new_session=True)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as maker:
        assert maker.stdout is not None
        pid = int(maker.stdout.readline())
        maker.kill()
    until("what ran on a host is gone", lambda: not Path(f"/proc/{pid}").exists())
