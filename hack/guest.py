"""Runs a command in a virtual machine that has RDMA devices (Soft-RoCE), as any user.

    hack/guest [--memory MIB] [--limit SECONDS] [--bring FOLDER] COMMAND...
    hack/guest --prepare    starts none; exits 125 and says why where none could be started

The kernel is Debian's, unpacked into the cache folder and never installed; the processor is emulated, so
that it runs wherever QEMU does. The guest's files are this machine's, and what the guest writes to them is
gone when it ends: what was built here runs there as it is, in the same folder, with the variables CAIRN*,
GTEST* and PYTHON* of here. Only what it writes to $OUT comes back, into the folder that --bring names. Its
output is shown as it comes; the exit status is the command's, 124 past the limit.

In the guest: rxe0 and rxe1, RDMA devices over network devices of 10.77.0.1 and 10.77.1.1, MTU 9000. Each
reaches itself, not the other. All memory may be locked; the user is root.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gzip
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cairn" / "guest"
# What the emulator needs, and the tests in it.
PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "modprobe": "kmod",
    "depmod": "kmod",
    "busybox": "busybox-static",
    "rdma": "iproute2",
}
MODULES = [
    # Soft-RoCE takes its checksum from these, by name.
    "crc32_generic",
    "crc32c_generic",
    # This machine's files.
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "overlay",
    # The devices.
    "veth",
    "ib_uverbs",
    "rdma_rxe",
]
BOOT_LIMIT_S = 60
PAST_THE_LIMIT = 124
FAILED_TO_BOOT = 125

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /host /over /root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module" || echo "no $module"; done < /modules/order
nine=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o "ro,cache=loose,$nine" root /host
mount -t tmpfs -o mode=755 over /over
mkdir -p /over/upper /over/work
mount -t overlay -o lowerdir=/host,upperdir=/over/upper,workdir=/over/work root /root
for folder in proc sys dev; do mount --rbind "/$folder" "/root/$folder"; done
mkdir -p /root/dev/shm /root/dev/pts /root/run /root/mnt
mount -t tmpfs shm /root/dev/shm
mount -t tmpfs run /root/run
mount -t devpts pts /root/dev/pts
mount -t 9p -o "$nine" out /root/mnt
chroot /root /bin/bash /mnt/.guest/run > /root/mnt/.guest/output 2>&1
echo $? > /root/mnt/.guest/status
sync
poweroff -f
"""

RUN = """{environment}
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root OUT=/mnt
hostname guest
ip link set lo up
for i in 0 1; do
  ip link add veth$i mtu 9000 type veth peer name far$i mtu 9000
  ip address add 10.77.$i.1/24 dev veth$i
  ip link set far$i up
  ip link set veth$i up
  rdma link add rxe$i type rxe netdev veth$i || exit {failed}
done
ulimit -l unlimited
touch /mnt/.guest/booted
cd {folder} || exit {failed}
{command}
"""


class GuestError(Exception):
    """Why no guest could be started, for people."""


def missing_packages() -> list[str]:
    found = {
        program: shutil.which(program, path=f"{os.defpath}:/usr/sbin:/sbin") for program in PROGRAMS
    }
    return sorted({PROGRAMS[program] for program, path in found.items() if path is None})


def output_of(command: list[str], cwd: Path | None = None) -> str:
    env = {**os.environ, "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise GuestError(f"{shlex.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


# --- the kernel


def kernel_package() -> str:
    """The package that Debian's linux-image-amd64 stands for today."""
    for line in output_of(["apt-cache", "depends", "linux-image-amd64"]).splitlines():
        kind, _, name = line.strip().partition(": ")
        if kind == "Depends":
            return name
    raise GuestError("linux-image-amd64: not in apt's lists (apt-get update)")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def prepare() -> Path:
    """The folder with the kernel and what it boots into. Made once for each version of either; a later run
    takes what is there without asking apt."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with locked(CACHE / "lock"):
        kernels = sorted(CACHE.glob("linux-image-*/vmlinuz"), key=lambda path: path.stat().st_mtime)
        kernel = kernels[-1].parent if kernels else fetch()
        initramfs = kernel / "initramfs.gz"
        temporary = kernel / "initramfs.new"
        # A few MiB: cheaper to make than to know whether it is out of date.
        temporary.write_bytes(gzip.compress(initramfs_of(kernel), compresslevel=1))
        temporary.rename(initramfs)
    return kernel


def fetch() -> Path:
    try:
        return fetch_kernel(kernel_package())
    except GuestError:
        # apt's lists may be missing, or speak of a version that is gone; only root may renew them.
        if os.geteuid() != 0:
            raise
        output_of(["apt-get", "-q", "update"])
        return fetch_kernel(kernel_package())


def fetch_kernel(package: str) -> Path:
    """Downloads and unpacks it; what came half stays under a name that nobody takes for whole."""
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        temporary = Path(folder)
        output_of(["apt-get", "download", package], cwd=temporary)
        (archive,) = temporary.glob("*.deb")
        output_of(["dpkg", "-x", str(archive), str(temporary / "root")])
        (vmlinuz,) = (temporary / "root" / "boot").glob("vmlinuz-*")
        version = vmlinuz.name.removeprefix("vmlinuz-")
        output_of(["depmod", "-b", str(temporary / "root"), version])
        kernel = temporary / package
        (kernel / "modules").mkdir(parents=True)
        order: list[str] = []
        for module in MODULES:
            tree = ["-d", str(temporary / "root"), "-S", version]
            for line in output_of(["modprobe", *tree, "--show-depends", module]).splitlines():
                word, _, path = line.strip().partition(" ")
                name = Path(path.split()[0]).name if path else ""
                if word == "insmod" and name not in order:
                    shutil.copy(path.split()[0], kernel / "modules" / name)
                    order.append(name)
        (kernel / "modules" / "order").write_text("".join(f"{name}\n" for name in order))
        shutil.copy(vmlinuz, kernel / "vmlinuz")
        final = CACHE / package
        shutil.rmtree(final, ignore_errors=True)
        kernel.rename(final)
    return final


def initramfs_of(kernel: Path) -> bytes:
    busybox = shutil.which("busybox")
    assert busybox is not None
    files = [("init", INIT.encode()), ("bin/busybox", Path(busybox).read_bytes())]
    files += [
        (f"modules/{path.name}", path.read_bytes()) for path in (kernel / "modules").iterdir()
    ]
    entries = [cpio_entry(folder, stat.S_IFDIR | 0o755, b"") for folder in ("bin", "modules")]
    entries += [cpio_entry(name, stat.S_IFREG | 0o755, content) for name, content in files]
    return b"".join(entries) + cpio_entry("TRAILER!!!", 0, b"")


def cpio_entry(name: str, mode: int, content: bytes) -> bytes:
    """A file in the kernel's format for initramfs ("newc")."""
    padded = name.encode() + b"\0"
    ino, uid, gid, links, mtime, device = 0, 0, 0, 1, 0, [0] * 4
    fields = [ino, mode, uid, gid, links, mtime, len(content), *device, len(padded), 0]
    header = b"070701" + b"".join(b"%08X" % field for field in fields) + padded
    return pad(header) + pad(content)


def pad(content: bytes) -> bytes:
    return content + b"\0" * (-len(content) % 4)


# --- one run


def exports() -> str:
    """What tests and programs are told by their environment goes along; the rest stays here."""
    told = ("CAIRN", "GTEST", "PYTHON")
    mine = {name: value for name, value in os.environ.items() if name.startswith(told)}
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in mine.items())


def run(command: list[str], memory_mib: int, limit_s: float, bring: Path) -> int:
    kernel = prepare()
    bring.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cairn-guest-") as folder:
        share = Path(folder)
        own = share / ".guest"
        own.mkdir()
        (own / "output").touch()
        script = RUN.format(
            failed=FAILED_TO_BOOT,
            environment=exports(),
            folder=shlex.quote(os.getcwd()),
            command=shlex.join(command),
        )
        (own / "run").write_text(script)
        nine = "security_model=none,multidevs=remap"
        # fmt: off
        emulator = [
            "qemu-system-x86_64", "-nodefaults", "-display", "none", "-no-reboot",
            "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", str(memory_mib),
            "-kernel", str(kernel / "vmlinuz"), "-initrd", str(kernel / "initramfs.gz"),
            "-append", "console=ttyS0 quiet panic=-1 mitigations=off",
            "-serial", f"file:{own / 'console'}",
            "-virtfs", f"local,path=/,mount_tag=root,readonly=on,{nine}",
            "-virtfs", f"local,path={share},mount_tag=out,{nine}",
        ]
        # fmt: on
        process = subprocess.Popen(emulator, stdin=subprocess.DEVNULL)
        try:
            status = follow(process, own, limit_s)
        finally:
            process.kill()
            process.wait()
        for path in share.iterdir():
            if path != own:
                shutil.move(path, bring / path.name)
    return status


def follow(process: subprocess.Popen[bytes], own: Path, limit_s: float) -> int:
    """Shows the command's output until the guest has ended. Returns its exit status."""
    begin = time.monotonic()
    with (own / "output").open("rb") as output:
        while True:
            ended = process.poll() is not None
            while chunk := output.read(1 << 16):
                sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
            if ended:
                break
            took = time.monotonic() - begin
            if took > limit_s or (took > BOOT_LIMIT_S and not (own / "booted").exists()):
                print(
                    f"guest: it ran past {limit_s:g} s"
                    if took > limit_s
                    else "guest: it did not boot"
                )
                break
            time.sleep(0.05)
    status = own / "status"
    if ended and status.exists() and status.read_text().strip():
        return int(status.read_text())
    console = own / "console"
    if console.exists():
        print(console.read_text(errors="replace")[-4000:])
    return PAST_THE_LIMIT if (own / "booted").exists() else FAILED_TO_BOOT


def main() -> int:
    parser = argparse.ArgumentParser(description="runs a command in a guest that has RDMA devices")
    parser.add_argument("--memory", type=int, default=1024, help="MiB that the guest has")
    parser.add_argument("--limit", type=float, default=300, help="seconds, then it is killed")
    parser.add_argument(
        "--bring", type=Path, default=ROOT / "build" / "guest", help="where $OUT goes"
    )
    parser.add_argument("--prepare", action="store_true", help="start nothing")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if not arguments.command and not arguments.prepare:
        parser.error("which command?")
    if missing := missing_packages():
        print(f"guest: needs these packages from Debian: {' '.join(missing)}", file=sys.stderr)
        return FAILED_TO_BOOT
    try:
        if arguments.prepare:
            prepare()
            return 0
        return run(arguments.command, arguments.memory, arguments.limit, arguments.bring)
    except GuestError as error:
        print(f"guest: {error}", file=sys.stderr)
        return FAILED_TO_BOOT


if __name__ == "__main__":
    sys.exit(main())
