"""hack/cluster.sh: a ring of Cairn's daemons on one machine, each in a network of its own."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import mariadb
from mariadb import MariaDb
from members import Member, binary, ring_options
from network import MAX_HOSTS, Network, NetworkError, unavailable

DESCRIPTION = """Runs a ring of N nodes on this machine, as root or as any user, until Ctrl-C. Each node
is one cairnd in a network namespace of its own, joined to the others by a bridge. With a command
behind --, runs that beside the ring, with CAIRN_SOCKET set to node 0's and RING to the ring's
folder, and ends with its status. With --mysql the nodes share an index in a MariaDB server, which
runs beside them with its socket at $RING/mysql/mysql.sock; its database is "cairn"."""
EPILOG = """examples:
  hack/cluster.sh 3
  hack/cluster.sh 3 --rate 1000 --no-storage
  hack/cluster.sh 3 --mysql -- sh -c 'mariadb --socket=$RING/mysql/mysql.sock -u root cairn'
  hack/cluster.sh 3 -- sh -c 'cairn put README.md run/1/readme && cairn wait run/1 --level replicated'
"""


def parse() -> argparse.Namespace:
    words = sys.argv[1:]
    command: list[str] = []
    if "--" in words:
        at = words.index("--")
        words, command = words[:at], words[at + 1 :]
    parser = argparse.ArgumentParser(
        "hack/cluster.sh",
        usage="hack/cluster.sh N [OPTIONS] [-- COMMAND …]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("nodes", metavar="N", type=int, help=f"1 to {MAX_HOSTS}")
    parser.add_argument("--replicas", metavar="K", type=int, help="copies on other nodes [1]")
    parser.add_argument("--budget", metavar="SIZE", default="256MiB", help="of each node [256MiB]")
    storage = parser.add_mutually_exclusive_group()
    storage.add_argument(
        "--shared",
        metavar="DIR",
        type=Path,
        help="the storage of all nodes, which stays [a folder that goes with the ring]",
    )
    storage.add_argument("--no-storage", action="store_true", help="memory is all there is")
    parser.add_argument(
        "--rate", metavar="MBIT", type=float, default=0, help="of each node's link [unlimited]"
    )
    parser.add_argument(
        "--mysql", action="store_true", help="a MariaDB server of the ring's own is the catalog"
    )
    parser.add_argument(
        "--option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="of every daemon, as in --option persist.mode=every",
    )
    arguments = parser.parse_args(words)
    if not 1 <= arguments.nodes <= MAX_HOSTS:
        parser.error(f"N: {arguments.nodes} is outside 1 … {MAX_HOSTS}")
    if arguments.replicas is None:
        arguments.replicas = min(1, arguments.nodes - 1)
    if not 0 <= arguments.replicas < arguments.nodes:
        parser.error(f"--replicas: {arguments.replicas} is outside 0 … {arguments.nodes - 1}")
    arguments.command = command
    return arguments


@contextmanager
def ring(arguments: argparse.Namespace, folder: Path) -> Iterator[list[Member]]:
    """Up and answering; at the end each may write what it owes to storage, then nothing of it is left."""
    options = [f"--memory.budget={arguments.budget}"]
    if not arguments.no_storage:
        shared = (arguments.shared or folder / "storage").resolve()
        shared.mkdir(parents=True, exist_ok=True)
        options.append(f"--storage.root={shared}")
    with ExitStack() as stack:
        network = stack.enter_context(Network(arguments.nodes, cuts=False))
        if arguments.mysql:
            # On the switch, so that the server ends with the network, however this process ends.
            database = MariaDb(folder / "mysql", network.enter_switch())
            stack.callback(database.kill)
            options += database.options()
        options += [f"--{option.removeprefix('--')}" for option in arguments.option]
        members: list[Member] = []
        for rank in range(arguments.nodes):
            mine = ring_options(network.addresses, rank, replicas=arguments.replicas)
            members.append(Member(network, rank, folder / str(rank), [*options, *mine]).start())
            network.rate(rank, arguments.rate)
        try:
            for member in members:
                member.wait_until_it_answers()
            yield members
        finally:
            for member in members:
                member.terminate()
            for member in members:
                member.wait()


def show(arguments: argparse.Namespace, members: list[Member]) -> None:
    rate = f", links of {arguments.rate:g} Mbit/s" if arguments.rate else ""
    print(f"{len(members)} nodes, {arguments.replicas} replicas{rate}. From any shell:\n")
    for member in members:
        print(f"  export CAIRN_SOCKET={member.socket}   # node {member.rank}")
    if arguments.mysql:
        socket = members[0].socket.parent.parent / "mysql" / "mysql.sock"
        print(f"\nTheir catalog: mariadb --socket={socket} -u root cairn")
    print(f"\nTheir logs are beside the sockets. The command: {binary('cairn')}")
    print("Ctrl-C ends the ring.", flush=True)


def run_command(arguments: argparse.Namespace, folder: Path, members: list[Member]) -> int:
    tools = str(binary("cairn").parent)
    env = {
        **os.environ,
        "CAIRN_SOCKET": str(members[0].socket),
        "RING": str(folder),
        "PATH": f"{tools}:{os.environ.get('PATH', '')}",
    }
    code = subprocess.run(arguments.command, env=env, check=False).returncode
    return code if code >= 0 else 128 - code


def interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    arguments = parse()
    problem = unavailable(cuts=False) or (mariadb.unavailable() if arguments.mysql else "")
    if problem:
        print(f"hack/cluster.sh: {problem}", file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    # A socket's path has 107 bytes at most.
    folder = Path(tempfile.mkdtemp(prefix="cairn-ring-", dir="/tmp"))
    try:
        with ring(arguments, folder) as members:
            if arguments.command:
                return run_command(arguments, folder, members)
            show(arguments, members)
            threading.Event().wait()
    except (NetworkError, RuntimeError, FileNotFoundError, subprocess.SubprocessError) as error:
        print(f"hack/cluster.sh: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130 if arguments.command else 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
