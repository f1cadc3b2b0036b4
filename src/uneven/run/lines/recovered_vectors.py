"""Sums of whole replicas among members that come and go."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from uneven.policy.core.membership import Meeting
from uneven.run.lines.contribution import unscaled
from uneven.run.lines.recovery import ExchangePlace, Recovery
from uneven.run.lines.traffic import Traffic, bytes_of_sum

if TYPE_CHECKING:
    from uneven.run.replicas.peers.peer_exchanges import StepPosition


class RecoveredVectors:
    """One worker's line for parameters; implements ``VectorCarrier``.

    A merge is repaired as an exchange of gradients is. Once it is complete, the samples of all steps since the last
    merge count as used; those of a worker that is not in it are requeued.
    """

    def __init__(self, recovery: Recovery, traffic: Traffic) -> None:
        self._recovery = recovery
        self._traffic = traffic
        self._nothing = torch.empty(0, dtype=torch.float64)  # before the slots

    def spoken_for(self, iteration: int) -> float:
        return self._recovery.spoken_for(iteration)

    def total(
        self,
        vector: Tensor,
        what: str,  # name of the exchange, for messages
        at: StepPosition | None,  # place of this worker in the loop; None outside of it
        groups: Meeting | None = None,
        weight: Callable[[], float] | None = None,  # returns the factor among the members at the time of sending
    ) -> int:
        """Replace ``vector`` (flat, the same length and dtype everywhere) by its sum over the members or this worker's
        group.

        Waits, and returns the bytes that this worker sent, computed from the size of the exchange. Raises PeerError if
        too few members are left or one does not take part in time, and TrainingError if members are at different
        places.
        """
        recovery = self._recovery
        if at is None:
            recovery.enter(ExchangePlace(what))
        else:
            settles = -1 if at.shows else at.iteration  # an evaluation's mean changes no replica
            recovery.enter(ExchangePlace(what, at.epoch, at.number, at.iteration, settles, groups))
        recovery.begin(vector, weight or unscaled)
        if groups is None:
            recovery.begin(self._nothing, slots=True)  # with groups, `Recovery` starts it after their sums
        with self._traffic.waiting():
            own, _ = recovery.complete(recovery.land())
        own.take()
        sent_bytes = bytes_of_sum(vector.nbytes, len(own.inside or recovery.membership.members))
        self._traffic.sent_bytes += sent_bytes
        return sent_bytes

    def gather(self, what: str) -> None:
        self._recovery.enter(ExchangePlace(what))
        self._recovery.begin(torch.zeros(1))
        self._recovery.complete(self._recovery.land())

    def close(self) -> None:
        """Do nothing: the group belongs to the generation."""
