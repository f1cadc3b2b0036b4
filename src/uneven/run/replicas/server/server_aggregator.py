"""Exchanges through a parameter server, asynchronous from the samples to the last push.

The policy returns a plan before each step. Its exchanges go to the copy after the step, and their result is in the
replica before the next one:

* added movements (ASP, SSP): push the step's movement and pull the copy into the replica; the pull waits for clocks;
* elastic averaging (EASGD): one exchange, which moves copy and replica by the same d;
* a quorum of gradients (backup workers): each worker takes its optimizer step, and the mean of the first replicas
  becomes the copy, from which late workers continue;
* outer steps on a quorum of movements (decoupled): pushed while training continues; x ← the new copy + later movement.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uneven.errors import CheckpointError, NonFiniteError
from uneven.policy.control.ledger import Order, ServedState
from uneven.policy.control.step_plans import due_of
from uneven.policy.core.actions import Merge, Moment, Payload, StepPlan
from uneven.policy.core.membership import Members
from uneven.policy.core.plain import Misfit, loading, read
from uneven.policy.samples.order import Portion
from uneven.policy.sync import SyncPolicy, refused
from uneven.run.lines.communicator import RoundPlace, VectorLine
from uneven.run.replicas.aggregator import Aggregator, Place
from uneven.run.replicas.background_thread import BackgroundThread
from uneven.run.replicas.merge_state import same_policy
from uneven.run.replicas.replica import ExchangeResult, Replica
from uneven.run.replicas.server.client_copy import OuterStep, ServerParameters, Values
from uneven.run.replicas.server.locate import ServerLocation
from uneven.run.replicas.server.outer_round import check_served_step
from uneven.run.samples.async_sampling.evaluation_barrier import EvaluationBarrier
from uneven.run.samples.async_sampling.leased_samples import BatchInHand, LeasedSamples, NoLeases, OwnPace
from uneven.runtime.parameter_server import Reply

CENTRE, VELOCITY = "centre", "velocity"

# The weight of a movement without samples; a weight of 0 would leave nothing to divide by.
_LEAST = 2.0**-40


class ServerAggregator(Aggregator):
    """One worker's part in the parameter server.

    Args:
        home: the shards; closed with this object.
        own_pace: state that the workers share in addition to the server's parameters.
        outer: whether the policy plans outer steps, which keep a velocity.
        means: whether it plans means of gradients, which the server counts.

    Attributes:
        claims: the leases of samples if workers leave and join.
    """

    shadowed = True

    def __init__(
        self,
        policy: SyncPolicy,
        replica: Replica,
        thread: BackgroundThread,
        copy: ServerParameters,
        home: ServerLocation,
        own_pace: OwnPace,
        *,
        outer: bool,
        means: bool,
    ) -> None:
        self.copy = copy
        self.claims: LeasedSamples | NoLeases = NoLeases()
        self.hand = BatchInHand(lambda part: self.claims.learnt(part))
        self._policy = policy
        self._replica = replica
        self._thread = thread
        self._home = home
        self._own_pace = own_pace
        self._means = means
        self._names = {CENTRE, VELOCITY} if outer else {CENTRE}
        self._loaded: Values | None = None  # from a checkpoint, until the training begins
        self._following = False  # the replica is the copy, as of the last pull
        self._shown: Values | None = None  # the evaluated model, until the next step
        self._checked: Merge | None = None  # the last merge that passed check_served_step

    def refused(self, plan: StepPlan) -> str | None:
        return refused(plan, copy=True)

    def begin(self, clock: int) -> None:
        # A server counts means from its own start, not from a checkpoint's.
        self.copy.begin(self._loaded, 0 if self._means else clock)

    def follow(self, part: Portion, plan: StepPlan, new_epoch: bool) -> None:
        self._shown = None
        if new_epoch:
            # Under a quorum a worker must start an epoch with the newest copy, or it is too late for the next step.
            self._following &= all(one.quorum is None for one in plan.exchanges)
        # This worker may have had no sample of the epoch before, or get one that was requeued.
        self.copy.client.through(part.epoch)
        if VELOCITY in self._names:
            if self.copy.base is None:  # movements are measured from the last copy
                self.copy.follow(0)
        elif any(one.payload is not Payload.PARAMETERS for one in plan.exchanges):
            due = due_of(plan)
            background = any(one.moment is Moment.BACKGROUND for one in plan.exchanges)
            known = self.copy.base is not None and (self._following or background)
            if not (known and self.copy.least >= due):
                self.copy.follow(due)
        self._following = True

    def gives(self, order: Order, background: bool) -> Tensor | None:
        """Lease the samples of an update, and raise :class:`ConfigError` if the shards would compute another outer
        step than the merge."""
        quorum = order.exchange.quorum
        outer = quorum is not None and order.exchange.payload is Payload.DELTA
        # The shards count updates of a worker by its own clock, except means of a quorum, which are one for each step.
        self.claims.gives(order.clock if quorum is None or outer else self.copy.step + 1)
        if not (background and (outer or self.claims.notes)):
            return None
        own = self._replica.flat.read()
        if outer and order.exchange.merge is not self._checked:
            check_served_step(order.exchange.merge, own)
            self._checked = order.exchange.merge
        return own

    def meet(
        self, order: Order, own: Tensor | None = None, *, background: bool = False, resting: bool = False
    ) -> ExchangeResult | None:
        sent = self.copy.read() if own is None else own.numpy()
        try:
            outcome, late, missed = self._exchanged(order, sent)
        except NonFiniteError:
            return None
        if background:  # the replica keeps its movement since
            self._replica.flat.add(torch.from_numpy(outcome - sent), 1.0)
        else:
            self.copy.write(outcome)
        moved = (outcome - sent)[: self._replica.flat.trained]
        apart = float(np.sqrt(np.mean(np.square(moved)))) if len(moved) else 0.0
        distance = order.exchange.merge.distance(apart)
        counted = None if order.exchange.moment is Moment.BACKGROUND else late
        return ExchangeResult(sent.nbytes, distance, True, 0, late=counted, missed=missed)

    def _exchanged(self, order: Order, own: Values) -> tuple[Values, int, int]:
        """Return the replica that ``own`` (size,) becomes, the updates of others in between, and whether a quorum was
        complete without this worker."""
        exchange, quorum = order.exchange, order.exchange.quorum
        if quorum is None:
            return *self.copy.swap(exchange, order.clock - 1, own, order.waits), 0
        if exchange.payload is not Payload.DELTA:
            outcome, late = self.copy.contribute(quorum.count, own, order.merges.own)
            return outcome, late, int(late > 0)
        served = exchange.merge.served_step()
        assert served is not None, "the caller has checked the merge"
        momentum, rate = served
        weight = max(exchange.merge.weight(order.merges.own), _LEAST)
        how = OuterStep(weight=weight, quorum=quorum.count, momentum=momentum, grace=quorum.grace)
        return self.copy.merge(order.clock - 1, rate * self.copy.moved(own), how), 0, 0

    def gave(self) -> None:
        self.claims.gave()

    def rejoin(self, waits: int) -> None:
        self.copy.follow(waits)  # the copy has not changed, and this worker continues from it

    def more(self) -> bool:
        sampler = self._own_pace.counter.sampler
        return sampler is not None and sampler.more()

    def through(self, epochs: int) -> None:
        # In an elastic run the others may wait at the end of the epoch for a merge of this worker's last movement. So
        # until that is merged, it must count as one of this epoch, and not of the next, for which they would come.
        if not (self.claims.notes and VELOCITY in self._names):
            self.copy.client.through(epochs)

    def left(self, part: Portion) -> None:
        self._following = False
        self.copy.client.through(part.epoch + 1)

    def settles(self) -> bool:
        return not self.copy.begun

    def epoch_over(self) -> None:
        self.copy.client.through(self.claims.over + 1)  # even if this worker had no sample of that epoch

    def rest(self, evaluating: bool) -> None:
        # All workers must reach an evaluation within the time-out.
        with self.copy.client.hurry() if evaluating else nullcontext():
            self._thread.wait()

    def arrive(self, barrier: EvaluationBarrier) -> None:
        """Wait until all remaining workers have arrived and pushed their movements."""
        self._shown = self.copy.read()
        self.copy.client.meet(barrier.number).into([self._shown])

    def shown(self, members: Members, equal: bool, clock: int, place: Place | None) -> Tensor:
        assert self._shown is not None, "arrive() comes first"
        return torch.from_numpy(self._shown)

    def remove_member(self, worker: int) -> Reply | None:
        return self.copy.client.remove_member(worker) if self.copy.begun else None

    def take_over(self, replica: Tensor | None, clock: int) -> bool:
        self.begin(clock)
        self.copy.follow(0)
        return True

    def close(self, failed: bool) -> None:
        """End the run; others may still need a shard in this process, unless an error occurred.
        Raises :class:`PeerError` if the workers' store does not answer."""
        try:
            if self.copy.begun:
                if isinstance(self.claims, LeasedSamples) and not failed:  # no meeting waits for this worker now
                    self.copy.client.remove_member(self._own_pace.rank).result()
                self.copy.client.close(leave=not failed)
        finally:
            self._home.close(self._own_pace.shutdown, self._home.timeout_s, failed=failed)

    def state(
        self, numbers: dict[str, Any], rates: dict[str, float], *, shown: bool
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        vectors = {CENTRE: torch.from_numpy(self._now(shown))}
        if VELOCITY in self._names:
            vectors[VELOCITY] = torch.from_numpy(self.copy.kept())
        return numbers, vectors

    def _now(self, shown: bool) -> Values:
        if shown and self._shown is not None:  # not the replica, whose parameters may be narrower
            return self._shown
        if self.copy.begun:
            return self.copy.pulled()
        return self.copy.read() if self._loaded is None else self._loaded

    def check(self, numbers: dict[str, Any], vectors: dict[str, Tensor]) -> None:
        """Raise :class:`CheckpointError` if the copy does not fit the model, a number is damaged, or training has
        started; vectors of shape (size,)."""
        if self.copy.begun:
            raise CheckpointError(
                "workers already share a copy: load a state before the first batch and the first "
                "session.evaluation_model()"
            )
        if not same_policy(self._policy, numbers) or not vectors:
            return
        with loading("the agreement"):
            read(ServedState, numbers)
            if set(vectors) != self._names:
                raise Misfit(sorted(vectors), f"{', '.join(sorted(self._names))} or nothing", "vectors")
        size = self._replica.flat.size
        if (found := next((len(one) for one in vectors.values() if len(one) != size), size)) != size:
            raise CheckpointError(
                f"the server in the checkpoint has {found} numbers, but this model {size}: resume with the former model"
            )

    def load(
        self, numbers: dict[str, Any], vectors: dict[str, Tensor], *, same: bool
    ) -> tuple[dict[str, Any], dict[str, float]]:
        if not (same and vectors):
            return {}, {}

        def values(name: str) -> Values:
            found: Values = vectors[name].detach().to("cpu", self._replica.flat.dtype, copy=True).numpy()
            return found

        self._loaded = values(CENTRE)
        if VELOCITY in self._names:
            self.copy.velocity = values(VELOCITY)
        return numbers, numbers.get("rates", {})


class SiteAggregator(ServerAggregator):
    """One worker's part; its own steps go only through the server of its site.

    The model to evaluate is the mean of the sites' copies, weighted by their numbers of workers.
    """

    def __init__(self, *rest: Any, parties: Sequence[Members], mean_by: VectorLine, **named: Any) -> None:
        super().__init__(*rest, **named)
        self._parties = tuple(parties)
        self._mean_by = mean_by

    def follow(self, part: Portion, plan: StepPlan, new_epoch: bool) -> None:
        # At the end of an epoch and before an evaluation, no worker waits for those that have stopped; from here on
        # all must wait for each other again.
        if (new_epoch or self._shown is not None) and self.copy.base is not None:
            self.copy.client.through(part.epoch)
            self.copy.client.pull(due_of(plan)).result()
        super().follow(part, plan, new_epoch)

    def arrive(self, barrier: EvaluationBarrier) -> None:
        super().arrive(barrier)
        assert self._shown is not None
        party = next(party for party in self._parties if self._own_pace.rank in party)
        workers = sum(map(len, self._parties))
        part = torch.from_numpy(self._shown * self._shown.dtype.type(len(party) / workers))
        self._mean_by.total(part, RoundPlace("session.evaluation_model()", parties=self._parties))
        self._shown = part.numpy()

    def state(
        self, numbers: dict[str, Any], rates: dict[str, float], *, shown: bool
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return numbers, and vectors of shape (size,): each site will start with the evaluated model, and without
        unsent updates. Raises :class:`CheckpointError` while updates may be under way."""
        if self.copy.begun and not shown:
            raise CheckpointError(
                "movements of other sites are in flight, and would be missing from the checkpoint: save inside "
                "session.evaluation_model(), which waits for them"
            )
        saved, vectors = super().state(numbers, rates, shown=shown)
        return {**saved, "rates": rates}, vectors
