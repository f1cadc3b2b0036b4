"""Trains a predictor in a background thread, outside of the fast path."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from uneven.policy.control import Forecaster
from uneven.policy.predict import Lesson

_SHARE = 0.001  # largest share of the time that training may take


class BackgroundTrainer:
    """Runs one training job at a time; starts a thread with the first job."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._job: Future[tuple[Any, float]] | None = None
        self._not_before_s = 0.0

    def turn(self, forecaster: Forecaster) -> None:
        """Pass the result of the last job to the forecaster and start a job that is due; never waits."""
        if self._job is not None:
            if not self._job.done():
                return
            (learnt, took_s), self._job = self._job.result(), None
            forecaster.absorb(learnt)
            self._not_before_s = time.monotonic() + took_s / _SHARE
        if time.monotonic() < self._not_before_s:
            return
        job = forecaster.lesson()
        if job is not None:
            self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="uneven-trainer")
            self._job = self._pool.submit(_timed, job)

    def drop(self) -> None:
        """Cancel the job, whose forecaster has been replaced."""
        if self._job is not None:
            self._job.cancel()
            self._job = None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = self._job = None


def _timed(job: Lesson) -> tuple[Any, float]:
    began_s = time.monotonic()
    return job.learn(), time.monotonic() - began_s
