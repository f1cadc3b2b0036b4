"""Waiting no longer than one wants to for something that has no time-out of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def within(limit_s: float, work: Callable[[], T]) -> T:
    """What ``work`` returns or raises.

    It runs in a thread of its own, which is left behind where it is when the time is over; a thread that
    waits for a silent peer in a system call cannot be ended, and does not keep the process from ending.

    Raises:
        TimeoutError: it takes longer than ``limit_s``.
    """
    outcome: queue.SimpleQueue[tuple[T | None, RuntimeError | ValueError | OSError | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcome.put((work(), None))
        except (RuntimeError, ValueError, OSError) as error:  # all that torch's stores raise
            outcome.put((None, error))

    threading.Thread(target=run, name="uneven-patience", daemon=True).start()
    try:
        value, error = outcome.get(timeout=limit_s)
    except queue.Empty:
        raise TimeoutError(f"no answer within {limit_s:g} s") from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value] # None only where work returns it
