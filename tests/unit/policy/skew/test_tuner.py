"""The objective and the tuners, where the cost of each setting is known."""

from __future__ import annotations

import pytest

from uneven.errors import ConfigError
from uneven.policy.skew import Objective, Tuner, tuners

LOSS = (0.4, 0.3, 0.2, 0.1, 0.04, 0.02, 0.01)
SHARE = (0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0)


@pytest.mark.parametrize(("loss", "share", "cost"), [(0.04, 0.10, 0.10), (0.07, 0.10, 1.10), (0.05, 1.0, 1.0)])
def test_objective_vectors(loss: float, share: float, cost: float) -> None:
    assert Objective().of(loss, share) == pytest.approx(cost)


def play(tuner: Tuner, losses: tuple[float, ...], periods: int = 12) -> list[int]:
    objective, found = Objective(), []
    for _ in range(periods):
        loss = losses[tuner.at]
        found.append(tuner.measured(objective.of(loss, SHARE[tuner.at]), loss / objective.tolerance))
    return found


@pytest.mark.parametrize("name", list(tuners))
def test_it_comes_to_the_loosest_setting_that_is_tight_enough(name: str) -> None:
    for start in (0, 3, 6):
        tuner = tuners[name](7, start)
        play(tuner, LOSS, 40)
        assert tuner.best in ((4,) if name == "climb" else (4, 5)), (name, start)


def test_alike_data_lead_to_the_loosest_and_unlike_ones_to_the_tightest() -> None:
    loose, tight = tuners["climb"](7, 3), tuners["climb"](7, 3)
    play(loose, (0.0,) * 7)
    play(tight, (0.5,) * 7)
    assert (loose.best, tight.best) == (0, 6)


def test_the_more_is_lost_the_further_it_goes_and_within_the_tolerance_never_to_a_tighter_one() -> None:
    tuner = tuners["climb"](7, 0)
    assert [tuner.measured(9.0, loss) for loss in (1.5, 2.5, 9.0, 9.0)] == [1, 3, 6, 6]
    calm = tuners["climb"](7, 3)
    assert max(play(calm, (0.0,) * 7, 40)) < 3


def test_a_setting_that_sends_more_than_the_tightest_is_known_to_is_left_for_it() -> None:
    tuner = tuners["climb"](7, 5, tightest=1.0)
    assert tuner.measured(1.4, 0.5) == 6


def test_what_was_measured_long_ago_is_forgotten() -> None:
    tuner = tuners["climb"](7, 4)
    play(tuner, LOSS, 6)
    assert tuner.best == 4
    play(tuner, (0.0,) * 7, 40)
    assert tuner.best == 0


def test_a_tuner_goes_on_where_it_was_saved() -> None:
    one, other = tuners["climb"](7, 3), tuners["climb"](7, 0)
    play(one, LOSS, 5)
    other.load_state_dict(one.state_dict())
    assert play(one, LOSS, 8) == play(other, LOSS, 8)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="a setting from 0 to 6"):
        tuners["climb"](7, 7)
    with pytest.raises(ConfigError, match="tolerance"):
        Objective(tolerance=1.0)
    with pytest.raises(ConfigError, match="loss_weight"):
        Objective(loss_weight=-1.0)
