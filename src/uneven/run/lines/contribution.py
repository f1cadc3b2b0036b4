"""One worker's tensor in a sum among changing members, and the memory of that sum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from uneven.policy.core.membership import Members
from uneven.run.lines.communicator import Weight

_STRETCH = 1 << 17  # numbers that are scaled and checked together: they stay in a core's cache in between


@dataclass(slots=True)
class Contribution:
    """One tensor in one exchange."""

    own: Tensor  # this worker's tensor, flat and unscaled; not changed until the exchange is complete
    weight: Weight  # returns its factor among the current members
    sent: Tensor  # `own` scaled, then the sum; flat
    kept: bool = True  # whether the sum is kept for a member that lacks it after a loss; otherwise the caller owns it
    worded: bool = False  # whether it is the members' words instead of a tensor
    fine: bool = True  # whether `own` is finite, if its weight is not 0
    work: Any = None  # the exchange under way; None if it could not start
    inside: Members | None = None  # the group of members it is summed over; None for all
    sent_bytes: int = 0  # by this worker, once the round is complete; computed from the size of the sum

    @property
    def sum(self) -> Tensor:
        """The sum once the exchange is complete; shape of ``own``."""
        return self.sent[: self.own.numel()]

    def room(self, spare: Contribution | None) -> None:
        """Take the memory of ``spare``, which is no longer needed, if it fits; otherwise allocate."""
        size, dtype = self.own.numel(), self.own.dtype
        if spare is None or not (self.kept and spare.kept) or spare.sent.dtype != dtype or spare.sent.numel() < size:
            self.sent = torch.empty(size, dtype=dtype)
        else:
            self.sent = spare.sent[:size]

    def fill(self) -> None:
        """Write ``own``, scaled, into ``sent``."""
        weight, self.fine = self.weight(), True
        if weight == 0.0:
            self.sum.zero_()  # a padded batch: 0, because 0 · NaN is NaN
            return
        if not self.own.numel():
            return
        for own, sent in zip(self.own.split(_STRETCH), self.sum.split(_STRETCH), strict=True):
            if weight == 1.0:
                sent.copy_(own)  # integers cannot be multiplied into integer memory by a float
            else:
                torch.mul(own, weight, out=sent)
            # One sum is cheaper than isfinite on all, but finite numbers may overflow it: only then check all.
            if not math.isfinite(sent.sum().item()):
                self.fine = self.fine and bool(torch.isfinite(own).all())

    def take(self) -> None:
        self.own.copy_(self.sum)
