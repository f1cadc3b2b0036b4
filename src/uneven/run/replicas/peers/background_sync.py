"""Background merges of replicas when workers leave and join; see
:mod:`uneven.run.membership.elastic_background_sync`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from uneven.policy.control.ledger import Order
from uneven.policy.core.actions import StepPlan
from uneven.policy.samples.order import Portion
from uneven.run.membership.elastic_background_sync import BesideElastic
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

    def _launch(self, order: Order) -> None:
        # Read in the training thread, so that the merge holds exactly the samples noted for it.
        self._copy = self._replica.flat.read(self._copy)
        self._elastic.begins_merge()
        self._exchanges.begin(order, self._copy, self._elastic.merged)

    # ---------------------------------------------------------------- merges
    @property
    def idle(self) -> bool:
        return self._exchanges.idle

    def merge(self) -> None:
        self._begin()
        for order in self.ledger.resting():
            self._launch(order)

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
        self.ledger.forget()
