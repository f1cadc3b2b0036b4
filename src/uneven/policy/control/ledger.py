"""The steps of one worker, and the exchanges that follow from them: events in, orders out.

::

    the loop says              the ledger answers, in this order
    owing()                    an outcome that is due enters · exchanges that are owed
    began(plan)
    ended(step, free)          an outcome that is due enters · exchanges after the step · in the background, if free
    landed(order)
    showing(hand)              through a server: movements that no exchange has taken yet

Its main state is one list: the steps in the replica that no exchange has merged yet. Samples, weights, and the place
from which samples are missing in other replicas follow from that list. The driver reads and writes the replicas.

The ledger makes each instruction when the driver asks for it, because an exchange may change the members and free the
background. So the driver carries out an instruction before it asks for the next one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple, NotRequired, Protocol, TypedDict

from uneven.policy.control.step_plans import StepPlans, at_moment, due_of
from uneven.policy.core.actions import Exchange, Mean, Moment, Payload, StepPlan, overlapping
from uneven.policy.core.membership import Meeting, Members
from uneven.policy.core.pace import Pace
from uneven.policy.core.plain import Amount, Count
from uneven.policy.samples.order import Cursor

# A policy must plan an exchange within this many steps.
_AHEAD = 4096

# More steps are kept as sums: a worker that is alone may never exchange.
_STEPS_KEPT = 4096


class StepTaken(Protocol):
    """A step and its samples; a :class:`~uneven.policy.samples.order.Portion` in a real run."""

    @property
    def iteration(self) -> int: ...

    @property
    def epoch(self) -> int: ...

    @property
    def before(self) -> Cursor: ...

    def batch(self, rank: int, /) -> int: ...


Steps = Sequence[StepTaken]


class Unmerged(NamedTuple):
    """What an order merges: the steps in this replica that no earlier order has taken."""

    gap: int = 0  # steps
    own: int = 0  # samples of this worker
    weight: int = 0  # samples of this worker's party
    steps: Steps = ()  # the steps, oldest first, without those that are known by their sums only


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An exchange to carry out, and this worker's input to it.

    Attributes:
        clock: steps in the replica when the exchange was ordered.
        epoch, iteration: of the newest step.
        equal: whether all replicas are equal when it has landed.
        meeting: the groups that meet; None means all members together.
        part: the weight of this worker's own steps.
        rate: the learning rate as a part of the first one.
        dropped: exchanges in the background that did not start, since the last order.
        waits: steps that all workers must have finished before a server answers.
    """

    exchange: Exchange
    clock: int
    epoch: int
    iteration: int
    merges: Unmerged
    equal: bool = False
    meeting: Meeting | None = None
    part: float = 1.0
    rate: float = 1.0
    dropped: int = 0
    threads: int = 1
    waits: int = 0


class Enter(NamedTuple):
    """The outcome of a delayed exchange enters the replica."""

    clock: int


Instruction = Order | Enter


class _Earlier(NamedTuple):
    """Unmerged steps that are known by their sums only."""

    gap: int = 0
    samples: Mapping[int, int] = MappingProxyType({})  # of each worker
    since: Cursor | None = None  # the place of the first of them


_NOTHING = _Earlier()


class LedgerState(TypedDict):
    """The state of a ledger in a checkpoint, with the numbers that merges keep."""

    own: dict[str, Any]
    clock: Count
    gap: Count
    fresh: list[Count]
    since: NotRequired[list[Count] | None]
    kept: NotRequired[dict[str, Amount]]
    owed: bool


class ServedState(TypedDict):
    """The same of exchanges through a server; ``rates`` are learning rates."""

    own: dict[str, Any]
    clock: Count
    gap: Count
    samples: Count
    rates: NotRequired[dict[str, Amount]]


class StepLedger:
    """One worker's steps and orders.

    Args:
        served: whether exchanges go through a server: no worker waits for all, and gradients of a quorum are exchanged
            after the step, as replicas.

    Attributes:
        clock: steps taken.
        plan: of the step that begins or runs, or of the last one.
        equal: whether all replicas are known to be equal.
        newest: epoch and iteration of the newest step.
        dropped: exchanges in the background that did not start, since the last order.
        due: the clock at which a delayed outcome enters or has entered; 0 if there was none.
        threads: that take steps at the same time.
        rate: the learning rate as a part of the first one.
    """

    def __init__(self, plans: StepPlans, *, served: bool = False) -> None:
        facts = plans.policy.facts
        self.plans = plans
        self.served = served
        self.clock = self.dropped = self.due = 0
        self.plan = StepPlan()
        self.equal = True
        self.newest = -1, 0
        self.threads = 1
        self.rate = 1.0
        self._group_every = facts.every if facts is not None and facts.pace is Pace.GROUPS else None
        self._moves = facts is not None and Payload.DELTA in facts.payloads
        self._in_step = False
        self._after: tuple[Exchange, ...] = ()  # the plan's exchanges after the step
        self._background: tuple[Exchange, ...] = ()  # the plan's exchanges in the background
        self._waits_for_all = False
        self._in_groups: tuple[Exchange, ...] = ()  # those of the plan whose merges keep something in groups
        self._owed: tuple[Exchange, ...] = ()
        self._under_way = False  # whether a delayed outcome has not entered yet
        self._steps: list[StepTaken] = []  # unmerged
        self._earlier = _NOTHING  # unmerged before these

    def take(self, plan: StepPlan) -> None:
        """Take a plan, which rarely differs from that of the step before."""
        self.plan = plan
        self._in_groups = tuple(filter(self._keeps_apart, plan.exchanges))  # now: a newcomer makes all to a group
        self._after, self._background = at_moment(plan, Moment.STEP), at_moment(plan, Moment.BACKGROUND)
        if self.served:  # the servers of parties exchange what these plan to exchange
            own = (*at_moment(plan, Moment.BACKWARD), *self._after)
            self._after = tuple(one for one in own if not one.parties)
            return
        waited = (one for one in plan.exchanges if one.moment is not Moment.BACKGROUND and not one.delay)
        self._waits_for_all = any(len(one.members) == len(self.plans.members) for one in waited)

    def began(self, plan: StepPlan) -> None:
        """Begin a step, after :meth:`owing`."""
        if plan is not self.plan:
            self.take(plan)
        self.equal = False  # an evaluation in the middle of the loop comes after this step
        self._in_step = True

    def ended(
        self, step: StepTaken, free: Callable[[Exchange], bool], *, leaving: bool = False
    ) -> Iterable[Instruction]:
        """Count a step, and return what follows it.

        Args:
            free: returns whether an exchange may start in the background.
            leaving: the loop was left in this step: exchanges after it are owed; those in the background are dropped,
                or owed, too, if they are through a server.
        """
        self.clock += 1
        self._in_step = False
        last = self.newest[1] if self.threads > 1 and step.epoch == self.newest[0] else 0  # threads end in any order
        self.newest = step.epoch, max(step.iteration, last)
        self.equal = False
        self._steps.append(step)
        if len(self._steps) > _STEPS_KEPT:
            self._earlier, self._steps = self._sums(), []
        if leaving:  # perhaps because of an error on this worker only, so an exchange now could hang the others
            self._owed = self._after
            if self.served:
                self._owed += self._background
            else:
                self.dropped += len(self._background)
            return ()
        if not (self._after or self._background or self._under_way):
            return ()
        return self._following(free)

    def owing(self, free: Callable[[Exchange], bool]) -> Iterable[Instruction]:
        """Return what must be done before a step or an evaluation begins."""
        return self._making_up(free) if self._owed or self._under_way else ()

    def settling(self) -> Iterator[Order]:
        """Yield what merges all steps after :meth:`owing`, as at the end of an epoch where workers may leave."""
        if self.served and self._gap:
            for exchange in self._upcoming():
                yield self._order(exchange)
        elif self.apart or (self.plans.grouped and not self.equal):
            for exchange in self._settling_exchanges():
                yield self._order(replace(exchange, members=self.plans.members), all_meet=True)

    def resting(self) -> Iterator[Order]:
        """Yield the exchanges in the background in which this worker takes part until all rest."""
        for exchange in self._upcoming(Moment.BACKGROUND):
            yield self._order(exchange)

    def showing(self, hand: int) -> Iterator[Order]:
        """Yield the exchanges of movements that no other has taken, before an evaluation through a server.

        ``hand`` is 1 if an optimizer has made the step in hand, 0 if not, -1 if no step is in hand.
        """
        for exchange in (*self._after, *self._background) if self.served else ():
            late = hand >= 0 or exchange.moment is Moment.BACKGROUND
            if late and exchange.payload is Payload.DELTA and exchange.quorum is None:
                # Another clock, so that the update after this step differs from this one.
                yield replace(self._order(exchange), clock=self.clock + max(0, hand))

    def landed(self, order: Order) -> None:
        """Note that the training has waited for an exchange."""
        self.equal = order.equal

    def members_changed(self, members: Members, generation: int) -> None:
        if not set(members) <= set(self.plans.members):
            self.equal = False  # a newcomer starts with one of the replicas; all workers know so at the same step
        self.plans.members_changed(members, generation)
        if self._in_step:  # others may have learned of the change before this step; all plan it for the same members
            self.take(self.plans.at(self.clock))

    def forget(self) -> None:
        """Count no step as unmerged, because the replica was replaced."""
        self._steps, self._earlier = [], _NOTHING
        self.dropped = 0

    @property
    def apart(self) -> bool:
        """True if replicas differ because of separate steps, and a newcomer must wait; the same on all workers."""
        if self.served:  # a newcomer starts with the server's copy
            return False
        if self._gap and self._moves:  # a movement counts from the last exchange, which is where a newcomer starts
            return True
        if self._gap:
            averaged = (one.members for one in self.plan.exchanges if one.payload is Payload.GRADIENT)
            return not any(map(self._are_all, averaged))
        # Groups whose merge keeps something move from different places, until an exchange of all.
        return not self.equal and any(map(self._keeps_apart, self._in_groups))

    @property
    def in_regions(self) -> bool:
        """True if workers meet in groups, and merges keep something in each of them."""
        return any(map(self._keeps_apart, self._upcoming(Moment.STEP)))

    def meets(self, worker: int) -> bool:
        """Return whether a worker takes part in the first of the next exchanges that the training waits for."""
        return any(worker in one.members for one in self._upcoming(Moment.STEP)[:1])

    @property
    def met(self) -> bool:
        """True if all workers waited for each other in the last step. All workers have the same answer, also one in a
        group of one, which exchanges nothing."""
        if self._group_every is not None:  # a worker may still wait for another group
            return self.clock % self._group_every == 0
        return self._waits_for_all

    def stops(self, plan: StepPlan, ahead: int) -> bool:
        """Return whether the replica changes after a step that begins with ``ahead`` steps under way: an exchange, or a
        delayed outcome. No thread may step then."""
        enters = self._under_way and self.clock + ahead + 1 >= self.due
        return enters or any(one.moment is Moment.STEP for one in plan.exchanges)

    def groups(self) -> Meeting | None:
        """Return the groups that average gradients in the current step; None means all members together."""
        return self.plans.groups(self.clock, Payload.GRADIENT)

    def _making_up(self, free: Callable[[Exchange], bool]) -> Iterator[Instruction]:
        yield from self._entering()
        owed, self._owed = self._owed, ()
        yield from self._orders(owed, free)

    def _following(self, free: Callable[[Exchange], bool]) -> Iterator[Instruction]:
        yield from self._entering()
        waits = due_of(self.plans.at(self.clock)) if self.served and self._after else 0  # before the next step
        yield from self._orders((*self._after, *self._background), free, waits)

    def _orders(
        self, exchanges: Iterable[Exchange], free: Callable[[Exchange], bool], waits: int = 0
    ) -> Iterator[Order]:
        for exchange in exchanges:
            if exchange.moment is not Moment.BACKGROUND:
                yield self._order(exchange, waits=waits)
            elif free(exchange):
                yield self._order(exchange)
            else:
                self.dropped += 1

    def _entering(self) -> Iterator[Enter]:
        if self._under_way and self.clock >= self.due:
            self._under_way = False
            yield Enter(self.clock)

    def _order(self, exchange: Exchange, all_meet: bool = False, waits: int = 0) -> Order:
        waited = exchange.moment is not Moment.BACKGROUND
        order = Order(
            exchange=exchange,
            clock=self.clock,
            epoch=self.newest[0],
            iteration=self.newest[1],
            merges=self._unmerged(exchange),
            equal=waited and self._equal_after(exchange),
            meeting=self.plans.groups(self.clock - 1, exchange.payload) if waited and not all_meet else None,
            part=1 / len(exchange.parties) if self.plan.divided else 1.0,
            rate=self.rate,
            dropped=self.dropped,
            threads=self.threads,
            waits=waits,
        )
        self.forget()  # of all workers: those outside these members meet others
        if exchange.delay:
            if self._under_way or self.clock == self.due:
                raise overlapping(exchange)
            self._under_way, self.due = True, self.clock + exchange.delay
        return order

    def _equal_after(self, exchange: Exchange) -> bool:
        if exchange.select is not None and not exchange.select.beside:
            return False  # each replica still holds the entries that it has not sent
        if exchange.piece is not None or exchange.delay:
            return False  # other pieces have moved since their exchange; a delayed outcome has not entered
        return self._are_all(exchange.members)

    def _are_all(self, members: Members) -> bool:
        """Return whether these are all members. A plan from before a loss names lost ones, too."""
        there = self.plans.members
        return set(members) >= set(there) if self.plans.grouped else len(members) == len(there)

    def _keeps_apart(self, exchange: Exchange) -> bool:
        return exchange.merge.keeps and not self._are_all(exchange.members)

    def _settling_exchanges(self) -> tuple[Exchange, ...]:
        if not self.in_regions:
            return self._upcoming(Moment.STEP)
        # The plain mean, because an outer step out of turn would count momentum once more.
        clocks = range(self.clock, self.clock + _AHEAD)
        parties = (one for clock in clocks for one in self.plans.at(clock).exchanges if one.parties)
        return (replace(next(parties), merge=Mean()),)

    def _upcoming(self, moment: Moment | None = None) -> tuple[Exchange, ...]:
        """Return the next exchanges of a moment; of any moment for None."""
        plans = (self.plans.at(clock) for clock in range(self.clock, self.clock + _AHEAD))
        found = (plan.exchanges if moment is None else at_moment(plan, moment) for plan in plans)
        return next(filter(None, found), ())

    @property
    def _gap(self) -> int:
        return self._earlier.gap + len(self._steps)

    def _samples(self, rank: int) -> int:
        return self._earlier.samples.get(rank, 0) + sum(step.batch(rank) for step in self._steps)

    def _unmerged(self, exchange: Exchange) -> Unmerged:
        rank = self.plans.rank
        party = next((party for party in exchange.parties if rank in party), (rank,))
        own = self._samples(rank)
        weight = own if len(party) == 1 else sum(map(self._samples, party))
        return Unmerged(self._gap, own, weight, self._steps)

    def _since(self) -> Cursor | None:
        return self._earlier.since or next((step.before for step in self._steps), None)

    def _sums(self) -> _Earlier:
        return _Earlier(self._gap, {rank: self._samples(rank) for rank in self.plans.members}, self._since())

    def state(self, used: Steps = (), unused: Steps = (), *, merged: bool = False) -> dict[str, Any]:
        """Return the state for a checkpoint.

        Args:
            used: steps in flight that an optimizer has made.
            unused: counted steps that no optimizer has made.
            merged: of the replica as the last exchange left it; then ``lacking`` is the place of later samples.
        """
        hand = len(used)
        owed = at_moment(self.plans.at(self.clock + hand - 1), Moment.STEP) if used else self._owed
        since = self._since() or next((step.before for step in used), None)

        def fresh(rank: int) -> int:
            more = sum(step.batch(rank) for step in used) - sum(step.batch(rank) for step in unused)
            return max(0, self._samples(rank) + more)

        state = {
            "policy": repr(self.plans.policy),
            "own": self.plans.policy.state_dict(),
            "clock": self.clock + hand - len(unused),
            "gap": max(0, self._gap + hand - len(unused)),
        }
        if self.served:
            return state | {"samples": fresh(self.plans.rank)}
        state |= {"fresh": [fresh(rank) for rank in self.plans.members], "since": since, "owed": bool(owed)}
        if merged:
            as_then = {"clock": self.clock - self._gap, "gap": 0, "fresh": [0] * len(self.plans.members)}
            state |= as_then | {"owed": False, "since": None, "lacking": since}
        return state

    def load(self, state: dict[str, Any], *, due: int = 0) -> None:
        """Load :meth:`state`, also of other workers. Another policy starts from scratch.

        Args:
            due: the clock at which a delayed outcome enters that was loaded, too; 0 if there is none.
        """
        self.forget()
        self.equal, self._owed = False, ()
        if self.threads > 1:
            self.newest = -1, 0
        if state.get("policy") != repr(self.plans.policy):
            self.due, self._under_way = 0, False
            return
        self.due, self._under_way = due, due > 0
        self.clock = state["clock"]
        members, fresh = self.plans.members, state.get("fresh", ())
        samples = dict(zip(members, fresh, strict=True)) if len(fresh) == len(members) else {}
        if self.served:
            samples = {self.plans.rank: state["samples"]}
        since = state.get("since")
        self._earlier = _Earlier(state["gap"], samples, None if since is None else Cursor(*since))
        self.plans.policy.load_state_dict(state["own"])
        if state.get("owed"):
            self.take(self.plans.at(self.clock - 1))
            self._owed = self._after
