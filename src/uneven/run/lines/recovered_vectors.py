"""Carries sums of whole replicas among members that come and go; stands where ``VectorCarrier`` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from uneven.policy.core.membership import Meeting
from uneven.run.lines.recovery import ExchangePlace, Recovery
from uneven.run.lines.traffic import Traffic, bytes_of_sum

if TYPE_CHECKING:
    from uneven.run.replicas.peers.peer_exchanges import StepPosition


def _one() -> float:
    return 1.0


class RecoveredVectors:
    """This worker's line for parameters.

    A merge is an exchange as that of gradients is: those that are left make it anew when a worker is lost, or are given
    the sum by one that has it. The samples of all steps since the last merge count as used once it is complete, and
    those of a worker that is not in it come again.
    """

    def __init__(self, recovery: Recovery, traffic: Traffic) -> None:
        self._recovery, self._traffic = recovery, traffic
        self._nothing = torch.empty(0, dtype=torch.float64)  # before the slots

    def spoken_for(self, iteration: int) -> float:
        return self._recovery.spoken_for(iteration)

    def total(
        self, vector: Tensor, what: str, at: StepPosition | None, groups: Meeting | None = None,
        weight: Callable[[], float] | None = None,
    ) -> int:  # fmt: skip
        """Replace ``vector`` by its sum over the members, or over this worker's group of them. Waits.

        Args:
            weight: by what it is scaled, among those that are there when it is sent.
            vector: one axis, of the same length and type on every member.
            what: the exchange, for messages.
            at: where this worker is; None where that is no place of the loop.

        Returns:
            Bytes that this worker sent for it, as counted from the shape of the exchange.

        Raises:
            PeerError: too few are left; or one that is alive did not take part in time.
            TrainingError: members are at different places.
        """
        recovery = self._recovery
        if at is None:
            recovery.enter(ExchangePlace(what))
        else:
            settles = -1 if at.shows else at.iteration
            recovery.enter(ExchangePlace(what, at.epoch, at.number, at.iteration, settles, groups))
        recovery.begin(vector, weight or _one)
        if groups is None:
            recovery.begin(self._nothing, _one, slots=True)
        with self._traffic.waiting():
            own, _ = recovery.complete(recovery.land())
        own.take()
        sent_bytes = bytes_of_sum(vector.nbytes, len(own.inside or recovery.membership.members))
        self._traffic.sent_bytes += sent_bytes
        return sent_bytes

    def gather(self, what: str) -> None:
        """Wait until all members are in it."""
        self._recovery.enter(ExchangePlace(what))
        self._recovery.begin(torch.zeros(1), _one)
        self._recovery.complete(self._recovery.land())

    def close(self) -> None:
        """Nothing of its own to let go of."""
