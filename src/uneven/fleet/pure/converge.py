"""Decide after each epoch whether a member is trained."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from uneven.errors import ConfigError
from uneven.policy.core.plain import Count


@dataclass(frozen=True, slots=True)
class Epoch:
    """The results of one epoch of one member.

    Attributes:
        train_loss: mean over the training samples, each measured when it was trained on.
        metric: on the validation set; without one, ``train_loss``.
        train_s: seconds of training, including the wait for data.
        waited_s: seconds of waiting for data, in training and validation.
        validate_s: seconds of validation.
        checkpoint_s: seconds of writing the checkpoint.
        samples: number trained on.
        devices: number of the member's devices.
        shares: samples of each worker in a batch, after the last split.
        flotilla: number of its flotilla, from 1; 0 if unknown.
        began_s: start of its pass over the data, in seconds of the whole training.
        ended_s: end of that pass.
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
        epochs: oldest first; at least one when a rule is called.
        higher_is_better: True if a larger metric is better.
    """

    epochs: tuple[Epoch, ...]
    higher_is_better: bool = False

    @property
    def best(self) -> int:
        """The index of the epoch with the best metric, from 0; the earliest of equal ones, or if none is finite."""
        return max(range(len(self.epochs)), key=lambda i: (self._worth(i), -i))

    def flaw(self, metric: str) -> str:
        """Return why the result is unusable, or "" if all losses and the best epoch's metric are finite."""
        for number, epoch in enumerate(self.epochs, 1):
            if not math.isfinite(epoch.train_loss):
                return f"diverged: its loss was NaN or infinite in epoch {number}"
        if self.epochs and not math.isfinite(self.epochs[self.best].metric):
            return f"diverged: its {metric} was a finite number in none of its {len(self.epochs)} epochs"
        return ""

    def since_gain(self, least: float = 0.0) -> int:
        """Return the epochs since the metric last exceeded all earlier ones by more than ``least``."""
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
            return -math.inf  # otherwise a NaN compares False with all numbers and could stay the best
        return value if self.higher_is_better else -value


Rule = Callable[[History], bool]
"""Returns whether the member is trained. Your own function works like those below."""


@dataclass(frozen=True, slots=True)
class Plateau:
    """The rule that stops when the metric has not improved by more than ``least`` for ``patience`` epochs."""

    patience: int = 3
    least: float = 0.0

    def __post_init__(self) -> None:
        if self.patience < 1 or not self.least >= 0.0:
            raise ConfigError(f"plateau(patience={self.patience}, least={self.least}): give at least 1, and at least 0")

    def __call__(self, history: History) -> bool:
        return history.since_gain(self.least) >= self.patience


@dataclass(frozen=True, slots=True)
class Target:
    """The rule that stops when the metric reaches ``value``."""

    value: float

    def __call__(self, history: History) -> bool:
        now = history.epochs[-1].metric
        return now >= self.value if history.higher_is_better else now <= self.value


@dataclass(frozen=True, slots=True)
class Never:
    """The rule that stops only at the largest number of epochs."""

    def __call__(self, history: History) -> bool:
        return False


def plateau(patience: int = 3, least: float = 0.0) -> Plateau:
    """Stop a member whose metric has not improved by more than ``least`` for ``patience`` epochs.

    FLEET checks at the end of each epoch and gives no formula; this one is ours.

    Raises:
        ConfigError: ``patience`` is below 1 or ``least`` below 0.
    """
    return Plateau(patience, least)


def target(value: float) -> Target:
    """Stop a member whose metric has reached ``value``."""
    return Target(value)


def never() -> Never:
    """Stop no member before the largest number of epochs."""
    return Never()
