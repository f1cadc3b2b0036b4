"""What runs in the processes of a Ray cluster: the same code as on one machine, with another line and other memory.

A line is three methods of an actor, each in a thread of its own: ``work`` runs what a child process would run,
``tell`` takes messages in, and a call of ``hear`` waits for the next message out. Samples come out beside their
message, as a value of their own, which Ray keeps in its object store until nobody refers to it.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
import torch

from uneven.fleet.stream.layout import Layout

BEGUN, ENDED = "begun", "ended"
"""The first and the last word of a process."""

GROUPS = {"work": 1, "tell": 1, "hear": 1}
"""Threads of an actor; one in each, so that messages keep their order."""

Told = dict[int, tuple[int, Any]]
"""Chunk → how often it has been made, and Ray's reference to it."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """Samples on their way out, as the last part of a message; at the other end it is a reference to them."""

    fields: list[npt.NDArray[Any]]


class ActorConnection:
    """A process's end of its line, as if it were a :class:`multiprocessing.connection.Connection`."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.outbox: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()

    def recv(self) -> Any:
        """The next message, once it is there."""
        return self.inbox.get()

    def send(self, message: tuple[Any, ...]) -> None:
        """Say something."""
        if isinstance(message[-1], Parcel):
            self.outbox.put((message[:-1], message[-1].fields))
        else:
            self.outbox.put((message, None))

    def poll(self, timeout: float | None) -> None:
        """Wait; Ray ends a process that is no longer needed."""
        threading.Event().wait(timeout)


class ActorProcess:
    """A process, as an actor."""

    def __init__(self) -> None:
        self._line = ActorConnection()

    @ray.method(concurrency_group="work")
    def work(self, what: list[Any]) -> None:
        """Call a function with its arguments.

        Args:
            what: a reference to both, in a list, so that they are unpacked here and not before.
        """
        self._line.send((BEGUN, os.getpid()))
        try:
            target, arguments = ray.get(what[0])
            target(self._line, *[ray.get(one) if isinstance(one, ray.ObjectRef) else one for one in arguments])
        finally:
            self._line.send((ENDED,))

    @ray.method(concurrency_group="tell")
    def tell(self, message: Any) -> None:
        """A message comes in."""
        self._line.inbox.put(message)

    @ray.method(concurrency_group="hear")
    def hear(self) -> tuple[Any, Any]:
        """The next message that goes out, and the samples that go with it, or None."""
        return self._line.outbox.get()


@dataclass(frozen=True, slots=True)
class ChunksHandle:
    """Chunks on their way into another process."""

    layout: Layout
    slots: int
    chunk: int

    def open(self, line: ActorConnection) -> Chunks:
        """A process's end of the store."""
        return Chunks(self, line)


class Chunks:
    """The chunks that a process makes or reads; for those who use it like a :class:`~uneven.fleet.stream.ring.Ring`.

    A batch is always a copy: memory of Ray's object store can be written to, and others read it too.
    """

    def __init__(self, handle: ChunksHandle, line: ActorConnection) -> None:
        self.layout = handle.layout
        self.slots = handle.slots
        self.chunk = handle.chunk
        self._line = line
        self._making: list[npt.NDArray[Any]] = []
        self._told: Told = {}
        self._here: dict[int, list[npt.NDArray[Any]]] = {}

    def slot(self, number: int) -> list[npt.NDArray[Any]]:
        """Where the samples of a chunk are to be written, field by field; arrays of shape ``(chunk, …)``."""
        self._making = [np.zeros((self.chunk, *field.shape), field.dtype) for field in self.layout]
        return self._making

    def made(self, number: int) -> Parcel:
        """The chunk that was written last, for the object store."""
        parcel, self._making = Parcel(self._making), []
        return parcel

    def arrived(self, told: Told) -> None:
        """Where chunks are to be found; Ray brings them to this machine meanwhile."""
        self._told.update(told)
        refs = [ref for _, ref in told.values()]
        if refs:
            ray.wait(refs, num_returns=len(refs), timeout=0.0)

    def batch(self, start: int, size: int) -> list[torch.Tensor]:
        """The samples from place ``start`` of the stream on, field by field."""
        parts = []
        while size:
            number, at = divmod(start, self.chunk)
            taken = min(size, self.chunk - at)
            parts.append([field[at : at + taken] for field in self._chunk(number)])
            start, size = start + taken, size - taken
        return [torch.from_numpy(np.concatenate(field)) for field in zip(*parts, strict=True)]

    def free(self, chunk: int) -> None:
        """This reader needs nothing below a chunk."""
        for held in (self._told, self._here):
            for number in [number for number in held if number < chunk]:
                del held[number]

    def forget(self) -> None:
        """This reader starts anew."""
        self._told.clear()
        self._here.clear()

    def _chunk(self, number: int) -> Sequence[npt.NDArray[Any]]:
        """A chunk; one that was lost with a machine is asked for until it is there again."""
        while number not in self._here:
            times, ref = self._told.get(number, (0, None))
            try:
                if ref is not None:
                    self._here[number] = ray.get(ref)
                    continue
            except ray.exceptions.ObjectLostError:
                pass
            self._line.send(("missing", number, times))
            _, _, told = self._line.recv()
            self._told.update(told)
        return self._here[number]
