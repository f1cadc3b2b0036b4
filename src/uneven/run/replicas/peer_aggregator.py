"""Sums among the workers: after the step, while the training waits, or in the background thread.

Each of the two has its own line, because two threads must never share a process group.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from uneven.policy.control.ledger import LedgerState, Order
from uneven.policy.core.actions import Exchange, Mean, Moment, Payload, StepPlan
from uneven.policy.core.membership import Meeting, Members
from uneven.policy.core.plain import loading, read
from uneven.policy.samples.order import Portion
from uneven.policy.sync import EvaluationModel, SyncPolicy, refused
from uneven.run.lines.communicator import RoundPlace, VectorLine, unscaled
from uneven.run.membership.agreed import BackgroundMembers
from uneven.run.membership.elastic_run import ElasticRun
from uneven.run.replicas.aggregator import Aggregator, Place
from uneven.run.replicas.background_thread import BackgroundThread
from uneven.run.replicas.merge_state import same_policy
from uneven.run.replicas.replica import ExchangeResult, Given, Replica
from uneven.run.replicas.sparse.unsent import WHOSE, Moved, UnsentMovement, apart
from uneven.run.samples.async_sampling.leased_samples import BatchInHand


def _moved(order: Order) -> Moved:
    return Moved(order.clock, order.merges.weight, order.part, order.rate, order.epoch, order.iteration)


class PeerLines(NamedTuple):
    """The lines of one worker's parameters.

    Attributes:
        waited: for exchanges that the training waits for; None in a single-process run.
        aside: for the background thread.
        in_step: whether all workers take the same steps, so that each exchange has one place in the loop.
    """

    waited: VectorLine | None = None
    aside: VectorLine | None = None
    in_step: bool = True


class StepPosition(NamedTuple):
    """A worker's place in the loop that all workers run, after the step of ``iteration``.

    ``clock`` counts steps, because the iterations of threads end in any order. ``shows`` marks an evaluation.
    """

    epoch: int
    iteration: int
    clock: int
    shows: bool = False

    @property
    def number(self) -> int:
        """A number that differs at each place of an epoch."""
        return 2 * self.clock + self.shows


class PeerAggregator(Aggregator):
    """One worker's exchanges with the others, of whole vectors and of picked entries.

    Args:
        thread: makes the exchanges whose outcome enters some steps later.
        shadowed: whether any exchange runs in the background.
        changing: the workers of parties, if they leave and join.
    """

    def __init__(
        self,
        policy: SyncPolicy,
        rank: int,
        replica: Replica,
        thread: BackgroundThread,
        lines: PeerLines,
        *,
        shadowed: bool = False,
        changing: ElasticRun | None = None,
        entries: UnsentMovement | None = None,
    ) -> None:
        self.shadowed = self.rests = shadowed
        self.entries = entries
        self.lines = lines
        self._policy = policy
        self._rank = rank
        self._replica = replica
        self._thread = thread
        self._changing = changing

    def refused(self, plan: StepPlan) -> str | None:
        return refused(plan, copy=False) or self._replica.refused(plan)

    def begin(self, clock: int) -> None:
        self._replica.begin()

    def follow(self, part: Portion, plan: StepPlan, new_epoch: bool) -> None:
        if self.entries is not None:
            self.entries.begin()

    def meet(
        self, order: Order, own: Tensor | None = None, *, background: bool = False, resting: bool = False
    ) -> ExchangeResult:
        exchange = order.exchange
        if background:
            total = partial(self._total, self.lines.aside, order)
            return self._replica.meet(exchange, order.merges.weight, total, resting=resting, alone=self._alone, own=own)
        if exchange.select is None:
            before, changing = self._weight(order), self._changing
            # Asked when the vector is sent, again after a loss: by then the party may have changed.
            weight = (lambda: self._weight(order) / before) if before else unscaled
            if changing is not None and exchange.parties and not order.merges.gap:
                # All steps are merged at home, so each party counts once, as where members are fixed.
                before, weight = 0.0, lambda: float(changing.leads(exchange.parties, order.meeting))
            total = partial(self._total, self.lines.waited, order, weight=weight)
            return self._replica.meet(exchange, before, total, alone=self._alone)
        if (entries := self._entries_of(exchange)) is None:
            return ExchangeResult(0, 0.0, True, 0)
        return entries.meet(exchange, _moved(order))

    def begin_late(
        self, order: Order, note: Callable[[ExchangeResult, float], None]
    ) -> tuple[Callable[[], Any], Callable[[Any], object]] | None:
        replica, exchange = self._replica, order.exchange
        if exchange.select is None:
            given = replica.give(exchange, order.merges.weight)
            self._thread.launch(partial(self._sum_late, order, given))
            return self._thread.wait, partial(self._land_late, order, given, note)
        if (entries := self._entries_of(exchange)) is None:
            note(ExchangeResult(0, 0.0, True, 0), 0.0)
            return None
        hear, change = entries.begin_late(exchange, _moved(order), note)
        return hear, lambda heard: replica.hold(change(heard))

    def _sum_late(self, order: Order, given: Given) -> tuple[int, float]:
        began_s = time.perf_counter()
        sent_bytes = self._total(self.lines.aside, order, given.vector, order.exchange)
        return sent_bytes, time.perf_counter() - began_s

    def _land_late(
        self, order: Order, given: Given, note: Callable[[ExchangeResult, float], None], summed: tuple[int, float]
    ) -> None:
        sent_bytes, took_s = summed
        met = self._replica.combine(order.exchange, given, sent_bytes)
        note(met, took_s)
        self._replica.land(order.exchange, given, met)

    def gather(self, order: Order) -> Callable[[], object]:
        # The dtype must not depend on a rank's torch default: gloo aborts the process if dtypes differ.
        one = torch.zeros(1, dtype=torch.float32)
        return lambda: self._sum(self.lines.aside, order.clock, one, order.exchange, words=False)

    def _entries_of(self, exchange: Exchange) -> UnsentMovement | None:
        """Return the exchange of picked entries; None for a party that has no peer."""
        return self.entries if self.entries is not None and self.entries.has(exchange) else None

    def _weight(self, order: Order) -> float:
        """Return the samples that this worker's replica represents in an exchange."""
        changing = self._changing if order.exchange.parties else None
        return order.merges.weight if changing is None else changing.spoken_for(order.iteration)

    @property
    def _alone(self) -> bool | None:
        """False if a worker takes part also if its group is only itself; None if its members decide."""
        return False if self.lines.waited is not None and self.lines.waited.rounds.lonely else None

    def _total(
        self,
        line: VectorLine | None,
        order: Order,
        vector: Tensor,
        exchange: Exchange,
        *,
        weight: Callable[[], float] = unscaled,
    ) -> int:
        at = StepPosition(order.epoch, order.iteration, order.clock)
        waited = self.lines.in_step and exchange.moment is not Moment.BACKGROUND
        at_place = at if waited else None
        return self._sum(line, order.clock, vector, exchange, at=at_place, groups=order.meeting, weight=weight)

    def _sum(
        self,
        line: VectorLine | None,
        clock: int,
        vector: Tensor,
        exchange: Exchange,
        *,
        at: StepPosition | None = None,
        groups: Meeting | None = None,
        weight: Callable[[], float] = unscaled,
        words: bool = True,
    ) -> int:
        """Sum over the members on ``line``, and check that all are at one place, if there is one."""
        if line is None:
            return 0
        # In the background each worker is at another step, so the step cannot name the exchange.
        where = "the exchange of parameters in the background" if exchange.beside else ""
        what = f"the exchange of parameters {'during' if exchange.beside else 'after'} step {clock}"
        here = at or StepPosition(0, 0, 0)
        settles = -1 if at is None or at.shows else at.iteration  # an evaluation's mean changes no replica
        step = (here.epoch, here.number, here.iteration, settles, groups)
        place = RoundPlace(what, *step, exchange.members, exchange.parties, at is not None, where)
        return line.total(vector, place, weight, words=words)

    def rest(self, evaluating: bool) -> None:
        """Finish exchanges of entries, on all workers."""
        if self.entries is not None:
            self.entries.catch_up()

    def shown(self, members: Members, equal: bool, clock: int, place: Place | None) -> Tensor | None:
        if self._policy.evaluation_model is EvaluationModel.CENTRE:
            return self._replica.centre
        if self._policy.evaluation_model is EvaluationModel.REPLICA or equal or len(members) == 1:
            return None
        everybody = Exchange(payload=Payload.PARAMETERS, members=members, merge=Mean(), moment=Moment.STEP)
        at = None if place is None else StepPosition(*place, clock, shows=True)
        return self._replica.mean(partial(self._sum, self.lines.waited, clock, at=at), everybody)

    def for_newcomers(self) -> Tensor | None:
        return self._replica.for_newcomers()

    def take_over(self, replica: Tensor | None, clock: int) -> bool:
        if self.entries is not None:
            self.entries.take_over()
        if replica is None:
            return False
        self._replica.take_over(replica)
        return True

    def close(self, failed: bool) -> None:
        """Close the lines."""
        entries, self.entries = self.entries, None
        if entries is not None:
            entries.close(failed)
        lines, self.lines = self.lines, PeerLines()
        for line in lines[:2]:
            if line is not None and not failed:  # after a failure a thread may still block in a line
                line.close()

    def state(
        self, numbers: dict[str, Any], rates: dict[str, float], *, shown: bool
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        # If the replica holds the model to evaluate, it already includes all sites' unsent entries.
        vectors, kept = self._replica.state_dict(shown=shown)
        if self.entries is not None and shown:
            numbers["owed"] = False
        elif self.entries is not None:
            vectors, kept = vectors | self.entries.state_dict(), {**kept, WHOSE: float(self._rank)}
        return numbers | {"kept": kept | rates}, vectors

    def check(self, numbers: dict[str, Any], vectors: dict[str, Tensor]) -> None:
        if not same_policy(self._policy, numbers):
            return
        with loading("the agreement"):
            read(LedgerState, numbers)
            held, vectors = apart(vectors)
            if self.entries is not None:
                self.entries.check(held)
            self._replica.check(vectors, apart(numbers.get("kept", {}))[1])

    def load(
        self, numbers: dict[str, Any], vectors: dict[str, Tensor], *, same: bool
    ) -> tuple[dict[str, Any], dict[str, float]]:
        if self.entries is not None:
            self.entries.forget()
        self._replica.forget()
        kept = numbers.get("kept", {}) if same else {}
        if same:
            held, vectors = apart(vectors)
            own, rest = apart(kept)
            if self.entries is not None:
                self.entries.load_state_dict(held, round(own.get(WHOSE, -1.0)))
            self._replica.load_state_dict(vectors, rest)
        return numbers, kept


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
