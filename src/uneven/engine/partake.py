"""Makes a worker's part in what replicas exchange beyond gradients: among workers themselves, or with a shared copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from uneven.config import RunConfig
from uneven.core.actions import Moment, Payload, StepPlan, Via
from uneven.data.hands import Hands
from uneven.engine.agree import Agreement
from uneven.engine.connect import Connection
from uneven.engine.exchanges import Observer
from uneven.engine.handout import StoredHandOut
from uneven.engine.home import find_home
from uneven.engine.replica import Replica, broadcast_from_first, refuse_synchronised_layers
from uneven.engine.scribe import Scribe
from uneven.engine.served import Served
from uneven.engine.turns import Follower
from uneven.errors import ConfigError
from uneven.registry import describe
from uneven.sync import Outlook, Pace, SyncPolicy, carried, first_plans, refused, served
from uneven.world import World

Members = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What any part is made of.

    Attributes:
        tell_nonfinite: what → to be called where such a thing holds a NaN or an infinity. Nothing in it may lead to the
            session, which the connection outlives.
    """

    policy: SyncPolicy
    rank: int
    members: Members
    sites: dict[int, str]
    connection: Connection
    config: RunConfig
    scribe: Scribe
    observer: Observer
    tell_nonfinite: Callable[[str], Callable[[], None]]


def check_carried(policy: SyncPolicy, members: Members, sites: dict[int, str]) -> None:
    """Refuse a policy that asks for an exchange that no carrier here can carry.

    Raises:
        ConfigError: naming the policy and the exchange.
    """
    refusal = carried(policy)
    if refusal:
        raise ConfigError(refusal)
    for plan in first_plans(policy, members, sites):
        if why := refused(plan):
            raise ConfigError(f"{policy!r} with {len(members)} workers cannot be carried: {why}; use sync='bsp'")


def check_alone(members: Members) -> None:
    """Refuse to train without a model that was given to the session, if others do, too.

    Raises:
        ConfigError: each would train a model of its own.
    """
    if len(members) > 1:
        raise ConfigError(
            f"the loader is used on {len(members)} workers, but session.setup was not called: each would train a model "
            f"of its own; call model, optimizer = session.setup(model, optimizer) before the loop"
        )


def check_attached(
    policy: SyncPolicy, plan: StepPlan, clock: int, *, averaging: Members | None, agreement: bool
) -> None:
    """Refuse a plan for which nothing was attached, as none of the steps that were looked at ahead wanted it.

    Args:
        averaging: those whose gradients are averaged with this worker's; None where nobody's are.
        agreement: whether anything but gradients can be exchanged.

    Raises:
        ConfigError: it would be left out without a word.
    """
    for one in plan.exchanges:
        gradients = one.payload is Payload.GRADIENT and one.via is Via.GROUP
        if (one.members != averaging) if gradients else not agreement:
            raise ConfigError(
                f"step {clock} of {policy!r} exchanges {one.payload.value} among ranks {_named(one.members)}, which "
                f"none of its first steps announced, so that no line was made for it: let the policy's facts name "
                f"payloads and every, and let the same ranks average gradients in all steps"
            )


def apart(policy: SyncPolicy) -> str:
    """Why no part of a step can exchange anything where each worker takes steps at its own pace."""
    return (
        f"under sync = {describe(policy)} workers take different numbers of steps, so they would wait for each other "
        f"in vain; use a policy whose workers step together, such as 'bsp' or 'local:every=8'"
    )


def _named(members: Members) -> str:
    return ", ".join(map(str, members))


def by_copy(policy: SyncPolicy, members: Members, sites: dict[int, str]) -> bool:
    """Whether exchanges go through a shared copy."""
    return any(served(plan) for plan in first_plans(policy, members, sites))


def hand_out_for(
    policy: SyncPolicy, rank: int, members: Members, copied: bool, timeout_s: float
) -> StoredHandOut | None:
    """The counters of the samples, where each worker streams at its own pace; None where all take the same steps.

    Args:
        copied: see :func:`by_copy`.
    """
    own = policy.facts is not None and policy.facts.pace is Pace.OWN
    return StoredHandOut(rank, len(members), timeout_s, ahead=own) if copied or own else None


def agree(terms: Terms, model: nn.Module, out: Outlook, hand_out: StoredHandOut | None) -> Agreement:
    """Exchanges among workers; every rank calls it at the same time.

    Raises:
        ConfigError: the model has layers that meet everybody.
    """
    replica = _replica(terms, model)
    agreement = Agreement(terms.policy, terms.rank, terms.members, terms.sites, replica, hand_out)
    agreement.carry_by(
        roll=terms.connection.roll,
        timeout_s=terms.config.timeout_s,
        shadowed=Moment.BACKGROUND in out.moments,
        observer=terms.observer,
        on_record=terms.scribe.write,
        on_nonfinite=terms.tell_nonfinite("parameter"),
    )
    terms.connection.leaving = agreement.leave
    return agreement


def serve(terms: Terms, model: nn.Module, hand_out: StoredHandOut, world: World) -> Served:
    """Exchanges with a shared copy; every rank calls it at the same time.

    Raises:
        ConfigError: the model has layers that meet everybody; or no shard can be reached.
    """
    scribe, timeout_s = terms.scribe, terms.config.timeout_s

    def lost(rank: int) -> None:
        text = f"rank {rank} is gone; nobody trains on the samples that it had taken and not finished"
        scribe.event("lost", text, warn=True, rank=rank)

    replica = _replica(terms, model)
    home = find_home(terms.connection.transport, world, timeout_s)
    home.begun(training=False)
    agreement = Served(
        terms.policy,
        terms.members,
        terms.sites,
        replica,
        home=home,
        hand_out=hand_out,
        timeout_s=timeout_s,
        observer=terms.observer,
        on_record=scribe.write,
        on_lost=lost,
        on_nonfinite=terms.tell_nonfinite("movement"),
    )
    terms.connection.leaving = agreement.leave
    return agreement


def follow(terms: Terms, model: nn.Module, hands: Hands, agreement: Agreement | Served, out: Outlook) -> Follower:
    """Sees to it that no batch is fetched before the step of the one before, where that would part it from its step."""
    strict = out.moments != {Moment.BACKGROUND} and len(terms.members) > 1
    agreement.followed = not strict
    name = f"sync = {describe(terms.policy)}"
    return Follower(model, hands, strict=strict, padded=agreement.passing, policy=name)


def _replica(terms: Terms, model: nn.Module) -> Replica:
    refuse_synchronised_layers(model, terms.policy)
    if terms.connection.roll is not None:
        broadcast_from_first(model)
    return Replica(model)
