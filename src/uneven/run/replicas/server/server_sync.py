"""Exchanges through a parameter server, asynchronous from the samples to the last push.

The policy returns a plan before each step. Its exchanges go to the copy after the step, and their result is in the
replica before the next one:

* added movements (ASP, SSP): push the step's movement and pull the copy into the replica; the pull waits for clocks;
* elastic averaging (EASGD): one exchange, which moves copy and replica by the same d;
* a quorum of gradients (backup workers): each worker takes its optimizer step, and the mean of the first replicas
  becomes the copy, from which late workers continue;
* outer steps on a quorum of movements (decoupled): pushed while training continues; x ← the new copy + later movement.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from uneven.errors import ConfigError, NonFiniteError, TrainingError
from uneven.policy.control.ledger import Order, Unmerged
from uneven.policy.control.step_plans import StepPlans, at_moment
from uneven.policy.core.actions import Exchange, Moment, Payload, StepPlan
from uneven.policy.core.records import ExchangeRecord
from uneven.policy.samples.order import Portion, Portions
from uneven.policy.sync import SyncPolicy, refused
from uneven.run.context.observer import ExchangeObserver
from uneven.run.lines.traffic import Traffic
from uneven.run.replicas.peers.background_thread import BackgroundThread
from uneven.run.replicas.peers.replica import Replica
from uneven.run.replicas.peers.saved_parts import taken
from uneven.run.replicas.server.client_copy import ServerParameters, Values
from uneven.run.replicas.server.locate import ServerLocation
from uneven.run.replicas.server.outer_round import OuterMerges
from uneven.run.replicas.server.record import record_of
from uneven.run.replicas.server.saved import centre_of, check_saved, numbers_of
from uneven.run.samples.async_sampling.leased_samples import LeasedSamples, NoLeases
from uneven.run.samples.async_sampling.shared import OwnPace
from uneven.run.samples.async_sampling.unacknowledged_batch import BatchInHand
from uneven.runtime.parameter_server import Reply

# A policy must plan an exchange within this many steps.
_AHEAD = 4096


class ServerSync:
    """One worker's part in the parameter server; implements the interface of ``agree.PeerSync``.

    Args:
        home: the shards; closed with this object.
        own_pace: state that the workers share in addition to the server's parameters.
        on_record: called with every exchange.
        on_lost: called once with each rank that has not come to a meeting.
        on_nonfinite: called if the copy has rejected an update with a NaN or an infinity; may raise.

    Attributes:
        threads: of this worker, which take its steps at the same time.
        claims: the leases of samples if workers leave and join.
    """

    gradients_only = False

    def __init__(
        self,
        policy: SyncPolicy,
        members: tuple[int, ...],
        sites: dict[int, str],
        replica: Replica,
        *,
        home: ServerLocation,
        own_pace: OwnPace,
        timeout_s: float,
        traffic: Traffic,
        observer: ExchangeObserver,
        on_record: Callable[[ExchangeRecord], None],
        on_lost: Callable[[int], None],
        on_nonfinite: Callable[[], None],
    ) -> None:
        self._policy = policy
        self._replica = replica
        self._plans = StepPlans(policy, own_pace.rank, members, sites)
        self._home = home
        self._own_pace = own_pace
        self._timeout_s = timeout_s
        self._rank = own_pace.rank
        self.copy = ServerParameters(replica, self._rank, home, timeout_s, traffic)
        self._observer = observer
        self._on_record = on_record
        self._on_lost = on_lost
        self._on_nonfinite = on_nonfinite
        self._thread = BackgroundThread()
        self._outer = OuterMerges(self.copy, policy, members, sites)
        self._landed: deque[ExchangeRecord] = deque()  # of the background thread
        self._refused = False  # the copy has rejected an update of the background thread
        self._noted: Values | None = None  # the replica with exactly the samples noted for it
        self._loaded: Values | None = None  # the initial copy
        self.clock = 0  # steps taken
        self._epoch = -1
        self._iteration = self._gap = self._samples = self._dropped = 0
        self._plan = StepPlan()
        self._in_step: tuple[Exchange, ...] = ()  # the plan's exchanges after the step
        self._background: tuple[Exchange, ...] = ()  # the plan's exchanges in the background
        self._moves = self._quorum = False  # whether the plan pushes movements, and waits for a quorum
        self.followed = False
        self.threads = 1
        self._owed = False  # whether the last step's exchanges are still to be made
        self._in_hand = BatchInHand(lambda part: self.claims.learnt(part))
        self._following = False  # the replica is the copy, as of the last pull
        self._shown: Values | None = None
        self._lost: set[int] = set()
        self.claims: LeasedSamples | NoLeases = NoLeases()

    # ---------------------------------------------------------------- around a step
    def plan(self, ahead: int = 0) -> StepPlan:
        """Return the policy's plan ``ahead`` steps after the counted ones; raises :class:`ConfigError` if it is not
        supported."""
        plan = self._plans.at(self.clock + ahead)
        if plan is not self._plan and (why := refused(plan, copy=True)):
            raise ConfigError(f"step {self.clock + ahead} of {self._policy!r} cannot be carried: {why}")
        return plan

    def _due(self) -> int:
        """Return the steps that all workers must have finished before this worker's next one."""
        return max((one.clock for one in self._plans.at(self.clock).waits), default=0)

    def before(self, part: Portion, plan: StepPlan) -> None:
        """Prepare for a step.

        Raises:
            TrainingError: inside ``session.evaluated()``, or an exchange in the background has failed.
            PeerError: a shard does not answer, or a worker is too far behind for too long.
        """
        if self._shown is not None:
            raise TrainingError("the loader was asked for a batch inside session.evaluated(): train outside of it")
        self.copy.begin(self._loaded, self.clock)
        if self._owed:
            self._make_up()
        if plan is not self._plan:
            self._take(plan)
        if self._epoch != part.epoch:
            self._epoch = part.epoch
            self._thread.paused()
            # Under a quorum a worker must start an epoch with the newest copy, or it is too late for the next step.
            self._following &= not self._quorum
        # This worker may have had no sample of the epoch before, or get one that was requeued.
        self.copy.client.through(part.epoch)
        self._thread.resumed()
        if self._outer.wanted:
            self._outer.begin()
        elif self._moves:
            due = self._due()
            known = self.copy.base is not None and (self._following or bool(self._background))
            if not (known and self.copy.least >= due):
                self.copy.follow(due)
        self._following = True
        self._in_hand.begins(part)

    def _take(self, plan: StepPlan) -> None:
        """Take a plan, which rarely differs from that of the step before."""
        self._plan = plan
        self._in_step = (*at_moment(plan, Moment.BACKWARD), *at_moment(plan, Moment.STEP))
        self._background = at_moment(plan, Moment.BACKGROUND)
        self._moves = any(one.payload is not Payload.PARAMETERS for one in plan.exchanges)
        self._quorum = any(one.quorum is not None for one in plan.exchanges)

    def passing(self, padded: bool) -> None: ...  # each batch counts here

    def still(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._in_hand.trained = True  # each step counts, too

    def after(self, part: Portion, leaving: bool) -> bool:
        """Carry out the exchanges after a step, or later if the loop was left in it (``leaving``)."""
        self._count(part)
        if leaving:
            self._thread.paused()
            self._owed, self._following = True, False
            self.copy.client.through(part.epoch + 1)
            return False  # no worker has waited for all others
        sampler = self._own_pace.counter.sampler
        more = sampler is not None and sampler.more()  # before the wait below, so that this worker keeps its samples
        # A worker without samples reports so, below: workers that still have some do not wait for its clock.
        self._carry(self._due() if self._in_step else 0)
        if not more:
            self.copy.client.through(part.epoch + 1)
        return False

    def _count(self, part: Portion) -> None:
        self.clock += 1
        self._in_hand.ends(part)
        self._gap += 1
        self._samples += part.batch(self._rank)
        self._iteration = part.iteration
        if self._landed or self._refused:
            self._write_down()
        self._thread.stepped()

    def open(self) -> None:
        """Prepare for a batch of one of several threads; does not wait, because all exchanges run in the background."""
        self.copy.begin(self._loaded, self.clock)
        self._thread.resumed()

    def over(self, part: Portion) -> None:
        """Count a step that may have overlapped with others of this worker."""
        plan = self.plan()
        if plan is not self._plan:
            self._take(plan)
        if self._epoch != part.epoch:
            self._epoch = part.epoch
            self.copy.client.through(part.epoch)
        self._count(part)
        self._carry(0)

    def paused(self) -> None:
        self._thread.paused()

    @property
    def exchanging(self) -> bool:
        return self._thread.exchanging

    def _carry(self, due: int) -> None:
        for exchange in self._in_step:
            self._meet(self._order(exchange), due)
        for exchange in self._background:
            if self._thread.free(exchange.background.load):
                order = self._order(exchange)
                self._gives(order)
                self._noted = self.copy.read() if self.claims.notes else None
                self._outer.order(exchange)
                self._thread.launch(partial(self._beside, order), load=exchange.background.load)
            else:
                self._dropped += 1

    def _make_up(self) -> None:
        owed, self._owed = self._owed, False
        if owed:
            self._carry(0)

    def _order(self, exchange: Exchange) -> Order:
        order = Order(
            exchange=exchange,
            clock=self.clock,
            epoch=self._epoch,
            iteration=self._iteration,
            merges=Unmerged(self._gap, self._samples),
            dropped=self._dropped,
            threads=self.threads,
        )
        self._gap = self._samples = self._dropped = 0
        return order

    # ---------------------------------------------------------------- workers that leave and join
    apart = False  # a newcomer starts with the copy, so it never waits

    def members_changed(self, members: tuple[int, ...], generation: int) -> None:
        self._plans.members_changed(members, generation)

    def remove_member(self, worker: int) -> Reply | None:
        return self.copy.client.remove_member(worker) if self.copy.begun else None

    def settle(self) -> None:
        if self.copy.begun:
            self._make_up()
            self._settle()
            self.copy.client.through(self.claims.over + 1)  # even if this worker had no sample of that epoch
        if self.claims.owes:
            ahead = range(self.clock, self.clock + _AHEAD)
            for exchange in next((found for clock in ahead if (found := self._plans.at(clock).exchanges)), ()):
                self._meet(self._order(exchange), 0)

    def groups(self) -> None: ...

    def for_newcomers(self) -> Any:
        return self.state_dict(())

    def take_over(self, state: Any) -> None:
        self.load_state_dict(*state)  # the newcomer starts with the current copy
        self._gap = self._samples = 0
        self.copy.begin(self._loaded, self.clock)
        self.copy.follow(0)

    # ---------------------------------------------------------------- the exchange
    def _gives(self, order: Order) -> None:
        self.claims.gives(order.clock if order.exchange.quorum is None else self.copy.step + 1)

    def _meet(self, order: Order, due: int) -> None:
        began_s = time.perf_counter()
        self._observer.ready()
        own, quorum = self.copy.read(), order.exchange.quorum
        self._gives(order)
        try:
            if quorum is not None:
                outcome, late = self.copy.contribute(quorum.count, own, order.merges.own)
                order = replace(order, dropped=order.dropped + int(late > 0))
            else:
                outcome, late = self.copy.swap(order.exchange, order.clock - 1, own, due)
        except NonFiniteError:  # the copy has not changed, and this worker continues from it
            self._observer.done()
            self.claims.gave()
            self._drop()
            self.copy.follow(due)
            return
        self.claims.gave()
        self.copy.write(outcome)
        self._observer.done()
        late = 0 if order.exchange.moment is Moment.BACKGROUND else late
        self._on_record(self._record(order, own, outcome, late, began_s))

    def _beside(self, order: Order) -> None:
        """Exchange once in the background thread; afterwards the replica has kept its movement since."""
        began_s = time.perf_counter()
        try:
            own, outcome = self._outer.carry(order) or self._swapped(order)
        except NonFiniteError:
            self._refused = True
            self.claims.gave()
            self.copy.follow(0)
            return
        self.claims.gave()
        meanwhile = self.clock - order.clock
        self._landed.append(self._record(order, own, outcome, meanwhile, began_s))
        self._replica.flat.add(self.copy.tensor(outcome - own), 1.0)

    def _swapped(self, order: Order) -> tuple[Values, Values]:
        own = self.copy.read() if self._noted is None else self._noted
        return own, self.copy.swap(order.exchange, order.clock - 1, own, 0)[0]

    def _record(self, order: Order, own: Values, outcome: Values, late: int, began_s: float) -> ExchangeRecord:
        moved = (outcome - own)[: self._replica.flat.trained]
        return record_of(order, self._rank, moved, late, own.nbytes, began_s)

    def _write_down(self) -> None:
        """Report the exchanges of the background thread; call it in the training thread."""
        while self._landed:
            self._on_record(self._landed.popleft())
        if self._refused:
            self._refused = False
            self._drop()

    def _drop(self) -> None:
        self._dropped += 1
        self._on_nonfinite()

    # ---------------------------------------------------------------- the model that counts
    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """Hold the copy in the replica, the same on all workers, which enter together; see ``Session.evaluated``."""
        self.copy.begin(self._loaded, self.clock)
        self._make_up()
        with self.copy.client.hurry():  # all workers must reach this point within the time-out
            self._settle()
        # Movements that no exchange has taken yet: of a step in flight, or since the last background exchange.
        for exchange in (*self._in_step, *self._background):
            moved = exchange.payload is Payload.DELTA and exchange.quorum is None
            if moved and (self._in_hand.part is not None or exchange.moment is Moment.BACKGROUND):
                self._meet(replace(self._order(exchange), clock=self.clock + self._in_hand.gives()), 0)
        if not bool(torch.isfinite(self._replica.flat.read()).all()):
            self._on_nonfinite()  # only in this replica, because no exchange has sent it yet
        self._shown = self._met()
        own = self._replica.flat.read()
        self.copy.write(self._shown)
        try:
            yield
        finally:
            self._shown = None
            self._own_pace.barrier.leave()
            self._replica.flat.write(own)

    def _met(self) -> Values:
        """Return the copy, shape (size,), when all remaining workers have arrived and pushed their movements."""
        barrier = self._own_pace.barrier
        barrier.arrive()
        values = self.copy.read()
        self.copy.client.meet(barrier.number).into([values])
        for rank in barrier.meet():
            if rank not in self._lost:
                self._lost.add(rank)
                self._on_lost(rank)
        return values

    def _settle(self) -> None:
        self._thread.paused()
        self._thread.wait()
        self._write_down()

    # ---------------------------------------------------------------- checkpoints and the end
    def state_dict(self, parts: Portions, unused: Portions = ()) -> tuple[dict[str, Any], dict[str, Tensor]]:
        more, less = taken(parts, unused)
        samples = sum(part.batch(self._rank) for part in more) - sum(part.batch(self._rank) for part in less)
        steps = len(more) - len(less)
        numbers = numbers_of(self._policy, self.clock + steps, self._gap + steps, self._samples + samples)
        return numbers, {"centre": self.copy.tensor(self._now()), **self._outer.state()}

    def _now(self) -> Values:
        if self._shown is not None:
            return self._shown
        if self.copy.begun:
            return self.copy.pulled()
        return self.copy.read() if self._loaded is None else self._loaded

    def check(self, numbers: dict[str, Any], vectors: dict[str, Tensor]) -> None:
        """Raise :class:`CheckpointError` if :meth:`load_state_dict` cannot load these, vectors (size,); nothing is
        changed."""
        check_saved(self._policy, self.copy, numbers, vectors, self._replica.flat.size, self._outer.names)

    def load_state_dict(self, numbers: dict[str, Any], vectors: dict[str, Tensor]) -> None:
        """Load :meth:`state_dict`, vectors (size,), before the first step, also with other workers. Another policy
        starts from scratch."""
        if not check_saved(self._policy, self.copy, numbers, vectors, self._replica.flat.size, self._outer.names):
            return
        self._loaded = centre_of(vectors, self._replica.flat.dtype)
        self._outer.load(vectors, self._replica.flat.dtype)
        self.clock, self._gap, self._samples = numbers["clock"], numbers["gap"], numbers["samples"]
        self._policy.load_state_dict(numbers["own"])

    def leave(self, failed: bool) -> None:
        """End the run; others may still need a shard in this process, unless an error occurred.
        Raises :class:`PeerError` if the workers' store does not answer."""
        failed = failed or self._thread.failed
        try:
            if self.copy.begun:
                if not failed:
                    self._settle()
                if isinstance(self.claims, LeasedSamples) and not failed:  # no meeting waits for this worker now
                    self.copy.client.remove_member(self._rank).result()
                self.copy.client.close(leave=not failed)
        finally:
            self._thread.close()
            self._home.close(self._own_pace.shutdown, self._timeout_s, failed=failed)
