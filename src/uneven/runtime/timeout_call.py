"""Time-outs for calls that have none, and that no signal interrupts."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

_LOOK_EVERY_S = 0.1


def within(
    limit_s: float,
    work: Callable[[], T],
    look: Callable[[], None] = lambda: None,  # called until the outcome is there; it may raise an error
    errors: tuple[type[Exception], ...] = (RuntimeError, ValueError, OSError),  # all of torch's stores
) -> T:
    """Return or raise the outcome of ``work``. Raises TimeoutError after ``limit_s``."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except errors as error:
            outcome.set_exception(error)

    # A thread that waits in a system call for a silent peer cannot be ended. As a daemon it does not block the exit.
    threading.Thread(target=run, name="uneven-patience", daemon=True).start()
    until_s = time.monotonic() + limit_s
    while not outcome.done():
        look()
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"no answer within {limit_s:g} s")
        with suppress(TimeoutError):
            outcome.exception(min(left_s, _LOOK_EVERY_S))
    return outcome.result()
