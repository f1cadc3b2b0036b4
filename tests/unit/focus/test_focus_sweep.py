"""What a setting reaches and costs, and which one a policy takes."""

import numpy as np
import pytest

from uneven.errors import ConfigError
from uneven.focus.pure.sweep import (
    OFF,
    Assumption,
    Grouped,
    LabelledObjects,
    Looked,
    Policy,
    Share,
    SweepGrid,
    appearances,
    choose,
    promising,
    sweep,
)


def stretch(count=300, classes=6, seed=0, sharp=2.0):
    """Objects that stay for a few frames, and a network that is often right about them."""
    draw = np.random.default_rng(seed)
    label = np.repeat(draw.integers(0, classes, count // 5), 5)
    centres = draw.normal(size=(classes, 4)) * 3
    feature = (centres[label] + draw.normal(size=(count, 4))).astype(np.float32)
    return LabelledObjects(np.arange(count) // 2, label, classes), feature, draw, sharp


def looked(named=(0, 1, 2, 3, 4, 5), name="n", work=1.0, **more):
    seen, feature, draw, sharp = stretch(**more)
    outputs = len(named) + 1
    target = np.array([named.index(one) if one in named else len(named) for one in seen.label])
    scores = draw.normal(size=(len(target), outputs))
    scores[np.arange(len(target)), target] += sharp
    confidence = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    return seen, Looked(name, named, confidence.astype(np.float32), feature, work)


def test_recall_never_falls_when_k_grows():
    seen, network = looked()
    for threshold in (0.0, 1.0, 3.0):
        grouped = Grouped(seen, network, threshold)
        for label in seen.dominant():
            recalls = [grouped.ask(label, k, OFF).recall.value for k in range(1, 8)]
            assert recalls == sorted(recalls)
            assert recalls[0] < recalls[-1] or recalls[0] == 1.0


def test_without_clustering_and_skipping_precision_is_one_and_with_every_output_recall_too():
    seen, network = looked()
    grouped = Grouped(seen, network, 0.0)
    for label in seen.dominant():
        assert all(grouped.ask(label, k, OFF).precision.value == 1.0 for k in range(1, 8))
        assert grouped.ask(label, 7, OFF).recall.value == 1.0


def test_mixed_clusters_and_a_low_skip_cost_precision():
    seen, network = looked()
    assert min(Grouped(seen, network, 6.0).ask(label, 7, OFF).precision.value for label in seen.dominant()) < 0.9
    assert min(Grouped(seen, network, 0.0).ask(label, 7, 0.3).precision.value for label in seen.dominant()) < 1.0


def test_a_class_without_a_name_is_found_through_other_and_never_taken_on_the_networks_word():
    seen, network = looked(named=(0, 1))
    grouped = Grouped(seen, network, 0.0)
    with_other = int((network.confidence.argsort(1)[:, ::-1][:, :1] == 2).sum())
    found = grouped.ask(4, 1, 0.0)
    assert found.checked == with_other
    assert found.precision.value == 1.0
    assert grouped.ask(4, 3, OFF).recall.value == 1.0


def test_the_policies_take_points_of_the_front_and_targets_hold():
    seen, network = looked(sharp=4.0)
    _, cheaper = looked(name="cheap", work=0.2, sharp=1.0)
    points = list(sweep(seen, [network, cheaper], truth_work=10.0))
    viable = [point for point in points if point.meets(0.95, 0.95)]
    cost = {id(one): (one.ingest, one.query) for one in viable}
    beaten = {a for a, (ingest, query) in cost.items() for b in cost.values()
              if b[0] <= ingest and b[1] <= query and b != (ingest, query)}  # fmt: skip
    chosen = {policy: choose(points, 0.95, 0.95, policy) for policy in Policy}
    assert not set(map(id, chosen.values())) & beaten
    assert all(promising(points, 0.95, 0.95, policy)[0] is one for policy, one in chosen.items())
    assert all(point.meets(0.95, 0.95) for point in chosen.values())
    assert chosen[Policy.OPT_INGEST].ingest == min(point.ingest for point in viable)
    assert chosen[Policy.OPT_QUERY].query == min(point.query for point in viable)
    total = [point.ingest + point.query for point in viable]
    assert chosen[Policy.BALANCE].ingest + chosen[Policy.BALANCE].query == min(total)


def test_what_a_small_sample_shows_is_not_believed():
    """Where few clusters bear a leap out it is not made, though the sample shows no error."""
    leap, none = Assumption(0.5, 1.0, 20), Assumption(0.0, 1.0, 0)
    assert leap.risk(0.8) == pytest.approx(0.5 * (1 - 0.2 ** (1 / 20)))
    assert none.risk(0.8) == 0.0
    assert Assumption(0.5, 1.0, 0).risk(0.8) == 0.5
    seen, network = looked(sharp=4.0)
    points = list(sweep(seen, [network], truth_work=10.0))
    believed = choose(points, 0.95, 0.95, Policy.BALANCE)
    careful = choose(points, 0.95, 0.95, Policy.BALANCE, confidence=0.9)
    assert careful.borne_out(0.95, 0.95, 0.9)
    assert not believed.borne_out(0.95, 0.95, 0.9)
    assert believed.query < careful.query
    surest = choose(points, 1.0, 1.0, Policy.BALANCE, confidence=0.9).setting  # only what cannot be wrong
    assert (surest.k, surest.threshold, surest.skip) == (len(network.named) + 1, 0.0, OFF)


def test_targets_out_of_reach_say_what_can_be_reached():
    seen, network = looked(sharp=0.0)
    points = [point for point in sweep(seen, [network], 10.0, SweepGrid(most_k=1)) if point.setting.k == 1]
    with pytest.raises(ConfigError, match=r"no setting reaches recall 99\.0%.*the nearest reaches"):
        choose(points, 0.99, 0.99, Policy.BALANCE)


def test_nothing_that_moves_is_said_so():
    empty = LabelledObjects(np.zeros(0, np.int64), np.zeros(0, np.int64), 3)
    with pytest.raises(ConfigError, match="nothing moves"):
        list(sweep(empty, [], 1.0))


def test_the_rarest_classes_do_not_count():
    label = np.array([0] * 60 + [1] * 36 + [2] * 4)
    assert LabelledObjects(np.arange(100), label, 5).dominant() == (0, 1)


def test_a_bound_counts_appearances_not_frames():
    assert appearances(np.array([1, 2, 3, 7, 9, 10])) == 3
    few, many = Share.of(100, 100, 3), Share.of(100, 100, 300)
    assert few.value == many.value == 1.0
    assert few.least == pytest.approx(0.05 ** (1 / 3))
    assert many.least == pytest.approx(0.05 ** (1 / 300))
    assert Share.of(0, 0, 0).least == 0.0
