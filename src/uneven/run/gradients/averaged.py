"""The gradient exchange of one session: its carrier, and the checks around a step."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.amp import GradScaler

from uneven.errors import ConfigError
from uneven.policy.core.actions import Payload, StepPlan
from uneven.run.context.context import Context
from uneven.run.gradients.fully_sharded import ShardedCarrier
from uneven.run.gradients.gradient_carrier import GradientCarrier
from uneven.run.gradients.replica_check import ReplicaCheck
from uneven.run.lines.group_lines import sum_now
from uneven.run.lines.piggyback import Piggyback

# On an accelerator, reading the flag for NaN and infinity blocks the host, so it is read once in this many iterations.
_NONFINITE_EVERY = 50


def unless_scaled(tell: Callable[[], None]) -> None:
    """Call ``tell`` unless a GradScaler is still searching for its scale: then it skips the step."""
    # A scale below 1 shows that the gradients themselves are not finite. isinstance would call into proxies.
    scalers = (one for one in gc.get_objects() if issubclass(type(one), GradScaler))
    if not any(one.is_enabled() and one._scale is not None and one.get_scale() >= 1.0 for one in scalers):
        tell()


AnyCarrier = GradientCarrier | ShardedCarrier


class Averaged:
    """The gradient exchange of a session. ``members`` are the ranks it averages; it and the carrier are None without
    one."""

    def __init__(self) -> None:
        self.carrier: AnyCarrier | None = None
        self.members: tuple[int, ...] | None = None
        self.replicas: ReplicaCheck | None = None

    def exchange(self, carrier: AnyCarrier, members: tuple[int, ...]) -> None:
        self.carrier, self.members = carrier, members

    def averaging(self, plan: StepPlan) -> tuple[int, ...] | None:
        if self.carrier is not None and self.carrier.forms_groups:
            return next((one.members for one in plan.exchanges if one.payload is Payload.GRADIENT), None)
        return self.members

    def attach(self, model: nn.Module, owner: object, **ddp: Any) -> list[Callable[..., None]]:
        """Install the carrier on the model; return the functions to call before each step of its optimizers."""
        if self.carrier is None:
            return []
        self.carrier.owner = owner  # the model's hooks hold the carrier, so the owner lives as long as the model
        self.carrier.attach(model, **ddp)
        return [self.carrier.check_step]

    def compare(self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], context: Context) -> None:
        """Start to compare replicas from time to time, as they must be equal after each step."""
        carrier = self.carrier
        # Elastic runs are not checked, because their members join mid-epoch.
        if carrier is None or carrier._statistics is None or context.participants.changes:
            return
        if context.scribe.speaks:
            carrier._statistics.warn = partial(context.scribe.event, "buffers", warn=True)
        if not isinstance(carrier, GradientCarrier):  # each worker holds a part of the model
            return
        # The closure below must not hold the carrier itself, which has to be freed with the session.
        roll, traffic, group = carrier.roll, carrier.traffic, carrier._group

        def total(numbers: torch.Tensor) -> None:
            with roll.waiting("the comparison of replicas"), traffic.waiting():
                sum_now(numbers, group)

        others = carrier._statistics.others
        carrier.landed = self.replicas = ReplicaCheck(model, optimizers, context.rank, context.members, others, total)

    @property
    def piggyback(self) -> Piggyback | None:
        return None if self.carrier is None else self.carrier.piggyback

    def poll(self, iteration: int) -> None:
        """Check from time to time, after a step, if a gradient held a NaN or an infinity."""
        if self.carrier is not None and iteration % _NONFINITE_EVERY == 0:
            self.carrier.poll_nonfinite()

    def no_sync(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.carrier is None else self.carrier.no_sync()

    def exchange_held(self, weight: float) -> None:
        if self.carrier is not None:
            assert not isinstance(self.carrier, ShardedCarrier)  # each pass of it needs all workers
            self.carrier.exchange_held(weight)

    def check_apart(self, caller: str) -> None:
        """Raise :class:`ConfigError` if this worker cannot call the model while others do not: each holds a part of
        it."""
        if isinstance(self.carrier, ShardedCarrier):
            raise ConfigError(
                f"{caller} with fully_shard: each pass of a sharded model meets all workers, so none can go by itself; "
                f"give all equally many batches, and add up by session.mean"
            )

    def aside(self) -> AbstractContextManager[Any]:
        """Return a context in which passes and steps do not involve other workers."""
        self.check_apart("session.profile")
        return nullcontext() if isinstance(self.carrier, ShardedCarrier | None) else self.carrier.aside()

    def detach(self) -> None:
        self.replicas = None
        if self.carrier is not None:
            self.carrier.detach()
