"""What a policy is going to exchange, so that lines for it can be made before training starts. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from uneven.core.actions import Exchange, Moment, Payload, StepPlan
from uneven.core.views import SyncView
from uneven.sync._parts import Members
from uneven.sync.base import SyncPolicy

_TRIED = 6
"""Workers, in two sites, for whom a policy is asked for its plans: more than make up one group."""

_PROBES = 4096
"""How many steps are looked at ahead."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """Attributes:
    payloads, moments: of all exchanges of the first steps; also the payloads that the policy itself names.
    delayed: whether outcomes of any exchange enter some steps later.
    gradient_groups: who shares gradients with whom in the first step in which any do, each group once, by its first
        rank.
    """

    payloads: frozenset[Payload]
    moments: frozenset[Moment]
    gradient_groups: tuple[Members, ...]
    delayed: bool = False

    def gradients_of_all(self, members: Members) -> bool:
        """Whether nothing is exchanged but the gradients of everybody."""
        return self.payloads <= {Payload.GRADIENT} and set(self.gradient_groups) <= {members}


def outlook(policy: SyncPolicy, members: Members, sites: dict[int, str]) -> Outlook:
    """What a policy will ask for in its first plans for these workers."""
    first = list(_first_plans(policy, members, sites))
    exchanges = [one for _, plan in first for one in plan.exchanges]
    clock = next((clock for clock, plan in first if any(map(_of_gradients, plan.exchanges))), 0)
    groups: set[Members] = set()
    for rank in members:
        plan = policy.plan(SyncView(rank=rank, clock=clock, members=members, sites=sites))
        groups.update(one.members for one in plan.exchanges if _of_gradients(one))
    said = () if policy.facts is None else policy.facts.payloads
    return Outlook(
        payloads=frozenset((*said, *(one.payload for one in exchanges))),
        moments=frozenset(one.moment for one in exchanges),
        gradient_groups=tuple(sorted(groups)),
        delayed=any(one.delay for one in exchanges),
    )


def first_plans(policy: SyncPolicy, members: Members, sites: dict[int, str]) -> Iterator[StepPlan]:
    """The different plans of the first worker's first steps, a block and what comes before it.

    Where blocks are longer than is looked ahead, also of the last step of the first one. Of a policy that states no
    facts nobody knows how long its blocks are, so it is looked as far ahead as ever.
    """
    return (plan for _, plan in _first_plans(policy, members, sites))


def in_groups(policy: SyncPolicy) -> bool:
    """Whether workers meet in groups of some, rather than all at once."""
    members = tuple(range(_TRIED))
    sites = {one: str(one % 2) for one in members}
    plans = first_plans(policy, members, sites)
    return any(one.members != members or bool(one.parties) for plan in plans for one in plan.exchanges)


def _first_plans(policy: SyncPolicy, members: Members, sites: dict[int, str]) -> Iterator[tuple[int, StepPlan]]:
    """With the clock at which each comes first."""
    facts = policy.facts
    every = _PROBES if facts is None else facts.every
    seen: dict[int, StepPlan] = {}  # which keeps them, or another one could get the id of one
    for clock in (*range(min(2 * every, _PROBES)), every - 1):
        plan = policy.plan(SyncView(rank=members[0], clock=clock, members=members, sites=sites))
        if id(plan) not in seen:
            seen[id(plan)] = plan
            yield clock, plan


def _of_gradients(one: Exchange) -> bool:
    return one.payload is Payload.GRADIENT
