"""Profiles: the last 20 of at most 48 batches, how far is measured, Eq. 5 beyond, and memory."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uneven.errors import ConfigError
from uneven.fleet.pure.planning.allocate import create_flotilla
from uneven.fleet.pure.planning.rates import most_profiled, rate_per_s
from uneven_bench.fleet_plan.cases import extrapolated, profiled_rates

EXAMPLE = {"D1": (100, 190, 270, 350), "D2": (80, 150, 220, 280), "D3": (80, 150, 200, 240), "D4": (40, 75, 105, 120)}


def test_the_rate_is_that_of_the_last_twenty_batches() -> None:
    assert rate_per_s([9.0] * 28 + [0.5] * 20, 32) == 64.0
    assert rate_per_s([0.25, 0.75], 32) == 64.0
    for batches in ([], [1.0] * 49):
        with pytest.raises(ConfigError, match="1 … 48 batches"):
            rate_per_s(batches, 32)
    with pytest.raises(ConfigError, match="give no rate"):
        rate_per_s([0.0], 32)


def test_how_far_is_measured() -> None:
    assert most_profiled({"fast": 176.0, "slow": 21.0}, per_node=4, devices=160) == 9  # M_a = 9, M_b = 8
    assert most_profiled({"fast": 100.0, "slow": 40.0}, per_node=2, devices=160) == 4  # M_a = 3, M_b = 4
    assert most_profiled({"fast": 176.0, "slow": 21.0}, per_node=4, devices=6) == 6
    with pytest.raises(ConfigError, match="rates above 0"):
        most_profiled({"a": 0.0}, 4, 8)
    with pytest.raises(ConfigError, match="0 devices"):
        most_profiled({"a": 1.0}, 4, 0)


@pytest.mark.parametrize(
    ("name", "beyond"),
    [
        ("D1", (425.3, 496.2, 562.9, 625.4)),
        ("D2", (334.1, 382.7, 426.2, 464.9)),
        ("D3", (270.0, 291.6, 306.2, 314.9)),
        ("D4", (128.6, 132.2, 132.2, 129.5)),
    ],
)
def test_the_extrapolation_of_the_example(name: str, beyond: tuple[float, ...]) -> None:
    found = extrapolated(EXAMPLE[name], 8)
    assert tuple(found[:4]) == EXAMPLE[name]
    assert found[4:] == pytest.approx(beyond, abs=0.05 + 1e-9)


def test_noise_does_not_grow_without_bound() -> None:
    assert extrapolated((100, 204), 100)[99] == pytest.approx(100 * 102)


def test_what_cannot_be_continued_is_said() -> None:
    assert extrapolated((5.0, 4.0), 1).tolist() == [5.0]
    for measured in ((5.0,), (0.0, 5.0)):
        with pytest.raises(ConfigError, match="cannot be continued to 4"):
            extrapolated(measured, 4)


def test_profiles_become_rates_for_the_planner() -> None:
    rates = profiled_rates(EXAMPLE, 8)
    assert (rates.most, rates.per_s("D1", 8)) == (8, pytest.approx(625.4, abs=0.1))
    found = create_flotilla(rates, rates.members, 8)
    assert found.devices == 8
    assert {"D1", "D2", "D4"} <= set(found.members)


@given(measured=st.lists(st.floats(1.0, 100.0), min_size=2, max_size=6), devices=st.integers(2, 30))
def test_efficiency_never_rises_beyond_what_was_measured(measured: list[float], devices: int) -> None:
    found = extrapolated(measured, devices)
    per_device = [rate / count for count, rate in enumerate(found, 1)][len(measured) - 1 :]
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in itertools.pairwise(per_device))


def test_the_batch_in_the_middle_stands_for_all_if_asked() -> None:
    steps_s = [0.1] * 9 + [5.0]
    assert rate_per_s(steps_s, 10, median=True) == pytest.approx(100.0)
    assert rate_per_s(steps_s, 10) == pytest.approx(100 / 5.9)
