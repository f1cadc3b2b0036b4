"""Freeze and thaw: every trial is frozen after a chunk of training, and the most promising one gets the next. Pure."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

from uneven.errors import ConfigError
from uneven.search.rulings import GO_ON, Move, Progress, Ruling
from uneven.search.schedulers.base import Scheduler

Curve = Sequence[tuple[float, float]]
"""Training and score of each report, in order."""


class NextChunk(ABC):
    """Who gets the next chunk of data?"""

    @abstractmethod
    def promise(self, curve: Curve, chunk: float) -> float:
        """What a trial with this curve may reach with one more chunk; the trial with the most gets it."""


class Slope(NextChunk):
    """The best score so far, and once more what the last chunk gained. Ours, and simple."""

    def promise(self, curve: Curve, chunk: float) -> float:
        scores = [score for _, score in curve if not math.isnan(score)]
        if not scores:
            return -math.inf
        if len(scores) == 1:
            return math.inf  # nothing is known of its slope
        return max(scores) + max(0.0, scores[-1] - scores[-2])


class FreezeThaw(Scheduler):
    """Trains in chunks, and gives each chunk to the trial that promises most; so many are open at a time.

    Args:
        chunk: training between two decisions.
        max_t: a trial is done after so much training.
        open_trials: a new trial is opened only while fewer of those begun are neither done nor stopped.
        rule: what a trial promises.

    Raises:
        ConfigError: numbers that make no sense.
    """

    def __init__(
        self, chunk: float = 1, max_t: float = 100, open_trials: int = 4, rule: NextChunk | None = None
    ) -> None:
        if not 0 < chunk <= max_t:
            raise ConfigError(f"chunk={chunk}, max_t={max_t}: a chunk is more than 0, and at most all of the training")
        if open_trials < 1:
            raise ConfigError(f"open_trials={open_trials}: at least one has to be open")
        self.max_t: float = max_t
        self._chunk = chunk
        self._most = open_trials
        self._rule = rule or Slope()
        self._curves: dict[int, list[tuple[float, float]]] = {}
        self._frozen_t: dict[int, float] = {}

    def started(self, trial: int) -> None:
        """It is open from its first chunk on."""
        self._curves.setdefault(trial, [])

    def on_result(self, progress: Progress) -> Ruling:
        trial, t = progress.trial, progress.t
        if t >= self.max_t:
            self._curves.pop(trial, None)
            return Ruling(Move.STOP, f"trained to max_t={self.max_t:g}")
        if t - self._frozen_t.get(trial, 0.0) < self._chunk:
            return GO_ON
        self._frozen_t[trial] = t
        self._curves.setdefault(trial, []).append((t, progress.score))
        return Ruling(Move.PAUSE, f"frozen at {t:g}")

    def gone(self, trial: int) -> Mapping[int, Ruling]:
        """It is no longer open."""
        self._curves.pop(trial, None)
        return {}

    def choose(self, pending: Collection[int], paused: Collection[int]) -> int | None:
        """A new trial while there is room for one, else the most promising one."""
        new = next(iter(pending), None)
        if new is not None and len(self._curves) < self._most:
            return new
        return max(paused, key=self._promise, default=new)

    def _promise(self, trial: int) -> float:
        return self._rule.promise(self._curves.get(trial, []), self._chunk)
