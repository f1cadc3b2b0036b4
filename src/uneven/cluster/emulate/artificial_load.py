"""Background load: real processes that compete with a node's worker inside its control group."""

import math
from collections.abc import Callable

from uneven.runtime.jobs import Command


def duties(load: float, threads: int) -> tuple[float, ...]:
    """Return the busy part of each competing process, so that a worker with T threads gets T / (T + ``load``).

    All but the last are always busy. The last makes up the fraction: with n others and a duty d the worker gets d · T /
    (T + n + 1) + (1 − d) · T / (T + n), which must equal T / (T + n + fraction).
    """
    whole = math.floor(load)
    fraction = load - whole
    part = ((threads + whole + 1) * fraction / (threads + whole + fraction),) if fraction > 0 else ()
    return (1.0,) * whole + part


class Rivals:
    """The competing processes of one node. ``start`` starts one inside the node, with a pipe as its standard input."""

    def __init__(self, start: Callable[[], Command], threads: int) -> None:
        self._start = start
        self._threads = threads
        self._running: list[Command] = []

    def set(self, load: float) -> None:
        """Set the number of busy processes; those that are not needed sleep."""
        wanted = duties(load, self._threads)
        for gone in [one for one in self._running if one.wait(0.0) is not None]:  # killed with the node
            gone.kill()
            self._running.remove(gone)
        while len(self._running) < len(wanted):
            self._running.append(self._start())
        for index, process in enumerate(self._running):
            duty = wanted[index] if index < len(wanted) else 0.0
            try:
                process.stdin.write(f"{duty!r}\n".encode())
            except BrokenPipeError:
                continue  # killed just now

    def close(self) -> None:
        for process in self._running:
            process.kill()
        self._running.clear()
