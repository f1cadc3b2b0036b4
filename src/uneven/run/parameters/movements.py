"""Exchanges of what the steps of some replicas have moved, all of it, where its mean is merged: an outer step."""

from __future__ import annotations

import torch
from torch import Tensor

from uneven.core.actions import Exchange, Merge
from uneven.merge import Kept
from uneven.merge.flat import Flat
from uneven.merge.shared import apart, average, contribution, mean_square_root, weight_in

_OWN, _BASE = "movements-", "movements-base"


class Movements:
    """What one worker's steps have moved since it last exchanged anything, and what the merge of such keeps.

    Running statistics, which come last in the vector, are averaged beside.

    Args:
        merge: of the exchanges that are to come.
        values: where training begins, shape (size,).
    """

    def __init__(self, flat: Flat, merge: Merge, values: Tensor) -> None:
        self._flat = flat
        self.merge = merge
        self._base = values[: flat.trained].clone()
        self._kept: Kept = merge.begin(values[: flat.trained].clone())

    def contribution(self, own: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """What this worker gives of its replica, shape (size,): as it is, and as it goes into the sum."""
        given = own.clone()
        given[: self._flat.trained] -= self._base
        return given, contribution(given, weight)

    def taken(self, exchange: Exchange, given: Tensor, vector: Tensor, alone: float | None) -> tuple[Tensor, float]:
        """The replica to go on from, shape (size,), and how far this one's movement was from the mean.

        Args:
            given, vector: of :meth:`contribution`; ``vector`` is the sum of all by now.
            alone: samples of a worker whom nobody met.
        """
        trained, merge = self._flat.trained, exchange.merge
        distance = mean_square_root(apart(given, vector)[:trained])
        weight = weight_in(vector) if alone is None else alone
        middle = average(vector)
        kept, outcome = merge.combine(self._kept, middle[:trained], weight)
        self._kept = kept
        return torch.cat((self._base + outcome, middle[trained:])), merge.distance(distance)

    def goes_on_from(self, values: Tensor) -> None:
        """The replica, shape (size,), after an exchange of any kind: what it moves counts from here."""
        self._base = values[: self._flat.trained].clone()

    def state(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Vectors of shape (trained,), and numbers."""
        vectors = {_OWN + key: one.clone() for key, one in self._kept.items() if isinstance(one, Tensor)}
        numbers = {_OWN + key: one for key, one in self._kept.items() if not isinstance(one, Tensor)}
        return {**vectors, _BASE: self._base.clone()}, numbers

    def load(self, state: Kept) -> None:
        """Inverse of :meth:`state`, vectors and numbers in one."""
        self._base = state[_BASE]
        self._kept = {key.removeprefix(_OWN): one for key, one in state.items() if key != _BASE}


def own(state: Kept) -> tuple[Kept, Kept]:
    """Split what was saved into what belongs to exchanges of movements, and the rest."""
    mine = {key: one for key, one in state.items() if key.startswith(_OWN)}
    return mine, {key: one for key, one in state.items() if key not in mine}
