"""A policy's plans for one worker, step by step."""

from collections.abc import Mapping
from dataclasses import replace

from uneven.policy.core.actions import Exchange, Moment, Payload, StepPlan
from uneven.policy.core.membership import Meeting, Members
from uneven.policy.core.views import SyncView
from uneven.policy.sync.sync_policy import SyncPolicy


class StepPlans:
    """A policy's plans for one worker; a constant plan is requested only once.

    Args:
        grouped: in an elastic run, all workers make the same exchanges: a worker without a group is a group of one.
    """

    def __init__(
        self, policy: SyncPolicy, rank: int, members: Members, sites: Mapping[int, str], *, grouped: bool = False
    ) -> None:
        self.policy = policy
        self.grouped = grouped
        self._view = SyncView(rank=rank, clock=0, members=members, generation=0, sites=sites, changes=grouped)
        self._constant: StepPlan | None = None
        self._completions: dict[tuple[int, int], tuple[StepPlan, StepPlan, StepPlan]] = {}

    @property
    def rank(self) -> int:
        return self._view.rank

    @property
    def members(self) -> Members:
        return self._view.members

    def members_changed(self, members: Members, generation: int) -> None:
        self._view = self._view._replace(members=members, generation=generation)
        self._constant = None
        self._completions.clear()

    def at(self, clock: int) -> StepPlan:
        """Return the plan after ``clock`` steps of the worker."""
        if self._constant is not None:
            return self._constant
        rank, _, members, generation, sites, changes = self._view
        # Without ``_replace``, which takes three times as long.
        plan = self.policy.plan(SyncView(rank, clock, members, generation, sites, changes))
        if self.grouped:
            plan = self._completed(plan, clock)
        if self.policy.constant:
            self._constant = plan
        return plan

    def groups(self, clock: int, payload: Payload) -> Meeting | None:
        """Return the groups that exchange; None means all members together."""
        if not self.grouped:
            return None

        def meeting(number: int, members: Members) -> tuple[Members, ...]:
            view, found = self._view._replace(clock=clock, members=members, generation=number), dict[Members, None]()
            for rank in members:
                plan = self.policy.plan(view._replace(rank=rank))
                those = (one for one in plan.exchanges if one.payload is payload)
                found[next((one.members for one in those if one.moment is not Moment.BACKGROUND), (rank,))] = None
            return tuple(found)

        return meeting

    def _completed(self, own: StepPlan, clock: int) -> StepPlan:
        """Add exchanges of this worker alone, of payloads that only others exchange; the same object for the same
        plans."""
        kinds, alone = {one.payload for one in own.exchanges}, (self.rank,)
        for rank in self.members:
            others = self.policy.plan(self._view._replace(rank=rank, clock=clock))
            if kinds.issuperset(one.payload for one in others.exchanges):
                continue
            key = id(own), id(others)  # stable, because both are kept: a freed plan's id could be reused
            if key not in self._completions:
                more = (replace(one, members=alone) for one in others.exchanges if one.payload not in kinds)
                self._completions[key] = own, others, replace(own, exchanges=(*more, *own.exchanges))
            return self._completions[key][2]
        return own


def at_moment(plan: StepPlan, moment: Moment) -> tuple[Exchange, ...]:
    return tuple(one for one in plan.exchanges if one.moment is moment)


def due_of(plan: StepPlan) -> int:
    """Return the steps that all workers must have finished before the plan's step."""
    return max((one.clock for one in plan.waits), default=0)
