"""Background merges of replicas when workers leave and join; see
:mod:`uneven.run.membership.elastic_background_sync`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from uneven.policy.core.actions import Exchange, Moment, StepPlan
from uneven.policy.samples.order import Portion
from uneven.run.membership.elastic_background_sync import BesideElastic
from uneven.run.replicas.peers.peer_exchanges import Order
from uneven.run.replicas.peers.peer_sync import PeerSync
from uneven.run.samples.async_sampling.evaluation_barrier import EvaluationBarrier
from uneven.run.samples.async_sampling.unacknowledged_batch import BatchInHand


class BackgroundPeerSync(PeerSync):
    """An agreement whose merges run in the background of an elastic run."""

    def __init__(self, elastic: BesideElastic, *who: Any) -> None:
        super().__init__(*who)
        self._elastic = elastic
        self._replica.keep_merged()
        elastic.merging = self
        self._copy: Tensor | None = None  # memory for the replica at the time a merge was ordered
        self._in_hand = BatchInHand(lambda part: elastic.claims.learnt(part))

    # ---------------------------------------------------------------- around a step
    def before(self, part: Portion, plan: StepPlan) -> None:
        super().before(part, plan)
        self._in_hand.begins(part)

    def after(self, part: Portion, leaving: bool) -> bool:
        self._in_hand.ends(part)
        self._exchanges.urgent = self._elastic.urgent
        return super().after(part, leaving)

    def _order(self, exchange: Exchange) -> Order:
        order = super()._order(exchange)
        # Read in the training thread, so that the merge holds exactly the samples noted for it.
        order.own = self._copy = self._replica.flat.read(self._copy)
        order.over = self._elastic.merged
        self._elastic.begins_merge()
        return order

    # ---------------------------------------------------------------- merges
    @property
    def idle(self) -> bool:
        return self._exchanges.idle

    def merge(self) -> None:
        self._begin()
        for exchange in self._next(Moment.BACKGROUND):
            self._exchanges.begin(self._order(exchange))

    def settle(self) -> None:
        self._elastic.settle()
        self._exchanges.write_down()

    def _settle(self) -> None:
        self._elastic.rest()
        self._exchanges.write_down()

    def _arrive(self, barrier: EvaluationBarrier) -> None:
        self._elastic.quiet()
        self._in_hand.learns()  # mid-step: an optimizer may already have made the step
        self._settle()  # before the barrier, so that others can read which samples are in no merge
        barrier.arrive()
        barrier.wait()

    # ---------------------------------------------------------------- newcomers
    def for_newcomers(self) -> Any:
        return self.state_dict(()), self._replica.merged

    def take_over(self, state: Any) -> None:
        saved, merged = state
        self.load_state_dict(*saved)
        self._replica.flat.write(merged)
        self._replica.merged = merged
        self._begin()
        self._gap = self._dropped = 0
        self._fresh, self._since = {}, None
