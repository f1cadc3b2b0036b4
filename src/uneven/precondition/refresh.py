"""Run decompositions, immediately or in a background thread, and collect their failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psutil
import torch
from torch import Tensor


class Refresh:
    """The decompositions of one worker in one refresh.

    Args:
        calls: computations, by number.
        due: step at which results are used.
        beside: run in a background thread.
        cost: of all calls, in the unit of the placement.
        clock_s: returns this worker's busy time.
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
        self.cost = 0.0 if beside else cost  # of the foreground work only, as `busy_s`
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
                if self._given_up:  # a decomposition itself cannot be interrupted
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
        """Wait for the results; return them, (basis,) each, and the reasons of failures, by number."""
        if self._thread is not None:
            self._thread.join()
        return self._found, self._failed

    def abandon(self) -> None:
        """Stop after the current decomposition."""
        self._given_up = True
        self.end()


def idle_cores() -> float:
    """Return the number of idle cores of this machine since the last call."""
    return (psutil.cpu_count() or 1) * (1.0 - psutil.cpu_percent() / 100.0)
