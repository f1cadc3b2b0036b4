"""Asks whether this worker's machine will be taken away, beside the training."""

from __future__ import annotations

import threading
from collections.abc import Callable

_EVERY_S = 1.0


class NoticeWatch:
    """A thread of its own, until there is a notice.

    Args:
        notice: seconds until the machine goes, or None while it stays. An error that it raises ends the thread.
        heard: told of the seconds, once.
        every_s: between two questions.
    """

    def __init__(
        self, notice: Callable[[], float | None], heard: Callable[[float], None], every_s: float = _EVERY_S
    ) -> None:
        self._notice = notice
        self._heard = heard
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="uneven-notice", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ask no more."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            if (left_s := self._notice()) is not None:
                self._heard(left_s)
                return
            self._over.wait(self._every_s)
