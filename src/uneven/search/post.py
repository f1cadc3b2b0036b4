"""A trial's end of the line: messages are taken by their kind."""

from __future__ import annotations

from collections import deque
from typing import Any

from uneven.jobs.place import ProcessLine


class TrialPost:
    """What comes over a line. Where a trial has several processes, a ruling on the first one's report reaches the
    others maybe before they have come so far, while they wait for something else; so it is put aside.
    """

    def __init__(self, line: ProcessLine) -> None:
        self._line = line
        self._aside: deque[tuple[Any, ...]] = deque()

    def send(self, message: tuple[Any, ...]) -> None:
        self._line.send(message)

    def take(self, *kinds: str) -> tuple[Any, ...]:
        """The next message of one of these kinds, once it is there.

        Raises:
            EOFError: nobody is there any more.
        """
        for message in self._aside:
            if message[0] in kinds:
                self._aside.remove(message)
                return message
        while (message := self._line.recv())[0] not in kinds:
            self._aside.append(message)
        return message

    def begin(self) -> Any:
        """The next trial, once there is one; what was said about the last one is of no use any more."""
        _, job = self.take("run")
        self._aside.clear()
        return job
