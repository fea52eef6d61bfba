"""The image of a node, without a container engine: three nodes run from its root file system as compose.yaml
says, as its user and under its seccomp profile. They replicate, lose one, and are healthy."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import container
import members
import pytest
import yaml
from cairn_daemon import binary, children
from cairn_raw import ROOT
from mariadb import MariaDb
from mariadb import unavailable as no_database
from patience import patient
from ring import MIB, Member, Ring, attempt_number, ring, until

pytestmark = pytest.mark.full

DOCKER = ROOT / "docker"
JOB = "run"
NODES = 3
SOCKET_FOLDER, STORAGE_FOLDER, SECRETS = "/run/cairn", "/mnt/checkpoints", "/run/secrets"
UID = 10001
# What the test gives instead of compose's: less memory, the network's addresses, a database on this machine.
REPLACED = ("memory.budget", "ring.nodes", "catalog.mysql.host")


def compose() -> dict[str, Any]:
    page: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
    return page


def instruction(name: str) -> list[str]:
    """Of the Dockerfile's last stage, in the form that no shell reads."""
    text = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    found: list[str] = json.loads(re.findall(rf"^{name}\b.*?(\[.*\])$", text, re.MULTILINE)[-1])
    return found


def flags(options: list[str]) -> dict[str, str]:
    pairs = (option.removeprefix("--").split("=", 1) for option in options)
    return {name: value for name, value in pairs}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="cairn-image-", dir="/tmp"))
    try:
        folder.chmod(0o755)
        made = folder / "root"
        subprocess.run(
            [sys.executable, DOCKER / "rootfs.py", binary("cairnd").parent, made], check=True
        )
        (made / "run/secrets").mkdir()  # an engine makes what secrets are mounted at
        yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Images:
    """What each rank is given from outside: its volumes and its secrets, as compose.yaml has them."""

    def __init__(self, root: Path, outside: Path, database: MariaDb) -> None:
        self.root, self.outside, self.database = root, outside, database
        self.storage = outside / "storage"
        self.storage.mkdir()
        self._give(self.storage)
        addresses = [f"10.77.0.{rank + 1}" for rank in range(NODES)]
        self.nodes = ",".join(f"{i}={at}:{members.CONTROL_PORT}" for i, at in enumerate(addresses))
        command = [binary("cairn"), "cluster", "init", outside / "certs", "--cluster", "train"]
        subprocess.run([*command, "--nodes", self.nodes], check=True, capture_output=True)

    def _give(self, path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, UID, UID)

    def _secrets(self, rank: int) -> Path:
        folder = self.outside / f"secrets{rank}"
        if folder.exists():
            return folder
        folder.mkdir()
        certs = self.outside / "certs"
        for name, source in {
            "ca": certs / "ca.pem",
            "cert": certs / f"node-{rank}.pem",
            "key": certs / f"node-{rank}.key",
            "mysql_password": self.database.password_file,
        }.items():
            shutil.copyfile(source, folder / name)
            (folder / name).chmod(0o400)
            self._give(folder / name)
        return folder

    def take_over(self, r: Ring) -> None:
        for member in r:
            self.run_from_image(member)

    def run_from_image(self, member: Member) -> None:
        self._give(member.folder)
        service = compose()["services"][f"node{member.rank}"]
        options = flags(service["command"])
        assert set(REPLACED) < set(options)
        options |= {"memory.budget": f"{64 * MIB}B", "ring.nodes": self.nodes}
        del options["catalog.mysql.host"]
        options["catalog.mysql.socket"] = f"{SECRETS}/mysql.sock"
        # A short wait for who is lost, and each step in storage; the rest is compose's.
        options |= {"ring.lost_after_seconds": "5", "journal.bytes": "16MiB"}
        options["ring.rank"] = service["environment"]["CAIRND_RING_RANK"]
        secrets = self._secrets(member.rank)
        socket = secrets / "mysql.sock"
        socket.touch()
        # The database's socket is a file of this machine, put where the container sees it.
        binds = {
            member.folder: SOCKET_FOLDER,
            self.storage: STORAGE_FOLDER,
            secrets: SECRETS,
            self.database.socket: f"{SECRETS}/mysql.sock",
        }
        profile = [] if container.filters() else [f"--seccomp={DOCKER / 'seccomp.json'}"]
        member.command = [
            *member.host,
            *("unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child"),
            *("/usr/bin/python3", str(ROOT / "tests/cluster/container.py"), str(self.root)),
            *(f"--bind={here}:{there}" for here, there in binds.items()),
            *(f"--user={UID}", *profile, "--"),
            *instruction("ENTRYPOINT"),
            *(f"--{name}={value}" for name, value in options.items()),
        ]


@contextmanager
def ring_of_images(root: Path) -> Iterator[tuple[Ring, MariaDb]]:
    outside = Path(tempfile.mkdtemp(prefix="cairn-image-", dir="/tmp"))
    outside.chmod(0o755)
    database = MariaDb(outside / "db")
    try:
        images = Images(root, outside, database)
        with ring(NODES, before=images.take_over) as r:
            yield r, database
    finally:
        database.kill()
        shutil.rmtree(outside, ignore_errors=True)


def inside(member: Member, command: list[str]) -> subprocess.CompletedProcess[str]:
    """As an engine runs a health check: in the container's namespaces, as its user."""
    pid = member.keeper_pid
    user = ["--user", "--preserve-credentials"] if os.geteuid() else [f"--setuid={UID}"]
    enter = ["nsenter", f"--target={pid}", *user, "--mount", "--pid", "--net", "--ipc", "--root"]
    return subprocess.run(
        [*enter, *command], env={}, capture_output=True, text=True, timeout=patient(30), check=False
    )


@pytest.mark.skipif(bool(no_database()), reason=no_database())
def test_three_nodes_of_the_image_replicate_and_outlive_one_of_them(root: Path) -> None:
    with ring_of_images(root) as (r, database):
        health = instruction("HEALTHCHECK")
        for member in r:
            done = inside(member, health)
            assert done.returncode == 0, done.stderr
        keeper = Path(f"/proc/{r[0].keeper_pid}")
        status = dict(re.findall(r"^(\w+):\s+(.*)$", (keeper / "status").read_text(), re.MULTILINE))
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == ("0" if container.filters() else "2")
        assert status["NSpid"].split()[-1] == "1", "the keeper is the container's first process"
        assert os.geteuid() or status["Uid"].split()[0] == str(UID)
        assert sorted(os.listdir(keeper / "root/usr/bin")) == ["cairn", "cairnd"], "no shell"

        attempt = attempt_number()
        writers = [r[rank].writer(JOB, attempt, rank, NODES) for rank in range(NODES)]
        for rank, writer in enumerate(writers):
            r[rank].save(writer, 1)
        r[0].wait_replicated(JOB, 1)
        until("the step is in the database", lambda: database.ask("SELECT step FROM steps") != [])
        r[0].kill()
        assert r[1].loads(JOB, 1, NODES) and r[2].loads(JOB, 1, NODES), "promise 1"
        until(
            "the others miss it",
            lambda: "rank 0" in inside(r[1], ["/usr/bin/cairn", "peers"]).stdout.split("\n")[0],
        )
        # A job of the container's own user goes to storage, too.
        for words in ("put /etc/passwd mine/1/file", "wait mine/1 --level persisted --timeout 30"):
            done = inside(r[1], ["/usr/bin/cairn", *words.split()])
            assert done.returncode == 0, done.stderr
        (daemon,) = children(r[1].keeper_pid)
        os.kill(daemon, 9)  # the keeper starts another, under the profile as well
        r[1].wait_ready()
        assert r[1].loads(JOB, 1, NODES)
        assert inside(r[1], health).returncode == 0
        r[1].pause()
        try:
            assert inside(r[1], health).returncode != 0, (
                "a node that does not answer is not healthy"
            )
        finally:
            r[1].go_on()


def test_what_compose_and_the_dockerfile_say_the_daemon_understands() -> None:
    """By the daemon's own check: every flag and every variable of every node."""
    page = compose()
    nodes = [service for name, service in page["services"].items() if name.startswith("node")]
    assert len(nodes) == NODES
    told = subprocess.run(
        [binary("cairnd"), "--print-config"], env={}, capture_output=True, text=True, check=True
    ).stdout
    known = set(re.findall(r"^([a-z][a-z_.]+)\b", told, re.MULTILINE))
    assert {"memory.budget", "ring.rank", "catalog.mysql.password_file"} <= known
    for rank, service in enumerate(nodes):
        assert set(flags(service["command"])) <= known
        variables = {name: value for name, value in service["environment"].items()}
        assert variables == {"CAIRND_RING_RANK": str(rank)}
        # --print-config parses each value and refuses what it does not know.
        command = [binary("cairnd"), "--print-config", *service["command"]]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert re.search(rf"^ring.rank\s.*\b{rank}\b", done.stdout, re.MULTILINE), done.stdout
    assert instruction("ENTRYPOINT") == ["/usr/bin/cairnd"]


def test_compose_shares_no_namespace_and_hands_out_secrets_as_secrets() -> None:
    page = compose()
    for name, service in page["services"].items():
        assert not {"pid", "ipc", "userns_mode", "privileged", "cap_add"} & set(service), name
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in page["volumes"], f"{name}: {volume}"
        for secret in service.get("secrets", []):
            source = secret if isinstance(secret, str) else secret["source"]
            assert page["secrets"][source]["file"].startswith("secrets/")
        if name.startswith("node"):
            assert service["cap_drop"] == ["ALL"] and service["read_only"] is True
            assert service["ulimits"]["memlock"] == -1
            assert f"seccomp=./{(DOCKER / 'seccomp.json').name}" in service["security_opt"]
            given = {s if isinstance(s, str) else s["target"] for s in service["secrets"]}
            files = [v for v in flags(service["command"]).values() if v.startswith(SECRETS)]
            assert {Path(file).name for file in files} == given
    rdma = yaml.safe_load((DOCKER / "compose.rdma.yaml").read_text(encoding="utf-8"))
    assert set(rdma["services"]) <= set(page["services"])
    for service in page["services"].values():
        given = {name for name in service.get("environment", {}) if name.endswith("PASSWORD")}
        assert given <= {"MYSQL_RANDOM_ROOT_PASSWORD"}, "a password in plain"


# --- system calls


def allowed() -> set[str]:
    profile = json.loads((DOCKER / "seccomp.json").read_text(encoding="utf-8"))
    return {name for rule in profile["syscalls"] for name in rule["names"]}


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.skipif(bool(no_database()), reason=no_database())
def test_the_profile_has_every_call_of_nodes_that_save_replicate_persist_and_recover(
    tmp_path: Path,
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="cairn-db-", dir="/tmp"))
    database = MariaDb(folder / "db")

    def trace(r: Ring) -> None:
        for member in r:
            at = member.command.index(str(member.program))
            out = tmp_path / f"calls.{member.rank}"
            member.command[at:at] = ["strace", "-f", "-c", "-o", str(out)]

    try:
        with ring(2, storage=True, persist="every", options=database.options(), before=trace) as r:
            attempt = attempt_number()
            writers = [r[rank].writer(JOB, attempt, rank, 2) for rank in range(2)]
            for step in (1, 2):
                for rank, writer in enumerate(writers):
                    r[rank].save(writer, step)
                r[0].wait_replicated(JOB, step)
                r[0].cairn(f"wait {JOB}/{step} --level persisted --timeout 30")
            r[0].kill_daemon()
            r.await_met()
            assert r[0].loads(JOB, 2, 2)
            r[0].cairn(f"rm {JOB}/1 --yes")
            for member in r:
                member.stop()
    finally:
        database.kill()
        shutil.rmtree(folder, ignore_errors=True)
    seen = set()
    for out in tmp_path.glob("calls.*"):
        seen |= set(re.findall(r"^ *[\d.]+ .* (\w+)$", out.read_text(), re.MULTILINE))
    seen.discard("total")
    assert {"memfd_create", "openat2", "fcntl", "setfsuid", "signalfd4", "execve"} <= seen
    # glibc tries it and takes clone, whose flags a filter can look at.
    assert seen - allowed() <= {"clone3"}


@pytest.mark.skipif(bool(container.filters()), reason=container.filters())
def test_the_profile_refuses_what_no_node_needs() -> None:
    script = """
import ctypes, errno, json, os, socket, sys, threading
from pathlib import Path
import container
profile = json.loads(Path(sys.argv[1]).read_text())
numbers = container.call_numbers()
container.confine(container.program(profile))
libc = ctypes.CDLL(None, use_errno=True)
def refused(name, *arguments):
    return libc.syscall(numbers[name], *arguments) == -1 and ctypes.get_errno() == errno.ENOSYS
CLONE_NEWUSER, CLONE_NEWNS, SIGCHLD = 0x10000000, 0x00020000, 17
for flag in (CLONE_NEWUSER, CLONE_NEWNS):
    assert refused("clone", flag | SIGCHLD, 0, 0, 0, 0), hex(flag)
for name in ("unshare", "mount", "ptrace", "bpf", "keyctl", "io_uring_setup", "process_vm_readv", "clone3"):
    assert refused(name, 0, 0, 0, 0, 0), name
assert refused("socket", socket.AF_PACKET, socket.SOCK_RAW, 0)
threading.Thread(target=print, args=("a thread",)).start()
os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
socket.socketpair()
print("all")
"""
    done = subprocess.run(
        ["/usr/bin/python3", "-c", script, DOCKER / "seccomp.json"],
        env={"PYTHONPATH": str(Path(container.__file__).parent)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.endswith("all\n"), done.stderr
