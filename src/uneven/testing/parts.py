"""A part without a session: workers that are threads of one process, or one worker alone, on a loop written out.

::

    def body(lines):
        worker = PartWorker(lines, model := net(), torch.optim.SGD(model.parameters(), lr=0.1), MyPart())
        worker.step(x, y, shares=(3, 1))      # of the union batch each worker takes its part
        return model

    models = together(2, body)

Gradients are averaged over the union batch, as a session under ``bsp`` does it, so a part sees what it would see there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from uneven.core.actions import Exchange, Mean, Moment, Payload, StepPlan
from uneven.core.turn import Turn
from uneven.run.lines import Lines, ThreadLines
from uneven.run.part import Part, Run, Step

PassLoss = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""Model, inputs and targets of one pass → the mean loss over its samples, a scalar."""


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of the model's logits for ``x``."""
    return F.cross_entropy(model(x), y)


class PartWorker:
    """One worker, and the part that is attached to it.

    Attributes:
        now: the step under way, or the last one.
        logged: names and numbers that the part has logged.
        told: kinds and texts of the events that it has told.
    """

    def __init__(self, lines: Lines, model: nn.Module, optimizer: torch.optim.Optimizer, part: Part) -> None:
        self.model = model
        self.part = part
        self.rank = lines.rank
        self.optimizer = optimizer
        self.now: Step | None = None
        self.logged: list[tuple[str, float]] = []
        self.told: list[tuple[str, str]] = []
        self._line = lines.open("gradients")
        self._clock = 0
        self._turn: Turn | None = None
        part.attach(
            Run(rank=lines.rank, members=lines.members, lines=lines, model=model, optimizers=(optimizer,),
                log=lambda name, it: self.logged.append((name, it)),
                tell=lambda event, text: self.told.append((event, text)), now=lambda: self.now, turn=lambda: self._turn)
        )  # fmt: skip

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
        """One step on the union batch ``x``, ``y``, shape (samples, …), of which this worker takes its part.

        Args:
            shares: samples of each worker; all of them of the one that is alone, if empty. One with none goes through
                a pass on the first sample that counts nothing, as where a last batch is filled up.
            counts: what each worker's loss is a mean over, as with ``session.weighted``; its samples, if empty.
            passes: backward passes that the part is taken in.
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
        self._turn = Turn(self._clock, 0, self.now.samples, in_gradient)
        self.optimizer.zero_grad()
        for one, two in zip(x[mine].tensor_split(passes), y[mine].tensor_split(passes), strict=True):
            (loss(self.model, one, two) / passes).backward()
        if len(members) > 1:
            for weight in self.model.parameters():
                if weight.grad is not None:
                    weight.grad.mul_(in_gradient)
                    self._line.sum(weight.grad).wait()
        self.part.gradients_ready(self.now, self.optimizer)
        self.optimizer.step()
        self._clock += 1


def alone(model: nn.Module, optimizer: torch.optim.Optimizer, part: Part) -> PartWorker:
    """A worker that has nobody else: what workers on shares of its batch have to be equal to."""
    return PartWorker(ThreadLines.of(1)[0], model, optimizer, part)


def together(size: int, body: Callable[[Lines], Any]) -> list[Any]:
    """What ``body`` returns on each of so many workers, by rank. The first error of one is raised here."""
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(body, ThreadLines.of(size)))
