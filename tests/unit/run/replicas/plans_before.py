"""The plans as they were before the ledger: the reference of the parity test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from uneven.policy.core.actions import Exchange, Moment, Payload, StepPlan
from uneven.policy.core.membership import Meeting
from uneven.policy.core.views import SyncView
from uneven.policy.sync import SyncPolicy

Members = tuple[int, ...]


class Plans:
    """A policy's plans for one worker; a constant plan is requested only once. ``grouped`` if not all members meet."""

    grouped = False

    def __init__(self, policy: SyncPolicy, rank: int, members: tuple[int, ...], sites: dict[int, str]) -> None:
        self._policy = policy
        self._first = SyncView(rank=rank, clock=0, members=members, generation=0, sites=sites)
        self._constant: StepPlan | None = None

    def members_changed(self, members: tuple[int, ...], generation: int) -> None:
        self._first = self._first._replace(members=members, generation=generation)
        self._constant = None

    def at(self, clock: int) -> StepPlan:
        """Return the plan after ``clock`` steps of the worker."""
        if self._constant is not None:
            return self._constant
        plan = self._policy.plan(self._first._replace(clock=clock))
        if self._policy.constant:
            self._constant = plan
        return plan

    def groups(self, clock: int, payload: Payload) -> Meeting | None:
        """Return the groups that exchange; None means all members together."""
        return None


class GroupPlans(Plans):
    """Plans for groups, in a run in which all workers make the same exchanges: a worker without a group is a group
    of one."""

    grouped = True

    def __init__(self, policy: SyncPolicy, rank: int, members: Members, sites: dict[int, str]) -> None:
        super().__init__(policy, rank, members, sites)
        self._known: dict[tuple[int, int], tuple[StepPlan, StepPlan, StepPlan]] = {}

    def members_changed(self, members: Members, generation: int) -> None:
        super().members_changed(members, generation)
        self._known.clear()

    def at(self, clock: int) -> StepPlan:
        own, view = self._policy.plan(self._first._replace(clock=clock)), self._first
        kinds = {one.payload for one in own.exchanges}
        for rank in view.members:
            others = self._policy.plan(view._replace(rank=rank, clock=clock))
            if not kinds.issuperset(one.payload for one in others.exchanges):
                return self._completed(own, others, kinds)
        return own

    def _completed(self, own: StepPlan, others: StepPlan, kinds: set[Payload]) -> StepPlan:
        """Return the same object for the same two plans."""
        key = id(own), id(others)  # stable, because both are kept: a freed plan's id could be reused
        if key not in self._known:
            rank = (self._first.rank,)
            alone = (replace(one, members=rank) for one in others.exchanges if one.payload not in kinds)
            whole = replace(own, exchanges=(*alone, *own.exchanges))
            self._known[key] = own, others, whole
        return self._known[key][2]

    def groups(self, clock: int, payload: Payload) -> Meeting:
        def meeting(number: int, members: Members) -> tuple[Members, ...]:
            view, found = self._first._replace(clock=clock, members=members, generation=number), dict[Members, None]()
            for rank in members:
                plan = self._policy.plan(view._replace(rank=rank))
                those = (one for one in plan.exchanges if one.payload is payload)
                found[next((one.members for one in those if one.moment is not Moment.BACKGROUND), (rank,))] = None
            return tuple(found)

        return meeting


def at_moment(plan: StepPlan, moment: Moment) -> tuple[Exchange, ...]:
    return tuple(one for one in plan.exchanges if one.moment is moment)


@dataclass(slots=True)
class Order:
    """An exchange to carry out."""

    exchange: Exchange
    clock: int
    iteration: int
    samples: int
    gap: int
    weight: float
    dropped: int = 0
    threads: int = 1
    place: Any = None
    part: float = 1.0
    rate: float = 1.0
    own: Any = None
    over: Callable[[], None] | None = None
