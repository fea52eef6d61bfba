"""Where a thread of this process is, for tests that act while it waits there."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from patience import until


def in_call(thread: int, function: str) -> bool:
    """Whether the thread is in a Python function of this name, or in what that calls."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


@contextmanager
def interrupted_in(function: str, once: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Interrupts the main thread by SIGINT while it is in this function and `once` holds: it raises
    KeyboardInterrupt there."""
    main = threading.main_thread().ident
    assert main is not None
    left: list[BaseException] = []

    def interrupt() -> None:
        try:
            until(f"the test is in {function}", lambda: once() and in_call(main, function))
        except AssertionError as error:
            left.append(error)
        signal.pthread_kill(main, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    # Who started the tests may ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupting.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        interrupting.join()
        signal.signal(signal.SIGINT, before)
    assert not left, left
