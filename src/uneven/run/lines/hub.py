"""Workers as threads of one process: the public test double, and the transport of a worker that is alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from uneven.errors import PeerError
from uneven.run.lines.transport import Rows


@dataclass
class Hub:
    """Where the threads meet.

    Args:
        size: number of workers.
        timeout_s: how long one waits for the others.
    """

    size: int
    timeout_s: float = 30.0
    _rounds: dict[int, dict[int, object]] = field(default_factory=dict)
    _left: dict[int, int] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def endpoint(self, rank: int) -> ThreadTransport:
        """The end of the line for ``rank``; one thread uses it."""
        return ThreadTransport(self, rank)

    def put(self, turn: int, rank: int, value: object) -> None:
        """Leave a value for the round ``turn``."""
        with self._changed:
            self._rounds.setdefault(turn, {})[rank] = value
            self._left[turn] = self.size
            self._changed.notify_all()

    def wait(self, turn: int) -> list[object]:
        """Everybody's value of the round ``turn``, by rank. Each worker asks once; then nobody keeps them.

        Raises:
            PeerError: naming who was missing after ``timeout_s``.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._rounds[turn]) == self.size, self.timeout_s):
                missing = sorted(set(range(self.size)) - set(self._rounds[turn]))
                raise PeerError(f"no report from rank {', '.join(map(str, missing))} within {self.timeout_s:g} s")
            values = [self._rounds[turn][rank] for rank in range(self.size)]
            self._left[turn] -= 1
            if not self._left[turn]:
                del self._rounds[turn], self._left[turn]
            return values


@dataclass
class _Turn:
    hub: Hub
    turn: int

    def result(self) -> Rows:
        return np.array(self.hub.wait(self.turn), np.float64)


class ThreadTransport:
    """See :class:`uneven.run.lines.transport.Transport`."""

    def __init__(self, hub: Hub, rank: int) -> None:
        self.rank = rank
        self.size = hub.size
        self._hub = hub
        self._turn = 0

    def gather(self, row: Sequence[float]) -> _Turn:
        """Start to give this row to everybody."""
        return self._start(tuple(float(value) for value in row))

    def gather_text(self, text: str) -> tuple[str, ...]:
        """Everybody's text, by rank."""
        return tuple(self._hub.wait(self._start(text).turn))  # type: ignore[arg-type]

    def close(self) -> None:
        """Nothing to let go of."""

    def _start(self, value: object) -> _Turn:
        turn, self._turn = self._turn, self._turn + 1
        self._hub.put(turn, self.rank, value)
        return _Turn(self._hub, turn)
