"""A MariaDB server of one's own: in a folder, with a socket there and no port. Who starts it kills it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

INSTALL, SERVER, CLIENT = "mariadb-install-db", "mariadbd", "mariadb"
START_S = 60
ANSWER_S = 20  # of one question; a server that stands still answers none
PATHS = "/usr/sbin:/usr/bin:" + os.environ.get("PATH", "")


def unavailable() -> str:
    """Why no server can be started here; empty: one can."""
    missing = [name for name in (INSTALL, SERVER, CLIENT) if not shutil.which(name, path=PATHS)]
    return (
        f"{', '.join(missing)}: not installed (mariadb-server-core, mariadb-client-core)"
        if missing
        else ""
    )


class MariaDb:
    """A server with one database, and a user who may do anything there and nothing elsewhere."""

    database, user, password = "cairn", "cairn", "a password's worth"

    def __init__(self, folder: Path, enter: Sequence[str] = ()) -> None:
        """`enter`: what stands before the server's command, as Network.enter gives it; in such a network
        an ordinary user is uid 0."""
        self.folder = folder
        self.enter = list(enter)
        self.socket = folder / "mysql.sock"
        self.log = folder / "server.log"
        self.password_file = folder / "password"
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(exist_ok=True)
        self.password_file.touch(mode=0o600)
        self.password_file.write_text(self.password + "\n", encoding="utf-8")
        as_root = ["--user=root"] if os.geteuid() == 0 else []
        subprocess.run(
            [
                found(INSTALL),
                "--no-defaults",
                f"--datadir={folder / 'data'}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--force",
                *as_root,
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            env=self._environment(),
        )
        self.start()
        self.ask(
            f"CREATE DATABASE {self.database};"
            f'CREATE USER {self.user}@localhost IDENTIFIED BY "{self.password}";'
            f"GRANT ALL ON {self.database}.* TO {self.user}@localhost",
            database="mysql",
        )

    def options(self) -> tuple[str, ...]:
        """Of a daemon whose catalog it is to be."""
        return (
            "--catalog.path=",
            f"--catalog.mysql.socket={self.socket}",
            f"--catalog.mysql.database={self.database}",
            f"--catalog.mysql.user={self.user}",
            f"--catalog.mysql.password_file={self.password_file}",
        )

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [
                    *self.enter,
                    found(SERVER),
                    "--no-defaults",
                    f"--datadir={self.folder / 'data'}",
                    f"--socket={self.socket}",
                    f"--pid-file={self.folder / 'pid'}",
                    "--skip-networking",
                    "--innodb-buffer-pool-size=16M",
                    "--innodb-log-file-size=16M",
                    "--performance-schema=OFF",
                    # Who is killed loses nothing by it; only a machine that loses power would.
                    "--innodb-flush-log-at-trx-commit=2",
                    *(["--user=root"] if os.geteuid() == 0 or self.enter else []),
                ],
                stdout=log,
                stderr=log,
                env=self._environment(),
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(
                    f"mariadbd does not start: {self.log.read_text(errors='replace')[-2000:]}"
                )
            time.sleep(0.05)

    def _environment(self) -> dict[str, str]:
        """A server that starts removes the temporary tables in its TMPDIR, those of other servers too."""
        return {**os.environ, "TMPDIR": str(self.folder)}

    def _answers(self) -> bool:
        try:
            self.ask("SELECT 1", database="mysql")
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return False
        return True

    def kill(self) -> None:
        """SIGKILL; what was committed is there after the next start."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        """When it returns, none of the server's threads runs."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)

    def go_on(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def tables(self) -> set[str]:
        """Of its database."""
        return {name for (name,) in self.ask("SHOW TABLES")}

    def ask(self, sql: str, *, database: str = database) -> list[list[str]]:
        """The rows of the answer, as root."""
        result = subprocess.run(
            [
                found(CLIENT),
                "--no-defaults",
                f"--socket={self.socket}",
                "--user=root",
                "--batch",
                "--skip-column-names",
                database,
            ],
            input=sql,
            check=True,
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
        )
        return [line.split("\t") for line in result.stdout.splitlines()]


def found(name: str) -> str:
    path = shutil.which(name, path=PATHS)
    assert path, f"{name} is not installed"
    return path
