"""What make demo-cluster shows over RDMA is so."""

from __future__ import annotations

import subprocess

from cairn_raw import ROOT
from patience import patient


def test_the_replication_part_of_the_demo_moves_every_byte_by_rdma() -> None:
    command = ["/usr/bin/python3", ROOT / "hack" / "demo" / "replicate.py"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=patient(240), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same bytes, all by RDMA" in done.stdout
