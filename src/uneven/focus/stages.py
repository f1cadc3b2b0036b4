"""Stages that work at once: each in a thread, with a bounded queue before the next."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class StageCounts:
    """What a stage has done so far.

    Attributes:
        made_s: processor seconds in which its thread made things.
        dropped: things that it made and nobody had room for.
        backlog: things that it has made and that nobody has taken yet.
    """

    made_s: float = 0.0
    dropped: int = 0
    backlog: int = 0


_END = object()


class Ahead(Generic[T]):
    """Makes things in a thread, up to ``room`` of them ahead of whoever takes them.

    Args:
        made: where they come from.
        drops: when there is no room, the newest is dropped instead of waiting.

    Raises:
        BaseException: (when things are taken) what making them has raised.
    """

    def __init__(self, made: Iterable[T], stage: StageCounts, room: int, drops: bool = False) -> None:
        self._queue: queue.Queue[Any] = queue.Queue(room)
        self._stage, self._drops = stage, drops
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._made = self._pool.submit(self._run, iter(made))

    def __iter__(self) -> Iterator[T]:
        try:
            while True:
                one = self._queue.get()
                self._stage.backlog = self._queue.qsize()
                if one is _END:
                    self._made.result()
                    return
                yield one
        finally:
            self._stopped.set()
            self._pool.shutdown(wait=False)

    def _run(self, made: Iterator[T]) -> None:
        try:
            while not self._stopped.is_set():
                one = next(made, None)
                self._stage.made_s = time.thread_time()
                if one is None:
                    break
                self._give(one)
        finally:
            while not self._stopped.is_set() and not self._put(_END):
                pass

    def _give(self, one: T) -> None:
        if self._drops and self._queue.full():
            self._stage.dropped += 1
            return
        while not self._stopped.is_set() and not self._put(one):
            pass

    def _put(self, one: Any) -> bool:
        try:
            self._queue.put(one, timeout=0.2)
        except queue.Full:
            return False
        self._stage.backlog = self._queue.qsize()
        return True
