"""The skew of labels between sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uneven.policy.skew.partition import Array


@dataclass(frozen=True, slots=True)
class LabelSkew:
    """The difference between the labels at sites; 0 for identical, 1 for maximally different ones."""

    # ½ Σ |p_site(label) − p_all(label)|, mean over the sites: the share of samples whose label would have to change
    earth_mover: float
    jensen_shannon: float  # divergence (base 2) of the sites' labels, weighted by samples, over its maximum
    sizes: float  # samples of the smallest site ÷ those of the largest


def label_skew(labels: Array, sites: Sequence[Array]) -> LabelSkew:
    """Measure the skew of ``labels`` (samples,), integers from 0, given the sample numbers (n,) of each site."""
    kinds = int(labels.max()) + 1
    counts = np.array([np.bincount(labels[own], minlength=kinds) for own in sites], dtype=float)
    sizes = counts.sum(1)
    each, whole = counts / sizes[:, None], counts.sum(0) / sizes.sum()
    moved = float(np.abs(each - whole).sum(1).mean() / 2)
    divergence = _entropy(whole) - float(np.average([_entropy(row) for row in each], weights=sizes))
    # Rounding may make a zero divergence negative. Its maximum is log2 of the number of sites.
    return LabelSkew(
        moved, max(0.0, divergence / max(1e-12, np.log2(max(2, len(sites))))), float(sizes.min() / sizes.max())
    )


def _entropy(parts: Array) -> float:
    there = parts[parts > 0]  # 0 log 0 is 0
    return float(-(there * np.log2(there)).sum())  # in bits
