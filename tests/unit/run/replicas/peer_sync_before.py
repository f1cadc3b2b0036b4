"""PeerSync as it was before the ledger: the reference of the parity test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NotRequired, TypedDict

import torch
from plans_before import Order, Plans, at_moment
from torch import Tensor, nn

from uneven.errors import ConfigError, PeerError, TrainingError
from uneven.policy.core.actions import Exchange, Mean, Moment, Payload, StepPlan
from uneven.policy.core.membership import Meeting
from uneven.policy.core.plain import Amount, Count, loading, read
from uneven.policy.samples.order import Cursor, Portion, Portions
from uneven.policy.sync import Evaluated, Pace, SyncPolicy, refused
from uneven.run.replicas.peers.announced_merges import announce
from uneven.run.replicas.peers.peer_exchanges import StepPosition
from uneven.run.replicas.peers.replica import Replica
from uneven.run.replicas.peers.saved_parts import same_policy, taken
from uneven.run.replicas.peers.scaled_learning_rate import DividedSteps
from uneven.run.samples.async_sampling.evaluation_barrier import EvaluationBarrier

# A policy must plan an exchange within this many steps.
_AHEAD = 4096


class _AgreementNumbers(TypedDict):
    own: dict[str, Any]
    clock: Count
    gap: Count
    fresh: list[Count]
    since: NotRequired[list[Count] | None]
    kept: NotRequired[dict[str, Amount]]
    owed: bool


class OldPeerSync:
    """One worker's part in the exchanges of parameters.

    Args:
        barrier: before evaluations, if workers take samples asynchronously.
        plans: the plans for this worker; the policy's own if None.

    Attributes:
        clock: steps taken.
        threads: that take steps at the same time.
        equal: whether all replicas are known to be equal.
    """

    def __init__(
        self,
        policy: SyncPolicy,
        rank: int,
        members: tuple[int, ...],
        sites: dict[int, str],
        replica: Replica,
        barrier: EvaluationBarrier | None = None,
        plans: Plans | None = None,
    ) -> None:
        self._barrier = barrier
        self._met_all = True
        self._policy = policy
        self._rank = rank
        self._members = members
        self._plans = plans or Plans(policy, rank, members, sites)
        self._replica = replica
        announce(replica, policy, members, sites)
        self._exchanges: Any
        self.clock = 0
        self.threads = 1
        self.followed = False
        facts = policy.facts
        self._group_every = facts.every if facts is not None and facts.pace is Pace.GROUPS else None
        self._plan = StepPlan()
        self._after: tuple[Exchange, ...] = ()  # the plan's exchanges after the step
        self._beside: tuple[Exchange, ...] = ()  # the plan's exchanges in the background
        self._waits_for_all = False
        self._owed: tuple[Exchange, ...] = ()
        self._iteration = self._gap = self._dropped = 0
        self._epoch = self._counted = -1  # epochs of the next step and of the last one
        self._fresh: dict[int, int] = {}  # samples of each rank since its last exchange
        self._since: Cursor | None = None  # the place of the first step since the last exchange
        self._begun = self._showing = self._padded = False
        self._held: dict[nn.Parameter, Tensor] = {}  # accumulated gradients when a padded batch came
        self.equal = True
        self._divided = DividedSteps(rank)

    # ---------------------------------------------------------------- around a step
    def plan(self, ahead: int = 0) -> StepPlan:
        """Return the policy's plan for the next step, ``ahead`` steps after the counted ones.
        Raises :class:`ConfigError` if it holds something that is not supported."""
        plan = self._plans.at(self.clock + ahead)
        if plan is not self._plan and (why := refused(plan, copy=False) or self._replica.refused(plan)):
            raise ConfigError(f"step {self.clock} of {self._policy!r} cannot be carried: {why}")
        return plan

    def before(self, part: Portion, plan: StepPlan) -> None:
        self.open()
        if part.epoch != self._epoch:
            self._epoch = part.epoch
            self._exchanges.paused()
        self._exchanges.resumed()
        if plan is not self._plan:
            self._take(plan)
        self._divided.begin(plan, part)
        self.equal = False  # an evaluation in the middle of the loop comes after this step
        if not self.followed:
            self.passing(part.batch(self._rank) == 0)

    def passing(self, padded: bool) -> None:
        if padded or self._padded:
            self._padded = padded
            self._held = self._replica.gradients() if padded else {}

    def _take(self, plan: StepPlan) -> None:
        """Take a plan, which rarely differs from that of the step before."""
        self._plan = plan
        self._after, self._beside = at_moment(plan, Moment.STEP), at_moment(plan, Moment.BACKGROUND)
        waited = (one for one in plan.exchanges if one.moment is not Moment.BACKGROUND and not one.delay)
        self._waits_for_all = any(len(one.members) == len(self._members) for one in waited)

    def open(self) -> None:
        """Start with the first step, and make up for exchanges that are owed.
        Raises :class:`TrainingError` inside ``session.evaluated()``, or if an exchange in the background has failed."""
        if self._showing:
            raise TrainingError("the loader was asked for a batch inside session.evaluated(): train outside of it")
        if not self._begun:
            self._begin()
        self._make_up()

    def _begin(self) -> None:
        self._replica.begin()
        self._begun = True

    def still(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Remove the gradients of a padded batch before an optimizer step, so that its samples do not count twice."""
        self._divided.weigh(optimizer)
        # If gradients are accumulated, those of earlier batches stay.
        if self._padded and not any(one.payload is Payload.GRADIENT for one in self._plan.exchanges):
            for parameter in (one for group in optimizer.param_groups for one in group["params"]):
                if parameter.grad is not None and (held := self._held.get(parameter)) is not None:
                    parameter.grad.copy_(held)
                elif parameter.grad is not None:
                    parameter.grad.zero_()

    def after(self, part: Portion, leaving: bool) -> bool:
        """Carry out the exchanges after a step, or keep them for later if the loop was left in it (``leaving``).
        Returns whether all workers have waited for each other, or in groups for some."""
        self.clock, self._gap = self.clock + 1, self._gap + 1
        self._iteration, self._counted = part.iteration, part.epoch
        self._since = self._since or part.before
        for rank, samples in zip(part.members or self._members, part.shares, strict=True):
            self._fresh[rank] = self._fresh.get(rank, 0) + samples
        self.equal = False
        self._exchanges.stepped()
        if leaving:  # perhaps because of an error on this worker only, so exchanging now could hang the others
            self._dropped += len(self._beside)
            self._exchanges.paused()
            self._owed = self._after
            return False
        entered = self._exchanges.enter(self.clock)
        for exchange in self._after:
            self._meet(exchange)
        for exchange in self._beside:
            if self._exchanges.free_for(exchange):
                self._exchanges.begin(self._order(exchange))
            else:
                self._dropped += 1
        return self._all_met() or entered

    def members_changed(self, members: tuple[int, ...], generation: int) -> None:
        if not set(members) <= set(self._members):
            self.equal = False  # a newcomer starts with one of the replicas; all workers know so at the same step
        self._members = members
        self._plans.members_changed(members, generation)

    @property
    def apart(self) -> bool:
        """True if replicas differ because of separate steps; the same on all workers."""
        averaged = (one.members for one in self._plan.exchanges if one.payload is Payload.GRADIENT)
        return self._gap > 0 and not any(len(those) == len(self._members) for those in averaged)

    def groups(self) -> Meeting | None:
        """Return the groups that average gradients in the current step; None means all members together."""
        return self._plans.groups(self.clock, Payload.GRADIENT)

    def settle(self) -> None:
        self._make_up()
        if self.apart or (self._plans.grouped and not self.equal):
            for exchange in self._next(Moment.STEP):
                self._meet(replace(exchange, members=self._members), all_meet=True)

    def begins_as(self) -> Tensor | None:
        # The place of the last step, at which a newcomer without a step meets the others.
        return torch.tensor([self._counted, self._iteration])

    def joined(self, begins_as: Tensor | None) -> None:
        assert begins_as is not None
        self._counted, self._iteration = map(int, begins_as)

    def paused(self) -> None:
        self._exchanges.paused()

    def over(self, part: Portion) -> None:
        """Count a step that may have overlapped with others of this worker; plans are those of the counted steps."""
        plan = self.plan()
        if plan is not self._plan:
            self._take(plan)
        self.after(part, leaving=False)

    @property
    def exchanging(self) -> bool:
        return self._exchanges.exchanging

    def _all_met(self) -> bool:
        """Return whether all workers met; the same on every worker, even if it is in a group of one and exchanges
        nothing."""
        if self._group_every is not None:  # a worker may still wait for another group
            return self.clock % self._group_every == 0
        return self._waits_for_all

    def _make_up(self) -> None:
        self._exchanges.enter(self.clock)
        owed, self._owed = self._owed, ()
        for exchange in owed:
            self._meet(exchange)

    def _meet(self, exchange: Exchange, all_meet: bool = False) -> None:
        equal = len(exchange.members) == len(self._members)  # before the exchange, which may change the members
        if exchange.select is not None and not exchange.select.beside:
            equal = False  # each replica still holds the entries that it has not sent
        if exchange.piece is not None or exchange.delay:
            equal = False  # other pieces have moved since their exchange; a delayed outcome has not entered
        groups = None if all_meet else self._plans.groups(self.clock - 1, exchange.payload)
        self._exchanges.meet(self._order(exchange), groups)
        self.equal = equal

    def _order(self, exchange: Exchange) -> Order:
        party = next((party for party in exchange.parties if self._rank in party), (self._rank,))
        order = Order(
            exchange,
            clock=self.clock,
            iteration=self._iteration,
            samples=self._fresh.get(self._rank, 0),
            gap=self._gap,
            weight=sum(self._fresh.get(rank, 0) for rank in party),
            dropped=self._dropped,
            threads=self.threads,
            place=self._place(),
            part=1 / len(exchange.parties) if self._plan.divided else 1.0,
            rate=self._divided.rate,
        )
        self._fresh = {}  # of all ranks: those outside these members meet other ranks
        self._gap = self._dropped = 0
        self._since = None
        return order

    def _place(self, shows: bool = False) -> StepPosition | None:
        """Return the place in the loop; None if workers take samples asynchronously."""
        return StepPosition(self._counted, self._iteration, self.clock, shows) if self._barrier is None else None

    # ---------------------------------------------------------------- the model that counts
    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """Hold the policy's model to evaluate in the replica. All workers enter; see ``Session.evaluated``."""
        self._begin()
        self._make_up()
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
        equal = self.equal and self._barrier is None
        if self._policy.evaluated is Evaluated.REPLICA or equal or len(self._members) == 1:
            return None
        everybody = Exchange(payload=Payload.PARAMETERS, members=self._members, merge=Mean(), moment=Moment.STEP)
        return self._exchanges.mean(everybody, self._place(shows=True))

    def _settle(self) -> None:
        """Finish the exchanges in the background, taking part until the last worker has none."""
        if not self._exchanges.caught_up():
            return
        for exchange in self._next(Moment.BACKGROUND):
            self._exchanges.rest(self._order(exchange))

    def _next(self, moment: Moment) -> tuple[Exchange, ...]:
        ahead = range(self.clock, self.clock + _AHEAD)
        return next((found for clock in ahead if (found := at_moment(self._plans.at(clock), moment))), ())

    # ---------------------------------------------------------------- checkpoints and the end
    def state_dict(self, parts: Portions, unused: Portions = ()) -> tuple[dict[str, Any], dict[str, Tensor]]:
        more, less = taken(parts, unused)
        hand = len(more)

        def counted(rank: int) -> int:
            own = self._fresh.get(rank, 0) + sum(part.batch(rank) for part in more)
            return max(0, own - sum(part.batch(rank) for part in less))

        fresh = [counted(rank) for rank in self._members]
        owed = at_moment(self._plans.at(self.clock + hand - 1), Moment.STEP) if more else self._owed
        since = self._since or next((part.before for part in more), None)
        vectors, kept = self._exchanges.state_dict(self._showing)
        numbers = {
            "policy": repr(self._policy),
            "own": self._policy.state_dict(),
            "clock": self.clock + hand - len(less),
            "gap": max(0, self._gap + hand - len(less)),
            "fresh": fresh,
            "since": since,
            "kept": kept | self._divided.state(),
            "owed": bool(owed) and not (self._showing and self._exchanges.picks),
        }
        if self._showing and self._policy.evaluated is Evaluated.CENTRE and self._barrier is None:
            # The centre is the result of the last exchange, so the saved numbers must not count later steps.
            as_then = {"clock": self.clock - self._gap, "gap": 0, "fresh": [0] * len(fresh), "owed": False}
            numbers |= as_then | {"since": None, "lacking": since}
        return numbers, vectors

    def check(self, numbers: dict[str, Any], vectors: dict[str, Tensor]) -> None:
        if not same_policy(self._policy, numbers):
            return
        with loading("the agreement"):
            read(_AgreementNumbers, numbers)
            self._exchanges.check(vectors, numbers.get("kept", {}))

    def load_state_dict(self, numbers: dict[str, Any], vectors: dict[str, Tensor]) -> None:
        """Load :meth:`state_dict`, vectors (size,), also with other workers. Another policy starts from scratch."""
        self.check(numbers, vectors)
        self.equal, self._owed, self._dropped, self._since = False, (), 0, None
        self._exchanges.paused()
        self._exchanges.loaded()
        if numbers.get("policy") != repr(self._policy):
            return
        self.clock, self._gap = numbers["clock"], numbers["gap"]
        self._since = Cursor(*since) if (since := numbers.get("since")) is not None else None
        same = len(numbers["fresh"]) == len(self._members)
        self._fresh = dict(zip(self._members, numbers["fresh"], strict=True)) if same else {}
        self._policy.load_state_dict(numbers["own"])
        self._divided.load(numbers.get("kept", {}))
        self._exchanges.load_state_dict(vectors, numbers.get("kept", {}))
        if numbers["owed"]:
            self._take(self._plans.at(self.clock - 1))
            self._owed = self._after

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
