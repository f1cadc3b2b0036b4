"""Writes records beside the training, so that encoding them costs the loop nothing.

Right after a step the caches hold the model, and encoding one record takes ten times as long as one of several.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from uneven.core.records import Record
from uneven.journal.writer import Writer


class BackgroundWriter:
    """Hands records to a :class:`Writer` from a thread of its own, every ``every_s`` seconds while there are some.

    Killing the process loses what came in the last ``every_s`` seconds, also if it had been hanging for long.

    Args:
        writer: closed together with this.
        every_s: seconds between two looks.
    """

    def __init__(self, writer: Writer, every_s: float = 0.5) -> None:
        self._writer = writer
        self._every_s = every_s
        self._records: deque[Record | Callable[[], Record]] = deque()
        self._closing, self._wanted = threading.Event(), threading.Event()
        self._resting = False  # nothing has come for a while, so that nobody looks until something does
        self._spent_s = 0.0
        self._thread = threading.Thread(target=self._run, name="uneven-journal", daemon=True)
        self._thread.start()

    def write(self, record: Record | Callable[[], Record]) -> None:
        """Take a record, or what will make one there; it is in the file within ``every_s`` seconds."""
        self._records.append(record)
        if self._resting:
            self._wanted.set()

    def take_spent_s(self) -> float:
        """Processor time that writing has cost since the last call, in seconds."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s

    def close(self) -> None:
        """Write what is left and close the file. Closing twice does nothing."""
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
        if not (self._records or self._closing.is_set()):  # whoever came before that did not know
            self._wanted.wait()
        self._resting = False

    def _drain(self) -> int:
        """How many there were."""
        started_s = time.thread_time()
        taken = [self._records.popleft() for _ in range(len(self._records))]
        if taken:
            self._writer.write(*(record() if callable(record) else record for record in taken))
        self._spent_s += time.thread_time() - started_s
        return len(taken)
