"""Virtual time: what happens next, and when. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any

from uneven.cluster.checks import LONGEST_S

Action = Callable[..., None]

Handle = list[Any]
"""One appointment: when, its number, what to do (None once it was called off), with what."""

LAST_S = LONGEST_S
"""Where virtual time ends."""


class EventQueue:
    """A heap of appointments. Those at the same time are kept in the order in which they were made.

    Attributes:
        now_s: virtual time, seconds from the start.
        happened: how many appointments were kept so far.
        stopped: whether no more are kept.
        late: whether one was left that is later than :data:`LAST_S`.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.happened = 0
        self.stopped = False
        self.late = False
        self._made = 0
        self._heap: list[Handle] = []

    def at(self, time_s: float, action: Action, *arguments: Any) -> Handle:
        """Make an appointment; one in the past is kept now, one at infinity never."""
        self._made += 1
        handle = [max(time_s, self.now_s), self._made, action, arguments]
        if time_s < math.inf:
            heapq.heappush(self._heap, handle)
        return handle

    @staticmethod
    def cancel(handle: Handle | None) -> None:
        """Call an appointment off; one that is over, or None, is no matter."""
        if handle is not None:
            handle[2] = None

    def stop(self) -> None:
        """Keep no more appointments after this one."""
        self.stopped = True

    def run(self) -> None:
        """Keep all appointments, until there are none or it is stopped."""
        heap = self._heap
        while heap and not self.stopped:
            time_s, _, action, arguments = heapq.heappop(heap)
            if action is not None:
                if time_s > LAST_S:
                    self.late = True
                    return
                self.now_s = time_s
                self.happened += 1
                action(*arguments)
