"""What is known of a search and of its trials. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from uneven.errors import ConfigError
from uneven.search.space import Plain
from uneven.tables import shown


class TrialStatus(Enum):
    """Where a trial is."""

    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    TERMINATED = "terminated"
    ERROR = "error"


@dataclass(slots=True)
class TrialRecord:
    """What is known of a trial.

    Attributes:
        number: from 0.
        t: how much it has been trained, by its reports.
        score: the last metric, the higher the better; not a number before one was reported.
        best: the best of them, and ``best_t`` when that was.
        failures: how often it has crashed.
        life: how often it has become a clone; its checkpoints before that are no longer its own.
        source: whose checkpoint its life begins with: the trial, the life and the ``t`` of that; None for a new trial.
        kept_t: of the checkpoint that is kept for others to clone.
        why: what has become of it, in words.
    """

    number: int
    params: dict[str, Plain]
    status: TrialStatus = TrialStatus.PENDING
    t: float = 0.0
    score: float = math.nan
    best: float = math.nan
    best_t: float = 0.0
    failures: int = 0
    life: int = 0
    source: tuple[int, int, float] | None = None
    kept_t: float | None = None
    why: str = ""

    @property
    def over(self) -> bool:
        """Whether it will not run again by itself."""
        return self.status in (TrialStatus.TERMINATED, TrialStatus.ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTerms:
    """What a search was asked for; see :class:`~uneven.search.asked.SearchOptions`.

    Attributes:
        metric: the name under which trials report what is to be optimized.
        points_to_evaluate: settings of the first trials, name → value; the searcher adds what they leave out.

    Raises:
        ConfigError: a value that makes no sense.
    """

    metric: str
    mode: str = "max"
    trials: int = 1
    time_attr: str = "training_iteration"
    max_t: float | None = None
    target: float | None = None
    max_failures: int = 0
    nonfinite: str = "stop"
    seed: int = 0
    points_to_evaluate: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.metric:
            raise ConfigError('metric="": name what trials report and the search is to optimize')
        if self.mode not in ("max", "min"):
            raise ConfigError(f'mode={self.mode!r}: give "max" or "min"')
        if self.trials < 1:
            raise ConfigError(f"trials={self.trials}: give at least one")
        points = self.points_to_evaluate
        if not isinstance(points, list | tuple) or not all(isinstance(one, Mapping) for one in points):
            raise ConfigError(f"points_to_evaluate={shown(points)}: give a list of settings, such as [{{'lr': 0.1}}]")
        if len(points) > self.trials:
            raise ConfigError(
                f"points_to_evaluate has {len(points)} settings, and trials={self.trials}: give at least as many trials"
            )
        if self.max_failures < 0:
            raise ConfigError(f"max_failures={self.max_failures}: give zero or more")
        if self.nonfinite not in ("stop", "keep"):
            raise ConfigError(f'nonfinite={self.nonfinite!r}: give "stop" or "keep"')
        if self.max_t is not None and not self.max_t > 0:
            raise ConfigError(f"max_t={self.max_t}: give more than 0")
        if self.time_attr.endswith("_s") or "time" in self.time_attr.split("_"):
            raise ConfigError(
                f"time_attr={self.time_attr!r}: seconds compare devices, not trials; count reports, epochs or samples"
            )

    def kept(self) -> dict[str, Any]:
        """What must be the same when the search goes on; trials and target may change."""
        without = ("trials", "target", "points_to_evaluate")
        found = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in without}
        points = [{**one} for one in self.points_to_evaluate]
        return found | ({"points_to_evaluate": points} if points else {})

    @property
    def sign(self) -> float:
        """Times the metric: the higher the better."""
        return 1.0 if self.mode == "max" else -1.0


@dataclass(slots=True)
class WaitingTrials:
    """Trials that wait, in order; as keys, so that each is found at once."""

    urgent: dict[int, None] = field(default_factory=dict)
    pending: dict[int, None] = field(default_factory=dict)
    paused: dict[int, None] = field(default_factory=dict)

    def out(self, trial: int) -> None:
        for queue in (self.urgent, self.pending, self.paused):
            queue.pop(trial, None)

    @property
    def waiting(self) -> int:
        return len(self.urgent) + len(self.pending) + len(self.paused)
