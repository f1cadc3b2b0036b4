"""How unlike the data of sites are. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from uneven.skew.partition import Array


@dataclass(frozen=True, slots=True)
class LabelSkew:
    """How unlike labels are at the sites, and all together; 0 is alike, 1 is as unlike as can be.

    Attributes:
        earth_mover: ½ Σ |p_site(label) − p_all(label)|: the part of a site's samples that would have to change
            their label; the earth mover's distance where labels are one apart. Mean over the sites.
        jensen_shannon: divergence to base 2 of all sites' labels, weighted by their samples.
        sizes: samples of the smallest site ÷ of the largest one.
    """

    earth_mover: float
    jensen_shannon: float
    sizes: float


def label_skew(labels: Array, sites: Sequence[Array]) -> LabelSkew:
    """How skewed a partition is.

    Args:
        labels: of all samples, whole numbers from 0; shape (samples,).
        sites: numbers of the samples of each.
    """
    kinds = int(labels.max()) + 1
    counts = np.array([np.bincount(labels[own], minlength=kinds) for own in sites], dtype=float)
    sizes = counts.sum(1)
    each, whole = counts / sizes[:, None], counts.sum(0) / sizes.sum()
    moved = float(np.abs(each - whole).sum(1).mean() / 2)
    divergence = _entropy(whole) - float(np.average([_entropy(row) for row in each], weights=sizes))
    return LabelSkew(
        moved, max(0.0, divergence / max(1e-12, np.log2(max(2, len(sites))))), float(sizes.min() / sizes.max())
    )


def _entropy(parts: Array) -> float:
    """In bits."""
    there = parts[parts > 0]
    return float(-(there * np.log2(there)).sum())
