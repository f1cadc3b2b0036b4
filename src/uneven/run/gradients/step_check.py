"""The check that each step of an optimizer uses gradients that were exchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from uneven.errors import TrainingError
from uneven.policy.core.batch_weight import BatchWeight
from uneven.run.gradients.base import Gradients
from uneven.run.gradients.exchange_weight import ExchangeWeight
from uneven.run.lines.in_step import closures_checked, is_still, refuse_held
from uneven.run.model.check import unused_parameters


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
                f"that session.setup returned, model(x), not model.forward(x) or a part of it; and if torch.compile "
                f"has compiled it before, pass what torch.compile returned to session.setup"
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
                f"iteration {self.turn.iteration}: the parameters have changed, but no gradients were exchanged. That "
                f"happens in loss.backward(), not in torch.autograd.grad or torch.func.grad: call loss.backward() and "
                f"update by what is in .grad then"
            )
        self.turn = turn
