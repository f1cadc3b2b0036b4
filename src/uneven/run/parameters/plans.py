"""What the policy wants of this worker, step by step."""

from __future__ import annotations

from uneven.core.actions import StepPlan
from uneven.core.views import SyncView
from uneven.sync import SyncPolicy


class Plans:
    """A policy's, for one worker; a plan that is the same at every step is asked for once.

    Args:
        members: that the run begins with.
        sites: where each rank is.
    """

    def __init__(self, policy: SyncPolicy, rank: int, members: tuple[int, ...], sites: dict[int, str]) -> None:
        self._policy = policy
        self._first = SyncView(rank=rank, clock=0, members=members, generation=0, sites=sites)
        self._constant: StepPlan | None = None

    def members_changed(self, members: tuple[int, ...], generation: int) -> None:
        """Others take part from the next step on."""
        self._first = self._first._replace(members=members, generation=generation)
        self._constant = None

    def at(self, clock: int) -> StepPlan:
        """When the worker has taken so many steps."""
        if self._constant is not None:
            return self._constant
        plan = self._policy.plan(self._first._replace(clock=clock))
        if self._policy.constant:
            self._constant = plan
        return plan
