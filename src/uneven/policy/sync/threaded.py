"""Compatibility of policies and balancers with several threads that train one replica."""

from uneven.policy.balance import Balancer, balancers
from uneven.policy.core.actions import Moment, Payload, Via
from uneven.policy.core.registry import describe
from uneven.policy.sync.outlook import first_plans
from uneven.policy.sync.sync_policy import Facts, SyncPolicy, policies


def threaded(policy: str | SyncPolicy | None, balancer: str | Balancer, threads: int, workers: int) -> str | None:
    """Return why this policy or balancer does not work with several threads per worker; None if it does.

    A policy of None is not chosen yet.
    """
    if threads == 1:
        return None
    agreeing, splitting = None if policy is None else policies.resolve(policy), balancers.resolve(balancer)
    plans = () if agreeing is None else first_plans(agreeing, tuple(range(workers)), {})
    exchanges = [one for plan in plans for one in plan.exchanges]
    facts = None if agreeing is None else agreeing.facts
    said = f"sync = {describe(policy)} with threads = {threads}"
    beside = all(one.moment is Moment.BACKGROUND for one in exchanges)
    if any(one.via is Via.SERVER for one in exchanges) and not beside:
        return (
            f"{said}: each of its steps goes through a parameter server, and the threads of a worker do not step "
            "together; use sync = 'shadow:easgd', which uses it in the background, or threads = 1"
        )
    if workers == 1:
        return None
    # Threads of one worker step whenever they are ready and share one replica, so gradients of several workers cannot
    # be averaged into one step. Parameters can be, in the foreground (all threads pause) or in the background.
    if any(one.payload is Payload.GRADIENT for one in exchanges):
        return (
            f"{said}: it averages gradients of all workers in one step, and the threads of a worker do not step "
            f"together; use sync = {_of_parameters(facts)!r} or, so that no worker waits, sync = 'shadow:ma', or "
            f"threads = 1"
        )
    if splitting.adapts:
        return (
            f"balance = {describe(balancer)} with threads = {threads}: shares follow the speed of workers that take "
            f"one step at a time; use balance = 'even' or 'static:shares=…' with threads, or threads = 1"
        )
    return None


def _of_parameters(facts: Facts | None) -> str:
    return f"local:every={facts.every}" if facts is not None and facts.every > 1 else "local:every=8"
