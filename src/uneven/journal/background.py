"""A writer in a background thread, so that encoding records costs the training loop nothing."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from uneven.journal.writer import Writer
from uneven.policy.core.records import Record


class BackgroundWriter:
    """A thread that passes records to a :class:`Writer` every ``every_s`` seconds; :meth:`close` closes both.

    Killing the process loses the records of the last ``every_s`` seconds.
    """

    def __init__(self, writer: Writer, every_s: float = 0.5) -> None:
        self._writer = writer
        self._every_s = every_s
        self._records: deque[Record | Callable[[], Record]] = deque()
        self._closing = threading.Event()
        self._wanted = threading.Event()
        self._resting = False  # the thread sleeps until the next record instead of polling
        self._spent_s = 0.0
        self._thread = threading.Thread(target=self._run, name="uneven-journal", daemon=True)
        self._thread.start()

    def write(self, record: Record | Callable[[], Record]) -> None:
        """Queue a record, or a function that creates it in the thread; it is in the file within ``every_s`` seconds."""
        self._records.append(record)
        if self._resting:
            self._wanted.set()

    def take_spent_s(self) -> float:
        """Return the processor seconds spent on writing since the last call."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s

    def close(self) -> None:
        """Write the rest and close the file. Idempotent."""
        if not self._closing.is_set():
            self._closing.set()
            self._wanted.set()
            self._thread.join()
            self._writer.close()

    def _run(self) -> None:
        while not self._closing.wait(self._every_s):
            if not self._drain():
                self._rest()
        self._drain()

    def _rest(self) -> None:
        self._wanted.clear()
        self._resting = True
        if not (self._records or self._closing.is_set()):  # a record queued before the flag set no event
            self._wanted.wait()
        self._resting = False

    # In the loop it would cost more: after a step the caches hold the model, and encoding one record takes ten times as
    # long as one of several.
    def _drain(self) -> int:
        started_s = time.thread_time()
        taken = [self._records.popleft() for _ in range(len(self._records))]
        if taken:
            self._writer.write(*(record() if callable(record) else record for record in taken))
        self._spent_s += time.thread_time() - started_s
        return len(taken)
