"""Certificates for a ring's members, and what they are to encrypt."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from cairn_daemon import binary
from members import CONTROL_PORT
from ring import Ring


def certificates(encrypt: Callable[[int], str]) -> Callable[[Ring], None]:
    """Gives each member its certificate, and tells it what to encrypt."""

    def give(r: Ring) -> None:
        folder = r.folder / "certificates"
        nodes = ",".join(f"{m.rank}={m.address}:{CONTROL_PORT}" for m in r)
        made = subprocess.run(
            [binary("cairn"), "cluster", "init", folder, "--cluster=ring", f"--nodes={nodes}"],
            capture_output=True,
            text=True,
        )
        assert made.returncode == 0, made.stderr
        for member in r:
            member.command += [
                f"--peers.ca={folder / 'ca.pem'}",
                f"--peers.cert={folder / f'node-{member.rank}.pem'}",
                f"--peers.key={folder / f'node-{member.rank}.key'}",
                f"--peers.encrypt={encrypt(member.rank)}",
            ]

    return give
