"""Workers that are threads of one process: replicas of a model, unequal parts of each batch, and a part on each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from uneven import Part, Run, Step
from uneven.core.actions import Exchange, Mean, Moment, Payload, StepPlan
from uneven.run.lines import ThreadLines

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


class Worker:
    """One of them."""

    def __init__(
        self, lines: ThreadLines, model: nn.Module, part: Part, lr: float = 0.1, momentum: float = 0.9
    ) -> None:
        self.model, self.part, self.rank = model, part, lines.rank
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
        self._line = lines.open("gradients")
        self.step_now: Step | None = None
        self.logged: list[tuple[str, float]] = []
        self._clock = 0
        part.attach(
            Run(rank=lines.rank, members=lines.members, lines=lines, model=model, optimizers=(self.optimizer,),
                log=lambda name, it: self.logged.append((name, it)), now=lambda: self.step_now)
        )  # fmt: skip

    def step(self, x: Tensor, y: Tensor, shares: Sequence[int], *, passes: int = 1, loss: Loss = entropy) -> None:
        """One step on the union batch ``x``, of which this worker takes its part."""
        members = self._line.members
        plan = StepPlan(
            exchanges=(Exchange(payload=Payload.GRADIENT, members=members, merge=Mean(), moment=Moment.BACKWARD),)
        )
        self.step_now = Step(self._clock, self._clock, 0, self.rank, members, tuple(shares), plan)
        mine = slice(sum(shares[: self.rank]), sum(shares[: self.rank + 1]))
        a, b = x[mine], y[mine]
        padded = not len(a)
        if padded:
            a, b = x[:1], y[:1]
        self.optimizer.zero_grad()
        for one, two in zip(a.tensor_split(passes), b.tensor_split(passes), strict=True):
            (loss(self.model, one, two) / passes).backward()
        for weight in self.model.parameters():
            if weight.grad is not None:
                weight.grad.mul_(self.step_now.weight)
                self._line.sum(weight.grad).wait()
        self.part.gradients_ready(self.step_now, self.optimizer)
        self.optimizer.step()
        self._clock += 1


def train(
    size: int, build: Callable[[], nn.Module], make: Callable[[], Part], use: Callable[[Worker], Any], **how: Any
) -> list[Any]:
    """What ``use`` returns on each of ``size`` workers."""

    def one(lines: ThreadLines) -> Any:
        with lock:
            torch.manual_seed(1)
            model = build()
        return use(Worker(lines, model, make(), **how))

    import threading

    lock = threading.Lock()
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, ThreadLines.of(size)))


def vector(model: nn.Module) -> Tensor:
    return torch.cat([one.detach().reshape(-1) for one in model.parameters()])
