"""Background merges among workers that leave and join; see :mod:`uneven.run.membership.agreed`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from uneven.policy.control.ledger import Order
from uneven.run.membership.agreed import BackgroundMembers
from uneven.run.replicas.peer_aggregator import PeerAggregator
from uneven.run.samples.async_sampling.unacknowledged_batch import BatchInHand


class BackgroundPeers(PeerAggregator):
    """Merges in the background of an elastic run, which the elastic run asks for and takes part in."""

    def __init__(self, elastic: BackgroundMembers, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.rests = False
        self.hand = BatchInHand(lambda part: elastic.claims.learnt(part))
        self._elastic = elastic
        self._replica.keep_merged()
        self._copy: Tensor | None = None  # memory for the replica at the time a merge was ordered

    @property
    def urgent(self) -> bool:  # type: ignore[override]
        return self._elastic.urgent

    def gives(self, order: Order, background: bool) -> Tensor:
        # Read in the training thread, so that the merge holds exactly the samples noted for it.
        self._copy = self._replica.flat.read(self._copy)
        self._elastic.begins_merge()
        return self._copy

    def gave(self) -> None:
        self._elastic.merged()

    def settles(self) -> bool:
        self._elastic.settle()
        return True

    def rest(self, evaluating: bool) -> None:
        if evaluating:
            self._elastic.quiet()
        self._elastic.rest()
