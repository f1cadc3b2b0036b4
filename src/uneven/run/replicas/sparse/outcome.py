"""The merge of entries from all parties."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from uneven.policy.core.actions import Combined, Merge
from uneven.policy.select.pack import Unpacked
from uneven.policy.select.picked import Array


def outcome_of(merge: Merge, own: Array, base: Array, heard: Mapping[int, Unpacked], mine: int) -> Array:
    """Return the replica to continue from, shape (size,); overwrites ``own``.

    ``base`` is the replica after the last exchange; ``heard`` holds each party's entries by place, ``mine`` the own
    place.
    """
    places = sorted(heard)  # all workers add up in the same order, so that replicas stay bit-identical
    if merge.combined is Combined.SUM:
        for place in places:
            if place != mine:
                heard[place].picked.add_to(own)
        return own
    weights = [merge.weight(heard[place].weight) for place in places]
    total = sum(weights)
    change = np.zeros_like(base)
    for place, weight in zip(places, weights, strict=True):
        heard[place].picked.add_to(change, weight / total if total > 0 else 1 / len(places))
    return np.add(base, change, out=own)
