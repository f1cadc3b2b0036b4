"""Concurrent stages: each in a thread, with a bounded queue to the next."""

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
    """The statistics of a stage."""

    made_s: float = 0.0  # processor seconds of its thread
    dropped: int = 0  # results dropped because the queue was full
    backlog: int = 0  # results in the queue


_END = object()


class Ahead(Generic[T]):
    """An iterator that computes its items in a thread, up to ``room`` items ahead.

    Exceptions of ``made`` are raised in the consumer. With ``drops``, the newest item is dropped if the queue is full.
    """

    def __init__(self, made: Iterable[T], stage: StageCounts, room: int, drops: bool = False) -> None:
        self._queue: queue.Queue[Any] = queue.Queue(room)
        self._stage = stage
        self._drops = drops
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._made = self._pool.submit(self._run, iter(made))

    def __iter__(self) -> Iterator[T]:
        try:
            while True:
                one = self._queue.get()
                self._stage.backlog = self._queue.qsize()
                if one is _END:
                    self._made.result()  # raises the source's exception, if there was one
                    return
                yield one
        finally:
            self._stopped.set()
            self._pool.shutdown(wait=False)  # the thread may be in a blocking read; it sees `stopped` after that

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
            self._queue.put(one, timeout=0.2)  # with a timeout, so that the caller can check `stopped`
        except queue.Full:
            return False
        self._stage.backlog = self._queue.qsize()
        return True
