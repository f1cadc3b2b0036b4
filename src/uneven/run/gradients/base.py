"""The exchange of gradients of a session, as the loop sees it; ``run/step/build.py`` chooses the class."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.amp import GradScaler

from uneven.policy.core.actions import StepPlan
from uneven.policy.core.batch_weight import BatchWeight
from uneven.policy.core.membership import Members
from uneven.run.context.context import Context
from uneven.run.gradients.replica_check import ReplicaCheck
from uneven.run.gradients.statistics import BatchStatistics
from uneven.run.lines.control_words import ControlWords


class Gradients:
    """The exchange of gradients of one worker. This one exchanges none, and others derive from it.

    Attributes:
        turn: that of the newest pass, forward or backward.
        members: the workers that average gradients when training begins; None for no averaging.
        owner: kept alive as long as the model.
        replicas: compares replicas now and then; None if it does not.
        words: the numbers that travel with the gradients; None if none can.
    """

    turn = BatchWeight(iteration=0, epoch=0, samples=0, weight=1.0)
    members: Members | None = None
    owner: object = None
    replicas: ReplicaCheck | None = None
    words: ControlWords | None = None
    _statistics: BatchStatistics | None = None

    def averaging(self, plan: StepPlan) -> Members | None:
        """Return the workers that can average gradients with this one under a plan."""
        return self.members

    def attach(self, model: nn.Module, owner: object, **ddp: Any) -> list[Callable[..., None]]:
        """Install on the model, whose hooks keep ``owner`` alive; ``ddp`` are options of ``DistributedDataParallel``.
        Returns the functions to call before each step of its optimizers."""
        return []

    def compare(self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], context: Context) -> None:
        """Start to compare replicas now and then, as they must be equal after each step, and to warn of buffers."""
        if self._statistics is not None and context.scribe.speaks:
            self._statistics.warn = partial(context.scribe.event, "buffers", warn=True)

    def no_sync(self) -> AbstractContextManager[Any]:
        """Return a context in which backward passes leave their gradients in ``.grad`` without an exchange."""
        return nullcontext()

    def aside(self) -> AbstractContextManager[Any]:
        """Return a context in which passes and steps do not involve other workers."""
        return nullcontext()

    def exchange_held(self, weight: float) -> None:
        """Exchange the gradients that passes inside :meth:`no_sync` left in ``.grad``; ``weight`` is for batch-norm
        statistics."""

    def check_apart(self, caller: str) -> None:
        """Raise :class:`ConfigError` if this worker cannot call the model while others do not."""

    def poll(self, iteration: int) -> None:
        """Check from time to time, after a step, if a gradient held a NaN or an infinity."""

    def detach(self) -> None:
        """Remove everything from the model."""


def unless_scaled(tell: Callable[[], None]) -> None:
    """Call ``tell`` unless a GradScaler is still searching for its scale: then it skips the step."""
    # A scale below 1 shows that the gradients themselves are not finite. isinstance would call into proxies.
    scalers = (one for one in gc.get_objects() if issubclass(type(one), GradScaler))
    if not any(one.is_enabled() and one._scale is not None and one.get_scale() >= 1.0 for one in scalers):
        tell()
