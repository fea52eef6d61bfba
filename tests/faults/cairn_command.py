"""The `cairn` command as tests run it: on a terminal or off, to its end or until a signal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
from typing import Any

from cairn_daemon import Node, binary
from patience import patient


def open_to_signals() -> None:
    """In a new process: it is so even where this one ignores them, as in the background of a shell."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Cairn:
    def __init__(self, node: Node, **environment: str) -> None:
        self.node = node
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("CAIRN")},
            "CAIRN_SOCKET": node.socket,
            **environment,
        }

    def run(self, *arguments: object, code: int = 0) -> subprocess.CompletedProcess[bytes]:
        result = subprocess.run(
            [binary("cairn"), *map(str, arguments)],
            env=self.environment,
            capture_output=True,
            timeout=patient(60),
            stdin=subprocess.DEVNULL,
        )
        assert result.returncode == code, (
            result.returncode,
            result.stdout[-500:],
            result.stderr[-500:],
        )
        if code:
            assert result.stderr.startswith(b"cairn: ")
        return result

    def start(self, *arguments: object, **options: Any) -> subprocess.Popen[bytes]:
        """Running, and open to signals."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            [binary("cairn"), *map(str, arguments)],
            **{"env": self.environment, "preexec_fn": open_to_signals, **pipes, **options},
        )

    def json(self, *arguments: object) -> Any:
        return json.loads(self.run(*arguments, "-o", "json").stdout)


def on_terminal(cairn: Cairn, *arguments: object, answer: str = "") -> tuple[int, str]:
    """Exit code and everything shown, with a terminal on all three streams."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [binary("cairn"), *map(str, arguments)],
        env=cairn.environment,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    os.write(controller, answer.encode())
    shown = b""
    deadline = time.monotonic() + patient(30)
    while time.monotonic() < deadline:
        if not select.select([controller], [], [], 1)[0]:
            if process.poll() is not None:
                break
            continue
        try:
            piece = os.read(controller, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(controller)
    return process.wait(patient(20)), shown.decode(errors="replace")
