"""Requests to stop: Ctrl-C, SIGTERM, a closed terminal. They are recorded and handled at a safe point."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """A counter of requests to stop while its ``with`` block runs; main thread only.

    The signal handler calls ``asked`` with the signal's number, to wake a loop or to forward the signal.
    """

    def __init__(self, asked: Callable[[int], None] = lambda number: None, more: Sequence[int] = ()) -> None:
        self._asked = asked
        self._signals = (*_SIGNALS, *more)
        self.requests = 0
        self.number = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in self._signals:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup and background jobs ignore them
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        # No exception, which could leave an operation half done anywhere.
        self.requests += 1
        self.number = self.number or number
        self._asked(number)
