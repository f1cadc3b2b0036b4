"""The combinations of balancer and policy to simulate on a cluster."""

from collections.abc import Sequence
from dataclasses import dataclass

from uneven.cluster.pure.describe.spec import ClusterSpec
from uneven.policy.balance import balancers
from uneven.policy.core.views import SyncView
from uneven.policy.sync import SyncPolicy, compatible, policies

_CLOCKS = (64, 256)  # steps over which the plans of two policies are compared, at least and at most
_RANKS = 32  # workers whose plans are compared, at most


@dataclass(frozen=True, slots=True)
class Choice:
    """A balancer and a policy, as specifications."""

    balance: str
    sync: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A combination that is not simulated, and why; ``balance`` is empty for all balancers."""

    balance: str
    sync: str
    why: str


def default_syncs() -> tuple[str, ...]:
    """Return all registered policies with their defaults, and wrappers with each policy that they name for it."""
    tried = ((name, getattr(maker, "tried", ())) for name, maker in policies.items())
    return tuple(spec for name, inners in tried for spec in ([f"{name}:{one}" for one in inners] or [name]))


_ITERATIONS, _STEPS, _FEWEST = 200, 1600, 25  # global batches, steps of all workers, and the least batches [default]


def enough_iterations(nodes: int, every: int = 1) -> int:
    """Return the global batches of each simulation: fewer on many nodes, so that a plan of 64 takes seconds. A policy
    that exchanges every ``every`` steps gets eight exchanges, if 200 batches have room for them."""
    return min(_ITERATIONS, max(_FEWEST, _STEPS // nodes, 8 * every))


def combinations(
    spec: ClusterSpec, balances: Sequence[str] = (), syncs: Sequence[str] = ()
) -> tuple[list[Choice], list[LeftOut]]:
    """Return the combinations to simulate, and the others.

    Args:
        balances, syncs: specifications; by default all registered names.

    Raises:
        UnknownNameError: no such balancer, policy or option.
        ConfigError: a specification cannot be parsed.
    """
    balances = tuple(dict.fromkeys(balances or balancers))
    asked = tuple(dict.fromkeys(syncs or default_syncs()))
    for balance in balances:
        balancers.resolve(balance)
    left: list[LeftOut] = []
    different: dict[str, SyncPolicy] = {}
    for sync in asked:
        policy = policies.resolve(sync)
        twin = next((name for name, other in different.items() if same_plans(policy, other, spec)), None)
        if twin is None:
            different[sync] = policy
        else:
            left.append(LeftOut("", sync, f"makes the same plans as {twin} here"))
    choices: list[Choice] = []
    for sync in different:
        for balance in balances:
            reason = compatible(sync, balance)
            if reason is None:
                choices.append(Choice(balance, sync))
            else:
                left.append(LeftOut(balance, sync, _short(reason)))
    if len(spec.nodes) == 1:  # it divides nothing and exchanges nothing, so all are equal
        return choices[:1], []
    return choices, left


def same_plans(one: SyncPolicy, other: SyncPolicy, spec: ClusterSpec) -> bool:
    """Return whether two policies make the same plans on this cluster, in the steps and for the ranks compared."""
    if one.evaluation_model is not other.evaluation_model and len(spec.sites) > 1:
        return False
    members = tuple(range(len(spec.nodes)))
    sites = {rank: node.site for rank, node in enumerate(spec.nodes)}
    # Two blocks of the longer policy, so that each has at least one whole block and the step after it.
    facts = [policy.facts for policy in (one, other) if policy.facts is not None]
    every = max((it.every for it in facts), default=1)
    least, most = _CLOCKS
    for clock in (*range(min(most, max(least, 2 * every + 2))), *(it.begins + it.every - 1 for it in facts)):
        for rank in members[:: -(-len(members) // _RANKS)]:
            view = SyncView(rank=rank, clock=clock, members=members, sites=sites)
            if one.plan(view) != other.plan(view):
                return False
    return True


def _short(reason: str) -> str:
    # Without the parts of ``compatible``'s reason that the table already shows.
    _, _, rest = reason.partition(": there ")
    return (rest or reason).partition("; use ")[0]
