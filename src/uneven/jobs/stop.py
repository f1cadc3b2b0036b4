"""Being asked to stop: Ctrl-C, SIGTERM, a closed terminal. Noted, and acted upon where it is safe."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """Counts requests to stop while its ``with`` block runs; main thread only.

    No exception is raised where a request comes, so nothing is left half made.

    Args:
        asked: called in the signal's handler with its number, to wake up a loop or to pass the signal on.
        more: signals that mean the same.
    """

    def __init__(self, asked: Callable[[int], None] = lambda number: None, more: Sequence[int] = ()) -> None:
        self._asked = asked
        self._signals = (*_SIGNALS, *more)
        self.requests = 0
        self.number = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in self._signals:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup and a shell's background jobs have it
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requests += 1
        self.number = self.number or number
        self._asked(number)
