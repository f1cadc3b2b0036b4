"""What comes of the entries that all parties have sent, at once or later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch

from uneven.core.actions import Combined, Merge
from uneven.entries.pack import Unpacked
from uneven.entries.picked import Array


def outcome_of(merge: Merge, own: Array, base: Array, heard: Mapping[int, Unpacked], mine: int) -> Array:
    """The replica to go on from, shape (size,).

    Args:
        own: the replica as it is; may be used for the outcome.
        base: as it was after the last exchange.
        heard: what each party has sent, by its place; added up in the order of the places.
        mine: the place of this worker's own.
    """
    places = sorted(heard)
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


class LateEntries(NamedTuple):
    """Entries under way; stands where ``parameters.late.UnderWay`` does.

    Attributes:
        arrive: waits for those of all, and says what enters the replica; shape (size,).
        drop: waits for them.
    """

    arrive: Callable[[], torch.Tensor]
    drop: Callable[[], object]
