"""`cairn top` beside a real ring: what it shows of members, transfers and backlog is so."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import members
import pytest
from cairn_command import open_to_signals
from cairn_daemon import binary
from patience import patient
from ring import MIB, Member, attempt_number, ring, until

pytestmark = pytest.mark.full
JOB = "run"
LARGE = 24 * MIB
LINK_MBIT = 24  # 3 MB a second: a large part is on its way until the link is fast again


def frame(member: Member) -> dict[str, Any]:
    answer: dict[str, Any] = member.json("top --once")
    return answer


def pages_of(output: Path) -> list[Any]:
    """The whole pages that are there."""
    shown = output.read_text().lstrip()
    pages = []
    with contextlib.suppress(json.JSONDecodeError):
        while shown:
            page, end = json.JSONDecoder().raw_decode(shown)
            pages.append(page)
            shown = shown[end:].lstrip()
    return pages


def fetches_of(pages: list[Any]) -> list[Any]:
    return [fetch for page in pages for fetch in page["ring"]["fetches"]]


def test_it_shows_what_is_under_way_and_then_that_all_is_safe() -> None:
    with ring(3, budget=128 * MIB) as r:
        r.rate(0, LINK_MBIT)
        writer = r[0].writer(JOB, attempt_number())
        output = r.folder / "top"
        with output.open("wb") as out:
            watching = subprocess.Popen(
                [
                    *(binary("cairn"), f"--socket={r[1].socket}"),
                    *("top", "--interval=200ms", "-o", "json"),
                ],
                env=members.without_cairn(),
                stdout=out,
                preexec_fn=open_to_signals,
            )
        try:
            until("it has begun", lambda: pages_of(output))
            r[0].save(writer, 1, part_bytes=LARGE)
            assert frame(r[0])["jobs"][0]["ring"]["replicas"] == 0

            def shows_rates() -> bool:
                pages = pages_of(output)
                rates = [fetch["bytes_per_second"] for fetch in fetches_of(pages)]
                return any(rates) and any(page["bytes_per_second_over_tcp"] for page in pages)

            until("it shows how fast the part comes", shows_rates)
            r.rate(0, 0)
            r[0].wait_replicated(JOB, 1)
            until("it shows that nothing comes", lambda: not fetches_of(pages_of(output)[-1:]))
        finally:
            watching.send_signal(signal.SIGINT)
            code = watching.wait(patient(30))
        assert code == -signal.SIGINT
        pages = pages_of(output)
        fetches = fetches_of(pages)
        assert {(f["job"], f["step"], tuple(f["sources"])) for f in fetches} == {(JOB, 1, (0,))}
        assert pages[0]["bytes_per_second_over_tcp"] is None

        def held() -> dict[int, int]:
            members = frame(r[0])["ring"]["members"]
            return {member["rank"]: member["held_for_us_bytes"] for member in members}

        until("node 0 knows that node 1 holds it", lambda: held()[1] >= LARGE)
        until("node 2, which may have stood in for it, holds nothing", lambda: held()[2] == 0, 60)
        assert frame(r[0])["jobs"][0]["ring"]["replicas"] == 1
        r[2].kill()
        until("it is silent", lambda: "2  silent for" in r[0].cairn("top --once"))


@pytest.mark.parametrize(("columns", "rows"), [(100, 24), (40, 10)])
def test_on_a_terminal_it_fits_and_ends_with_ctrl_c(columns: int, rows: int) -> None:
    with ring(2) as r:
        r[0].save(r[0].writer(JOB, attempt_number()), 1)
        ours, its = pty.openpty()
        try:
            size = ["stty", "cols", str(columns), "rows", str(rows)]
            subprocess.run(size, stdin=its, check=True)
            top = subprocess.Popen(
                [binary("cairn"), f"--socket={r[0].socket}", "top", "--interval=100ms"],
                env=members.without_cairn(),
                stdin=its,
                stdout=its,
                stderr=its,
                start_new_session=True,
                preexec_fn=open_to_signals,
            )
            shown = b""
            while shown.count(b"\x1b[H\x1b[2J") < 3:
                shown += os.read(ours, 65536)
            top.send_signal(signal.SIGINT)
            assert top.wait(patient(10)) == -signal.SIGINT
        finally:
            os.close(ours)
            os.close(its)
        page = shown.split(b"\x1b[H\x1b[2J")[2].decode()
        lines = page.splitlines()
        assert max(map(len, lines)) <= columns, page
        assert len(lines) < rows and ("+ " in lines[-1]) == (rows == 10), page
        assert [line.split()[:2] for line in lines if line[:4].strip() in ("0", "1")] == [
            ["0", "self"],
            ["1", "up"],
        ]


def test_it_ends_when_its_reader_leaves() -> None:
    with ring(1) as r:
        cairn = shlex.quote(str(binary("cairn")))
        command = f"{cairn} --socket={r[0].socket} top --interval=100ms"
        done = subprocess.run(
            ["bash", "-c", f"{command} | head -1; exit ${{PIPESTATUS[0]}}"],
            capture_output=True,
            text=True,
            timeout=patient(30),
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
