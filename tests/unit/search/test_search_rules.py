"""The rules of the schedulers, number by number."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray_streams import stream

from uneven.errors import ConfigError
from uneven.search.pure.decisions import GO_ON, Clone, Move, Progress, Ruling
from uneven.search.pure.schedulers import (
    Fifo,
    HyperBand,
    MedianStopping,
    PopulationBased,
    PromotingAsha,
    StoppingAsha,
    schedulers,
)
from uneven.search.pure.schedulers.asha import milestones, percentile
from uneven.search.pure.space import Space, choice, integer, uniform

RECORDED = Path(__file__).with_name("ray_2_60_asha.json")


def report(scheduler: object, trial: int, t: float, score: float, waiting: int = 0) -> Ruling:
    return scheduler.on_result(Progress(trial, t, score, waiting))  # type: ignore[attr-defined]


# -------------------------------------------------------------------- ASHA that stops
def test_the_rungs_of_the_defaults() -> None:
    assert milestones(100, 1, 4) == [1, 4, 16, 64]
    assert [rung.milestone for rung in StoppingAsha().brackets[0]] == [64, 16, 4, 1]


def test_a_second_bracket_begins_one_rung_higher() -> None:
    brackets = StoppingAsha(max_t=100, brackets=2).brackets
    assert [[rung.milestone for rung in one] for one in brackets] == [[64, 16, 4, 1], [64, 16, 4]]


def test_the_cutoff_of_twenty_scores() -> None:
    rung = StoppingAsha(max_t=4, reduction_factor=2).brackets[0][-1]
    for score in range(20):
        rung.record(score, score)
    assert rung.cutoff(2) == 9.5


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=40), st.floats(1.1, 9))
def test_the_cutoff_is_numpys_to_the_bit(scores: list[float], factor: float) -> None:
    assert percentile(sorted(scores), 1 - 1 / factor) == np.nanpercentile(scores, (1 - 1 / factor) * 100)


def test_the_first_at_a_rung_passes_and_a_result_is_looked_at_in_one_rung() -> None:
    asha = StoppingAsha(max_t=100)
    for trial in range(3):
        asha.added(trial, {})
    assert report(asha, 0, 16, -5.0) is GO_ON
    high, _, low = (rung.recorded for rung in asha.brackets[0][1:])
    assert (high, low) == ({0}, set())
    assert report(asha, 1, 4, -9.0) is GO_ON  # nobody was recorded at rung 4
    assert report(asha, 2, 4, -9.1).move is Move.STOP
    assert report(asha, 0, 17, -9.0) is GO_ON  # and fills rung 4, which it had passed over
    assert high == {0}
    assert 0 in asha.brackets[0][2].recorded
    assert report(asha, 0, 100, 1.0).move is Move.STOP


def test_200_recorded_streams_are_decided_as_ray_2_60_decides_them() -> None:
    recorded = json.loads(RECORDED.read_text())
    assert len(recorded) == 200
    assert sum(said.count("s") for said in recorded) > 1000
    for seed, said in enumerate(recorded):
        options, events = stream(seed)
        asha, alive, ours = StoppingAsha(**options), {}, ""
        for trial, t, score in events:
            if trial not in alive:
                asha.added(trial, {})
            elif not alive[trial]:
                ours += "-"
                continue
            alive[trial] = report(asha, trial, t, score).move is Move.CONTINUE
            ours += "c" if alive[trial] else "s"
        assert ours == said, seed


# -------------------------------------------------------------------- ASHA that promotes
def test_one_worker_promotes_the_best_third() -> None:
    asha = PromotingAsha(max_t=9, reduction_factor=3)
    paused: dict[int, None] = {}
    for trial, score in enumerate([0.3, 0.9, 0.1]):
        assert asha.choose([trial], paused) == trial
        ruling = report(asha, trial, 1, score)
        assert ruling.move is Move.PAUSE
        paused[trial] = None
    assert asha.choose([3], paused) == 1 == asha.choose([3], paused)
    asha.started(1)
    del paused[1]
    assert asha.choose([3], paused) == 3
    assert report(asha, 1, 2, 0.95) is GO_ON
    assert report(asha, 1, 3, 0.95).move is Move.PAUSE
    assert asha.choose([], {**paused, 1: None}) is None  # one of three is promoted, and one was
    asha.started(1)  # a person's word
    assert report(asha, 1, 9, 0.95).move is Move.STOP


def test_who_is_best_of_three_at_its_report_is_not_paused_at_all() -> None:
    asha = PromotingAsha(max_t=9, reduction_factor=3)
    assert [report(asha, trial, 1, float(trial)).move for trial in range(3)] == [Move.PAUSE, Move.PAUSE, Move.CONTINUE]


def test_who_is_gone_is_not_promoted() -> None:
    asha = PromotingAsha(max_t=9, reduction_factor=2)
    report(asha, 0, 1, 5.0)
    assert asha.gone(0) == {}
    report(asha, 1, 1, 1.0)
    assert asha.choose([], {1: None}) is None


# -------------------------------------------------------------------- HyperBand
def test_the_table_of_hyperband() -> None:
    band = HyperBand(max_t=81, reduction_factor=3)
    assert [band.size(s) for s in range(5)] == [(5, 81), (8, 27), (15, 9), (34, 3), (81, 1)]
    for trial in range(144):
        band.added(trial, {})
    first, second = band.bands
    assert sum(len(one.live) for one in first if one) == 143
    assert [len(one.live) for one in second if one] == [1]


def test_a_bracket_waits_for_all_then_keeps_the_best() -> None:
    band = HyperBand(max_t=9, reduction_factor=3)  # brackets: 3 of 9, 5 of 3, 9 of 1
    for trial in range(17):
        band.added(trial, {})
    assert band.choose(range(17), ()) == 0
    for trial in range(3, 7):
        assert report(band, trial, 3, float(trial)).move is Move.PAUSE
    assert band.choose((), range(3, 7)) is None
    last = report(band, 7, 3, 0.0)
    assert last.move is Move.STOP
    assert sorted(last.others) == [3, 4]  # ⌈5 / 3⌉ = 2 are kept
    assert band.choose((), (5, 6)) == 5
    assert report(band, 5, 8, 1.0) is GO_ON
    assert report(band, 5, 9, 1.0).move is Move.PAUSE
    done = report(band, 6, 9, 2.0)
    assert done.move is Move.STOP
    assert [other for other, ruling in done.others.items() if ruling.move is Move.STOP] == [5]


def test_who_is_gone_may_be_who_was_waited_for() -> None:
    band = HyperBand(max_t=9, reduction_factor=3)
    for trial in range(8):
        band.added(trial, {})
    for trial in range(3, 7):
        report(band, trial, 3, float(trial))
    assert sorted(band.gone(7)) == [3, 4]


def test_with_few_trials_nobody_is_dropped() -> None:
    band = HyperBand(max_t=9, reduction_factor=3)
    for trial in range(5):
        band.added(trial, {})
    report(band, 3, 3, 1.0)
    assert report(band, 4, 3, 0.0) == GO_ON  # two of five are there, two would be kept


# -------------------------------------------------------------------- the median rule
def test_the_median_of_the_others_means() -> None:
    rule = MedianStopping(grace_period=2, min_samples_required=3)
    for trial, score in enumerate((1.0, 2.0, 3.0, math.nan)):
        for t in (1, 2, 3):
            assert report(rule, trial, t, score) is GO_ON or trial == 3
    assert report(rule, 4, 1, -9.0) is GO_ON
    assert report(rule, 4, 2, 2.0) is GO_ON  # the median of 1, 2 and 3; the mean that is none does not count
    assert report(rule, 5, 2, 1.9).move is Move.STOP


def test_too_few_to_compare_with_make_room_for_who_waits() -> None:
    rule = MedianStopping(min_time_slice=1)
    assert report(rule, 0, 1, 0.0, waiting=2).move is Move.PAUSE
    assert report(rule, 0, 2, 0.0, waiting=2) is GO_ON
    assert report(rule, 0, 3, 0.0, waiting=0) is GO_ON
    assert report(rule, 0, 4, 0.0, waiting=1).move is Move.PAUSE


def test_a_soft_stop_pauses_once() -> None:
    rule = MedianStopping(min_samples_required=1, hard_stop=False)
    report(rule, 0, 1, 5.0)
    assert report(rule, 1, 1, 0.0).move is Move.PAUSE
    assert report(rule, 1, 2, 0.0) is GO_ON


# -------------------------------------------------------------------- PBT
@pytest.mark.parametrize("n", range(2, 9))
def test_the_size_of_the_quantiles(n: int) -> None:
    pbt = PopulationBased()
    for trial in range(n):
        pbt.added(trial, {})
        report(pbt, trial, 1, float(trial))
    lower, upper = pbt.quantiles()
    assert len(lower) == len(upper) == math.ceil(n / 4) <= n // 2
    assert lower == list(range(len(lower)))


def test_the_worst_goes_on_from_a_checkpoint_of_the_best() -> None:
    pbt = PopulationBased(perturbation_interval=2)
    pbt.begin(Space({"x": uniform(0, 1)}), seed=0)
    pbt.added(0, {"x": 0.1})
    pbt.added(1, {"x": 0.5})
    assert report(pbt, 1, 1, 9.0) is GO_ON  # the interval is not over
    assert report(pbt, 1, 2, 9.0) == GO_ON
    assert report(pbt, 0, 2, 1.0).clone is None  # the best has no checkpoint yet
    assert report(pbt, 1, 4, 9.0).save
    pbt.saved(1, 4)
    ruling = report(pbt, 0, 5, 1.0, waiting=1)
    assert ruling.move is Move.PAUSE
    assert isinstance(ruling.clone, Clone)
    assert (ruling.clone.source, ruling.clone.t) == (1, 4)
    assert ruling.clone.params["x"] != 0.1
    assert report(pbt, 0, 5, 1.0) is GO_ON  # it has inherited when it was judged, at 4


def test_settings_near_good_ones() -> None:
    pbt = PopulationBased(resample_probability=0.0)
    pbt.begin(Space({"n": integer(1, 100), "on": choice(False, True), "c": choice("a", "b", "c")}), seed=3)
    seen = [pbt.explore({"n": 8, "on": True, "c": "a", "fixed": 7}) for _ in range(40)]
    assert {one["n"] for one in seen} == {10, 6}  # 8 · 1.2 and 8 · 0.8, rounded
    assert {one["on"] for one in seen} == {False, True}
    assert {one["c"] for one in seen} == {"a", "b"}
    assert {one["fixed"] for one in seen} == {7}


def test_in_step_everybody_waits_for_everybody() -> None:
    pbt = PopulationBased(synch=True, quantile_fraction=0.5)
    pbt.begin(Space({"x": uniform(0, 1)}), seed=0)
    for trial in range(2):
        pbt.added(trial, {"x": trial / 2})
    assert report(pbt, 1, 1, 5.0).move is Move.PAUSE
    assert pbt.choose([0], [1]) == 0
    last = report(pbt, 0, 1, 1.0)
    assert last.move is Move.PAUSE
    assert last.clone is not None
    assert (last.clone.source, last.clone.t) == (1, 1)
    assert pbt.choose([], [0, 1]) in (0, 1)


# -------------------------------------------------------------------- the others
def test_fifo_takes_the_first_pending_else_the_first_paused() -> None:
    fifo = Fifo()
    assert fifo.choose([4, 2], [1]) == 4 == fifo.choose([4, 2], [1])
    assert fifo.choose([], [3, 1]) == 3
    assert fifo.choose([], []) is None


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("asha:max_t=2,grace_period=3", "max_t=2 is below grace_period=3"),
        ("asha:grace_period=0", "grace_period=0"),
        ("asha-promote:reduction_factor=1", "reduction_factor=1"),
        ("asha:max_t=4,brackets=3", "brackets=3"),
        ("asha:brackets=0", "brackets=0"),
        ("hyperband:max_t=0", "below grace_period"),
        ("median:min_samples_required=0", "min_samples_required=0"),
        ("median:grace_period=-1", "grace_period=-1"),
        ("pbt:perturbation_interval=0", "perturbation_interval=0"),
        ("pbt:quantile_fraction=0.6", "quantile_fraction=0.6"),
        ("pbt:resample_probability=2", "resample_probability=2"),
        ("pbt:max_t=0", "max_t=0"),
        ("ahsa", "asha"),
    ],
)
def test_what_makes_no_sense_is_refused(spec: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        schedulers.resolve(spec)
