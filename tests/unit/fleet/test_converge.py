"""When a member is trained."""

from __future__ import annotations

import math

import pytest

from uneven.errors import ConfigError
from uneven.fleet.pure.converge import Epoch, History, never, plateau, target


def history(*metrics: float, higher_is_better: bool = False) -> History:
    return History(tuple(Epoch(train_loss=1.0, metric=value) for value in metrics), higher_is_better)


@pytest.mark.parametrize(
    ("metrics", "higher", "trained"),
    [
        ((3.0,), False, False),
        ((3.0, 2.0, 2.0), False, False),
        ((3.0, 2.0, 2.0, 2.5), False, True),
        ((3.0, 2.0, 2.0, 1.9), False, False),
        ((0.1, 0.5, 0.4, 0.5), True, True),
        ((0.1, 0.5, 0.4, 0.6), True, False),
        ((math.nan, math.nan), False, True),  # what has no number has not become better
        ((2.0, math.nan, 1.0), False, False),
    ],
)
def test_plateau_of_two(metrics: tuple[float, ...], higher: bool, trained: bool) -> None:
    assert plateau(patience=2)(history(*metrics, higher_is_better=higher)) is trained


def test_small_gains_are_none() -> None:
    assert plateau(patience=2, least=0.1)(history(1.0, 0.95, 0.91))
    assert not plateau(patience=2, least=0.1)(history(1.0, 0.95, 0.89))


def test_target_and_never() -> None:
    assert target(0.9)(history(0.5, 0.9, higher_is_better=True))
    assert not target(0.9)(history(0.5, 0.89, higher_is_better=True))
    assert target(0.9)(history(0.5))
    assert not never()(history(*[1.0] * 99))


def test_the_best_epoch_is_the_first_of_equals() -> None:
    assert history(3.0, 1.0, 1.0).best == 1
    assert history(0.2, math.nan, 0.3, 0.3, higher_is_better=True).best == 2
    assert history(math.nan, math.nan).best == 0


def test_patience_of_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="give at least 1"):
        plateau(patience=0)
    with pytest.raises(ConfigError, match="at least 0"):
        plateau(least=math.nan)
