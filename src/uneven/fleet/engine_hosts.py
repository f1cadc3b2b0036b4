"""The processes in which members train, as the engine sees them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from uneven.fleet.engine_child import Child, Events
from uneven.fleet.feed import Feed
from uneven.fleet.member_host import Job, host

_LOOK_S = 0.25


@dataclass(slots=True)
class Host:
    """A process and the member in it.

    Attributes:
        busy: it was asked for something and has not answered.
        since_s: until when its time has been counted.
        answer: the last thing it said that ends a request: "loaded", "epoch", "profiled", "failed" or "died".
    """

    child: Child
    job: Job
    busy: bool = False
    answer: tuple[Any, ...] = ()
    since_s: float = field(default_factory=time.perf_counter)


class Hosts:
    """Gives each member a process, asks all of them at once and collects the answers.

    Attributes:
        by_member: who has a process now.
    """

    def __init__(self, events: Events, feed: Feed) -> None:
        self._events, self._feed = events, feed
        self._spare: list[Child] = []
        self._started = 0
        self.by_member: dict[str, Host] = {}

    def open(self, job: Job) -> None:
        """Give a member a process: one that another member has left, or a new one."""
        child = self._spare.pop() if self._spare else self._start()
        self.by_member[job.name] = Host(child, job)

    def leave(self, name: str) -> Host:
        """A member is stopped; its process, if it lives, is for the next one."""
        one = self.by_member.pop(name)
        if one.answer and one.answer[0] in ("failed", "died"):
            one.child.close()
        else:
            self._spare.append(one.child)
        return one

    def ask(self, name: str, message: tuple[Any, ...]) -> None:
        """Ask a member's process for something."""
        one = self.by_member[name]
        one.busy, one.answer = True, ()
        one.child.send(message)

    def collect(self, look: Callable[[], None] = lambda: None) -> dict[str, tuple[Any, ...]]:
        """Wait for all who were asked.

        Args:
            look: called four times a second.

        Returns:
            Member → its answer, "failed" and "died" among them.

        Raises:
            DataError: a sample cannot be prepared.
        """
        asked = [name for name, one in self.by_member.items() if one.busy]
        looked_s = -_LOOK_S
        while any(self.by_member[name].busy for name in asked):
            self._feed.wait(_LOOK_S)
            if time.perf_counter() - looked_s >= _LOOK_S:
                look()
                looked_s = time.perf_counter()
        return {name: self.by_member[name].answer for name in asked}

    def tell(self, name: str, message: Any) -> None:
        """Answer a reader."""
        if name in self.by_member:
            self.by_member[name].child.send(message)

    def close(self) -> None:
        """End all."""
        children = [*self._spare, *(one.child for one in self.by_member.values())]
        for child in children:
            child.hang_up()
        for child in children:
            child.close()

    def _start(self) -> Child:
        self._started += 1
        arguments = (self._feed.ring.handle(writable=False), self._feed.stream)
        return Child(
            self._events, f"member process {self._started}", host, arguments, heard=self._heard, died=self._died
        )

    def _of(self, child: Child) -> str | None:
        return next((name for name, one in self.by_member.items() if one.child is child), None)

    def _heard(self, child: Child, message: tuple[Any, ...]) -> None:
        name = self._of(child)
        if name is None:
            return
        if message[0] == "want":
            self._feed.want(name, message[1])
        elif message[0] == "read":
            self._feed.read(name, message[1])
        else:
            self._answered(name, message)

    def _died(self, child: Child) -> None:
        name = self._of(child)
        if name is None:
            self._spare.remove(child)
        elif not self.by_member[name].answer or self.by_member[name].answer[0] != "failed":
            self._answered(name, ("died", child.ending))

    def _answered(self, name: str, message: tuple[Any, ...]) -> None:
        one = self.by_member[name]
        one.answer, one.busy = message, False
        if message[0] != "loaded":
            self._feed.leave(name)  # the ring holds nothing back for it any more
