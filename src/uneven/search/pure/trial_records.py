"""Define the records of a search and of its trials."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from uneven.errors import ConfigError
from uneven.policy.core.tables import shown
from uneven.search.pure.space import Plain


class TrialStatus(Enum):
    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    TERMINATED = "terminated"
    ERROR = "error"


@dataclass(slots=True)
class TrialRecord:
    """The state of a trial."""

    number: int  # from 0
    params: dict[str, Plain]
    status: TrialStatus = TrialStatus.PENDING
    t: float = 0.0  # its training so far, by its reports
    score: float = math.nan  # of the last metric, higher is better; NaN before the first one
    best: float = math.nan  # the best score
    best_t: float = 0.0  # training at the best score
    failures: int = 0  # number of crashes
    life: int = 0  # number of times that it became a clone; older checkpoints belong to another trial
    # trial, life and `t` of the checkpoint that its life starts from; None for a new trial
    source: tuple[int, int, float] | None = None
    kept_t: float | None = None  # of the checkpoint that is kept for clones
    why: str = ""  # the reason for its status, in words

    @property
    def over(self) -> bool:
        return self.status in (TrialStatus.TERMINATED, TrialStatus.ERROR)


_BY_NAME = {"loss": "min", "error": "min", "perplexity": "min", "accuracy": "max", "auc": "max"}


def mode_of(metric: str) -> str:
    """Return "min" for a metric that is a loss or an error by its name, "max" for an accuracy or a "score".

    Raises:
        ConfigError: the name does not say whether more is better.
    """
    found = {mode for word, mode in _BY_NAME.items() if word in re.split("[^a-z]+", metric.lower())}
    if metric == "score":
        return "max"
    if len(found) != 1:
        raise ConfigError(
            f'metric={metric!r} does not say whether more of it is better: give mode="max" or mode="min", too'
        )
    return found.pop()


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTerms:
    """The goal and limits of a search; see :class:`~uneven.search.search_spec.SearchOptions`.

    Raises `ConfigError` for an invalid value.
    """

    metric: str
    mode: str = ""  # "max" or "min"; if not given, from the metric's name
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
            raise ConfigError('metric="": name the reported value to optimize')
        if not self.mode:
            object.__setattr__(self, "mode", mode_of(self.metric))
        if self.mode not in ("max", "min"):
            raise ConfigError(f'mode={self.mode!r}: give "max" or "min"')
        if self.trials < 1:
            raise ConfigError(f"trials={self.trials}: give at least one")
        points = self.points_to_evaluate
        if not isinstance(points, list | tuple) or not all(isinstance(one, Mapping) for one in points):
            raise ConfigError(f"points_to_evaluate={shown(points)}: give a list of settings, such as [{{'lr': 0.1}}]")
        if len(points) > self.trials:
            raise ConfigError(
                f"points_to_evaluate has {len(points)} settings, but trials={self.trials}: give at least as many trials"
            )
        if self.max_failures < 0:
            raise ConfigError(f"max_failures={self.max_failures}: give 0 or more")
        if self.nonfinite not in ("stop", "keep"):
            raise ConfigError(f'nonfinite={self.nonfinite!r}: give "stop" or "keep"')
        if self.max_t is not None and not self.max_t > 0:
            raise ConfigError(f"max_t={self.max_t}: give more than 0")
        if self.time_attr.endswith("_s") or "time" in self.time_attr.split("_"):
            raise ConfigError(
                f"time_attr={self.time_attr!r}: seconds compare devices, not trials; use reports, epochs or samples"
            )

    def kept(self) -> dict[str, Any]:
        """Return the terms that must be the same when the search continues; trials and target may change."""
        without = ("trials", "target", "points_to_evaluate")
        found = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in without}
        points = [{**one} for one in self.points_to_evaluate]
        return found | ({"points_to_evaluate": points} if points else {})

    @property
    def sign(self) -> float:
        """The factor of the metric that makes higher scores better."""
        return 1.0 if self.mode == "max" else -1.0


@dataclass(slots=True)
class WaitingTrials:
    """The waiting trials, in order."""

    # Dictionaries keep the order and remove a trial in constant time.
    urgent: dict[int, None] = field(default_factory=dict)
    pending: dict[int, None] = field(default_factory=dict)
    paused: dict[int, None] = field(default_factory=dict)

    def out(self, trial: int) -> None:
        for queue in (self.urgent, self.pending, self.paused):
            queue.pop(trial, None)

    @property
    def waiting(self) -> int:
        return len(self.urgent) + len(self.pending) + len(self.paused)
