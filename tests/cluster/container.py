"""Runs a command as a container's runtime would, without one: in a root file system of its own with volumes,
as the image's user, without new privileges, under a seccomp profile.

    unshare --mount --pid --fork --kill-child --ipc python3 container.py ROOT [--bind FROM:TO] [--user N]
        [--seccomp PROFILE] -- COMMAND...

The namespaces are made by who calls it, so that it is pid 1 of its own. In a user namespace that knows
one uid alone the command stays that uid.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
AUDIT_ARCH_X86_64 = 0xC000003E
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
# Instructions of classic BPF, and where struct seccomp_data has what they load.
LOAD, JUMP_IF_EQUAL, RETURN, AND = 0x20, 0x15, 0x06, 0x54
NR, ARCH, ARGUMENTS = 0, 4, 16
HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
DEVICES = ("null", "zero", "urandom", "random")


def filters() -> str:
    """Why no filter can be made here; empty: one can."""
    if platform.machine() != "x86_64":
        return f"the numbers of system calls are known for x86-64, not for {platform.machine()}"
    return "" if HEADER.exists() else f"{HEADER} is missing (linux-libc-dev)"


def call_numbers() -> dict[str, int]:
    text = HEADER.read_text(encoding="utf-8")
    return {name: int(nr) for name, nr in re.findall(r"#define __NR_(\w+)\s+(\d+)", text)}


def program(profile: dict[str, Any]) -> bytes:
    """The profile as a filter, as a container's runtime compiles it: the first rule that fits decides. Names
    that this machine does not have are left out."""
    numbers = call_numbers()
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    refuse = ERRNO | profile["defaultErrnoRet"]

    def step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("=HBBI", code, if_true, if_false, value)

    text = step(LOAD, ARCH) + step(JUMP_IF_EQUAL, AUDIT_ARCH_X86_64, 1, 0) + step(RETURN, KILL)
    for rule in profile["syscalls"]:
        assert rule["action"] == "SCMP_ACT_ALLOW"
        for name in rule["names"]:
            if name not in numbers:
                continue
            tests = b""
            for argument in rule.get("args", []):
                tests += step(LOAD, ARGUMENTS + 8 * argument["index"])
                value = argument["value"]
                if argument["op"] == "SCMP_CMP_MASKED_EQ":
                    tests += step(AND, value)
                    value = argument["valueTwo"]
                else:
                    assert argument["op"] == "SCMP_CMP_EQ"
                tests += step(JUMP_IF_EQUAL, value, 0, 1)
            assert len(rule.get("args", [])) <= 1
            body = tests + step(RETURN, ALLOW)
            text += step(LOAD, NR) + step(JUMP_IF_EQUAL, numbers[name], 0, len(body) // 8) + body
    return text + step(RETURN, refuse)


def confine(text: bytes) -> None:
    """`text`: a filter; empty: none."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
    if not text:
        return
    buffer = ctypes.create_string_buffer(text, len(text))
    filter_ = struct.pack("HxxxxxxP", len(text) // 8, ctypes.addressof(buffer))
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter_, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_SECCOMP")


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def enter(root: Path, binds: list[str], user: int) -> None:
    """The root, read-only but for its volumes, and what a runtime puts into each."""
    mount("--make-rprivate", "/")
    mount("--bind", str(root), str(root))
    mount("-t", "proc", "proc", str(root / "proc"))
    mount("-t", "tmpfs", "-o", "mode=1777", "tmp", str(root / "tmp"))
    mount("-t", "tmpfs", "-o", "mode=755", "dev", str(root / "dev"))
    for name in DEVICES:
        (root / "dev" / name).touch()
        mount("--bind", f"/dev/{name}", str(root / "dev" / name))
    for bind in binds:
        here, there = bind.split(":")
        mount("--bind", here, f"{root}/{there.lstrip('/')}")
    mount("-o", "remount,bind,ro", str(root))
    os.chroot(root)
    os.chdir("/")
    if user and len(Path("/proc/self/uid_map").read_text().splitlines()) == 1:
        mapped = int(Path("/proc/self/uid_map").read_text().split()[2])
        if mapped > user:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--bind", action="append", default=[])
    parser.add_argument("--user", type=int, default=0)
    parser.add_argument("--seccomp", type=Path)
    at = sys.argv.index("--")
    arguments = parser.parse_args(sys.argv[1:at])
    command = sys.argv[at + 1 :]
    # Read and compiled here, for the new root has no such files.
    text = program(json.loads(arguments.seccomp.read_text())) if arguments.seccomp else b""
    enter(arguments.root, arguments.bind, arguments.user)
    confine(text)
    os.execve(command[0], command, {"PATH": "/usr/bin"})


if __name__ == "__main__":
    main()
