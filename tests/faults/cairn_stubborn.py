"""A trainer that repeats each call until it is answered, as libcairn does: its session outlives daemons."""

from __future__ import annotations

import os
import time
from typing import Any

from cairn_daemon import Node
from cairn_raw import NOT_FOUND, UNAVAILABLE, CairnError, Raw, TTransportException
from patience import patient

READS = ("wait", "ls", "stat", "statCheckpoint", "latest", "status")
PATIENCE_S = 30


class Stubborn:
    """Writer 0 of 1 of an attempt."""

    def __init__(self, instance: Node, job: str, attempt: int) -> None:
        self.node, self.job, self.attempt = instance, job, attempt
        self.process = os.urandom(16)
        self.session: Raw | None = None

    def connect(self) -> Raw:
        self.session = None
        deadline = time.monotonic() + patient(PATIENCE_S)
        while self.session is None:
            try:
                self.session = Raw(
                    self.node.socket,
                    self.job,
                    self.attempt,
                    0,
                    1,
                    process=self.process,
                    timeout_s=patient(5),
                )
            except (TTransportException, OSError, EOFError, CairnError) as error:
                # A session without a channel does not outlive its daemon.
                if isinstance(error, CairnError) and error.code not in (UNAVAILABLE, NOT_FOUND):
                    raise
                assert time.monotonic() < deadline, error
        return self.session

    def repeated(self, method: str, *arguments: Any, call: int | None = None) -> Any:
        """The same call with the same number until it is answered."""
        assert self.session is not None
        deadline = time.monotonic() + patient(PATIENCE_S)
        number = next(self.session.calls) if call is None else call
        while True:
            try:
                if method in READS:
                    return self.session.do(method, *arguments)
                return self.session.do(method, number, *arguments)
            except (TTransportException, OSError, EOFError) as error:
                assert time.monotonic() < deadline, error
            except CairnError as error:
                if error.code != UNAVAILABLE or time.monotonic() > deadline:
                    raise
            while True:
                try:
                    self.session.reconnect()
                    break
                except (TTransportException, OSError, EOFError) as error:
                    assert time.monotonic() < deadline, error

    def save(self, step: int, objects: dict[str, bytes], revision: int = 0) -> None:
        session = self.session or self.connect()
        session.change = lambda method, *arguments, call=None: self.repeated(
            method, *arguments, call=call
        )
        assert session.save(step, objects, revision=revision, timeout_ms=5_000).complete

    def leave(self) -> None:
        if self.session is not None:
            self.session.vanish()
