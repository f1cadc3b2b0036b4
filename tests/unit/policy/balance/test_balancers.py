"""What each balancer decides, on its own and in a closed loop with a predictor."""

from __future__ import annotations

import dataclasses
import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uneven.errors import ConfigError, UnknownNameError
from uneven.policy.balance import Balancer, Even, Hysteresis, LbBsp, PresumeEqual, Proportional, Static, balancers
from uneven.policy.balance.balancer import chance_gain, iteration_s
from uneven.policy.core.views import BalanceView, Limits, Observation
from uneven.policy.predict import predictors

NAN = math.nan


def view(
    *speeds_per_s: float, total: int = 120, shares: tuple[int, ...] | None = None, iteration: int = 0
) -> BalanceView:
    n = len(speeds_per_s)
    return BalanceView(
        iteration=iteration,
        global_batch=total,
        members=tuple(range(n)),
        shares=shares or Even().split(bare(n, total)).shares,
        observed=tuple(
            None if math.isnan(v) else Observation(iteration=iteration, samples=10, local_s=10 / v)
            for v in speeds_per_s
        ),
        predicted_per_s=speeds_per_s,
        limits=Limits.uniform(n, total),
    )


def bare(n: int, total: int) -> BalanceView:
    return BalanceView(
        iteration=0,
        global_batch=total,
        members=tuple(range(n)),
        shares=(0,) * n,
        observed=(None,) * n,
        predicted_per_s=(NAN,) * n,
        limits=Limits.uniform(n, total),
    )


# --- even, proportional -------------------------------------------------------------------------------------


def test_even_gives_the_rest_to_the_first() -> None:
    assert Even().split(view(1, 9, 9, total=11)).shares == (4, 4, 3)
    assert not Even().adapts


def test_proportional_follows_the_predictions() -> None:
    assert Proportional().split(view(6, 4, 2, 1, total=130)).shares == (60, 40, 20, 10)


def test_proportional_waits_for_everybody_and_says_for_whom() -> None:
    split = Proportional().split(view(6, NAN, NAN, shares=(50, 40, 30)))
    assert split.shares == (50, 40, 30)
    assert "rank 1 and 1 more" in split.reason


@settings(max_examples=100)
@given(speeds=st.lists(st.floats(0.5, 500), min_size=2, max_size=12), total=st.integers(12, 5000))
def test_linear_workers_finish_within_one_samples_time_of_each_other(speeds: list[float], total: int) -> None:
    """Acceptance test 4 of the LB-BSP specification; without limits, which may hold a worker back."""
    n = len(speeds)
    free = dataclasses.replace(view(*speeds, total=total), limits=Limits.uniform(n, total, lower=0))
    times = [(x / v, 1 / v) for x, v in zip(Proportional().split(free).shares, speeds, strict=True)]
    for here, sample_here in times:
        for there, sample_there in times:
            assert here - there <= max(sample_here, sample_there) * (1 + 1e-6)


# --- static -------------------------------------------------------------------------------------------------


def test_given_shares_are_relative() -> None:
    balancer = balancers.resolve("static:shares=0.6/0.4/0.2/0.1")
    assert balancer.split(view(NAN, NAN, NAN, NAN, total=130)).shares == (60, 40, 20, 10)
    assert not balancer.adapts


def test_a_profile_takes_the_mean_of_the_first_reports_and_never_changes() -> None:
    balancer = balancers.resolve("static:profile=2")
    assert balancer.adapts
    assert balancer.split(view(10, 30, total=80, iteration=0)).shares == (40, 40)
    assert balancer.split(view(10, 30, total=80, iteration=0)).shares == (40, 40), "no news, no report"
    assert balancer.split(view(30, 90, total=80, iteration=1)).shares == (20, 60)
    assert not balancer.adapts
    assert balancer.split(view(1, 1, total=80, iteration=2)).shares == (20, 60)


def test_a_profile_waits_for_the_worker_with_the_fewest_reports() -> None:
    balancer = Static(profile=2)
    for iteration in range(5):
        assert "0 of 2" in balancer.split(view(10, NAN, iteration=iteration)).reason
    balancer.split(view(10, 30, iteration=5))
    assert balancer.adapts
    assert balancer.split(view(10, 30, iteration=6)).shares == (30, 90)


def test_a_finished_profile_survives_a_restart_without_new_reports() -> None:
    old, new = Static(profile=1), Static(profile=1)
    old.split(view(10, 30))
    new.load_state_dict(json.loads(json.dumps(old.state_dict())))
    assert new.split(view(NAN, NAN)).shares == (30, 90)


def test_a_worker_that_joins_later_counts_as_the_mean() -> None:
    balancer = Static(profile=1)
    balancer.split(view(10, 30))
    assert balancer.split(view(10, 30, NAN)).shares == (20, 60, 40)


@pytest.mark.parametrize("workers", [3, 5])
def test_shares_for_another_number_of_workers_are_refused(workers: int) -> None:
    with pytest.raises(ConfigError, match=f"4 shares do not fit {workers} workers"):
        Static(shares=(1, 1, 1, 1)).split(view(*[1.0] * workers))


def test_a_worker_that_left_is_no_mistake() -> None:
    left = dataclasses.replace(view(1, 1, 1, total=60), members=(0, 2, 3))
    assert Static(shares=(3, 9, 2, 1)).split(left).shares == (30, 20, 10)


def test_static_forgets_a_worker_that_left_during_its_profile() -> None:
    one = Static(profile=2)
    one.split(view(10.0, 10.0, 10.0))
    three = view(10.0, 10.0, 10.0, iteration=1)
    rest = dataclasses.replace(
        three, members=(0, 2), shares=(60, 60), observed=three.observed[:2], predicted_per_s=(10.0, 10.0),
        limits=Limits.uniform(2, 120),
    )  # fmt: skip
    one.split(rest)
    Static(profile=2).load_state_dict(one.state_dict())


@pytest.mark.parametrize(
    "spec",
    [
        "static:shares=0/0",
        "static:shares=1/-1",
        "static:shares=1/nan",
        "static:shares=1/fast",
        "static:shares=1/true",
        "static:profile=0",
        "static:profile=2.5",
        "static:shares=1/1,profile=3",
    ],
)
def test_static_refuses_nonsense_at_construction(spec: str) -> None:
    with pytest.raises(ConfigError, match="static"):
        balancers.resolve(spec)


# --- hysteresis and lb-bsp ----------------------------------------------------------------------------------


def settled(balancer: Balancer) -> Balancer:
    """Past the first decisions, in which the threshold is higher."""
    for k in range(9):
        balancer.split(view(1.0, 1.0 + k / 1000, 1.0, 1.0, total=4000))
    return balancer


def test_a_small_gain_is_left_lying_a_large_one_taken() -> None:
    balancer = settled(Hysteresis(Proportional(), fraction=0.05))
    kept = balancer.split(view(96, 100, 100, 100, total=4000))
    assert kept.shares == (1000,) * 4
    assert "kept" in kept.reason
    moved = balancer.split(view(90, 100, 100, 100, total=4000))
    assert moved.shares == (923, 1026, 1026, 1025)
    assert "→" in moved.reason


def test_doubtful_predictions_have_to_promise_more() -> None:
    uneven = view(90, 100, 100, 100, total=4000)  # promises 7.7 %
    sure, unsure = (dataclasses.replace(uneven, doubts=(doubt,) * 4) for doubt in (0.01, 0.05))
    for balancer in (LbBsp(), PresumeEqual(Proportional(), margin=0.05)):
        assert balancer.split(sure).shares == Proportional().split(uneven).shares
        assert balancer.split(unsure).shares == uneven.shares, "5 % and what chance promises, 5 % · √(2 ln 4), is more"
    proportional = Hysteresis(Proportional(), fraction=0.074)
    assert proportional.split(sure).shares != uneven.shares
    assert proportional.split(unsure).shares == uneven.shares


def test_what_chance_promises() -> None:
    shown = view(1, 1, 1, 1)
    assert chance_gain(shown) == 0.0, "nobody can tell"
    assert chance_gain(dataclasses.replace(shown, doubts=(0.1,) * 4)) == pytest.approx(0.1 * math.sqrt(2 * math.log(4)))


def test_without_a_threshold_it_is_the_inner_balancer() -> None:
    shown = view(1.01, 1, 1, 1, total=4000)
    assert Hysteresis(Proportional(), fraction=0).split(shown).shares == Proportional().split(shown).shares


def test_shares_that_break_new_limits_are_left_at_once() -> None:
    tight = dataclasses.replace(view(1, 1, 1, 1), limits=Limits(lower=(1,) * 4, upper=(20, 60, 60, 60)))
    assert LbBsp().split(tight).shares == (20, 34, 33, 33)
    # As the split has to change anyway, it changes to the best one, however small the gain.
    slightly = dataclasses.replace(tight, predicted_per_s=(1.0, 1.0, 1.0, 1.1))
    assert LbBsp(margin=0).split(slightly).shares == Proportional().split(slightly).shares


def test_workers_count_as_equal_until_the_gain_is_beyond_the_margin() -> None:
    nearly, clearly = view(97, 100, 100, 101, total=4000), view(80, 100, 100, 100, total=4000)
    presume = PresumeEqual(Proportional(), margin=0.05)
    assert presume.split(nearly).shares == (1000,) * 4
    assert presume.split(clearly).shares == Proportional().split(clearly).shares
    assert PresumeEqual(Proportional(), margin=0).split(nearly).shares == Proportional().split(nearly).shares


@pytest.mark.parametrize(
    ("speeds", "chance"),
    [((8305, 26044, 14462, 373), 0.948), ((17234, 31210, 24205, 104), 1.238), ((1, 1, 1, 0.1), 1.4)],
)
def test_no_doubt_makes_workers_equal_whose_speeds_are_far_enough_apart(
    speeds: tuple[float, ...], chance: float
) -> None:
    """As in runs of millisecond steps under quotas, where chance promised more than all there is to gain."""
    doubt = chance / math.sqrt(2.0 * math.log(4.0))
    unsure = dataclasses.replace(view(*speeds, total=512), doubts=(doubt,) * 4)
    even, unequal = (128,) * 4, Proportional().split(unsure).shares
    for present in (even, unequal) if chance < 1.4 else (unequal,):
        assert PresumeEqual(Proportional()).split(dataclasses.replace(unsure, shares=present)).shares == unequal


def test_leaving_equal_shares_takes_more_proof_than_keeping_away() -> None:
    unsure = dataclasses.replace(view(50, 100, 100, 100, total=4000), doubts=(0.25,) * 4)
    unequal = Proportional().split(unsure).shares
    presume = PresumeEqual(Proportional())
    assert presume.split(unsure).shares == (1000,) * 4
    assert presume.split(dataclasses.replace(unsure, shares=unequal)).shares == unequal


def test_limits_go_before_equality() -> None:
    tight = dataclasses.replace(view(1, 1, 1, 1), limits=Limits(lower=(1,) * 4, upper=(20, 60, 60, 60)))
    assert PresumeEqual(Proportional()).split(tight).shares == (20, 34, 33, 33)


def test_options_reach_their_places() -> None:
    balancer = balancers.resolve("lb-bsp:predictor=last,hysteresis=0.03,margin=0.1")
    assert isinstance(balancer, LbBsp)
    assert isinstance(balancer.inner, Hysteresis)
    assert (balancer.predictor, balancer.margin, balancer.inner.fraction) == ("last", 0.1, 0.03)
    assert balancer.adapts
    assert balancers.resolve("lb-bsp:predictor=ema:alpha=0.5").predictor == "ema:alpha=0.5"


@pytest.mark.parametrize("name", ["lb-bsp", "proportional"])
def test_a_predictor_that_does_not_exist_fails_at_construction(name: str) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'last'"):
        balancers.resolve(f"{name}:predictor=lasst")
    with pytest.raises(ConfigError, match="alpha"):
        balancers.resolve(f"{name}:predictor=ema:alpha=2")


def test_a_predictor_object_is_refused() -> None:
    with pytest.raises(ConfigError, match="each worker gets its own"):
        LbBsp(predictor=predictors.resolve("last"))  # type: ignore[arg-type]


@pytest.mark.parametrize("fraction", [-0.1, 1.0, NAN, True, "much"])
def test_a_threshold_out_of_range_is_refused(fraction: float) -> None:
    with pytest.raises(ConfigError, match="hysteresis"):
        LbBsp(hysteresis=fraction)


# --- in a closed loop ---------------------------------------------------------------------------------------


def drive(
    balancer: Balancer, speeds_per_s: list[list[float]], total: int, noise: float, seed: int
) -> list[BalanceView]:
    """Iterate with the given true speeds, measured with noise; the views as the balancer saw them."""
    rng = random.Random(seed)
    n = len(speeds_per_s[0])
    judges = [predictors.resolve(balancer.predictor) for _ in range(n)]
    shown = bare(n, total)
    shares = Even().split(shown).shares
    views = []
    for k, speeds in enumerate(speeds_per_s):
        seen = tuple(
            Observation(iteration=k, samples=x, local_s=x / (v * math.exp(rng.gauss(0, noise))))
            for x, v in zip(shares, speeds, strict=True)
        )
        for judge, observation in zip(judges, seen, strict=True):
            judge.observe(observation)
        shown = dataclasses.replace(
            shown,
            iteration=k,
            shares=shares,
            observed=seen,
            predicted_per_s=tuple(judge.predict() for judge in judges),
        )
        views.append(shown)
        shares = balancer.split(shown).shares
    return views


@pytest.mark.parametrize("seed", range(5))
def test_equal_workers_with_noisy_speeds_stay_even(seed: int) -> None:
    views = drive(LbBsp(), [[100.0] * 4] * 200, total=512, noise=0.03, seed=seed)
    assert {v.shares for v in views} == {(128,) * 4}


def test_without_hysteresis_equal_workers_do_not_stay_even() -> None:
    views = drive(Proportional(), [[100.0] * 4] * 200, total=512, noise=0.03, seed=0)
    assert len({v.shares for v in views}) > 5, "the guard guards something"


@pytest.mark.parametrize("seed", range(5))
def test_unequal_workers_are_followed_from_the_second_iteration(seed: int) -> None:
    speeds = [60.0, 40.0, 20.0, 10.0]
    views = drive(LbBsp(), [speeds] * 100, total=512, noise=0.03, seed=seed)
    times = [max(x / v for x, v in zip(seen.shares, speeds, strict=True)) for seen in views]
    best = 512 / sum(speeds)
    assert times[0] > 3 * best
    assert max(times[1:]) < 1.12 * best
    assert sum(times[10:]) / len(times[10:]) < 1.05 * best


@pytest.mark.parametrize(("predictor", "reports"), [("last", 1), ("ema", 1), ("steady", 3)])
def test_a_lasting_slowdown_is_followed(predictor: str, reports: int) -> None:
    before, after = [100.0] * 4, [25.0, 100.0, 100.0, 100.0]
    views = drive(LbBsp(predictor=predictor), [before] * 50 + [after] * 30, total=512, noise=0.0, seed=0)
    assert views[50].shares == (128,) * 4
    assert views[50 + reports].shares[0] < 120, "the first step comes after so many reports"
    gain = 1 - 512 / 325 / iteration_s(views[-1].shares, views[-1])
    assert gain < 0.06, "what is left lying is at most the threshold, and rounding"
