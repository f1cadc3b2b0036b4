"""The thread that waits for a preemption notice of this worker's machine."""

from __future__ import annotations

import threading
from collections.abc import Callable

_EVERY_S = 1.0


class PreemptionNotice:
    """A background thread that ends after the first notice, or if ``notice`` raises an error."""

    def __init__(
        self, notice: Callable[[], float | None], heard: Callable[[float], None], every_s: float = _EVERY_S
    ) -> None:
        self._notice = notice
        self._heard = heard  # called once with these seconds
        self._every_s = every_s  # interval between two calls
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="uneven-notice", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            if (left_s := self._notice()) is not None:
                self._heard(left_s)
                return
            self._over.wait(self._every_s)
