"""Checks before the training, or in the step that needs them, of combinations that would otherwise fail silently."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from uneven.errors import ConfigError
from uneven.policy.balance import Balancer
from uneven.policy.core.actions import Combined, Exchange, Moment, Payload, StepPlan, Via
from uneven.policy.core.registry import describe
from uneven.policy.core.run_config import RunConfig
from uneven.policy.sync import SyncPolicy, carried, check_momentum, first_plans, refused
from uneven.run.lines.control_words import MOST_RANKS
from uneven.run.samples.stream import is_stream
from uneven.runtime.world import Elastic

Members = tuple[int, ...]


def check_carried(policy: SyncPolicy, members: Members, sites: dict[int, str]) -> None:
    """Raise ConfigError if the session does not support an exchange of the policy."""
    refusal = carried(policy)
    if refusal:
        raise ConfigError(refusal)
    for plan in first_plans(policy, members, sites):
        if why := refused(plan):
            raise ConfigError(f"{policy!r} with {len(members)} workers is not supported: {why}; use sync='bsp'")


def check_alone(members: Members) -> None:
    """Raise ConfigError if several workers run a loop without ``session.setup``."""
    if len(members) > 1:
        raise ConfigError(
            f"the loader is used on {len(members)} workers, but session.setup was not called: each would train its "
            "own model; call model, optimizer = session.setup(model, optimizer) before the loop"
        )


def check_attached(
    policy: SyncPolicy, plan: StepPlan, clock: int, *, averaging: Members | None, exchanging: bool
) -> None:
    """Raise ConfigError if an exchange of the plan was not prepared, because the policy's first steps did not announce
    it.

    Args:
        averaging: the workers that average gradients with this one; None for no averaging.
        exchanging: whether other payloads than gradients can be exchanged.
    """
    for one in plan.exchanges:
        gradients = one.payload is Payload.GRADIENT and one.via is Via.GROUP
        if (one.members != averaging) if gradients else not exchanging:
            raise ConfigError(
                f"step {clock} of {policy!r} exchanges {one.payload.value} among ranks {_named(one.members)}, which "
                "its first steps did not announce, so it has no process group: let the policy's facts name "
                "payloads and every, and let the same ranks average gradients in all steps"
            )


def refuse_elastic(elastic: Elastic, policy: SyncPolicy, balancer: Balancer, config: RunConfig) -> None:
    """Raise ConfigError, with the remedy, if workers cannot leave and join under these settings."""
    if why := _not_in_a_row(policy, elastic.most):
        why = f"sync = {describe(policy)}: {why}"
    elif balancer.made_for is not None:
        why = f"balance = {describe(balancer)}, which is made for {balancer.made_for} workers"
    elif config.threads > 1 and not _all_stop(policy, elastic.most):
        why = (
            f"threads = {config.threads} with sync = {describe(policy)}: threads that never stop for an exchange take "
            f"several batches at the same time, so a loss cannot be assigned to one of them"
        )
    elif elastic.most > MOST_RANKS:
        why = f"more than {MOST_RANKS} workers"
    if not dist.is_gloo_available():
        raise ConfigError(
            "an elastic run forms its groups through gloo, which this build of torch lacks: install another build, or "
            "omit --elastic"
        )
    if why:
        raise ConfigError(
            f"an elastic run does not support {why}; use sync='bsp' or 'local' with a balancer that adapts, or omit "
            "--elastic"
        )


def _not_in_a_row(policy: SyncPolicy, most: int) -> str:
    """Return why the exchanges of a policy cannot be repaired after the loss of one of ``most`` workers; "" if they
    can. Raises ConfigError if the policy does not support this number."""
    members = tuple(range(max(2, most)))
    sites = {one: str(one % 2) for one in members}
    exchanges = [one for plan in first_plans(policy, members, sites, changes=True) for one in plan.exchanges]
    homes = members[::2], members[1::2]
    by_site = any(one.parties == homes for one in exchanges)  # so that all replicas are equal now and then
    for one in exchanges:
        if why := _out_of_rounds(one):
            return why
        if one.select is not None:
            continue
        if one.via is Via.SERVER:  # the server keeps all updates of a lost worker
            continue
        if one.piece is not None:
            return "with parameters in pieces, replicas are not equal after any step"
        at_home = by_site and one.members in homes and one.payload is Payload.DELTA
        if one.merge.keeps and one.members != members and not at_home:
            return (
                f"{type(one.merge).__name__} among some of the workers, which are not those of a site: it keeps state "
                f"that a new worker cannot receive"
            )
        if one.parties and (one.merge.combined is not Combined.MEAN or not one.merge.by_samples):
            return f"{type(one.merge).__name__} among parties, which is not a mean by samples"
        if one.merge.combined is Combined.SUM:
            return f"{type(one.merge).__name__}, a sum whose total only a server keeps"
    return ""


def _all_stop(policy: SyncPolicy, most: int) -> bool:
    """Return whether the threads of a worker stop for each exchange."""
    plans = first_plans(policy, tuple(range(max(2, most))), {}, changes=True)
    exchanges = [one for plan in plans for one in plan.exchanges]
    return all(one.moment is Moment.STEP and one.via is Via.GROUP for one in exchanges)


def _out_of_rounds(one: Exchange) -> str:
    """Return why an exchange of picked entries cannot be repeated; "" if it can, or is another one."""
    if one.select is None:
        return ""
    if one.via is Via.SERVER:
        return "the server of a site is in one of its workers, and is lost with it"
    if one.far.lead:
        more = ", and so is the barrier that bounds them" if one.far.barrier_bytes else ""
        return f"with lead = {one.far.lead} entries are in flight that belong to no common step{more}"
    if one.far.hubs:
        return "a sum that a hub has not forwarded yet is lost with it"
    if one.delay:
        return f"with delay = {one.delay} an outcome is in flight, which a new worker would miss"
    return ""


def check_momentum_of(policy: SyncPolicy, optimizers: Sequence[torch.optim.Optimizer], sites: int) -> None:
    """Raise ConfigError if the policy's delay between sites is not stable with the optimizers' momentum."""
    for optimizer in optimizers:
        first = optimizer.param_groups[0]
        check_momentum(policy, float(first.get("momentum", first.get("betas", (0.0,))[0])), sites)


def check_profile(loader: object, tried: object, epoch: int, within_s: float, timeout_s: float) -> None:
    """Raise ConfigError if the profile does not run between loader and loop, or ``within_s`` is out of range."""
    if loader is None or not tried or epoch >= 0:
        raise ConfigError(
            "session.profile comes between session.loader and the loop: call session.setup(model, optimizer), "
            "session.loader(...) or session.local_batch_size(batch_size), then session.profile(step)"
        )
    if not 0.0 < within_s < timeout_s:
        raise ConfigError(f"within_s = {within_s!r} must be above 0 and below timeout_s = {timeout_s!r}")


def apart(policy: SyncPolicy) -> str:
    """Return why callbacks cannot exchange under a policy whose workers take different numbers of steps."""
    return (
        f"under sync = {describe(policy)} workers take different numbers of steps, so they would wait for each other "
        f"forever; use a policy whose workers step together, such as 'bsp' or 'local:every=8'"
    )


def _named(members: Members) -> str:
    return ", ".join(map(str, members))


def check_microbatch(microbatch: int | str | None) -> None:
    """Raise ConfigError unless this is a number of samples or "auto"."""
    # `type` instead of isinstance, because True is an int
    if microbatch not in (None, "auto") and (type(microbatch) is not int or microbatch < 1):
        raise ConfigError(
            f"session.loader(microbatch={microbatch!r}): give the samples of one pass, or 'auto' for the number "
            "that a profile measures"
        )


def check_together(together: bool, dataset: Any, microbatch: object, options: Mapping[str, Any]) -> None:
    """Raise ConfigError if other options of the loader exclude ``together``."""
    if not together:
        return
    others = {**options, "microbatch": microbatch}
    given = [name for name in ("microbatch", "cost", "shards", "batch_sampler") if others.get(name) is not None]
    if given or is_stream(dataset):
        what = f"{given[0]}=…" if given else "a stream"
        raise ConfigError(f"session.loader(together=True) with {what}: samples are assigned by index; leave it out")
