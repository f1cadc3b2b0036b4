"""Rounds of sums among workers. A round is the unit that is repeated after a loss: all its tensors, and one place.

Each communicator makes one row of rounds, one after the other, in one thread; all members make the same ones.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from uneven.policy.core.membership import Meeting, Members
from uneven.run.lines.traffic import Traffic

Weight = Callable[[], float]


def unscaled() -> float:
    return 1.0


class RoundPlace(NamedTuple):
    """The place of one round in the loop. All members have the same ``epoch`` and ``place``, a position in the
    epoch."""

    what: str  # name of the exchange, for messages
    epoch: int = 0
    place: int = 0
    iteration: int = 0  # for messages
    settles: int = -1  # iteration up to which samples count as used once the round is complete; −1 for none
    groups: Meeting | None = None  # of members that come and go, each with its own sums; None for one over all members
    # of fixed workers
    members: Members = ()  # that sum; empty for all
    parties: tuple[Members, ...] = ()  # whose first workers sum, and forward the result to their parties
    compared: bool = False  # whether they compare their places
    where: str = ""  # see `RollCall.waiting`
    # of gradients
    confirmed: bool = False  # whether the announcements follow the sums and so confirm that all members have them
    passes: int = 1  # backward passes on this batch so far

    @property
    def confirms(self) -> bool:
        return self.confirmed or self.groups is not None


@dataclass(slots=True)
class SummedInPlace:
    """A tensor of a round that its sum replaces; ``take`` does it in others, after the round."""

    own: Tensor
    sent_bytes: int = 0
    fine: bool = True

    @property
    def sum(self) -> Tensor:
        return self.own

    def take(self) -> None:
        """Do nothing: the sum is there."""


class Communicator(Protocol):
    """One thread's row of rounds, each from ``begin`` to ``land``.

    A tensor that is added is flat and contiguous, of the same length and dtype on all members. It must not change
    before the end of the round. Its weight is its factor, read when it is sent, and again after a loss.

    ``land`` waits for all sums and returns the workers whose tensors are in them. With ``words``, members that come and
    go announce what they are about to do. It raises PeerError if a worker does not take part in time, or too few are
    left, and TrainingError if members are at different places.

    ``lonely`` means that a worker takes part also if its group is only itself.
    """

    lonely: bool

    def begin(self, place: RoundPlace) -> None: ...
    def add(self, own: Tensor, weight: Weight = unscaled) -> "RoundTensor": ...
    def land(self, *, words: bool = False) -> Members: ...
    def close(self) -> None: ...


@dataclass(slots=True)
class VectorLine:
    """A line for vectors, with one round for each."""

    rounds: Communicator
    traffic: Traffic

    def total(self, vector: Tensor, place: RoundPlace, weight: Weight = unscaled, *, words: bool = True) -> int:
        """Replace ``vector`` by its sum, and wait. Returns the bytes that this worker sent."""
        self.rounds.begin(place)
        piece = self.rounds.add(vector, weight)
        with self.traffic.waiting():
            self.rounds.land(words=words)
        piece.take()
        self.traffic.sent_bytes += piece.sent_bytes
        return piece.sent_bytes

    def close(self) -> None:
        self.rounds.close()


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

    def room(self, spare: "Contribution | None") -> None:
        """Take the memory of ``spare``, which is free, if it fits; otherwise allocate."""
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


RoundTensor = SummedInPlace | Contribution
