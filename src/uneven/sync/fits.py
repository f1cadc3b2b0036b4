"""What goes together: which balancers with which policies, which policies with today's carriers. Pure."""

from __future__ import annotations

from uneven.balance import Balancer, Even, balancers
from uneven.core.actions import Payload
from uneven.core.views import SyncView
from uneven.registry import describe
from uneven.sync.base import Facts, Pace, SyncPolicy, policies
from uneven.sync.bsp import gradient_mean


def compatible(policy: str | SyncPolicy, balancer: str | Balancer) -> str | None:
    """Why this balancer decides nothing under this policy, and what to use instead; None where it makes sense.

    Shares make sense where workers wait for each other when they meet, on every step or after some. Where nobody
    waits, each worker takes samples from the shared order at its own pace, and the fast ones take more by
    themselves. A policy that states no facts is taken to know what it does.

    Raises:
        UnknownNameError: no such policy or balancer.
        ConfigError: a specification that cannot be read.
    """
    agreeing, splitting = policies.resolve(policy), balancers.resolve(balancer)
    facts = agreeing.facts
    if facts is None or isinstance(splitting, Even) or facts.pace not in (Pace.OWN, Pace.BOUNDED):
        return None
    waits = "nobody waits" if facts.pace is Pace.OWN else "workers wait only for who is far behind"
    return (
        f"balance = {describe(balancer)} decides nothing under sync = {describe(policy)}: there {waits}, and each "
        f"worker takes samples at its own pace; use balance = 'even' with it, or sync = {_near(facts)!r} to balance"
    )


def carried(policy: str | SyncPolicy) -> str | None:
    """Why a real run cannot carry this policy today, and what to do instead; None where it can.

    Raises:
        UnknownNameError: no such policy.
        ConfigError: a specification that cannot be read.
    """
    agreeing = policies.resolve(policy)
    facts = agreeing.facts
    if (facts is None or facts.payloads == (Payload.GRADIENT,)) and _is_bsp(agreeing, facts):
        return None
    moves = "" if facts is None else f" (it moves {facts.moves})"
    name = policy if isinstance(policy, str) else "NAME"
    return (
        f"sync = {describe(policy)} cannot be carried by a real run yet{moves}; a run carries the weighted mean of the "
        f"gradients over everybody only: train with sync = 'bsp', or see what it would do with "
        f"`uneven simulate CLUSTER.toml --sync {name}`"
    )


def _is_bsp(policy: SyncPolicy, facts: Facts | None) -> bool:
    members = (0, 1)
    for clock in range(1 if facts is None else facts.every):
        plan = policy.plan(SyncView(rank=0, clock=clock, members=members))
        if plan.waits or any(exchange != gradient_mean(members) for exchange in plan.exchanges):
            return False
    return True


def _near(facts: Facts) -> str:
    """The nearest policy under which workers wait for each other."""
    if Payload.DELTA in facts.payloads:
        return "bsp"
    return f"local:every={facts.every}" if facts.every > 1 else "local"
