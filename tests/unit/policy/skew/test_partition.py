"""Who has which labels, and how skewed that is."""

from __future__ import annotations

import numpy as np
import pytest

from uneven.errors import ConfigError, UnknownNameError
from uneven.policy.skew import label_skew, partitions

LABELS = np.tile(np.arange(10), 50)


@pytest.mark.parametrize("spec", [
    "iid", "label", "label:percent=40", "dirichlet:alpha=0.3", "pathological:classes=3", "natural-id", "linear",
    "square", "exponential",
])  # fmt: skip
def test_every_sample_is_at_exactly_one_site_and_a_seed_says_where(spec: str) -> None:
    sites = partitions.resolve(spec).split(LABELS, 5, seed=3)
    assert sorted(np.concatenate(sites).tolist()) == list(range(len(LABELS)))
    again = partitions.resolve(spec).split(LABELS, 5, seed=3)
    assert all(np.array_equal(one, other) for one, other in zip(sites, again, strict=True))


def test_full_skew_is_by_label_and_part_of_it_for_a_part_of_the_samples() -> None:
    full = partitions.resolve("label").split(LABELS, 5)
    assert [sorted(set(LABELS[own].tolist())) for own in full] == [[site, site + 5] for site in range(5)]
    counts = []
    for percent in (0, 20, 60, 100):
        some = partitions.resolve(f"label:percent={percent}").split(LABELS, 5)
        at_home = sum(int((LABELS[own] % 5 == site).sum()) for site, own in enumerate(some)) / len(LABELS)
        assert at_home == pytest.approx(percent / 100 + (1 - percent / 100) / 5, abs=0.03)
        counts.append(label_skew(LABELS, some).earth_mover)
    assert counts == sorted(counts)
    assert counts[-1] == pytest.approx(0.8)


def test_sizes_and_few_labels() -> None:
    sizes = [len(own) for own in partitions.resolve("linear").split(LABELS, 4)]
    assert sizes == [50, 100, 150, 200]
    few = partitions.resolve("pathological:classes=2").split(LABELS, 5)
    assert [len(set(LABELS[own].tolist())) for own in few] == [2] * 5
    skew = label_skew(LABELS, partitions.resolve("linear").split(LABELS, 4))
    assert skew.sizes == 0.25


def test_alike_sites_have_no_skew_and_sites_with_one_label_each_all_of_it() -> None:
    ordered = np.sort(LABELS)
    alike = label_skew(ordered, partitions.resolve("iid").split(ordered, 5))
    assert alike.earth_mover == pytest.approx(0.0, abs=1e-12)
    alone = label_skew(np.array([0, 1, 2, 3]), [np.array([site]) for site in range(4)])
    assert (alone.earth_mover, alone.jensen_shannon, alone.sizes) == pytest.approx((0.75, 1.0, 1.0))


def test_what_cannot_be_is_refused() -> None:
    for spec in ("label:percent=101", "dirichlet:alpha=0", "pathological:classes=0"):
        with pytest.raises(ConfigError):
            partitions.resolve(spec)
    with pytest.raises(ConfigError, match="raise classes"):
        partitions.resolve("pathological:classes=1").split(LABELS, 5)
    with pytest.raises(ConfigError, match="would have no samples"):
        partitions.resolve("label").split(np.zeros(20, dtype=int), 3)
    with pytest.raises(ConfigError, match="give at least one per site"):
        partitions.resolve("iid").split(LABELS, 501)
    with pytest.raises(UnknownNameError):
        partitions.resolve("shards")
