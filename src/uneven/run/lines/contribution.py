"""What one worker brings to a sum among members that come and go, and the memory in which that sum is made."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from uneven.policy.core.membership import Members

_STRETCH = 1 << 17
"""Numbers that are scaled and looked at in one go: few enough to lie in a core's cache in between."""

Weight = Callable[[], float]


@dataclass(slots=True)
class Contribution:
    """One tensor in one exchange.

    Attributes:
        own: what this worker brings, unscaled; it is not touched until the exchange is over.
        weight: what it is scaled by, among those that take part now.
        sent: ``own`` scaled, then the sum; longer than ``own`` by the slots, where it has any.
        kept: whether the sum is kept for a member that lacks it when somebody is lost; else the memory is the caller's.
        fine: whether ``own`` is finite, where it counts.
        work: under way; None where it could not be begun.
        inside: of a group of members; None where it is of all.
    """

    own: Tensor
    weight: Weight
    sent: Tensor
    kept: bool = True
    fine: bool = True
    work: Any = None
    inside: Members | None = None

    @property
    def sum(self) -> Tensor:
        """What came of it, once the exchange is complete; of the shape of ``own``."""
        return self.sent[: self.own.numel()]

    @property
    def slotted(self) -> bool:
        """Whether the members' announcements ride behind it."""
        return self.sent.numel() > self.own.numel()

    def room(self, spare: Contribution | None, slots: int) -> None:
        """Take the memory of one that nobody needs any more, where it fits, else new memory."""
        size, dtype = self.own.numel() + slots, self.own.dtype
        if spare is None or not (self.kept and spare.kept) or spare.sent.dtype != dtype or spare.sent.numel() < size:
            self.sent = torch.empty(size, dtype=dtype)
        else:
            self.sent = spare.sent[:size]

    def fill(self) -> None:
        """Put ``own`` into ``sent``, scaled."""
        weight, self.fine = self.weight(), True
        if weight == 0.0:
            self.sum.zero_()  # a padded batch; zero even where its gradient is not finite
            return
        if not self.own.numel():
            return
        for own, sent in zip(self.own.split(_STRETCH), self.sum.split(_STRETCH), strict=True):
            if weight == 1.0:
                sent.copy_(own)  # whole numbers, too
            else:
                torch.mul(own, weight, out=sent)
            # A sum of finite numbers may leave their range, so where it is not finite all are looked at.
            if not math.isfinite(sent.sum().item()):
                self.fine = self.fine and bool(torch.isfinite(own).all())

    def take(self) -> None:
        """The sum takes the place of what this worker has brought."""
        self.own.copy_(self.sum)
