"""Works off a predictor's lessons in a thread in the background, so that training one is not on the fast path."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from uneven.control import Forecaster
from uneven.predict import Lesson

_SHARE = 0.001
"""Of the time that passes, this much may be lessons."""


class Tutor:
    """One lesson at a time; no thread before the first."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._lesson: Future[tuple[Any, float]] | None = None
        self._not_before_s = 0.0

    def turn(self, forecaster: Forecaster) -> None:
        """Hand over what has been learnt, and begin what is due; never waits."""
        if self._lesson is not None:
            if not self._lesson.done():
                return
            (learnt, took_s), self._lesson = self._lesson.result(), None
            forecaster.absorb(learnt)
            self._not_before_s = time.monotonic() + took_s / _SHARE
        if time.monotonic() < self._not_before_s:
            return
        lesson = forecaster.lesson()
        if lesson is not None:
            self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="uneven-tutor")
            self._lesson = self._pool.submit(_timed, lesson)

    def drop(self) -> None:
        """What is being learnt belongs to a forecaster that is gone."""
        if self._lesson is not None:
            self._lesson.cancel()
            self._lesson = None

    def close(self) -> None:
        """End the thread."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = self._lesson = None


def _timed(lesson: Lesson) -> tuple[Any, float]:
    began_s = time.monotonic()
    return lesson.learn(), time.monotonic() - began_s
