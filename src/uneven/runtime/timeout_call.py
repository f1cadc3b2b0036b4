"""Time-outs for calls that have none."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def within(limit_s: float, work: Callable[[], T]) -> T:
    """Return or raise the outcome of ``work``. Raises TimeoutError after ``limit_s``."""
    outcome: queue.SimpleQueue[tuple[T | None, RuntimeError | ValueError | OSError | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcome.put((work(), None))
        except (RuntimeError, ValueError, OSError) as error:  # all errors of torch's stores
            outcome.put((None, error))

    # A thread that waits in a system call for a silent peer cannot be ended. As a daemon it does not block the exit.
    threading.Thread(target=run, name="uneven-patience", daemon=True).start()
    try:
        value, error = outcome.get(timeout=limit_s)
    except queue.Empty:
        raise TimeoutError(f"no answer within {limit_s:g} s") from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value] # None only where work returns it
