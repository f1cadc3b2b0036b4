"""A merge of a user's own, in one file: replicas vote on the sign of each parameter's movement (after signSGD)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from uneven import Merge, merges
from uneven.policy.merge import Kept


@dataclass(frozen=True, slots=True)
class SignMean(Merge):
    """x ← x̃ + rate · mean_i sign(x_i − x̃), where x̃ is where all started from.

    Args:
        rate: how far a parameter goes on which all agree.
    """

    rate: float = 0.01

    by_samples = False

    def begin(self, start: Tensor) -> Kept:
        """The point that all start from."""
        return {"start": start}

    def contribute(self, own: Tensor, kept: Kept, *, in_place: bool = False) -> Tensor:
        """Which way it went."""
        return (own - kept["start"]).sign()

    def combine(self, kept: Kept, given: Tensor, weight: float, *, in_place: bool = False) -> tuple[Kept, Tensor]:
        """The vote."""
        start = kept["start"] + self.rate * given
        return {"start": start}, start


merges.register("sign-mean", SignMean)
