"""Incremental clustering: the worked example, and what holds for any features."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uneven.errors import ConfigError
from uneven.focus import Clusters

LINE = np.array([[0.0], [0.5], [5.0], [9.0], [0.9], [5.2]], np.float32)


def test_the_worked_example_gives_exactly_the_listed_clusters():
    clusters = Clusters(1.0, 1, most=2)
    grown = clusters.add(LINE)
    assert grown.cluster.tolist() == [0, 0, 1, 2, 0, 3]
    assert grown.began.tolist() == [True, False, True, True, False, True]
    assert grown.sealed == (1, 2)
    assert set(clusters.active) == {0, 3}


def test_by_the_rules_letter_a_newcomer_beside_larger_ones_is_sealed_at_once():
    features = np.array([[0.0], [0.1], [5.0], [5.1], [9.0], [9.1]], np.float32)
    literal = Clusters(1.0, 1, most=2, spare_newcomer=False)
    assert literal.add(features).cluster.tolist() == [0, 0, 1, 1, 2, 3]
    assert Clusters(1.0, 1, most=2).add(features).cluster.tolist() == [0, 0, 1, 1, 2, 2]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(*[st.floats(-3, 3, width=32)] * 2), min_size=1, max_size=60),
    st.floats(0, 2), st.integers(1, 5), st.integers(0, 60),
)  # fmt: skip
def test_each_object_is_in_one_cluster_near_its_centroid_and_sealed_ones_never_grow(points, threshold, most, cut):
    features = np.array(points, np.float32)
    clusters = Clusters(threshold, 2, most)
    sealed: set[int] = set()
    centroid: dict[int, np.ndarray] = {}
    for at, feature in enumerate(features):
        grown = clusters.add(features[at : at + 1])
        one = int(grown.cluster[0])
        assert one not in sealed
        if grown.began[0]:
            centroid[one] = feature
        assert np.linalg.norm(feature - centroid[one]) <= threshold * (1 + 1e-5) + 1e-6
        sealed |= set(grown.sealed)
        assert len(clusters.active) <= most
        assert not sealed & set(clusters.active)
    assert sorted(centroid) == list(range(clusters.next))
    # In one go, or gone on from a state, they are the same.
    whole = Clusters(threshold, 2, most).add(features).cluster
    first = Clusters(threshold, 2, most)
    begun = first.add(features[:cut]).cluster
    second = Clusters(threshold, 2, most)
    second.load(first.state())
    assert np.concatenate([begun, second.add(features[cut:]).cluster]).tolist() == whole.tolist()


def test_a_negative_threshold_is_refused():
    with pytest.raises(ConfigError, match="threshold=-1"):
        Clusters(-1, 2)
