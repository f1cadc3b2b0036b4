"""Run decompositions in batches, immediately or in a background thread, and collect their failures."""

import threading
import time
from collections.abc import Callable, Sequence

import psutil
import torch
from torch import Tensor


class Refresh:
    """The decompositions of one worker in one refresh.

    Args:
        batches: numbers of the squares of each call.
        decompose: numbers → their decompositions, shape (numbers, basis).
        due: step at which results are used.
        beside: run in a background thread.
        cost: of all calls, in the unit of the placement.
        clock_s: returns this worker's busy time.
        checked: whether a decomposition that is not finite counts as failed.
    """

    def __init__(
        self,
        batches: Sequence[list[int]],
        decompose: Callable[[list[int]], Tensor],
        *,
        due: int,
        beside: bool,
        cost: float,
        clock_s: Callable[[], float] = time.process_time,
        checked: bool = True,
    ) -> None:
        self._batches = batches
        self._decompose = decompose
        self._checked = checked
        self.due = due
        self.cost = 0.0 if beside else cost  # of the foreground work only, as `busy_s`
        self.seconds = 0.0
        self.busy_s = 0.0
        self._found: dict[int, Tensor] = {}
        self._failed: dict[int, str] = {}
        self._given_up = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._guarded, name="uneven-refresh", daemon=True) if beside else None
        if self._thread is None:
            began_s = clock_s()
            self._run()
            self.busy_s = clock_s() - began_s
        else:
            self._thread.start()

    def _guarded(self) -> None:
        try:
            self._run()
        except (RuntimeError, MemoryError) as error:  # it would end this thread alone
            self._error = error

    def _run(self) -> None:
        began_s = time.perf_counter()
        with torch.no_grad():
            for batch in self._batches:
                if self._given_up:  # a decomposition itself cannot be interrupted
                    return
                self._take(batch)
        self.seconds = time.perf_counter() - began_s

    def _take(self, batch: list[int]) -> None:
        try:
            found = self._decompose(batch)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined] # not in its stubs
            if len(batch) == 1:
                self._failed[batch[0]] = str(error).splitlines()[0]
                return
            for number in batch:  # only one of them may have failed
                self._take([number])
            return
        finite = torch.isfinite(found).all(1).tolist() if self._checked else [True] * len(batch)
        for number, basis, whole in zip(batch, found, finite, strict=True):
            if whole:
                self._found[number] = basis
            else:
                self._failed[number] = "it holds NaN or infinity"

    def end(self) -> tuple[dict[int, Tensor], dict[int, str]]:
        """Wait for the results; return them, (basis,) each, and the reasons of failures, by number. Raises the error of
        the background thread, for example if memory ran out."""
        self._join()
        if self._error is not None:
            raise self._error
        return self._found, self._failed

    def abandon(self) -> None:
        """Stop after the current batch."""
        self._given_up = True
        self._join()

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()


def idle_cores() -> float:
    """Return the number of idle cores of this machine since the last call."""
    return (psutil.cpu_count() or 1) * (1.0 - psutil.cpu_percent() / 100.0)
