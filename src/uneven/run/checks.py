"""What a session refuses before it trains, or in the step that asks for it, as it would else be left out silently."""

from __future__ import annotations

from uneven.core.actions import Payload, StepPlan, Via
from uneven.errors import ConfigError
from uneven.registry import describe
from uneven.sync import SyncPolicy, carried, first_plans, refused

Members = tuple[int, ...]


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
    policy: SyncPolicy, plan: StepPlan, clock: int, *, averaging: Members | None, exchanging: bool
) -> None:
    """Refuse a plan for which nothing was attached, as none of the steps that were looked at ahead wanted it.

    Args:
        averaging: those whose gradients are averaged with this worker's; None where nobody's are.
        exchanging: whether anything but gradients can be exchanged.

    Raises:
        ConfigError: it would be left out without a word.
    """
    for one in plan.exchanges:
        gradients = one.payload is Payload.GRADIENT and one.via is Via.GROUP
        if (one.members != averaging) if gradients else not exchanging:
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
