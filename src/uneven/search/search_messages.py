"""Sort a trial's incoming messages by kind."""

from collections import deque
from typing import Any

from uneven.runtime.jobs.executor import ProcessLine


class TrialPost:
    """The messages between a trial's process and the engine."""

    def __init__(self, line: ProcessLine) -> None:
        self._line = line
        self._aside: deque[tuple[Any, ...]] = deque()

    def send(self, message: tuple[Any, ...]) -> None:
        self._line.send(message)

    def take(self, *kinds: str) -> tuple[Any, ...]:
        """Wait for the next message of one of these kinds and return it. Raises `EOFError` if the engine has ended."""
        for message in self._aside:
            if message[0] in kinds:
                self._aside.remove(message)
                return message
        while (message := self._line.recv())[0] not in kinds:
            # In a trial of several processes, the decision on the first one's report may arrive while this one waits
            # for data.
            self._aside.append(message)
        return message

    def begin(self) -> Any:
        """Wait for the next trial, and drop messages about the last one."""
        _, job = self.take("run")
        self._aside.clear()
        return job
