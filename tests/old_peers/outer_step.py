"""Exchanges of movements: the mean of the changes that replicas made by their steps is merged, as in an outer step."""

from __future__ import annotations

import torch
from torch import Tensor

from uneven.policy.core.actions import Exchange, Merge
from uneven.policy.merge import Kept
from uneven.run.replicas.flat import Flat
from uneven.run.replicas.weighted_sums import apart, average, contribution, mean_square_root, weight_in

_OWN, _BASE = "movements-", "movements-base"


class Movements:
    """The change of one worker's replica, at first ``values`` (size,), since its last exchange, and the merge's state.

    Running statistics, which come last in the vector, are averaged as they are.
    """

    def __init__(self, flat: Flat, merge: Merge, values: Tensor) -> None:
        self._flat = flat
        self.merge = merge
        self._base = values[: flat.trained].clone()
        self._kept: Kept = merge.begin(values[: flat.trained].clone())

    def contribution(self, own: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """Return this worker's contribution (size,), and the summand (size + 2,), given its replica ``own`` (size,)."""
        given = own.clone()
        given[: self._flat.trained] -= self._base
        return given, contribution(given, weight)

    def taken(self, exchange: Exchange, given: Tensor, vector: Tensor, alone: float | None) -> tuple[Tensor, float]:
        """Return the replica to continue from, shape (size,), and the distance of this movement from the mean.
        ``given`` and ``vector`` are those of :meth:`contribution`, ``vector`` summed; ``alone`` the samples in a group
        of one."""
        trained, merge = self._flat.trained, exchange.merge
        distance = mean_square_root(apart(given, vector)[:trained])
        weight = weight_in(vector) if alone is None else alone
        middle = average(vector)
        kept, outcome = merge.combine(self._kept, middle[:trained], weight)
        self._kept = kept
        return torch.cat((self._base + outcome, middle[trained:])), merge.distance(distance)

    def goes_on_from(self, values: Tensor) -> None:
        """Measure movements from this replica, shape (size,), after an exchange of any kind."""
        self._base = values[: self._flat.trained].clone()

    def state(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return vectors of shape (trained,), and numbers."""
        vectors = {_OWN + key: one.clone() for key, one in self._kept.items() if isinstance(one, Tensor)}
        numbers = {_OWN + key: one for key, one in self._kept.items() if not isinstance(one, Tensor)}
        return {**vectors, _BASE: self._base.clone()}, numbers

    def load(self, state: Kept) -> None:
        self._base = state[_BASE]
        self._kept = {key.removeprefix(_OWN): one for key, one in state.items() if key != _BASE}


def own(state: Kept) -> tuple[Kept, Kept]:
    """Split a saved state into the part of movements and the rest."""
    mine = {key: one for key, one in state.items() if key.startswith(_OWN)}
    return mine, {key: one for key, one in state.items() if key not in mine}
