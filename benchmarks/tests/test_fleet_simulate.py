"""Ensembles in virtual time: the paper's example reckoned by hand, waiting, preprocessing, checkpoints, refilling."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings

from ensembles import EQUAL, EXAMPLE, ensembles, methods
from uneven.errors import ConfigError
from uneven.fleet.pure.planning.allocate import Flotilla
from uneven.fleet.pure.planning.flotillas import Paradigm, Planner
from uneven.fleet.pure.planning.rates import Rates
from uneven_bench.fleet_plan.rivals import Homogeneous, OneAfterAnother, OnePerDevice
from uneven_bench.fleet_plan.simulate import EnsembleWork, FleetOutcome, play


def test_the_example_takes_what_the_specification_reckons() -> None:
    total = 10 * 1000
    took = {name: play(EQUAL, plans).wall_s for name, plans in methods(EQUAL).items()}
    assert took["baseline"] == took["homogeneous"] == pytest.approx(total / 40)
    assert took["sequential"] == pytest.approx(total * (1 / 350 + 1 / 280 + 1 / 240 + 1 / 120))
    assert took["fleet-g"] == pytest.approx(total / 100 + total / 150)


def test_who_waits_and_who_idles() -> None:
    shared, alone = play(EQUAL, Homogeneous()), play(EQUAL, OnePerDevice())
    computed = 10_000 * (1 / 100 + 1 / 80 + 1 / 80 + 1 / 40)
    for one in (shared, alone):
        assert one.compute_share == pytest.approx(computed / (4 * 250))
    assert (shared.wait_share, shared.idle_share) == pytest.approx((1 - shared.compute_share, 0))
    assert (alone.wait_share, alone.idle_share) == pytest.approx((0, 1 - alone.compute_share))
    assert (shared.prepared, alone.prepared) == pytest.approx((10, 40))
    (first, *_) = shared.bars
    assert (first.start_s, first.end_s, first.ended) == (0, 250, True)
    assert {bar.member: bar.computed for bar in shared.bars} == pytest.approx(
        {"D1": 0.4, "D2": 0.5, "D3": 0.5, "D4": 1}
    )


def test_a_stopped_round_costs_a_checkpoint_and_its_members_go_on_later() -> None:
    work = replace(EQUAL, epochs={"D1": 2, "D2": 3, "D3": 3, "D4": 5}, checkpoint_s=7.0)
    found = play(work, Planner(EXAMPLE, 4))
    d4 = [bar for bar in found.bars if bar.member == "D4"]
    assert [bar.ended for bar in d4] == [False] * (len(d4) - 1) + [True]
    assert (d4[0].start_s, d4[0].end_s, len(d4[0].devices)) == (0, pytest.approx(2000 / 100), 3)
    stops = {bar.end_s for bar in found.bars if not bar.ended}
    assert found.checkpoint_share == pytest.approx(7.0 * len(stops) / found.wall_s)
    assert next(bar for bar in found.bars if bar.start_s > 0).start_s == pytest.approx(27)


def test_preprocessing_holds_a_pipeline_of_its_own_back_and_a_shared_stream_less() -> None:
    slow = replace(EQUAL, prepared_per_s=30.0)  # 30 samples/s beside each device, 120 for a shared stream
    alone = play(slow, OnePerDevice())
    assert alone.wall_s == pytest.approx(10_000 / 30)
    assert alone.wait_share > 0
    assert play(slow, Planner(EXAMPLE, 4)).wall_s == pytest.approx(10_000 / 100 + 10_000 / 120)


def test_fleet_l_refills_and_fleet_g_does_not() -> None:
    work = EnsembleWork(
        Rates({"a": (50,), "b": (49,), "c": (48,)}), {"a": 1, "b": 9, "c": 1}, samples=98, nodes=((0, 1),)
    )
    local, every = play(work, Planner(work.rates, 2, Paradigm.LOCAL)), play(work, Planner(work.rates, 2))
    assert {(bar.member, bar.start_s) for bar in local.bars} == {("a", 0), ("b", 0), ("c", 2)}
    device = {bar.member: bar.devices for bar in local.bars}
    assert device["c"] == device["a"] != device["b"]
    assert local.rounds == 2
    assert {bar.member for bar in every.bars if bar.start_s == 2} == {"b", "c"}  # b was stopped and goes on


def test_ours_refills_with_who_keeps_pace_and_plans_anew_when_too_few_are_busy() -> None:
    rates = Rates({"a": (50,), "b": (49,), "c": (48,), "d": (47,), "slow": (10,)})
    work = EnsembleWork(rates, {"a": 1, "b": 9, "c": 3, "d": 3, "slow": 1}, samples=100, nodes=(range(3),))
    ours = play(work, Planner(rates, 3, Paradigm.REFILL, alpha=0.6))
    starts = {name: [bar.start_s for bar in ours.bars if bar.member == name] for name in rates.members}
    (stopped,) = [bar for bar in ours.bars if not bar.ended]
    assert starts["d"] == [pytest.approx(100 / 48)]  # when a has ended
    assert (stopped.member, starts["b"]) == ("b", [0, stopped.end_s])
    assert starts["slow"] == [ours.bars[-1].start_s]  # it keeps nobody's pace


class Nobody(OnePerDevice):
    def next_flotilla(self, waiting: Iterable[str], free_devices: int, running: Flotilla) -> Flotilla:
        return Flotilla()


class TooMany(OnePerDevice):
    def next_flotilla(self, waiting: Iterable[str], free_devices: int, running: Flotilla) -> Flotilla:
        return Flotilla({"a": 2})


def test_a_planner_that_cannot_be_followed_is_named() -> None:
    work = EnsembleWork(Rates({"a": (1.0,)}), {"a": 1}, samples=1, nodes=((0, 1),))
    with pytest.raises(ConfigError, match="nobody is started"):
        play(work, Nobody())
    with pytest.raises(ConfigError, match="'a' cannot run on 2 devices"):
        play(work, TooMany())


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="different members"):
        replace(EQUAL, epochs={"D1": 1})
    with pytest.raises(ConfigError, match="needs an epoch"):
        replace(EQUAL, epochs=dict.fromkeys(EXAMPLE.members, 0))
    with pytest.raises(ConfigError, match=r"0\.0 samples/s prepared"):
        replace(EQUAL, prepared_per_s=0.0)
    with pytest.raises(ConfigError, match="on 0 devices"):
        OneAfterAnother(EXAMPLE, 0)


def check(work: EnsembleWork, found: FleetOutcome) -> None:
    shares = (found.compute_share, found.wait_share, found.idle_share, found.checkpoint_share)
    assert math.fsum(shares) == pytest.approx(1)
    assert min(shares) >= -1e-9
    trained = dict.fromkeys(work.rates.members, 0.0)
    for bar in found.bars:
        rate = work.rates.per_s(bar.member, len(bar.devices))
        trained[bar.member] += bar.computed * (bar.end_s - bar.start_s) * rate / work.samples
    assert trained == pytest.approx(work.epochs)
    assert sorted(bar.member for bar in found.bars if bar.ended) == sorted(work.rates.members)
    for device in range(work.devices):
        mine = sorted((bar.start_s, bar.end_s) for bar in found.bars if device in bar.devices)
        assert all(before[1] <= after[0] + 1e-9 for before, after in itertools.pairwise(mine))


@settings(max_examples=30)
@given(work=ensembles)
def test_every_method_trains_every_member_exactly_once_and_no_device_serves_two(work: EnsembleWork) -> None:
    for plans in methods(work).values():
        check(work, play(work, plans))
