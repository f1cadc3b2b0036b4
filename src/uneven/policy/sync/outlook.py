"""A forecast of a policy's exchanges, so that channels can be set up before training starts."""

from collections.abc import Iterator
from dataclasses import dataclass

from uneven.policy.core.actions import Exchange, Moment, Payload, StepPlan
from uneven.policy.core.views import SyncView
from uneven.policy.sync._parts import Members
from uneven.policy.sync.sync_policy import SyncPolicy

_PROBES = 4096  # steps that are probed


@dataclass(frozen=True, slots=True)
class Outlook:
    """The exchanges that a policy plans in its first steps."""

    payloads: frozenset[Payload]  # of all exchanges of the first steps, and those of the policy's facts
    moments: frozenset[Moment]
    gradient_groups: tuple[Members, ...]  # the groups that share gradients in the first step in which any do, sorted
    delayed: bool = False  # whether an outcome enters some steps after its exchange

    def gradients_of_all(self, members: Members) -> bool:
        """Return whether the only exchanges are of the gradients of all members."""
        return self.payloads <= {Payload.GRADIENT} and set(self.gradient_groups) <= {members}


def outlook(policy: SyncPolicy, members: Members, sites: dict[int, str], *, changes: bool = False) -> Outlook:
    """Return the exchanges that a policy plans in its first steps for these workers."""
    first = list(_first_plans(policy, members, sites, changes))
    exchanges = [one for _, plan in first for one in plan.exchanges]
    clock = next((clock for clock, plan in first if any(map(_of_gradients, plan.exchanges))), 0)
    groups: set[Members] = set()
    # Groups may differ by rank, so every worker's plan of that step is needed, not only the first worker's.
    for rank in members:
        plan = policy.plan(SyncView(rank=rank, clock=clock, members=members, sites=sites, changes=changes))
        groups.update(one.members for one in plan.exchanges if _of_gradients(one))
    said = () if policy.facts is None else policy.facts.payloads
    return Outlook(
        payloads=frozenset((*said, *(one.payload for one in exchanges))),
        moments=frozenset(one.moment for one in exchanges),
        gradient_groups=tuple(sorted(groups)),
        delayed=any(one.delay for one in exchanges),
    )


def first_plans(
    policy: SyncPolicy, members: Members, sites: dict[int, str], *, changes: bool = False
) -> Iterator[StepPlan]:
    """Yield the different plans of the first worker's first steps: one block and the steps before it."""
    return (plan for _, plan in _first_plans(policy, members, sites, changes))


def in_groups(policy: SyncPolicy, most: int) -> bool:
    """Return whether some of at most ``most`` workers exchange in groups instead of all together."""
    members = tuple(range(max(2, most)))
    sites = {one: str(one % 2) for one in members}
    plans = first_plans(policy, members, sites)
    return any(one.members != members or bool(one.parties) for plan in plans for one in plan.exchanges)


def _first_plans(
    policy: SyncPolicy, members: Members, sites: dict[int, str], changes: bool
) -> Iterator[tuple[int, StepPlan]]:
    facts = policy.facts
    # Without facts the length of a block is unknown.
    every, begins = (_PROBES, 0) if facts is None else (facts.every, facts.begins)
    seen: dict[int, StepPlan] = {}  # holds the plans, so that no id() is reused
    # The last step of a block is probed separately, as blocks may be longer or begin later than _PROBES.
    for clock in (*range(min(2 * every, _PROBES)), every - 1, begins + every - 1):
        plan = policy.plan(SyncView(rank=members[0], clock=clock, members=members, sites=sites, changes=changes))
        if id(plan) not in seen:
            seen[id(plan)] = plan
            # The clock at which the plan first occurs.
            yield clock, plan


def _of_gradients(one: Exchange) -> bool:
    return one.payload is Payload.GRADIENT
