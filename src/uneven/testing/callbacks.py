"""Run a callback without a session, in an explicit loop: on workers that are threads of one process, or on a single
one.

::

    def body(lines):
        worker = CallbackWorker(lines, model := net(), torch.optim.SGD(model.parameters(), lr=0.1), MyPart())
        worker.step(x, y, shares=(3, 1))      # each worker takes its part of the union batch
        return model

    models = together(2, body)

Gradients are averaged over the union batch, as in a session under ``bsp``, so a callback sees the same as there.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from uneven.policy.core.actions import Exchange, Mean, Moment, Payload, StepPlan
from uneven.policy.core.batch_weight import BatchWeight
from uneven.run.lines import Lines, ThreadLines
from uneven.run.step.callback import Callback, CallbackContext, Step

PassLoss = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""Model, inputs and targets of one pass → the mean loss over its samples, a scalar."""


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy, a scalar, of the model's logits for ``x`` (n, …) and the classes ``y`` (n,)."""
    return F.cross_entropy(model(x), y)


class CallbackWorker:
    """One worker with an attached callback."""

    def __init__(self, lines: Lines, model: nn.Module, optimizer: torch.optim.Optimizer, part: Callback) -> None:
        self.model = model
        self.part = part
        self.rank = lines.rank
        self.optimizer = optimizer
        self.now: Step | None = None  # the present step, or the last one
        self.logged: list[tuple[str, float]] = []  # names and numbers that the callback has logged
        self.told: list[tuple[str, str]] = []  # kinds and texts of the events that it has reported
        self._line = lines.open("gradients")
        self._clock = 0
        self._turn: BatchWeight | None = None
        part.attach(
            CallbackContext(
                rank=lines.rank,
                members=lines.members,
                lines=lines,
                model=model,
                optimizers=(optimizer,),
                log=lambda name, it: self.logged.append((name, it)),
                tell=lambda event, text: self.told.append((event, text)),
                now=lambda: self.now,
                turn=lambda: self._turn,
            )
        )

    def step(
        self,
        x: Tensor,
        y: Tensor,
        shares: Sequence[int] = (),
        *,
        counts: Sequence[float] = (),
        passes: int = 1,
        loss: PassLoss = cross_entropy,
    ) -> None:
        """Take one step on this worker's part of the union batch ``x``, ``y``, of shape (samples, …).

        Args:
            shares: samples of each worker; if empty, a single worker takes all. A worker without samples runs a pass on
                the first sample, which counts nothing, as in a padded last batch.
            counts: loss weight of each worker, as with ``session.loss_mean``; by default its samples.
            passes: number of backward passes.
        """
        members = self._line.members
        plan = StepPlan(
            exchanges=(Exchange(payload=Payload.GRADIENT, members=members, merge=Mean(), moment=Moment.BACKWARD),)
        )
        self.now = Step(self._clock, self._clock, 0, self.rank, members, tuple(shares) or (len(x),), plan)
        place = members.index(self.rank)
        first = sum(self.now.shares[:place])
        mine = slice(first, first + self.now.samples) if self.now.samples else slice(1)
        in_gradient = counts[place] / sum(counts) if counts else self.now.weight
        self._turn = BatchWeight(self._clock, 0, self.now.samples, in_gradient)
        self.optimizer.zero_grad()
        for one, two in zip(x[mine].tensor_split(passes), y[mine].tensor_split(passes), strict=True):
            (loss(self.model, one, two) / passes).backward()
        if len(members) > 1:
            for weight in self.model.parameters():
                if weight.grad is not None:
                    # A worker's gradient is a mean over its samples, so its weight makes the sum the mean over all
                    # samples.
                    weight.grad.mul_(in_gradient)
                    self._line.sum(weight.grad).wait()
        self.part.gradients_ready(self.now, self.optimizer)
        self.optimizer.step()
        self._clock += 1


def alone(model: nn.Module, optimizer: torch.optim.Optimizer, part: Callback) -> CallbackWorker:
    """Return a single worker, whose results must equal those of several workers on shares of its batch."""
    return CallbackWorker(ThreadLines.of(1)[0], model, optimizer, part)


def together(size: int, body: Callable[[Lines], Any]) -> list[Any]:
    """Run ``body`` on `size` workers and return the results by rank. Raises the first error of a worker."""
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(body, ThreadLines.of(size)))
