"""The exchange of gradients of a session, as the loop sees it; ``run/step/build.py`` chooses the class."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel

from uneven.errors import TrainingError
from uneven.policy.core.actions import StepPlan
from uneven.policy.core.batch_weight import BatchWeight
from uneven.policy.core.membership import Members
from uneven.run.context.context import Context
from uneven.run.gradients.exchange_weight import ExchangeWeight
from uneven.run.gradients.replica_check import ReplicaCheck
from uneven.run.gradients.statistics import BatchStatistics
from uneven.run.lines.control_words import ControlWords
from uneven.run.lines.in_step import closures_checked, is_still, refuse_held
from uneven.run.model.check import unused_parameters


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


@dataclass(kw_only=True)
class ExchangedSteps(Gradients):
    """A model whose gradients are exchanged in its backward passes, and the steps of its optimizers.

    ``scale`` is the weight of this worker's gradients in the next exchange.
    """

    turn: BatchWeight
    scale: ExchangeWeight = field(default_factory=ExchangeWeight)
    _ddp: DistributedDataParallel | None = None
    _parameters: list[nn.Parameter] = field(default_factory=list)
    # exchanges, and the first parameter's version, before the first pass on this batch
    _seen: tuple[int, int] = (0, -1)
    _past: int = 0  # batches in a row that have changed it without an exchange
    _exchanges: int = 0
    _steps: dict[int, tuple[int, int]] = field(default_factory=dict)  # by optimizer: exchanges seen, steps without
    _aside: bool = False

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Prepare, exchange and check nothing inside."""
        self._aside = True
        try:
            yield
        finally:
            self._aside = False

    def check_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """Raise :class:`TrainingError` if an optimizer step would use gradients that were not exchanged."""
        if self._aside or is_still(optimizer):
            return None
        closure = closures_checked(args, kwargs, lambda: refuse_held(self.scale.held))
        refuse_held(self.scale.held and closure is None)
        # One step without an exchange since the last one may be intended: the same gradients again. A first one, or a
        # second in a row, shows a forward pass that bypassed our hooks. A closure may exchange within the step.
        seen, missed = self._steps.get(id(optimizer), (0, 0))
        missed = missed + 1 if seen == self._exchanges and self.turn.exchanging and closure is None else 0
        with_gradient = sum(p.grad is not None for p in self._parameters)
        if self._ddp is not None and missed > (seen > 0) and 0 < with_gradient < len(self._parameters):
            raise TrainingError(unused_parameters(self._ddp.module, self._parameters, self.turn.iteration))
        if missed > (seen > 0) and with_gradient:
            raise TrainingError(
                f"iteration {self.turn.iteration}: optimizer.step() but no gradients were exchanged: call the model "
                "that session.setup returned, model(x), not model.forward(x) or a part of it; compile before "
                "session.setup"
            )
        self._steps[id(optimizer)] = (self._exchanges, missed)
        return closure

    def _follow(self, turn: BatchWeight) -> None:
        """Move to another batch; raise if the parameters changed twice in a row without an exchange."""
        before, self._seen = self._seen, (self._exchanges, self._parameters[0]._version)
        past = self._seen[0] == before[0] and self._seen[1] != before[1] >= 0
        self._past = self._past + 1 if past and self.turn.exchanging else 0
        if self._past > 1:
            raise TrainingError(
                f"iteration {self.turn.iteration}: the parameters changed, but no gradients were exchanged. "
                "loss.backward() exchanges them, torch.autograd.grad and torch.func.grad do not: call "
                "loss.backward(), and update with .grad"
            )
        self.turn = turn
