"""From measured batches to limits and costs."""

from __future__ import annotations

import pytest

from uneven.errors import ConfigError
from uneven.policy.balance.profiled import Profile, fits, in_passes, next_size


def curve(*sizes: int) -> tuple[float, ...]:
    return tuple(max(0.010, 0.004 + 0.0002 * x) for x in sizes)


def test_saturation_is_where_it_takes_five_percent_longer() -> None:
    sizes = (1, 2, 4, 8, 16, 32, 64, 128)
    assert Profile(sizes=sizes, seconds=curve(*sizes)).saturation == 64  # 16.8 ms; 32 samples take 10.4
    assert Profile(sizes=(1, 2, 4), seconds=(0.01, 0.0104, 0.0104)).saturation == 4, "none is 5 % slower"
    assert Profile(sizes=(1, 2, 4), seconds=(0.01, 0.02, 0.04)).saturation == 1, "it never was below"


def test_what_disturbs_a_small_batch_does_not_make_it_dear() -> None:
    profile = Profile(sizes=(1, 2, 4, 8), seconds=(0.020, 0.002, 0.004, 0.008))
    assert profile.rising_s == (0.002, 0.002, 0.004, 0.008)
    assert profile.saturation == 4


def test_time_between_and_beyond_the_sizes() -> None:
    profile = Profile(sizes=(1, 2, 4), seconds=(0.01, 0.02, 0.06))
    assert profile.time_s(3) == pytest.approx(0.04)
    assert profile.time_s(8) == pytest.approx(0.06 + 4 * 0.02)
    assert Profile(sizes=(1, 2), seconds=(0.01, 0.01)).time_s(4) == pytest.approx(0.015), "no slope is not believed"
    assert Profile(sizes=(2,), seconds=(0.01,)).time_s(4) == pytest.approx(0.02)
    assert profile.time_s(0) == pytest.approx(0.01)


def test_the_memory_limit_keeps_a_tenth_away_from_the_failure() -> None:
    assert Profile(sizes=(1, 2, 4), seconds=(1.0, 1.0, 2.0)).most is None
    assert Profile(sizes=(1, 40), seconds=(1.0, 2.0), failed=80).most == 36
    assert Profile(sizes=(1,), seconds=(1.0,), failed=2).most == 1


def test_the_cost_is_found() -> None:
    sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    floor_s, overhead_s, per_sample_s = Profile(sizes=sizes, seconds=curve(*sizes)).cost
    assert floor_s == pytest.approx(0.010, rel=0.02)
    assert overhead_s == pytest.approx(0.004, rel=0.2)
    assert per_sample_s == pytest.approx(0.0002, rel=0.05)


@pytest.mark.parametrize(
    ("sizes", "seconds", "failed"),
    [((), (), None), ((2, 1), (1.0, 1.0), None), ((1,), (0.0,), None), ((1, 2), (1.0,), None), ((1, 4), (1.0, 1.0), 3)],
)
def test_what_is_no_profile_is_refused(sizes: tuple[int, ...], seconds: tuple[float, ...], failed: int | None) -> None:
    with pytest.raises(ConfigError, match="profile"):
        Profile(sizes=sizes, seconds=seconds, failed=failed)


def test_sizes_double_up_to_the_largest() -> None:
    sizes: tuple[int, ...] = ()
    while (size := next_size(sizes, (0.001,) * len(sizes), most=100, left_s=10.0, steps=4)) is not None:
        sizes = (*sizes, size)
    assert sizes == (1, 2, 4, 8, 16, 32, 64, 100)


def test_a_batch_that_might_not_end_in_time_is_not_begun() -> None:
    assert next_size((1, 2), (0.5, 1.0), most=100, left_s=8.0, steps=4) == 4
    assert next_size((1, 2), (0.5, 1.0), most=100, left_s=7.9, steps=4) is None
    assert next_size((), (), most=100, left_s=1.0, steps=4, least=3) == 3
    assert next_size((), (), most=100, left_s=0.0, steps=4) == 1, "a single sample is always tried"


def test_memory_is_extrapolated_from_the_last_two() -> None:
    assert fits(100, ((1, 300), (2, 310)), 4, 400)  # 330 of 370: what is there once does not grow
    assert not fits(100, ((1, 300), (2, 340)), 4, 400)  # 420
    assert fits(10_000, ((1, 10_010),), 8, 10_100)  # 80 of the 100 that are left, however much was in use before
    assert not fits(10_000, ((1, 10_010),), 10, 10_100)
    assert fits(100, ((1, 300),), 2, None)
    assert fits(100, (), 1, 50), "nothing is known before the first"
    assert not fits(100, ((1, 300),), 2, 500)  # one size alone: all of it might grow


def test_a_pass_costs_its_launch_however_few_samples_it_has() -> None:
    """0.1 s of launch, 0.01 s for a sample, and ten samples fit."""
    measured = Profile(sizes=(1, 5, 10, 11), seconds=(0.11, 0.15, 0.2, 0.21), failed=12)
    passes = in_passes(measured, 10, 40)
    assert passes.failed is None
    for samples, seconds in ((10, 0.2), (11, 2 * 0.16), (20, 0.4), (21, 3 * 0.17), (40, 0.8)):
        assert passes.time_s(samples) == pytest.approx(seconds)
    assert passes.most is None
