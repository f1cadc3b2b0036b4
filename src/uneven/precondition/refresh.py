"""Runs decompositions, at once or in a thread beside the training, and keeps apart those that fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psutil
import torch
from torch import Tensor


class Refresh:
    """What one worker decomposes in one refresh.

    Args:
        calls: by number, what gives the result.
        due: the step in which it is taken up.
        beside: whether it runs in a thread of its own.
        cost: of all of it, as the placement reckons it.
        clock_s: tells how long this worker has been busy.

    Attributes:
        seconds: that it took.
        cost, busy_s: of what the training had to wait for; 0 beside it.
    """

    def __init__(
        self,
        calls: dict[int, Callable[[], Tensor]],
        *,
        due: int,
        beside: bool,
        cost: float,
        clock_s: Callable[[], float] = time.process_time,
    ) -> None:
        self._calls = calls
        self.due = due
        self.cost = 0.0 if beside else cost
        self.seconds = 0.0
        self.busy_s = 0.0
        self._found: dict[int, Tensor] = {}
        self._failed: dict[int, str] = {}
        self._given_up = False
        self._thread = threading.Thread(target=self._run, name="uneven-refresh", daemon=True) if beside else None
        if self._thread is None:
            began_s = clock_s()
            self._run()
            self.busy_s = clock_s() - began_s
        else:
            self._thread.start()

    def _run(self) -> None:
        began_s = time.perf_counter()
        with torch.no_grad():
            for number, call in self._calls.items():
                if self._given_up:
                    return
                try:
                    found = call()
                except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined] # not in its stubs
                    self._failed[number] = str(error).splitlines()[0]
                    continue
                if torch.isfinite(found).all():
                    self._found[number] = found
                else:
                    self._failed[number] = "it holds NaN or infinity"
        self.seconds = time.perf_counter() - began_s

    def end(self) -> tuple[dict[int, Tensor], dict[int, str]]:
        """Wait for it: what was found, and why what was not, by number."""
        if self._thread is not None:
            self._thread.join()
        return self._found, self._failed

    def abandon(self) -> None:
        """Nobody will ask for it; it ends after the decomposition that it is at."""
        self._given_up = True
        self.end()


def idle_cores() -> float:
    """How many cores of this machine were idle since this was last asked."""
    return (psutil.cpu_count() or 1) * (1.0 - psutil.cpu_percent() / 100.0)
