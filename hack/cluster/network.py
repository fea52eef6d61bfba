"""Hosts on one machine: network namespaces joined by a bridge, with links that can be cut, slowed
and spoiled.

It needs no root. An ordinary user's namespaces lie in a user namespace of their own, in which that user is
uid 0; where such namespaces are forbidden, `unavailable()` says so. Files, Unix sockets and processes are
those of the machine: only the network is apart, so whoever stands outside reaches a host's Unix sockets.

Host N (0, 1, …) has the address 10.77.0.(N + 1). Nothing outlives the process that made the network: a
janitor kills what still runs on the hosts when that process closes it or dies.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

PREFIX = "10.77.0"
SWITCH_ADDRESS = f"{PREFIX}.254"
MAX_HOSTS = 64
# Where Debian has ip, tc and nft, which an ordinary user's PATH lacks.
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
TOOLS = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "tc": "iproute2"}
PYTHON = "/usr/bin/python3"
CLOSING_S = 30

# Each host's own table. What is lost is lost where it would arrive, so that the sender notices nothing.
TABLE = """
table ip ring {
  chain lost { type filter hook input priority 0; }
  chain spoiled { type filter hook input priority -10; }
  chain led { type nat hook output priority -100; }
}
"""

# Makes a socket where it runs and hands it to who made the pair.
HAND_OVER = """
import socket, sys
to, what, address, port = sys.argv[1:]
make = {'connect': socket.create_connection, 'listen': socket.create_server}[what]
try:
    made = make((address, int(port)))
except OSError as error:
    sys.exit(str(error))
with socket.socket(fileno=int(to)) as pair:
    socket.send_fds(pair, [b'!'], [made.fileno()])
"""


class NetworkError(Exception):
    """A command that makes or changes the network failed; the message has its output."""


def as_root() -> list[str]:
    """What makes an ordinary user the uid 0 of a namespace of its own; nothing for root."""
    return ["--user", "--map-root-user"] if os.geteuid() else []


def unavailable(cuts: bool = True) -> str:
    """Why there can be no such network here; empty: there can. `cuts`: nft is needed too."""
    tools = {**TOOLS, **({"nft": "nftables"} if cuts else {})}
    for tool, package in tools.items():
        if shutil.which(tool, path=PATH) is None:
            return f"{tool} is not installed (Debian's {package})"
    tried = subprocess.run(
        ["unshare", *as_root(), "--net", "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode == 0:
        return ""
    return f"this user may not make network namespaces: {tried.stderr.strip()}"


class Network:
    def __init__(self, hosts: int, *, cuts: bool = True) -> None:
        """`cuts`: links can be cut and spoiled, which takes nft."""
        if not 1 <= hosts <= MAX_HOSTS:
            raise NetworkError(f"hosts: {hosts} is outside 1 … {MAX_HOSTS}")
        self.addresses = [f"{PREFIX}.{host + 1}" for host in range(hosts)]
        self.cuts = cuts
        self._holders: list[subprocess.Popen[bytes]] = []
        self._switch = hold([], ["unshare", *as_root(), "--net"], [PYTHON, __file__, "janitor"])
        try:
            # "ip" where the kernel is asked, so that all of a host is made by one process.
            self.run_on_switch(
                "ip link set lo up",
                "ip link add ring type bridge stp_state 0 forward_delay 0",
                f"ip addr add {SWITCH_ADDRESS}/24 dev ring",
                "ip link set ring up",
            )
            for host in range(hosts):
                self._add(host)
        except BaseException:
            self.close()
            raise

    def _add(self, host: int) -> None:
        holder = hold(self._enter(self._switch), ["unshare", "--net"], ["cat"])
        self._holders.append(holder)
        assert self._switch.stdin is not None
        self._switch.stdin.write(f"{net_of(holder.pid)}\n".encode())
        self._switch.stdin.flush()
        self.run_on_switch(
            f"ip link add port{host} type veth peer name eth0 netns {holder.pid}",
            f"ip link set port{host} master ring up",
        )
        self.run(
            host,
            "ip link set lo up",
            f"ip addr add {self.addresses[host]}/24 dev eth0",
            "ip link set eth0 up",
        )
        if self.cuts:
            self._nft(host, TABLE)

    def _enter(self, holder: subprocess.Popen[bytes]) -> list[str]:
        user = ["--user", "--preserve-credentials"] if os.geteuid() else []
        return ["nsenter", f"--target={holder.pid}", *user, "--net"]

    # --- processes on a host ---

    def enter(self, host: int) -> list[str]:
        """Before a command: it then runs on the host, as a process whose pid is that of the command."""
        return self._enter(self._holders[host])

    def enter_switch(self) -> list[str]:
        """The same for where all links meet, at SWITCH_ADDRESS."""
        return self._enter(self._switch)

    def run(self, host: int, *lines: str) -> str:
        return shell(self.enter(host), lines)

    def run_on_switch(self, *lines: str) -> str:
        return shell(self.enter_switch(), lines)

    def popen(self, host: int, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*self.enter(host), *command], **options)

    def connect(self, host: int, address: str, port: int) -> socket.socket:
        """A connection of the caller's, as if it were on the host."""
        return hand_over(self.enter(host), "connect", address, port)

    def listen_on_switch(self, port: int) -> socket.socket:
        return hand_over(self.enter_switch(), "listen", SWITCH_ADDRESS, port)

    def connect_from_switch(self, address: str, port: int) -> socket.socket:
        return hand_over(self.enter_switch(), "connect", address, port)

    # --- faults of links ---

    def _nft(self, host: int, text: str) -> None:
        if not self.cuts:
            raise NetworkError("this network was made without cuts")
        run([*self.enter(host), "nft", "-f", "-"], text)

    def cut(self, a: int, b: int, *, one_way: bool = False, port: int = 0) -> None:
        """Nothing that `a` sends reaches `b` any more, nor the other way unless `one_way`. Nobody is told:
        connections stay open. `port`: only what goes to that TCP port of the other."""
        for sender, receiver in ((a, b),) if one_way else ((a, b), (b, a)):
            to = f"tcp dport {port}" if port else ""
            rule = f"ip saddr {self.addresses[sender]} {to} counter drop"
            self._nft(receiver, f"add rule ip ring lost {rule}\n")

    def isolate(self, host: int) -> None:
        """Cuts it off from all others."""
        for other in range(len(self.addresses)):
            if other != host:
                self.cut(host, other)

    def heal(self) -> None:
        """No link is cut, spoiled or led elsewhere."""
        for host in range(len(self.addresses)):
            chains = ("lost", "spoiled", "led")
            self._nft(host, "".join(f"flush chain ip ring {chain}\n" for chain in chains))

    def spoil(self, a: int, b: int, *, port: int, one_in: int, at: int = 1000) -> None:
        """Of the packets that come to `b` from `a`'s TCP port, one in so many arrives with 16 bits changed,
        `at` bytes behind the start of its TCP header; shorter packets arrive as they are. The checksums of
        the network do not notice."""
        chance = f"numgen random mod {one_in} 0"
        rule = f"ip saddr {self.addresses[a]} tcp sport {port} {chance}"
        self._nft(b, f"add rule ip ring spoiled {rule} @th,{at * 8},16 set 0xa55a counter\n")

    def lead(self, a: int, b: int, *, port: int, to_port: int) -> None:
        """What `a` connects to at `b`'s TCP port comes to that port of the switch instead."""
        rule = f"ip daddr {self.addresses[b]} tcp dport {port} dnat to {SWITCH_ADDRESS}:{to_port}"
        self._nft(a, f"add rule ip ring led {rule}\n")

    def counted(self, host: int, chain: str) -> int:
        """Packets that the rules of "lost" or "spoiled" met on the host."""
        words = self.run(host, f"nft list chain ip ring {chain}").split()
        return sum(int(words[i + 1]) for i, word in enumerate(words) if word == "packets")

    def rate(self, host: int, mbit: float) -> None:
        """The host's link carries so much in each direction; 0: as much as it can."""
        for enter, device in ((self.enter(host), "eth0"), (self.enter_switch(), f"port{host}")):
            if mbit:
                # A burst must hold the largest packet, which is 64 KiB before it is cut up.
                limit = f"tbf rate {mbit}mbit burst 256kb latency 50ms"
                shell(enter, [f"tc qdisc replace dev {device} root {limit}"])
            else:
                shell(enter, [f"tc qdisc del dev {device} root 2>/dev/null || true"])

    # --- the end ---

    def close(self) -> None:
        """Kills what runs on the hosts; the namespaces go with it."""
        if self._switch.stdin is not None:
            self._switch.stdin.close()
        self._switch.wait(CLOSING_S)
        for holder in self._holders:
            holder.wait(CLOSING_S)

    def __enter__(self) -> Network:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def hold(enter: list[str], unshare: list[str], command: list[str]) -> subprocess.Popen[bytes]:
    """A process that holds namespaces of its own until its stdin ends; out of the terminal's reach."""
    script = 'echo ready && exec "$@"'
    holder = subprocess.Popen(
        [*enter, *unshare, "sh", "-c", script, "sh", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert holder.stdout is not None
    if holder.stdout.readline() != b"ready\n":
        raise NetworkError(f"{' '.join(unshare)}: exit status {holder.wait()}")
    return holder


def hand_over(enter: list[str], what: str, address: str, port: int) -> socket.socket:
    mine, its = socket.socketpair()
    with mine, its:
        command = [
            *enter,
            PYTHON,
            "-S",
            "-c",
            HAND_OVER,
            str(its.fileno()),
            what,
            address,
            str(port),
        ]
        done = subprocess.run(
            command, pass_fds=[its.fileno()], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise NetworkError(f"{what} {address}:{port}: {done.stderr.strip()}")
        _, fds, _, _ = socket.recv_fds(mine, 1, 1)
    return socket.socket(fileno=fds[0])


def run(command: Sequence[str], text: str = "") -> str:
    env = {**os.environ, "PATH": PATH}
    done = subprocess.run(command, input=text, capture_output=True, text=True, env=env, check=False)
    if done.returncode != 0:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}{text}")
    return done.stdout


def shell(enter: list[str], lines: Sequence[str]) -> str:
    return run([*enter, "sh", "-ec", "\n".join(lines)])


# --- the janitor -----------------------------------------------------------------------------------


def net_of(pid: str | int) -> int:
    """Which network namespace the process is in; 0: it has gone."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return 0


def kill_all_in(namespaces: set[int]) -> None:
    deadline = time.monotonic() + CLOSING_S / 2
    while time.monotonic() < deadline:
        pids = [name for name in os.listdir("/proc") if name.isdigit()]
        found = [int(pid) for pid in pids if int(pid) != os.getpid() and net_of(pid) in namespaces]
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        time.sleep(0.01)


def janitor() -> None:
    """Reads the hosts' namespaces; when there is nobody to send any, all that is in them and in this one is
    killed. Not the pids of the holders: those end with who made the network, too, and may be gone when
    they are read."""
    namespaces = {net_of(os.getpid())}
    for line in sys.stdin:
        namespaces.add(int(line))
    kill_all_in(namespaces - {0})


if __name__ == "__main__" and sys.argv[1:] == ["janitor"]:
    janitor()
