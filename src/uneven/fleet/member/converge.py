"""When is a member trained? Asked at the end of each of its epochs. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from uneven.core.plain import Count
from uneven.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one epoch of one member brought.

    Attributes:
        train_loss: mean over the training samples, each at the moment when it was trained on.
        metric: on the validation set; without one, ``train_loss``.
        train_s: seconds of the training part, waiting for data included.
        waited_s: seconds of waiting for data, in both parts.
        validate_s: seconds of the validation part.
        checkpoint_s: seconds of writing the checkpoint.
        samples: trained on.
        devices: that the member had.
        shares: samples of each of its workers in a batch, as split last.
        flotilla: in which it ran, counted from 1; 0 where it was not kept.
        began_s: when its pass over the data began, in seconds of the whole training.
        ended_s: when that pass ended.
    """

    train_loss: float
    metric: float
    train_s: float = 0.0
    waited_s: float = 0.0
    validate_s: float = 0.0
    checkpoint_s: float = 0.0
    samples: Count = 0
    devices: Count = 1
    shares: tuple[Count, ...] = ()
    flotilla: Count = 0
    began_s: float = 0.0
    ended_s: float = 0.0


@dataclass(frozen=True, slots=True)
class History:
    """All epochs of a member so far.

    Attributes:
        epochs: the oldest first; at least one when a rule is asked.
        higher_is_better: which way the metric is to go.
    """

    epochs: tuple[Epoch, ...]
    higher_is_better: bool = False

    @property
    def best(self) -> int:
        """The epoch with the best metric, counted from 0; the earliest of equals, and of those without a number."""
        return max(range(len(self.epochs)), key=lambda i: (self._worth(i), -i))

    def flaw(self, metric: str) -> str:
        """Why what was learnt is no result, in words; nothing if all losses and the best epoch's metric are finite."""
        for number, epoch in enumerate(self.epochs, 1):
            if not math.isfinite(epoch.train_loss):
                return f"diverged: its loss was NaN or infinite in epoch {number}"
        if self.epochs and not math.isfinite(self.epochs[self.best].metric):
            return f"diverged: its {metric} was a finite number in none of its {len(self.epochs)} epochs"
        return ""

    def since_gain(self, least: float = 0.0) -> int:
        """Epochs since the metric was last better than everything before by more than ``least``."""
        top, since = -math.inf, 0
        for i in range(len(self.epochs)):
            if self._worth(i) > top + least:
                top, since = self._worth(i), 0
            else:
                since += 1
        return since

    def _worth(self, i: int) -> float:
        value = self.epochs[i].metric
        if not math.isfinite(value):
            return -math.inf
        return value if self.higher_is_better else -value


Rule = Callable[[History], bool]
"""Answers whether the member is trained. A function of the user's is as good as those below."""


@dataclass(frozen=True, slots=True)
class Plateau:
    """Trained when the metric has not become better by more than ``least`` for ``patience`` epochs."""

    patience: int = 3
    least: float = 0.0

    def __post_init__(self) -> None:
        if self.patience < 1 or not self.least >= 0.0:
            raise ConfigError(
                f"plateau(patience={self.patience}, least={self.least}): patience is at least 1, least at least 0"
            )

    def __call__(self, history: History) -> bool:
        return history.since_gain(self.least) >= self.patience


@dataclass(frozen=True, slots=True)
class Target:
    """Trained when the metric reaches ``value``."""

    value: float

    def __call__(self, history: History) -> bool:
        now = history.epochs[-1].metric
        return now >= self.value if history.higher_is_better else now <= self.value


@dataclass(frozen=True, slots=True)
class Never:
    """Trained only at the largest number of epochs."""

    def __call__(self, history: History) -> bool:
        return False


def plateau(patience: int = 3, least: float = 0.0) -> Plateau:
    """Stop a member whose metric has not become better by more than ``least`` for ``patience`` epochs.

    FLEET checks at the end of each epoch and gives no formula; this one is ours.

    Raises:
        ConfigError: patience below 1 or least below 0.
    """
    return Plateau(patience, least)


def target(value: float) -> Target:
    """Stop a member whose metric has reached ``value``."""
    return Target(value)


def never() -> Never:
    """Stop nobody before the largest number of epochs."""
    return Never()
