"""Compatibility of policies with balancers, and of policies with the carriers of real runs.

Functions that take names raise ``UnknownNameError`` for an unknown one and ``ConfigError`` for one they cannot parse.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from uneven.errors import ConfigError
from uneven.policy.balance import Balancer, Even, balancers
from uneven.policy.core.actions import (
    Add,
    Background,
    Combined,
    Exchange,
    Mean,
    Moment,
    Payload,
    Significant,
    StepPlan,
    Via,
)
from uneven.policy.core.registry import describe
from uneven.policy.sync._parts import Members
from uneven.policy.sync.bsp import bsp_plan
from uneven.policy.sync.geo import Geo
from uneven.policy.sync.outlook import first_plans
from uneven.policy.sync.sync_policy import Facts, Pace, SyncPolicy, WrappingPolicy, policies

WORTH = 0.25  # [default] least stable rate, relative to no lead: below it a learning rate chosen for BSP does not train

_HALVINGS = 40


@lru_cache
def stable_rate(momentum: float, sites: int, lead: int) -> float:
    """Return the largest η λ at which sites settle that receive each other's movements late.

    On a quadratic of curvature λ, K equal sites step with v = μ v − (η / K) λ x and receive each other's v after a lead
    of L steps: x' = x + v' + (K − 1) v₋ₗ. This settles if no root of the characteristic polynomial is outside of the
    unit circle. The derivation is ours.
    """
    # Without a lead, momentum is stable up to η λ = 2 (1 + μ); twice that is a safe upper end.
    low, high = 0.0, 4.0 * (1.0 + momentum)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _radius(momentum, sites, lead, middle) <= 1.0 + 1e-9 else (low, middle)
    return low


def _radius(momentum: float, sites: int, lead: int, rate: float) -> float:
    """Return the largest modulus of the eigenvalues of the map of (x, v, v₋₁, …, v₋ₗ) from step to step."""
    size = lead + 2
    step = np.zeros((size, size))
    step[1, :2] = -rate / sites, momentum
    for age in range(lead):
        step[2 + age, 1 + age] = 1.0
    # Row 0 is the position, rows 1 to L + 1 the velocities, newest first.
    step[0] = step[1]  # x' = x + v' + (K − 1) v', where the others' is as old as the lead
    step[0] += (sites - 1) * (step[1] if lead == 0 else np.eye(size)[lead])
    step[0, 0] += 1.0
    return float(np.abs(np.linalg.eigvals(step)).max())


def check_lead(lead: int, momentum: float, sites: int) -> None:
    """Raise ``ConfigError`` if the learning rate of BSP does not settle with this lead."""
    if not lead or sites < 2:
        return
    part = stable_rate(momentum, sites, lead) / stable_rate(momentum, sites, 0)
    if part >= WORTH:
        return
    most = max((one / 20 for one in range(20) if _worth(one / 20, sites, lead)), default=None)
    way = "without a lead" if most is None else f"with a momentum of {most:g} at most, or without a lead"
    raise ConfigError(
        f"geo: lead = {lead} with momentum {momentum:g} at {sites} sites is stable only up to {part:.1%} of the "
        f"learning rate without a lead, because sites then step against each other's old movements: train {way}"
    )


def _worth(momentum: float, sites: int, lead: int) -> bool:
    return stable_rate(momentum, sites, lead) >= WORTH * stable_rate(momentum, sites, 0)


_FEW = (0, 1, 2, 3)  # members for a trial of a policy's plans; their number makes no difference


def compatible(policy: str | SyncPolicy, balancer: str | Balancer) -> str | None:
    """Return why this balancer has no effect under this policy, with an alternative; None if they fit."""
    agreeing, splitting = policies.resolve(policy), balancers.resolve(balancer)
    facts = agreeing.facts
    # Without waits each worker takes samples from the shared order asynchronously, and fast ones take more anyway.
    if facts is None or isinstance(splitting, Even) or facts.pace not in (Pace.OWN, Pace.BOUNDED):
        return None
    waits = "no worker waits" if facts.pace is Pace.OWN else "workers wait only for those that are far behind"
    return (
        f"balance = {describe(balancer)} has no effect under sync = {describe(policy)}: there {waits}, and each "
        f"worker takes samples at its own pace; use balance = 'even' with it, or sync = {_near(facts)!r} to balance"
    )


def carried(policy: str | SyncPolicy) -> str | None:
    """Return why a real run does not support this policy, with an alternative; None if it does."""
    agreeing = policies.resolve(policy)
    facts = agreeing.facts
    why = next((why for plan in first_plans(agreeing, (0, 1), {}) if (why := refused(plan))), None)
    if why is None:
        return None
    moves = "" if facts is None else f" (it moves {facts.moves})"
    name = policy if isinstance(policy, str) else "NAME"
    return (
        f"sync = {describe(policy)} is not supported by real runs yet{moves}: {why}; train with sync = "
        f"{_carried_near(facts)!r}, or simulate it with `uneven simulate CLUSTER.toml --sync {name}`"
    )


def unheeded(policy: str | SyncPolicy, balancer: str | Balancer) -> str | None:
    """Return why a real run cannot apply this balancer under this policy, with an alternative; None if it can."""
    agreeing, splitting = policies.resolve(policy), balancers.resolve(balancer)
    facts = agreeing.facts
    # Backup workers wait for the first gradients only, so the reports of all workers are never available together.
    if facts is None or facts.pace is not Pace.QUORUM or not splitting.adapts:
        return None
    return (
        f"balance = {describe(balancer)} with sync = {describe(policy)}: a real run does not wait for late workers, so "
        f"it never has all reports, which decide the shares; use balance = 'even' or 'static:shares=…' with it, or "
        f"sync = 'bsp' to balance"
    )


def unsited(policy: SyncPolicy, sites: dict[int, str]) -> str | None:
    """Return a warning if a policy for several sites has one only and so equals BSP; ``sites`` is rank → site."""
    members = tuple(sorted(sites))
    if len(members) < 2 or len(set(sites.values())) > 1:
        return None

    def moved(where: dict[int, str]) -> set[Payload]:
        return {one.payload for plan in first_plans(policy, members, where) for one in plan.exchanges}

    # Compare with one site per worker: a policy that still moves gradients only is not a policy for several sites.
    if moved(sites) != {Payload.GRADIENT} or moved({rank: str(rank) for rank in members}) <= {Payload.GRADIENT}:
        return None
    return (
        f"all {len(members)} workers are at one site, {sites[members[0]]!r}, so sync = {describe(policy)} averages "
        f"their gradients on every step, as bsp does; name sites with UNEVEN_SITE, or in the description of the cluster"
    )


def check_momentum(policy: SyncPolicy, momentum: float, sites: int) -> None:
    """Raise ``ConfigError`` if a momentum is unstable with the delay between sites that a policy allows."""
    while isinstance(policy, WrappingPolicy):
        if isinstance(policy, Geo):
            check_lead(policy.lead, momentum, sites)
        policy = policy.inner


def exact(policy: str | SyncPolicy, sites: Sequence[str]) -> bool:
    """Return whether every step takes the gradient of one process, for workers at these sites."""
    members = tuple(range(len(sites)))
    plans = first_plans(policies.resolve(policy), members, dict(enumerate(sites)))
    return all(plan == bsp_plan(members) for plan in plans)


def seldom(sync: str, *, apart: bool) -> str:
    """Return a policy that exchanges less often than ``sync``; "" if that one can itself, with a greater ``every``."""
    if sync == "bsp":
        return "local:every=8"
    return "easgd:every=8" if apart and "every" not in sync else ""


def served(plan: StepPlan) -> bool:
    """Return whether the plan uses a parameter server, so that workers take samples asynchronously."""
    return any(one.via is Via.SERVER for one in plan.exchanges)


def by_server(policy: SyncPolicy, members: Members = _FEW, sites: dict[int, str] | None = None) -> bool:
    """Return whether exchanges of the policy go through a parameter server."""
    return any(served(plan) for plan in first_plans(policy, members, sites or {}))


def asks_ahead(policy: SyncPolicy) -> bool:
    """Return whether no worker waits for the steps of others."""
    return policy.facts is not None and not policy.facts.pace.waits


def pace_of(policy: SyncPolicy) -> Pace:
    """Return the pace for the journal; without facts, the pace that the policy's plans imply."""
    if policy.facts is not None:
        return policy.facts.pace
    return Pace.BOUNDED if by_server(policy) else Pace.TOGETHER


def refused(plan: StepPlan, *, copy: bool | None = None) -> str | None:
    """Return why a real run does not support this plan; None if it does.

    ``copy``: whether the run has a parameter server; None if undecided.
    """
    # The server is set up from the first plans, so a later plan cannot begin or stop using it.
    if copy is not None and plan.exchanges and served(plan) != copy:
        return f"it exchanges {'among the workers' if copy else 'through a parameter server'}, unlike its first steps"
    if not served(plan):
        if plan.waits and not any(one.far.lead for one in plan.exchanges):
            return "its steps wait for clocks, which only a parameter server reports"
        return next((why for one in plan.exchanges if (why := _refused(one))), None)
    # At most two exchanges: the site's own server, then one between the servers of all sites.
    near, *far = plan.exchanges
    beyond = len(far) == 1 and near.members in far[0].parties
    if len(far) > beyond or not {one.members for one in plan.waits} <= {one.members for one in plan.exchanges}:
        return "with a parameter server, a step has one exchange of all workers, and waits for all of them"
    if (plan.waits or beyond) and near.payload is not Payload.DELTA:
        return "steps wait only for the clocks of workers that push their movements"
    return _refused_of_copy(near) or (_refused_between(far[0]) if beyond else None)


# combinations that a parameter server handles for one worker at a time
_SERVED = ((Payload.DELTA, Combined.SUM), (Payload.PARAMETERS, Combined.CENTRE))


def _refused_of_copy(one: Exchange) -> str | None:
    if one.select is not None or one.parties:
        return "each worker sends all entries to a parameter server, and only for itself"
    if one.quorum is not None:
        if one.payload is Payload.GRADIENT and one.merge == Mean():
            return None
        if one.payload is Payload.DELTA and one.moment is Moment.BACKGROUND and one.merge.served_step() is not None:
            return None
        return (
            "with a quorum, a parameter server averages gradients by samples, or takes an outer step on movements in "
            "the background"
        )
    if one.payload is Payload.GRADIENT:
        return "a parameter server averages gradients only with a quorum per step"
    if (one.payload, one.merge.combined) in _SERVED and one.merge.served(one.payload) is not None:
        return None
    return "a parameter server adds movements, or moves its parameters and a worker's towards each other"


def _refused_between(one: Exchange) -> str | None:
    if one.via is not Via.SERVER or not isinstance(one.select, Significant) or one.far.hubs or one.far.barrier_bytes:
        return "parameter servers of sites exchange significant entries, without hubs and without a barrier"
    return _refused_picked(one) if one.merge == Add() else "parameter servers only add the entries of other sites"


def _refused(one: Exchange) -> str | None:
    if one.quorum is not None:
        return "it does not wait for late workers, which only a parameter server supports"
    if one.piece is not None and (
        one.moment is not Moment.STEP or one.parties or one.merge.combined is not Combined.MEAN
    ):
        return "pieces of the parameters are averaged after the step, among workers and not among parties"
    if one.select is not None:
        return _refused_picked(one)
    if one.payload is Payload.DELTA:
        mergeable = one.payload in one.merge.payloads and one.merge.combined is Combined.MEAN
        if mergeable and one.moment is Moment.STEP and not one.parties:
            return None
        return "full movements are merged by their mean, after the step, among workers and not among parties"
    if one.payload is Payload.GRADIENT:
        return None if one.merge == Mean() and not one.parties else "gradients are merged only by their weighted mean"
    kind = type(one.merge).__name__
    if one.merge.combined is Combined.SUM or one.payload not in one.merge.payloads:
        return f"{kind} does not merge parameters: take a mean, block momentum or an elastic pull"
    if one.merge.combined is Combined.CENTRE and one.background != Background(load=one.background.load):
        return f"{kind} returns a movement per replica, so it has no common outcome to write back"
    if one.moment is Moment.BACKGROUND and one.parties:
        return "a party's joint contribution is supported in the foreground only"
    return None


def _refused_picked(one: Exchange) -> str | None:
    if one.payload is not Payload.DELTA:
        return "selected entries are supported for movements only"
    if one.moment is not Moment.STEP or not one.parties:
        return "selected entries are sent after the step, one contribution for each party"
    if one.delay and not (one.select is not None and one.select.beside):
        return "a delay needs unsent entries that are kept outside of the replica"
    if one.merge.plain or one.merge == Add():
        return None
    return "selected entries are averaged or added"


def _carried_near(facts: Facts | None) -> str:
    if facts is None or facts.pace is Pace.QUORUM or facts.payloads == (Payload.GRADIENT,):
        return "bsp"
    if facts.pace is Pace.OWN and Payload.PARAMETERS in facts.payloads:
        return f"shadow:easgd:together=true,every={facts.every}"
    return "shadow:ma" if facts.pace is Pace.OWN else "bsp"


def _near(facts: Facts) -> str:
    """Return the nearest policy under which workers wait for each other."""
    if Payload.DELTA in facts.payloads:
        return "bsp"
    return f"local:every={facts.every}" if facts.every > 1 else "local"
