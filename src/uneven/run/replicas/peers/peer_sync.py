"""The exchanges of parameters that a policy plans, started after the step that each plan is for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from uneven.errors import ConfigError, PeerError, TrainingError
from uneven.policy.control.ledger import Instruction, LedgerState, Order, StepLedger
from uneven.policy.control.step_plans import StepPlans
from uneven.policy.core.actions import Exchange, Mean, Moment, Payload, StepPlan
from uneven.policy.core.membership import Meeting
from uneven.policy.core.plain import loading, read
from uneven.policy.samples.order import Portion, Portions
from uneven.policy.sync import Evaluated, SyncPolicy, refused
from uneven.run.replicas.peers.announced_merges import announce
from uneven.run.replicas.peers.peer_exchanges import Exchanges, StepPosition
from uneven.run.replicas.peers.replica import DUE, Replica
from uneven.run.replicas.peers.saved_parts import same_policy, taken
from uneven.run.replicas.peers.scaled_learning_rate import DividedSteps
from uneven.run.samples.async_sampling.evaluation_barrier import EvaluationBarrier


class PeerSync:
    """One worker's part in the exchanges of parameters.

    Args:
        barrier: before evaluations, if workers take samples asynchronously.
        plans: the plans for this worker; the policy's own if None.

    Attributes:
        ledger: counts the steps, and makes the orders that follow from them.
    """

    gradients_only = False

    def __init__(
        self,
        policy: SyncPolicy,
        rank: int,
        members: tuple[int, ...],
        sites: dict[int, str],
        replica: Replica,
        barrier: EvaluationBarrier | None = None,
        plans: StepPlans | None = None,
    ) -> None:
        self._barrier = barrier
        self._met_all = True
        self._policy = policy
        self._rank = rank
        self.ledger = StepLedger(plans or StepPlans(policy, rank, members, sites))
        self._replica = replica
        announce(replica, policy, members, sites)
        self._exchanges: Exchanges
        self.followed = False
        self._epoch = -1  # of the next step
        self._begun = self._showing = self._padded = False
        self._held: dict[nn.Parameter, Tensor] = {}  # accumulated gradients when a padded batch came
        self._divided = DividedSteps(rank)

    def carry_by(self, **lines: Any) -> None:
        """Create the lines, on every rank at the same time; the arguments are those of :class:`Exchanges`."""
        self._exchanges = Exchanges(
            self._replica, rank=self._rank, together=self._barrier is None, clock=lambda: self.clock, **lines
        )

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

    # ---------------------------------------------------------------- around a step
    def plan(self, ahead: int = 0) -> StepPlan:
        """Return the policy's plan for the next step, ``ahead`` steps after the counted ones.
        Raises :class:`ConfigError` if it holds something that is not supported."""
        plan = self.ledger.plans.at(self.ledger.clock + ahead)
        if plan is not self.ledger.plan and (why := refused(plan, copy=False) or self._replica.refused(plan)):
            raise ConfigError(f"step {self.clock} of {self._policy!r} cannot be carried: {why}")
        return plan

    def before(self, part: Portion, plan: StepPlan) -> None:
        self.open()
        if part.epoch != self._epoch:
            self._epoch = part.epoch
            self._exchanges.paused()
        self._exchanges.resumed()
        self.ledger.began(plan)
        self._divided.begin(plan, part)
        if not self.followed:
            self.passing(part.batch(self._rank) == 0)

    def passing(self, padded: bool) -> None:
        if padded or self._padded:
            self._padded = padded
            self._held = self._replica.gradients() if padded else {}

    def open(self) -> None:
        """Start with the first step, and make up for exchanges that are owed.
        Raises :class:`TrainingError` inside ``session.evaluated()``, or if an exchange in the background has failed."""
        if self._showing:
            raise TrainingError("the loader was asked for a batch inside session.evaluated(): train outside of it")
        if not self._begun:
            self._begin()
        if owed := self.ledger.owing():
            self._follow(owed)

    def _begin(self) -> None:
        self._replica.begin()
        self._begun = True

    def still(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Remove the gradients of a padded batch before an optimizer step, so that its samples do not count twice."""
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
        instructions = self.ledger.ended(part, self._exchanges.free_for, leaving=leaving)
        self._exchanges.stepped()
        if leaving:
            self._exchanges.paused()
            return False
        entered = bool(instructions) and self._follow(instructions)
        return self.ledger.met or entered

    def _follow(self, instructions: Iterable[Instruction]) -> bool:
        """Carry out instructions; return whether a delayed outcome has entered."""
        entered = False
        for one in instructions:
            if not isinstance(one, Order):
                entered = self._exchanges.enter(one.clock)
            elif one.exchange.moment is Moment.BACKGROUND:
                self._launch(one)
            else:
                self._exchanges.meet(one)
                self.ledger.landed(one)
        return entered

    def _launch(self, order: Order) -> None:
        self._exchanges.begin(order)

    def members_changed(self, members: tuple[int, ...], generation: int) -> None:
        self.ledger.members_changed(members, generation)

    @property
    def apart(self) -> bool:
        return self.ledger.apart

    def groups(self) -> Meeting | None:
        """Return the groups that average gradients in the current step; None means all members together."""
        return self.ledger.groups()

    def settle(self) -> None:
        self._follow(self.ledger.settling())

    def for_newcomers(self) -> Any:
        # The place of the last step, at which a newcomer without a step meets the others.
        return self.state_dict(()), self.ledger.newest

    def take_over(self, state: Any) -> None:
        saved, self.ledger.newest = state
        self.load_state_dict(*saved)

    def paused(self) -> None:
        if not self._begun:  # this worker got no batch of the epoch, and others wait for it when they rest
            self._begin()
        self._exchanges.paused()

    def over(self, part: Portion) -> None:
        """Count a step that may have overlapped with others of this worker; plans are those of the counted steps."""
        plan = self.plan()
        if plan is not self.ledger.plan:
            self.ledger.take(plan)
        self.after(part, leaving=False)

    @property
    def exchanging(self) -> bool:
        return self._exchanges.exchanging

    # ---------------------------------------------------------------- the model that counts
    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """Hold the policy's model to evaluate in the replica. All workers enter; see ``Session.evaluated``."""
        self._begin()
        self._follow(self.ledger.owing())
        self._exchanges.paused()
        with self._met():
            shown = self._shown()
            if shown is None:
                yield
                return
            own = self._replica.flat.read()
            self._replica.flat.write(shown)
            self._showing = True
            try:
                yield
            finally:
                self._showing = False
                self._replica.flat.write(own)

    @contextmanager
    def _met(self) -> Iterator[None]:
        """Wait until nothing is exchanged in the background and all workers agree on the samples that are left."""
        barrier = self._barrier
        if barrier is None:
            self._settle()
            yield
            return
        self._met_all = False
        self._arrive(barrier)
        barrier.meet()
        self._met_all = self._showing = True
        try:
            yield
        finally:
            self._showing = False
            barrier.leave()

    def _arrive(self, barrier: EvaluationBarrier) -> None:
        barrier.arrive()
        self._settle()
        barrier.wait()

    def _shown(self) -> Tensor | None:
        """Return the vector to evaluate; None if it is the replica."""
        if self._policy.evaluated is Evaluated.CENTRE:
            return self._replica.centre
        # With asynchronous sampling others may have taken steps that this worker has not.
        members, equal = self.ledger.plans.members, self.ledger.equal and self._barrier is None
        if self._policy.evaluated is Evaluated.REPLICA or equal or len(members) == 1:
            return None
        everybody = Exchange(payload=Payload.PARAMETERS, members=members, merge=Mean(), moment=Moment.STEP)
        place = StepPosition(*self.ledger.newest, self.clock, shows=True) if self._barrier is None else None
        return self._exchanges.mean(everybody, place)

    def _settle(self) -> None:
        """Finish the exchanges in the background, taking part until the last worker has none."""
        if not self._exchanges.caught_up():
            return
        for order in self.ledger.resting():
            self._exchanges.rest(order)

    # ---------------------------------------------------------------- checkpoints and the end
    def state_dict(self, parts: Portions, unused: Portions = ()) -> tuple[dict[str, Any], dict[str, Tensor]]:
        vectors, kept = self._exchanges.state_dict(self._showing)
        centre = self._showing and self._policy.evaluated is Evaluated.CENTRE and self._barrier is None
        # The centre is the result of the last exchange, so the saved numbers must not count later steps.
        numbers = self.ledger.state(*taken(parts, unused), merged=centre)
        if self._showing and self._exchanges.picks:
            numbers["owed"] = False
        return numbers | {"kept": kept | self._divided.state()}, vectors

    def check(self, numbers: dict[str, Any], vectors: dict[str, Tensor]) -> None:
        if not same_policy(self._policy, numbers):
            return
        with loading("the agreement"):
            read(LedgerState, numbers)
            self._exchanges.check(vectors, numbers.get("kept", {}))

    def load_state_dict(self, numbers: dict[str, Any], vectors: dict[str, Tensor]) -> None:
        """Load :meth:`state_dict`, vectors (size,), also with other workers. Another policy starts from scratch."""
        self.check(numbers, vectors)
        self._exchanges.paused()
        self._exchanges.loaded()
        same = numbers.get("policy") == repr(self._policy)
        kept = numbers.get("kept", {}) if same else {}
        self.ledger.load(numbers, due=round(kept.get(DUE, 0.0)))
        if not same:
            return
        self._divided.load(kept)
        self.ledger.rate = self._divided.rate
        self._exchanges.load_state_dict(vectors, kept)

    def leave(self, failed: bool) -> None:
        """End the run, unless it ``failed`` together with the others; raises :class:`PeerError` if a worker has
        failed."""
        # An error that training or evaluation has raised is not raised again.
        failed = failed or self._exchanges.failed or not self._met_all
        try:
            if self._begun and not failed:
                self._settle()
        except PeerError:
            failed = True
            raise
        finally:
            self._exchanges.close(failed)
