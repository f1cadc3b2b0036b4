"""Checks of outer steps, which the shards take on the movements of a quorum of workers."""

import torch
from torch import Tensor, nn

from uneven.errors import ConfigError
from uneven.policy.core.actions import Exchange, Merge, Payload
from uneven.policy.core.registry import describe
from uneven.policy.sync import SyncPolicy, first_plans
from uneven.run.model.batch_norm import batch_norms

Members = tuple[int, ...]


def check_outer(model: nn.Module, policy: SyncPolicy, members: Members, sites: dict[int, str]) -> None:
    """Raise :class:`ConfigError` if outer steps of the shards cannot be taken on a model: it has running statistics."""
    if (layers := batch_norms(model)) and plans_outer(policy, members, sites):
        raise ConfigError(
            f"the model has running statistics ({layers[0]!r}), to which sync = {describe(policy)} would apply "
            "momentum: use group norm, as torch.nn.GroupNorm(2, channels), or sync = 'diloco', which averages them "
            "separately"
        )


def check_shards(
    policy: SyncPolicy, members: Members, sites: dict[int, str], shards: int, *, changes: bool = False
) -> None:
    """Raise :class:`ConfigError` if this number of shards could deadlock: several, with a quorum of some members.

    ``changes`` is True if workers may leave and join, so that a quorum of all becomes one of some.
    """
    # Each shard merges with the workers that come first, and a worker that waits at one shard sends nothing more. So
    # two workers can wait for each other at two shards, if a third one died after it was merged at both.
    if shards == 1:
        return
    for exchange in (one for plan in first_plans(policy, members, sites) for one in plan.exchanges if _is_one(one)):
        quorum = exchange.quorum
        if quorum is not None and quorum.count > 1 and (changes or quorum.count < len(exchange.members)):
            way = "" if changes else f", or quorum={len(exchange.members)}"
            raise ConfigError(
                f"sync = {describe(policy)} through {shards} shards: each shard has its own quorum of "
                f"{quorum.count} of {len(exchange.members)}, so workers could wait for each other forever; use "
                f"--servers 1{way}"
            )


def plans_outer(policy: SyncPolicy, members: Members, sites: dict[int, str]) -> bool:
    """Return whether the first plans of a policy exchange movements of a quorum."""
    return any(_is_one(one) for plan in first_plans(policy, members, sites) for one in plan.exchanges)


def _is_one(exchange: Exchange) -> bool:
    return exchange.quorum is not None and exchange.payload is Payload.DELTA


def check_served_step(merge: Merge, own: Tensor) -> None:
    """Raise :class:`ConfigError` if a merge and the shards' outer step have different results.

    ``own`` are numbers to try it on, shape (n,).
    """
    served = merge.served_step()
    assert served is not None, "the caller has checked the merge"
    momentum, rate = served
    start = torch.linspace(-1.0, 1.0, len(own), dtype=own.dtype)
    kept, velocity = merge.begin(start), torch.zeros_like(own)
    for given in (own, 0.5 * own + start):
        kept, outcome = merge.combine(kept, given, 1.0)
        velocity = momentum * velocity + given
        if not torch.allclose(outcome, rate * (given + momentum * velocity), equal_nan=True):
            raise ConfigError(
                f"{merge!r} declares that a parameter server takes an outer step with momentum {momentum:g} and "
                f"learning rate {rate:g}, but its combine() gives another result: return None from served_step(), "
                "and simulate it instead"
            )
