"""The event queue of virtual time."""

import heapq
import math
from collections.abc import Callable
from typing import Any

from uneven.cluster.pure.describe.spec_checks import LONGEST_S

Action = Callable[..., None]

Handle = list[Any]  # of an event: time, number, action (None if canceled), arguments

LAST_S = LONGEST_S  # end of virtual time


class EventQueue:
    """A heap of events; events at the same time run in the order in which they were added."""

    def __init__(self) -> None:
        self.now_s = 0.0  # virtual time
        self.happened = 0  # events so far
        self.stopped = False
        self.late = False  # whether an event after LAST_S was left
        self._made = 0
        self._heap: list[Handle] = []

    def at(self, time_s: float, action: Action, *arguments: Any) -> Handle:
        """Add an event; one in the past runs now, one at infinity never."""
        self._made += 1
        handle = [max(time_s, self.now_s), self._made, action, arguments]
        if time_s < math.inf:
            heapq.heappush(self._heap, handle)
        return handle

    @staticmethod
    def cancel(handle: Handle | None) -> None:
        """Cancel an event; None and past events are ignored."""
        if handle is not None:
            handle[2] = None

    def stop(self) -> None:
        self.stopped = True

    def run(self) -> None:
        """Run all events until none is left or the queue is stopped."""
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
