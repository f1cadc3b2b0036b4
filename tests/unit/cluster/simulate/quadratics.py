"""Tasks whose minimum is known, and trainings on them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from uneven.cluster.pure.describe.spec import ClusterSpec
from uneven.cluster.pure.simulate import Outcome, Scenario, simulate
from uneven.cluster.virtual.server_copies_board import Board
from uneven.cluster.virtual.task import Gradient, LearningTask
from uneven.cluster.virtual.virtual_replicas import SampleOrder, Sgd
from uneven.cluster.virtual.virtual_run import prepared
from uneven.cluster.virtual.virtual_training import Training
from uneven.policy.balance import balancers
from uneven.policy.core.actions import Exchange
from uneven.policy.core.records import Record, StepRecord
from uneven.policy.sync import SyncPolicy, policies


class Quadratic(LearningTask):
    """Sample k has the loss ½ (x − a_k)ᵀ diag(c_k) (x − a_k), in double precision; notes which samples it was given."""

    def __init__(self, curves: Tensor, targets: Tensor, *, learning_rate: float, momentum: float = 0.0) -> None:
        self.curves, self.targets = curves.double(), targets.double()
        self.samples = len(targets)
        self.learning_rate, self.momentum = learning_rate, momentum
        self.calls: list[list[int]] = []

    @classmethod
    def random(cls, samples: int, learning_rate: float = 0.1, momentum: float = 0.0) -> Quadratic:
        generator = torch.Generator().manual_seed(1)
        curves = 0.2 + torch.rand(samples, 3, generator=generator)
        return cls(curves, torch.randn(samples, 3, generator=generator), learning_rate=learning_rate, momentum=momentum)

    def initial(self) -> Tensor:
        return torch.zeros(self.targets.shape[1], dtype=torch.float64)

    def gradient(self, parameters: Tensor, samples: Tensor) -> Gradient:
        self.calls.append(samples.tolist())
        off, curves = parameters - self.targets[samples], self.curves[samples]
        return Gradient((curves * off).mean(0), float((curves * off * off).sum(1).mean() / 2))

    def accuracy(self, parameters: Tensor) -> float:
        return 1 / (1 + float(parameters.abs().max()))


class Plain(SampleOrder):
    """The samples as they lie there, over and over again."""

    def __init__(self, length: int) -> None:
        super().__init__(length, 0)
        self._numbers = torch.arange(length)

    def _epoch(self, epoch: int) -> Tensor:
        return self._numbers


class Watched(Training):
    """Remembers what each worker was told to compute."""

    def __init__(self, *rest: Any, **named: Any) -> None:
        super().__init__(*rest, **named)
        self.computed: dict[tuple[int, int], range] = {}
        self.merged: list[tuple[int, ...]] = []

    def computes(self, rank: int, iteration: int, samples: range, at_s: float) -> None:
        super().computes(rank, iteration, samples, at_s)
        self.computed[rank, iteration] = samples

    def merges(self, exchange: Exchange, ranks: tuple[int, ...]) -> None:
        super().merges(exchange, ranks)
        self.merged.append(ranks)


class Trained:
    """A training and all there is to see of it."""

    def __init__(
        self,
        spec: ClusterSpec,
        task: LearningTask,
        policy: str | SyncPolicy = "bsp",
        *,
        balance: str = "even",
        iterations: int = 12,
        order: SampleOrder | None = None,
        watched: type[Watched] = Watched,
    ) -> None:
        scenario = prepared(
            Scenario(
                spec=spec,
                balancer=balancers.resolve(balance),
                policy=policies.resolve(policy),
                iterations=iterations,
            ),
            task,
        )
        self.records: list[Record] = []
        self.order = order or SampleOrder(task.samples, 0)
        self.board = Board(task, self.records.append, spec.workload.global_batch)
        sgd = Sgd(task, self.order, self.board.losses)
        self.training = watched(sgd, evaluation_model=scenario.policy.evaluation_model, board=self.board)
        self.outcome: Outcome = simulate(scenario, self.records.append, arithmetic=self.training)

    @property
    def steps(self) -> list[StepRecord]:
        return [record for record in self.records if isinstance(record, StepRecord)]

    def replicas(self) -> Tensor:
        """One row for each worker."""
        return torch.stack([self.training.parameters(worker.rank) for worker in self.outcome.workers])


def by_hand(task: LearningTask, order: SampleOrder, batches: list[list[range]]) -> Tensor:
    """Plain SGD in one process, torch's own, each step on the union of some ranges of positions."""
    weights = torch.nn.Parameter(task.initial().clone())
    optimizer = torch.optim.SGD([weights], lr=task.learning_rate, momentum=task.momentum)
    for parts in batches:
        samples = torch.cat([order.samples(part) for part in parts])
        weights.grad = task.gradient(weights.detach(), samples).value
        optimizer.step()
    return weights.detach()
