"""The driver of one worker's exchanges in addition to gradients."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from uneven.errors import ConfigError, PeerError, TrainingError
from uneven.policy.control.ledger import Instruction, Order, StepLedger, Unmerged
from uneven.policy.core.actions import Exchange, Moment, Payload, StepPlan
from uneven.policy.core.membership import Meeting, Members
from uneven.policy.core.records import ExchangeRecord
from uneven.policy.samples.order import Portion, Portions
from uneven.policy.sync import EvaluationModel
from uneven.run.measure.meter import Meter
from uneven.run.replicas.aggregator import Aggregator
from uneven.run.replicas.background_thread import BackgroundThread
from uneven.run.replicas.merge_state import taken
from uneven.run.replicas.no_sync import NoSync
from uneven.run.replicas.replica import DUE, ExchangeResult, Replica
from uneven.run.replicas.scaled_learning_rate import DividedSteps
from uneven.run.samples.async_sampling.evaluation_barrier import EvaluationBarrier


class ReplicaSync(NoSync):
    """The driver of one worker's exchanges: asks the ledger, and lets the aggregator carry out its orders.

    Args:
        ledger: counts the steps, and makes the orders that follow from them.
        thread: makes the exchanges in the background.
        on_record: called with every exchange, in the training thread.
        on_nonfinite: called if this replica has brought a NaN or an infinity into an exchange; may raise.
        barrier: before evaluations, if workers take samples asynchronously.
        on_lost: called with each rank that has not come to an evaluation.
    """

    gradients_only = False

    def __init__(
        self,
        ledger: StepLedger,
        replica: Replica,
        aggregator: Aggregator,
        thread: BackgroundThread,
        *,
        observer: Meter,
        on_record: Callable[[ExchangeRecord], None],
        on_nonfinite: Callable[[], None],
        barrier: EvaluationBarrier | None = None,
        on_lost: Callable[[int], None] = lambda rank: None,
    ) -> None:
        self.ledger = ledger
        self.aggregator = aggregator
        self.hand = aggregator.hand
        self._rank = ledger.plans.rank
        self._replica = replica
        self._thread = thread
        self._observer = observer
        self._on_record = on_record
        self._on_nonfinite = on_nonfinite
        self._barrier = barrier
        self._on_lost = on_lost
        self._epoch = -1  # of the next step
        self._begun = self._showing = self._padded = False
        self._met_all = True
        self._held: dict[nn.Parameter, Tensor] = {}  # accumulated gradients when a padded batch came
        self._divided = DividedSteps(self._rank)
        self._landed: deque[tuple[ExchangeRecord | None, bool]] = deque()  # None was rejected; whether it is finite

    @property
    def clock(self) -> int:
        return self.ledger.clock

    @clock.setter
    def clock(self, clock: int) -> None:
        self.ledger.clock = clock

    @property
    def threads(self) -> int:
        return self.ledger.threads

    @threads.setter
    def threads(self, threads: int) -> None:
        self.ledger.threads = threads

    def plan(self, ahead: int = 0) -> StepPlan:
        """Return the policy's plan for the next step, ``ahead`` steps after the counted ones.
        Raises :class:`ConfigError` if it holds something that is not supported."""
        clock, plans = self.ledger.clock + ahead, self.ledger.plans
        plan = plans.at(clock)
        if plan is not self.ledger.plan and (why := self.aggregator.refused(plan)):
            raise ConfigError(f"step {clock} of {plans.policy!r} is not supported: {why}")
        return plan

    def before(self, part: Portion, plan: StepPlan) -> None:
        self.open()
        if new_epoch := part.epoch != self._epoch:
            self._epoch = part.epoch
            self._thread.paused()
        self._thread.resumed()
        self.ledger.began(plan)
        self.aggregator.follow(part, plan, new_epoch)
        if self.hand is not None:
            self.hand.begins(part)
        self._divided.begin(plan, part)
        if not self.followed:
            self.passing(part.batch(self._rank) == 0)

    def open(self) -> None:
        """Start with the first step, and make up for exchanges that are owed.
        Raises :class:`TrainingError` inside ``session.evaluation_model()``, or if an exchange in the background has
        failed."""
        if self._showing:
            raise TrainingError("a batch was requested inside session.evaluation_model(): train outside of it")
        if not self._begun:
            self._begin()
        if owed := self.ledger.owing(self._free_for):
            self._follow(owed)

    def _begin(self) -> None:
        self.aggregator.begin(self.clock)
        self._begun = True

    def passing(self, padded: bool) -> None:
        if padded or self._padded:
            self._padded = padded
            self._held = self._replica.gradients() if padded else {}

    def still(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Remove the gradients of a padded batch before an optimizer step, so that its samples do not count twice."""
        if self.hand is not None:
            self.hand.trained = True
        self._divided.weigh(optimizer)
        self.ledger.rate = self._divided.rate
        # If gradients are accumulated, those of earlier batches stay.
        if self._padded and not any(one.payload is Payload.GRADIENT for one in self.ledger.plan.exchanges):
            for parameter in (one for group in optimizer.param_groups for one in group["params"]):
                if parameter.grad is not None and (held := self._held.get(parameter)) is not None:
                    parameter.grad.copy_(held)
                elif parameter.grad is not None:
                    parameter.grad.zero_()

    def after(self, part: Portion, leaving: bool) -> bool:
        """Carry out the exchanges after a step, or keep them for later if the loop was left in it (``leaving``).
        Returns whether all workers have waited for each other, or in groups for some."""
        if self.hand is not None:
            self.hand.ends(part)
        instructions = self.ledger.ended(part, self._free_for, leaving=leaving)
        if self._landed:
            self.write_down()
        if self.aggregator.shadowed:
            self._thread.stepped()
        if leaving:
            self._thread.paused()
            self.aggregator.left(part)
            return False
        # Before the wait below, so that this worker keeps its samples; several threads take them as they need them.
        more = not self.ledger.served or self.ledger.threads > 1 or self.aggregator.more()
        entered = bool(instructions) and self._follow(instructions)
        if not more:  # the workers that still have samples do not wait for this one's clock
            self.aggregator.through(part.epoch + 1)
        return self.ledger.met or entered

    def enter(self, part: Portion, ahead: int) -> bool:
        """Prepare for a batch of one of several threads, with ``ahead`` steps under way. Return whether the next one
        must wait for all of them."""
        self.open()
        plan, new_epoch = self.plan(ahead), part.epoch != self._epoch
        self._epoch = part.epoch
        self.aggregator.follow(part, plan, new_epoch)
        return self.ledger.stops(plan, ahead)

    def over(self, part: Portion) -> None:
        """Count a step that may have overlapped with others of this worker; plans are those of the counted steps."""
        plan = self.plan()
        if plan is not self.ledger.plan:
            self.ledger.take(plan)
        self.after(part, leaving=False)

    def _free_for(self, exchange: Exchange) -> bool:
        """Return whether it may start in the background: nothing is under way, and its load allows it.
        Raises :class:`TrainingError` if an exchange there has failed."""
        return self._thread.free(1.0 if self.aggregator.urgent else exchange.background.load)

    def paused(self) -> None:
        if not self._begun and self.aggregator.rests:  # without a batch in the epoch; others wait for it when they rest
            self._begin()
        self._thread.paused()

    @property
    def exchanging(self) -> bool:
        return self._thread.exchanging

    def _follow(self, instructions: Iterable[Instruction]) -> bool:
        """Carry out instructions; return whether a delayed outcome has entered."""
        entered = False
        for one in instructions:
            if not isinstance(one, Order):
                entered = self._enter(one.clock)
            elif one.exchange.moment is Moment.BACKGROUND:
                self._launch(one)
            elif one.exchange.delay:
                self._begin_late(one)
            else:
                self._meet(one)
        return entered

    def _meet(self, order: Order) -> None:
        """Exchange while the training waits."""
        began_s = time.perf_counter()
        self._observer.ready()
        own = self.aggregator.gives(order, background=False)
        met = self.aggregator.meet(order, own)
        self.aggregator.gave()
        self._observer.done()
        self._note(order, met, time.perf_counter() - began_s)
        self.ledger.landed(order)
        self.write_down()
        if met is None:
            self.aggregator.rejoin(order.waits)

    def _launch(self, order: Order) -> None:
        """Exchange in the background; no other exchange may be under way there."""
        own = self.aggregator.gives(order, background=True)
        gather = self.aggregator.gather(order)
        self._thread.launch(partial(self._aside, order, own), gather, order.exchange.background.load)

    def _aside(self, order: Order, own: Tensor | None = None, resting: bool = False) -> bool:
        """Exchange once in the background thread; return whether all workers rest."""
        began_s, merges = time.perf_counter(), order.merges
        met = self.aggregator.meet(order, own, background=True, resting=resting)
        if merges.weight or (merges.gap and not resting):
            self._note(order, met, time.perf_counter() - began_s)
        self.aggregator.gave()
        if met is None:
            self.aggregator.rejoin(0)
        return met is not None and met.resting == len(order.exchange.members)

    def _rest(self, order: Order) -> None:
        """Take part in background exchanges until all rest; the first of them merges this worker's steps."""
        orders, later = iter((order,)), replace(order, merges=Unmerged())
        self._thread.rest(lambda: self._aside(next(orders, later), resting=True), self.aggregator.gather(order))

    def _begin_late(self, order: Order) -> None:
        sends = order.exchange.select is not None  # now; a piece is sent by the background thread
        if sends:
            self._observer.ready()
        held = self.aggregator.begin_late(order, partial(self._note, order))
        if sends:
            self._observer.done()
        if held is not None:
            self._thread.hold(*held)
            self._replica.due = order.clock + order.exchange.delay
        self.ledger.landed(order)

    def _enter(self, clock: int) -> bool:
        """Wait for an outcome that is due after ``clock`` steps and apply it; return whether there was one."""
        if self._replica.due is None or clock < self._replica.due:
            return False
        self._observer.ready()
        self._thread.arrive()
        self._replica.enter()
        self._observer.done()
        self.write_down()
        return True

    def _note(self, order: Order, met: ExchangeResult | None, took_s: float) -> None:
        if met is None:
            self._landed.append((None, False))
            return
        moment = order.exchange.moment
        record = ExchangeRecord(
            rank=self._rank,
            iteration=order.iteration,
            at_s=time.time(),
            moment=(Moment.STEP if moment is Moment.BACKWARD else moment).value,
            members=len(order.exchange.members),
            samples=order.merges.own,
            gap=order.merges.gap,
            late=max(0, self.clock - order.clock) if met.late is None else met.late,
            took_s=took_s,
            sent_bytes=met.sent_bytes,
            distance=met.distance,
            dropped=order.dropped + met.missed,
            threads=order.threads,
            picked=met.picked,
        )
        self._landed.append((record, met.finite))

    def write_down(self) -> None:
        """Report finished exchanges; call it in the training thread."""
        while self._landed:
            record, finite = self._landed.popleft()
            if record is None:
                self.ledger.dropped += 1
            else:
                self._on_record(record)
            if not finite:
                self._on_nonfinite()

    def members_changed(self, members: Members, generation: int) -> None:
        here = self._rank in self.ledger.plans.members  # a newcomer is given the state of the others later
        alone = here and self._replica.moves and not self.ledger.in_regions
        self.ledger.members_changed(members, generation)
        self._divided.members_changed(self.ledger.plan)
        if alone and self.ledger.in_regions:
            # One region makes no exchange between regions: what their merge keeps is of the time before.
            self._replica.begin_again(Payload.PARAMETERS)

    @property
    def apart(self) -> bool:
        return self.ledger.apart

    def groups(self) -> Meeting | None:
        return self.ledger.groups()

    @property
    def idle(self) -> bool:
        """True if no exchange is under way in the background; raises TrainingError if one has failed."""
        return self._thread.free()

    def merge(self) -> None:
        """Start the next background exchange, with all steps that were made."""
        self._begin()
        for order in self.ledger.resting():
            self._launch(order)

    def remove_member(self, worker: int) -> Any:
        """Remove a failed worker: no worker waits for it, and its further updates are rejected. Returns immediately;
        None if this worker is not connected to the server yet."""
        return self.aggregator.remove_member(worker)

    def settle(self) -> None:
        if not self.aggregator.settles():
            self._follow(self.ledger.owing(self._free_for))
            self._thread.wait()
            for order in self.ledger.settling():
                self._meet(order)
            self.aggregator.epoch_over()
        self.write_down()

    def for_newcomers(self) -> Any:
        # The place of the last step, at which a newcomer without a step meets the others.
        return self.state_dict(()), self.ledger.newest, self.aggregator.for_newcomers(), self._rank

    def take_over(self, state: Any) -> None:
        saved, self.ledger.newest, replica, donor = state
        self.load_state_dict(*saved)
        if self._replica.moves and not self.ledger.meets(donor):
            # A site's first worker: the replica is that of all, and the momentum of another site is not its own.
            self._replica.begin_again(Payload.DELTA)
        if self.aggregator.take_over(replica, self.clock):
            self._begun = True
            self.ledger.forget()

    @contextmanager
    def evaluation_model(self) -> Iterator[None]:
        self._begin()
        self._follow(self.ledger.owing(self._free_for))
        self._thread.paused()
        self._met_all = self._barrier is None or self.ledger.served  # the end of a run through a server waits for none
        self._arrive()
        self._met_all, own, before = True, None, self._showing
        try:
            if (shown := self._shown()) is not None:
                own = self._replica.flat.read()
                self._replica.flat.write(shown)
            self._showing = shown is not None or self._barrier is not None
            yield
        finally:
            self._showing = before
            if own is not None:
                self._replica.flat.write(own)
            if self._barrier is not None:
                self._barrier.leave()

    def _arrive(self) -> None:
        """Wait until nothing is under way and all workers agree on the samples that are left."""
        ledger, barrier = self.ledger, self._barrier
        in_hand = -1 if self.hand is None or self.hand.part is None else self.hand.gives()
        self._finish(evaluating=True)
        for order in ledger.showing(in_hand):
            self._meet(order)
        if ledger.served and not bool(torch.isfinite(self._replica.flat.read()).all()):
            self._on_nonfinite()  # only in this replica, because no exchange has sent it yet
        if barrier is not None:
            barrier.arrive()
            self.aggregator.arrive(barrier)
            for rank in barrier.meet():
                self._on_lost(rank)

    def _shown(self) -> Tensor | None:
        """Return the model to evaluate, shape (size,); None if it is the replica."""
        # With asynchronous sampling others may have taken steps that this worker has not.
        ledger, in_step = self.ledger, self._barrier is None
        place = ledger.newest if in_step else None
        return self.aggregator.shown(ledger.plans.members, ledger.equal and in_step, ledger.clock, place)

    def _finish(self, *, evaluating: bool = False) -> None:
        """Finish the exchanges in the background, taking part until the last worker has none."""
        self.aggregator.rest(evaluating)
        self._thread.arrive()
        for order in self.ledger.resting() if self.aggregator.rests else ():
            self._rest(order)
        self.write_down()

    def state_dict(self, parts: Portions, unused: Portions = ()) -> tuple[dict[str, Any], dict[str, Tensor]]:
        self._thread.arrive()
        centre = self.ledger.plans.policy.evaluation_model is EvaluationModel.CENTRE and self._barrier is None
        # The centre is the result of the last exchange, so the saved numbers must not count later steps.
        numbers = self.ledger.state(*taken(parts, unused), merged=self._showing and centre)
        return self.aggregator.state(numbers, self._divided.state(), shown=self._showing)

    def check(self, numbers: dict[str, Any], vectors: dict[str, Tensor]) -> None:
        self.aggregator.check(numbers, vectors)

    def load_state_dict(self, numbers: dict[str, Any], vectors: dict[str, Tensor]) -> None:
        self.check(numbers, vectors)
        self._thread.paused()
        self._thread.arrive(drop=True)
        same = numbers.get("policy") == repr(self.ledger.plans.policy)
        counted, kept = self.aggregator.load(numbers, vectors, same=same)
        self.ledger.load(counted, due=round(kept.get(DUE, 0.0)))
        if same:
            self._divided.load(kept)
            self.ledger.rate = self._divided.rate

    def leave(self, failed: bool) -> None:
        """End the run, unless it ``failed`` together with the others; raises :class:`PeerError` if a worker has
        failed."""
        # An error that training or evaluation has raised is not raised again.
        failed = failed or self._thread.failed or not self._met_all
        try:
            if self._begun and not failed:
                self._finish()
        except PeerError:
            failed = True
            raise
        finally:
            self._thread.close()
            self.aggregator.close(failed)
