"""The balancer that learns costs: in closed loops with known ones, and its guards one by one."""

from __future__ import annotations

import dataclasses
import json
import statistics

import pytest

from uneven.errors import ConfigError, UnknownNameError
from uneven.policy.balance import Balancer, balancers
from uneven.policy.core.views import BalanceView, Limits, Observation
from uneven.testing.contracts import BalancerContract
from uneven_bench.balancers.bench import loop
from uneven_bench.balancers.devices import CASES, Device, DeviceCase, best_split, slowest_s
from uneven_bench.balancers.model.balancer import Model

SEEDS = range(3)


class TestModel(BalancerContract):
    def make(self) -> Balancer:
        return Model(margin=0.0, hysteresis=0.0)


def test_it_has_its_name_where_the_benches_are_installed() -> None:
    assert isinstance(balancers.resolve("model:margin=0"), Model)
    assert Model().partial_updates


def case(name: str) -> DeviceCase:
    return next(one for one in CASES if one.name == name)


def mean(name: str, balancer: str) -> tuple[float, float]:
    """Share of the best over the whole run, and over its end."""
    runs = [loop(case(name), balancer, seed) for seed in SEEDS]
    return statistics.fmean(whole for whole, _ in runs), statistics.fmean(last for _, last in runs)


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_it_ends_near_the_best_split(name: str) -> None:
    assert mean(name, "model")[1] > (0.83 if name == "shared" else 0.95)


@pytest.mark.parametrize("name", ["affine", "constant", "shared", "bandwidth cut"])
def test_it_beats_proportional_shares_where_time_is_not_proportional(name: str) -> None:
    assert mean(name, "model")[0] > mean(name, "lb-bsp")[0]


@pytest.mark.parametrize("name", ["linear", "linear, noisy", "equal"])
def test_it_is_no_worse_where_time_is_proportional(name: str) -> None:
    assert mean(name, "model")[0] > mean(name, "lb-bsp")[0] - 0.01


def test_equal_workers_keep_equal_shares() -> None:
    told: list[tuple[int, ...]] = []
    loop(case("equal"), "model", 0, lambda k, shares, reason: told.append(shares))
    assert set(told) == {(128, 128, 128, 128)}


def test_the_bandwidth_cut_moves_samples_away_at_once() -> None:
    told: list[tuple[int, ...]] = []
    cut = case("bandwidth cut")
    loop(cut, "model", 0, lambda k, shares, reason: told.append(shares))
    best_s = slowest_s(cut.at(399), best_split(cut.at(399), cut.global_batch, cut.limits))
    assert best_s / slowest_s(cut.at(399), told[190]) > 0.95
    assert told[190][1] < told[149][1]


def test_a_memory_limit_is_never_exceeded() -> None:
    told: list[tuple[int, ...]] = []
    loop(case("memory"), "model", 2, lambda k, shares, reason: told.append(shares))
    assert max(shares[0] for shares in told) == 150
    assert max(shares[1] for shares in told) == 90


def test_its_own_memory_limits_hold_too() -> None:
    device = Device(per_sample_s=0.0001)
    free = DeviceCase(
        name="", about="", devices=(device, *[Device(per_sample_s=0.001)] * 2), global_batch=300, noise=0.1
    )
    told: list[tuple[int, ...]] = []
    loop(free, "model:most=120/200/200", 0, lambda k, shares, reason: told.append(shares))
    assert max(shares[0] for shares in told[1:]) == 120


# --- one look at a time -------------------------------------------------------------------------------------


def view(iteration: int, shares: tuple[int, ...], seconds: tuple[float, ...], transfer_s: float = 0.0) -> BalanceView:
    """Reports of four iterations, and predictors that believe them."""
    seen = tuple(
        Observation(iteration=iteration, samples=4 * x, local_s=4 * t, iterations=4, transfer_s=4 * transfer_s)
        for x, t in zip(shares, seconds, strict=True)
    )
    n = len(shares)
    return BalanceView(
        iteration=iteration, global_batch=sum(shares), members=tuple(range(n)), shares=shares, observed=seen,
        predicted_per_s=tuple(one.speed_per_s for one in seen), limits=Limits.uniform(n, sum(shares)),
        doubts=(0.02,) * n,
    )  # fmt: skip


def test_nothing_moves_before_everybody_has_reported() -> None:
    first = view(4, (50, 50), (0.1, 0.2))
    silent = dataclasses.replace(first, observed=(first.observed[0], None), predicted_per_s=(500.0, float("nan")))
    split = Model().split(silent)
    assert (split.shares, split.reason) == ((50, 50), "model: waiting for a first report")


def test_a_first_report_is_taken_for_proportional() -> None:
    split = Model().split(view(4, (60, 60), (0.1, 0.2)))
    assert split.shares == (80, 40)
    assert split.reason.startswith("model, solved")


def test_a_floor_is_not_drained() -> None:
    """Twice as late at whatever size: fewer samples gain nothing, and the curve comes to say so."""
    balancer, shares = Model(), (60, 60)
    for k in range(1, 40):
        shares = balancer.split(view(4 * k, shares, (0.06, max(0.12, 0.001 * shares[1])))).shares  # type: ignore[assignment]
    assert max(0.06, 0.12) == pytest.approx(0.12)
    assert 1 <= shares[1] <= 60


def test_the_first_iteration_with_a_new_size_frightens_nobody() -> None:
    """Memory is allocated, kernels are chosen: it takes six times as long. The share is not taken away again."""
    balancer = Model()
    moved = balancer.split(view(4, (60, 60), (0.1, 0.2))).shares
    late = view(8, moved, (0.8, 0.13))  # type: ignore[arg-type]
    assert balancer.split(late).shares[0] > 60


def test_a_lone_spike_in_a_report_moves_little() -> None:
    balancer, shares = Model(), (80, 40)
    for k in range(1, 12):
        shares = balancer.split(view(4 * k, shares, (0.00125 * shares[0], 0.0025 * shares[1]))).shares  # type: ignore[assignment]
    before = shares
    spiked = view(60, shares, (0.00125 * shares[0] * 1.8, 0.0025 * shares[1]))
    calm = dataclasses.replace(spiked, predicted_per_s=(800.0, 400.0))  # the predictor has told it for a spike
    assert abs(balancer.split(calm).shares[0] - before[0]) <= 2


def test_a_change_that_the_predictor_announces_is_followed_at_once() -> None:
    balancer, shares = Model(), (80, 40)
    for k in range(1, 12):
        shares = balancer.split(view(4 * k, shares, (0.00125 * shares[0], 0.0025 * shares[1]))).shares  # type: ignore[assignment]
    same = view(60, shares, (0.00125 * shares[0], 0.0025 * shares[1]))
    announced = dataclasses.replace(same, predicted_per_s=(400.0, 400.0))
    assert abs(balancer.split(announced).shares[0] - 60) <= 2


def test_members_come_and_go() -> None:
    balancer = Model()
    balancer.split(view(4, (60, 60, 60), (0.1, 0.2, 0.1)))
    joined = view(8, (45, 45, 45, 45), (0.075, 0.15, 0.075, 0.075))
    for members in ((0, 1, 2, 3), (0, 2, 3, 5)):
        split = balancer.split(dataclasses.replace(joined, members=members))
        assert sum(split.shares) == 180


def test_its_state_goes_through_json() -> None:
    old, shares = Model(), (60, 60, 60)
    for k in range(1, 30):
        new = Model()
        new.load_state_dict(json.loads(json.dumps(old.state_dict(), allow_nan=False)))
        seen = view(4 * k, shares, (0.01 + 0.001 * shares[0], 0.002 * shares[1], 0.0015 * shares[2]), 0.001 * (k % 3))
        split = old.split(seen)
        assert new.split(seen) == split
        shares = split.shares  # type: ignore[assignment]


def test_bad_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="hysteresis"):
        Model(hysteresis=1.0)
    with pytest.raises(UnknownNameError):
        Model(predictor="oracle")
    with pytest.raises(ConfigError, match="most"):
        Model(most=(0, 3))
