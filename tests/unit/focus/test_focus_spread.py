"""Which centroids are asked about, and how far a verdict holds."""

import numpy as np
import pytest

from uneven.focus.pure.sweep import (
    OFF,
    Grouped,
    LabelledObjects,
    Looked,
    Policy,
    SweepGrid,
    choose,
    promising,
    sweep,
    widened,
)
from uneven.focus.pure.verdict_propagation import ROUND, Precedents, Spreading, played

LINE = np.array([[0.0], [0.5], [1.4], [3.0], [0.9], [3.0]], np.float32)


NOTHING = np.zeros((0, 2), np.float32), np.zeros(0, bool)
ONE = np.array([[100.0]], np.float32), np.ones(1, bool)


def two(apart: float) -> Precedents:
    """One of each kind is known."""
    return Precedents.sample(np.array([[0, 0], [apart, 0]], np.float32), np.array([0, 1]), np.ones(2, np.float32))


def groups(apart: float, count: int = 400, seed: int = 0):
    """Two kinds of things, each in four places; the kinds are so far apart, and a place is 0.05 wide."""
    draw = np.random.default_rng(seed)
    place = draw.integers(0, 8, count)
    centre = np.stack([(place % 2) * apart, (place // 2) * apart], 1)
    return (centre + draw.normal(size=(count, 2)) * 0.05).astype(np.float32), place % 2 == 1


def test_without_spreading_verdicts_hold_as_far_as_clusters_reach():
    for threshold, speakers in ((1.0, [0, 0, 2, 3, 2, 3]), (0.0, [0, 1, 2, 3, 4, 3])):  # equal ones are 0 apart
        spreading = Spreading(LINE, threshold, 0.0, NOTHING)
        while rows := spreading.ask(ROUND):
            spreading.tell(rows, [False] * len(rows))
        assert spreading.speakers().tolist() == speakers, "the nearest judged one speaks"
    assert [len(one) for one in played(NOTHING[0], NOTHING[1], 1.0, 0.2, NOTHING)] == [0, 0]


def test_what_is_known_is_not_asked_again_and_speaks():
    spreading = Spreading(LINE, 1.0, 0.0, NOTHING)
    spreading.tell([0, 1], [True, False])
    assert spreading.ask(ROUND) == [3]
    spreading.tell([3], [True])
    assert spreading.ask(ROUND) == []
    assert spreading.speakers().tolist() == [0, 1, 1, 3, 1, 3]


def test_few_are_asked_where_kinds_lie_apart_and_all_others_settled_rightly():
    features, is_it = groups(1.0)
    accepted, asked = played(features, is_it, 0.0, 0.2, (two(1.0).feature, np.array([False, True])))
    assert (accepted == is_it).all()
    assert 6 <= asked.sum() < 0.15 * len(features)
    fresh, fresh_is_it = groups(1.0, seed=1)
    accepted, again = played(fresh, fresh_is_it, 0.0, 0.2, (features, is_it))
    assert (accepted == fresh_is_it).all()
    assert again.sum() < 0.2 * asked.sum(), "precedents speak first"


def test_a_class_without_a_precedent_is_looked_for_everywhere():
    features, is_it = groups(1.0)
    others = features[~is_it]
    accepted, asked = played(features, is_it, 0.0, 0.2, (others, np.zeros(len(others), bool)))
    assert (accepted == is_it).all()
    assert asked[is_it].all()


def test_where_kinds_lie_among_each_other_most_are_asked_about():
    features, _ = groups(1.0)
    is_it = np.random.default_rng(1).random(len(features)) < 0.5
    accepted, asked = played(features, is_it, 0.0, 0.05, NOTHING)
    assert asked.sum() > 0.75 * len(asked)
    assert (accepted == is_it).mean() > 0.9


def test_the_farther_verdicts_are_spread_the_fewer_are_asked():
    features, is_it = groups(0.3)
    before = two(0.3).feature, np.array([False, True])
    asked = [played(features, is_it, 0.0, spread, before)[1].sum() for spread in (0.01, 0.05, 0.2)]
    assert asked == sorted(asked, reverse=True)
    assert asked[0] > 2 * asked[-1]


def test_a_settled_one_is_open_again_when_something_else_is_found_near_it():
    features = np.array([[0.0], [1.0], [10.0], [1.1]], np.float32)
    spreading = Spreading(features, 0.0, 0.5, ONE)
    spreading.tell([0, 2], [False, True])
    assert spreading.ask(ROUND) == []
    spreading.tell([3], [True])
    assert spreading.ask(ROUND) == []
    assert spreading.speakers().tolist() == [0, 3, 2, 3], "the nearer one speaks now"
    spreading = Spreading(features, 0.0, 0.05, ONE)
    spreading.tell([0, 2, 3], [False, True, True])
    assert spreading.ask(ROUND) == [1], "0.1 from one that is, 1 from one that is not"


def seen_and_looked(apart: float) -> tuple[LabelledObjects, Looked]:
    features, is_it = groups(apart, 1200)
    confidence = np.full((len(is_it), 3), 0.3, np.float32)
    label = is_it.astype(np.int64)
    return LabelledObjects(np.arange(len(label)), label, 2), Looked("n", (0, 1), confidence, features, 1.0)


@pytest.mark.parametrize("confidence", [0.0, 0.5])
def test_a_sample_of_many_clusters_lets_verdicts_spread_and_one_of_few_does_not(confidence):
    seen, looked = seen_and_looked(1.0)
    few = slice(0, 40)
    less = LabelledObjects(seen.frame[few], seen.label[few], 2)
    less_looked = Looked("n", (0, 1), looked.confidence[few], looked.feature[few], 1.0)
    grid = SweepGrid(quantiles=(), skips=(OFF,))
    aim = (0.99, 0.99, Policy.BALANCE, confidence)
    chosen = []
    for objects, network in ((seen, looked), (less, less_looked)):
        points = list(sweep(objects, [network], 10.0, grid))
        assert all(point.setting.spread == 0 for point in points)
        points += widened(objects, [network], 10.0, promising(points, *aim)[:16], grid, {"n": two(1.0)})
        chosen.append(choose(points, *aim))
    assert chosen[0].setting.spread > 0
    assert chosen[0].query < 0.1
    assert chosen[0].borne_out(0.99, 0.99, 0.5)
    assert chosen[1].setting.spread == 0


def test_a_spread_is_judged_by_the_next_wider_one():
    seen, looked = seen_and_looked(0.3)
    grid = SweepGrid(quantiles=(), skips=(OFF,), spreads=(0.05, 0.4, 0.8))
    (point,) = [one for one in sweep(seen, [looked], 10.0, grid) if one.setting.k == 3]
    grouped = Grouped(seen, looked, 0.0, two(0.3))
    tried = list(widened(seen, [looked], 10.0, [point], grid, {"n": two(0.3)}))
    assert [one.setting.spread for one in tried] == [0.05, 0.4]
    for one, wider in zip(tried, (0.4, 0.8), strict=True):
        settled = [grouped.ask(label, 3, OFF, wider).settled for label in (0, 1)]
        assert [result.settled for result in one.results] == settled
        asked = [grouped.ask(label, 3, OFF, one.setting.spread).checked for label in (0, 1)]
        assert [result.checked for result in one.results] == asked
        assert one.query == sum(asked) / 2 / len(seen.label)
    assert tried[0].results[0].settled.trials < tried[1].results[0].settled.trials


@pytest.mark.parametrize("spread", [0.0, 0.2])
def test_what_is_asked_and_settled_adds_up(spread):
    seen, looked = seen_and_looked(0.3)
    grouped = Grouped(seen, looked, 0.0, two(0.3))
    accepted, asked, sure = grouped.split(1, 3, OFF, spread)
    result = grouped.ask(1, 3, OFF, spread)
    assert not sure.any()
    assert result.checked == asked.sum()
    assert result.settled.trials == ((accepted | (grouped.verdict == 1)) & ~asked).sum()
    assert (result.settled.share == 0) == (spread == 0)
    inside = np.arange(len(asked)) < 100
    assert not grouped.split(1, 3, OFF, spread, inside)[1][100:].any()


def test_those_tried_again_are_the_best_that_the_sample_bears_out():
    seen, looked = seen_and_looked(1.0)
    points = list(sweep(seen, [looked], 10.0, SweepGrid(quantiles=(0.5,), skips=(0.2, OFF))))
    best = promising(points, 0.99, 0.99, Policy.BALANCE, 0.5)
    assert [one.ingest + one.query for one in best] == sorted(one.ingest + one.query for one in best)
    assert all(one.borne_out(0.99, 0.99, 0.5) and one.setting.skip == OFF for one in best)
    surest = promising(points, 0.99, 0.99, Policy.BALANCE, 1 - 1e-12)
    assert {(one.setting.k, one.setting.threshold, one.setting.skip) for one in surest} == {(3, 0.0, OFF)}
