"""How replicas agree through a parameter server: each worker at its own pace, from the samples to the last push.

Before each step the policy is asked for its plan. What it plans goes to the copy when the step is over, and what comes
back is in the replica before the next one begins:

* movements that are added (ASP, SSP): push the movement of the step, pull the copy, which the replica becomes; where
  the next step waits for clocks, the pull does;
* parameters that are drawn together (EASGD): one exchange, which moves copy and replica by the same d;
* gradients of which the first so many count (backup workers): each worker's optimizer makes its step, and the copy
  becomes the mean of what the first have made of it; who comes later goes on from that;
* movements of which the first so many make an outer step (decoupled): pushed while the worker trains on, x ← the copy
  after that step, and what was learnt since.

A worker that finds no more samples in an epoch says so: who still has some does not wait for its clock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from uneven.core.actions import Exchange, Moment, Payload, StepPlan
from uneven.core.records import ExchangeRecord
from uneven.data.order import Portion, Portions
from uneven.errors import ConfigError, NonFiniteError, TrainingError
from uneven.run.lines.traffic import Traffic
from uneven.run.observer import ExchangeObserver
from uneven.run.own_pace.claimed import ClaimedSamples, Unclaimed
from uneven.run.own_pace.in_hand import BatchInHand
from uneven.run.own_pace.shared import OwnPace
from uneven.run.parameter_server.copy import SharedCopy, Values
from uneven.run.parameter_server.home import Home
from uneven.run.parameter_server.outer import OuterMerges
from uneven.run.parameter_server.record import record_of
from uneven.run.parameter_server.saved import centre_of, check_saved, numbers_of
from uneven.run.parameters.exchanges import Order
from uneven.run.parameters.plans import Plans, at_moment
from uneven.run.parameters.replica import Replica
from uneven.run.parameters.saved import taken
from uneven.run.parameters.shadow import ShadowThread
from uneven.server import Reply
from uneven.sync import SyncPolicy, refused

_AHEAD = 4096
"""Steps within which a policy is taken to plan an exchange."""


class Served:
    """One worker's part in the parameter server; stands where ``agree.Agreement`` does among workers themselves.

    Args:
        policy: whose plans are carried out.
        home: where the shards are; it ends with this part.
        own_pace: what the workers share beside the server's parameters.
        traffic: counts what passes between this worker and the shards.
        on_record: called with every exchange.
        on_lost: called once with each rank that has not come to a meeting.
        on_nonfinite: called where the copy has refused an update with a NaN or an infinity; may raise.

    Attributes:
        followed: see ``Agreement``.
        threads: of this worker, which take its steps side by side.
        claims: where workers leave and join, who has which samples.
    """

    def __init__(
        self, policy: SyncPolicy, members: tuple[int, ...], sites: dict[int, str], replica: Replica, *, home: Home,
        own_pace: OwnPace, timeout_s: float, traffic: Traffic, observer: ExchangeObserver,
        on_record: Callable[[ExchangeRecord], None], on_lost: Callable[[int], None],
        on_nonfinite: Callable[[], None],
    ) -> None:  # fmt: skip
        self._policy = policy
        self._replica = replica
        self._plans = Plans(policy, own_pace.rank, members, sites)
        self._home = home
        self._own_pace = own_pace
        self._timeout_s = timeout_s
        self._rank = own_pace.rank
        self.copy = SharedCopy(replica, self._rank, home, timeout_s, traffic)
        self._observer = observer
        self._on_record = on_record
        self._on_lost = on_lost
        self._on_nonfinite = on_nonfinite
        self._shadow: ShadowThread[Order] = ShadowThread(self._beside)
        self._outer = OuterMerges(self.copy, policy, members, sites)
        self._landed: deque[ExchangeRecord] = deque()  # of the shadow
        self._refused = False  # an update of the shadow's
        self._noted: Values | None = None  # the replica with just the samples that were noted for it
        self._loaded: Values | None = None  # the copy to begin with
        self.clock = 0  # steps taken
        self._epoch = -1
        self._iteration = self._gap = self._samples = self._dropped = 0
        self._plan = StepPlan()
        self._in_step: tuple[Exchange, ...] = ()  # the plan's, after the step
        self._background: tuple[Exchange, ...] = ()  # and in the background
        self._rests: tuple[Exchange, ...] = ()  # what it has last planned there
        self._moves = self._quorum = False  # whether the plan pushes movements, and waits for the first so many
        self.followed = False
        self.threads = 1
        self._owed = False  # what the plan says of the last step
        self._in_hand = BatchInHand(lambda part: self.claims.learnt(part))
        self._following = False  # the replica is the copy, as of the last pull
        self._shown: Values | None = None
        self._lost: set[int] = set()
        self.claims: ClaimedSamples | Unclaimed = Unclaimed()

    # ---------------------------------------------------------------- around a step
    def plan(self, ahead: int = 0) -> StepPlan:
        """What the policy wants around the step that is about to begin, or one that comes so many after it.

        Raises:
            ConfigError: something that is not carried.
        """
        plan = self._plans.at(self.clock + ahead)
        if plan is not self._plan and (why := refused(plan, copy=True)):
            raise ConfigError(f"step {self.clock + ahead} of {self._policy!r} cannot be carried: {why}")
        return plan

    def _due(self) -> int:
        """Steps that everybody must have finished before this worker's next one."""
        return max((one.clock for one in self._plans.at(self.clock).waits), default=0)

    def before(self, part: Portion, plan: StepPlan) -> None:
        """See :class:`Exchanging`.

        Raises:
            TrainingError: inside ``session.evaluated()``; or an exchange beside the training has failed.
            PeerError: a shard does not answer, or somebody is too far behind for too long.
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
            self._shadow.paused()
            # Who waits for the first so many only begins with them, or comes too late for the copy that it has.
            self._following &= not self._quorum
        self.copy.client.through(part.epoch)  # without a sample of the one before, or with one that comes again
        self._shadow.resumed()
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
        """Take a plan apart, which seldom is another than that of the step before."""
        self._plan = plan
        self._in_step = (*at_moment(plan, Moment.BACKWARD), *at_moment(plan, Moment.STEP))
        self._background = at_moment(plan, Moment.BACKGROUND)
        self._rests = self._background[:1] or self._rests
        self._moves = any(one.payload is not Payload.PARAMETERS for one in plan.exchanges)
        self._quorum = any(one.quorum is not None for one in plan.exchanges)

    def passing(self, padded: bool) -> None: ...  # each batch counts here

    def still(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._in_hand.trained = True  # each step counts, too

    def after(self, part: Portion, leaving: bool) -> bool:
        """A step is over.

        Args:
            leaving: the loop was left in it, perhaps because of an error: the exchange is made up for later.

        Returns:
            False: nobody has waited for everybody.
        """
        self._count(part)
        if leaving:
            self._shadow.paused()
            self._owed, self._following = True, False
            self.copy.client.through(part.epoch + 1)
            return False
        sampler = self._own_pace.counter.sampler
        more = sampler is not None and sampler.more()  # taken now, so that whoever waits below has its samples
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
        self._shadow.stepped()

    def open(self) -> None:
        """One of several threads is about to take a batch. Nobody waits for anybody here: all is in the background."""
        self.copy.begin(self._loaded, self.clock)
        self._shadow.resumed()

    def over(self, part: Portion) -> None:
        """A step is over, which others of this worker may have run beside."""
        plan = self.plan()
        if plan is not self._plan:
            self._take(plan)
        if self._epoch != part.epoch:
            self._epoch = part.epoch
            self.copy.client.through(part.epoch)
        self._count(part)
        self._carry(0)

    def paused(self) -> None:
        self._shadow.paused()

    @property
    def exchanging(self) -> bool:
        return self._shadow.exchanging

    def _carry(self, due: int) -> None:
        for exchange in self._in_step:
            self._meet(self._order(exchange), due)
        for exchange in self._background:
            if self._shadow.free(exchange.load):
                order = self._order(exchange)
                self._gives(order)
                self._noted = self.copy.read() if self.claims.notes else None
                self._outer.order(exchange)
                self._shadow.offer(order, exchange.load)
            else:
                self._dropped += 1

    def _make_up(self) -> None:
        owed, self._owed = self._owed, False
        if owed:
            self._carry(0)

    def _order(self, exchange: Exchange) -> Order:
        order = Order(
            exchange, clock=self.clock, iteration=self._iteration, samples=self._samples, gap=self._gap, weight=1.0,
            dropped=self._dropped, threads=self.threads,
        )  # fmt: skip
        self._gap = self._samples = self._dropped = 0
        return order

    # ---------------------------------------------------------------- workers that leave and join
    apart = False  # a newcomer begins with the copy, and so has to wait for nothing

    def members_changed(self, members: tuple[int, ...], generation: int) -> None:
        self._plans.members_changed(members, generation)

    def bury(self, worker: int) -> Reply | None:
        return self.copy.client.bury(worker) if self.copy.begun else None

    def settle(self) -> None:
        """Give the copy what it lacks, as at the end of an epoch of an elastic run."""
        if self.copy.begun:
            self._make_up()
            self._settle()
            self.copy.client.through(self.claims.over + 1)  # perhaps without a sample of it
        if self.claims.owes:
            ahead = range(self.clock, self.clock + _AHEAD)
            for exchange in next((found for clock in ahead if (found := self._plans.at(clock).exchanges)), ()):
                self._meet(self._order(exchange), 0)

    def begins_as(self) -> None: ...

    def joined(self, begins_as: Tensor | None) -> None:  # it begins with the copy as it is now
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
                outcome, late = self.copy.contribute(quorum, own, order.samples)
                order = replace(order, dropped=order.dropped + int(late > 0))
            else:
                outcome, late = self.copy.swap(order.exchange, order.clock - 1, own, due)
        except NonFiniteError:  # refused; the copy is as before, and is what this worker goes on from
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

    def _beside(self, order: Order, resting: bool) -> bool:
        """In the shadow's thread: one exchange, after which the replica has kept what it learnt meanwhile."""
        if resting:
            return True
        began_s = time.perf_counter()
        try:
            own, outcome = self._outer.carry(order) or self._swapped(order)
        except NonFiniteError:
            self._refused = True
            self.claims.gave()
            self.copy.follow(0)
            return False
        self.claims.gave()
        meanwhile = self.clock - order.clock
        self._landed.append(self._record(order, own, outcome, meanwhile, began_s))
        self._replica.flat.add(self.copy.tensor(outcome - own), 1.0)
        return False

    def _swapped(self, order: Order) -> tuple[Values, Values]:
        own = self.copy.read() if self._noted is None else self._noted
        return own, self.copy.swap(order.exchange, order.clock - 1, own, 0)[0]

    def _record(self, order: Order, own: Values, outcome: Values, late: int, began_s: float) -> ExchangeRecord:
        moved = (outcome - own)[: self._replica.flat.trained]
        return record_of(order, self._rank, moved, late, own.nbytes, began_s)

    def _write_down(self) -> None:
        """Hand over what the shadow has noted; in the thread that trains."""
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
        """Inside, the model is the copy, the same on all workers, who enter it together; see ``Session.evaluated``."""
        self.copy.begin(self._loaded, self.clock)
        self._make_up()
        with self.copy.client.hurry():  # the others come here, too, within the time-out
            self._settle()
        for exchange in (*self._in_step, *self._background):  # of a step in hand, or that no shadow knows of
            moved = exchange.payload is Payload.DELTA and exchange.quorum is None
            if moved and (self._in_hand.part is not None or exchange.moment is Moment.BACKGROUND):
                self._meet(replace(self._order(exchange), clock=self.clock + self._in_hand.gives()), 0)
        if not bool(torch.isfinite(self._replica.flat.read()).all()):
            self._on_nonfinite()  # in this replica alone, as no exchange has taken it along since
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
        """The copy, when all who are left have come here with all that they had to give."""
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
        self._shadow.paused()
        if self._rests:
            self._shadow.rest(Order(self._rests[0], self.clock, self._iteration, 0, 0, 1.0))
        self._write_down()

    # ---------------------------------------------------------------- checkpoints and the end
    def state_dict(self, parts: Portions, unused: Portions = ()) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Numbers, and vectors of shape (size,); see ``Agreement``."""
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
        """See that :meth:`load_state_dict` can take this up. Nothing is changed.

        Raises:
            CheckpointError: the copy does not fit the model, a number is damaged, or training has begun.
        """
        check_saved(self._policy, self.copy, numbers, vectors, self._replica.flat.size, self._outer.names)

    def load_state_dict(self, numbers: dict[str, Any], vectors: dict[str, Tensor]) -> None:
        """Inverse of :meth:`state_dict`, before the first step; also with other workers. Another policy starts afresh.

        Raises:
            CheckpointError: see :meth:`check`.
        """
        if not check_saved(self._policy, self.copy, numbers, vectors, self._replica.flat.size, self._outer.names):
            return
        self._loaded = centre_of(vectors, self._replica.flat.dtype)
        self._outer.load(vectors, self._replica.flat.dtype)
        self.clock, self._gap, self._samples = numbers["clock"], numbers["gap"], numbers["samples"]
        self._policy.load_state_dict(numbers["own"])

    def leave(self, failed: bool) -> None:
        """The end of the run: others may still need the shard that is here, unless something has gone wrong.

        Raises:
            PeerError: the store that the workers met at does not answer.
        """
        failed = failed or self._shadow.failed
        try:
            if self.copy.begun:
                if not failed:
                    self._settle()
                if isinstance(self.claims, ClaimedSamples) and not failed:  # nobody waits for it at a meeting, either
                    self.copy.client.bury(self._rank).result()
                self.copy.client.close(leave=not failed)
        finally:
            self._shadow.close()
            self._home.close(self._own_pace.shutdown, self._timeout_s, failed=failed)
