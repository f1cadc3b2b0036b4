"""Links and a shard that talk over a network which breaks, drops and forgets, by the numbers of a seed."""

from __future__ import annotations

import random
from collections import deque

import numpy as np

from uneven.runtime.parameter_server.pure.conversation import Held, Link
from uneven.runtime.parameter_server.pure.shard import Shard
from uneven.runtime.parameter_server.pure.wire import Kind, Message, Vector, encode

ELEMENTS = 3
TABLE = 77


def vector(*values: float) -> Vector:
    return (np.array(values, np.float32),)


def link(rank: int, start: float = 0.0) -> Link:
    return Link(rank, TABLE, 0, ELEMENTS, Held(0, vector(*[start] * ELEMENTS)))


class Net:
    """``size`` workers and one shard. Each direction of each connection keeps its order, but may lose anything."""

    def __init__(self, size: int, seed: int) -> None:
        self.links = [link(rank) for rank in range(size)]
        self.shard: Shard | None = Shard(1, range(size))
        self.answers: list[dict[int, Message]] = [{} for _ in range(size)]
        self._up: list[deque[list[object]]] = [deque() for _ in range(size)]
        self._down: list[deque[Message]] = [deque() for _ in range(size)]
        self._rng = random.Random(seed)
        self._lives = 1

    def post(self, rank: int, messages: list[Message]) -> None:
        self._up[rank].extend(encode(message) for message in messages)

    def push(self, rank: int, clock: int, value: float) -> int:
        number, out = self.links[rank].request(Kind.PUSH, clock=clock, value=1.0, vector=vector(value, 0, 1))
        self.post(rank, out)
        return number

    def push_pull(self, rank: int, clock: int, value: float, wait: int) -> int:
        number, out = self.links[rank].request(
            Kind.PUSH, clock=clock, value=1.0, extra=wait + 1, version=1 << 40, vector=vector(value, 0, 1)
        )
        self.post(rank, out)
        return number

    def movement(self, rank: int, clock: int, value: float) -> int:
        """For a merge of its own."""
        number, out = self.links[rank].request(
            Kind.MOVEMENT, clock=clock, value=1.0, extra=1, vector=vector(value, 0, 1), momentum=0.0
        )
        self.post(rank, out)
        return number

    def ask(self, rank: int, clock: int = 0) -> int:
        number, out = self.links[rank].request(Kind.PULL, clock=clock, value=1e9)
        self.post(rank, out)
        return number

    def move(self) -> bool:
        """One message arrives somewhere. Returns whether there was any."""
        full = [(queues, rank) for queues in (self._up, self._down) for rank, queue in enumerate(queues) if queue]
        if not full:
            return False
        queues, rank = self._rng.choice(full)
        message = queues[rank].popleft()
        if isinstance(message, Message):
            out, answers = self.links[rank].receive(message)
            self.post(rank, out)
            for number, answer in answers:
                assert number not in self.answers[rank]  # no request is answered twice
                self.answers[rank][number] = answer
        elif self.shard is not None:
            for reply in self.shard.take(message, 0.0)[1]:
                self._down[reply.rank].append(reply)
        return True

    def beat(self) -> None:
        for rank, one in enumerate(self.links):
            self.post(rank, [one.beat()])

    def lose(self) -> None:
        """A connection breaks: of what is under way, the end is lost, or one message of a full queue."""
        rank = self._rng.randrange(len(self.links))
        queue = self._rng.choice((self._up, self._down))[rank]
        if queue and self._rng.random() < 0.5:
            del queue[self._rng.randrange(len(queue))]
        else:
            self._up[rank].clear()
            self._down[rank].clear()

    def restart(self) -> None:
        """The shard is killed, and another one started that knows nothing."""
        self._lives += 1
        self.shard = Shard(self._lives, range(len(self.links)))
        for rank in range(len(self.links)):
            self._up[rank].clear()
            self._down[rank].clear()

    def settle(self) -> None:
        """Until every request has been answered, with nothing lost any more."""
        for _ in range(20):
            self.beat()
            while self.move():
                pass
            if not any(one.waiting for one in self.links):
                return
        raise AssertionError(f"still waiting: {[one.waiting for one in self.links]}")
