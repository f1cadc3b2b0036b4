"""Gradients of large models travel in few lumps of buckets, and every time stays as it is bucket by bucket."""

from __future__ import annotations

import pytest
from small_world import MEGABIT_PER_S, MEGABYTE, Ran, cluster, node

from uneven.cluster.pure.describe.spec import ClusterSpec, steady
from uneven.cluster.pure.simulate import stage


def many_buckets(mbit: float, latency_s: float, buckets: int = 90) -> ClusterSpec:
    """Four unequal nodes and a megabyte in so many buckets, of which the first and the last are smaller."""
    link = steady(mbit * MEGABIT_PER_S)
    nodes = [
        node(f"n{rank}", 1.0 + rank / 4, jitter=0.05, latency_s=latency_s, up_bit_per_s=link, down_bit_per_s=link)
        for rank in range(4)
    ]
    each = MEGABYTE // buckets
    return cluster(*nodes, bucket_bytes=each, first_bucket_bytes=each // 20)


@pytest.mark.parametrize("mbit", [2, 12, 18, 400], ids=["slow", "about equal", "faster", "fast"])
@pytest.mark.parametrize("latency_s", [0.0, 0.0005])
def test_lumps_change_no_time_of_an_all_reduce(mbit: float, latency_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = many_buckets(mbit, latency_s)
    lumped = Ran(spec, iterations=12)
    monkeypatch.setattr(stage, "MOST_BUCKETS", 1000)
    single = Ran(spec, iterations=12)
    assert lumped.outcome.happened < single.outcome.happened / 2
    for rank in range(4):
        assert lumped.ends_s(rank) == pytest.approx(single.ends_s(rank), rel=1e-9)


def test_lumps_to_a_server_change_samples_per_second_by_less_than_a_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = many_buckets(12, 0.0005, buckets=60)
    lumped = Ran(spec, "backup:spares=1", iterations=12).outcome.samples_per_s
    monkeypatch.setattr(stage, "MOST_BUCKETS", 1000)
    single = Ran(spec, "backup:spares=1", iterations=12).outcome.samples_per_s
    assert lumped != single
    assert lumped == pytest.approx(single, rel=0.01)


def test_the_buckets_at_both_ends_stay_as_they_are() -> None:
    ends = tuple(place / 100 for place in range(1, 101))
    found = stage.lumps(ends, nodes=64)
    assert list(found)[:2] == [0.01, 0.02]
    assert list(found)[-2:] == [0.99, 1.0]
    assert found[0.26] == (0.03, 24)
    assert sum(many for _, many in found.values()) == 100
    assert list(stage.lumps(ends[-32:], nodes=64)) == list(ends[-32:])
