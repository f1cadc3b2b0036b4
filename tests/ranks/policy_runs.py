"""What the tests of carried policies train: a session under some policy, and what it wrote about its exchanges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from session_parts import Numbered, X, net, tensors
from torch import Tensor, nn

import uneven
from uneven.cluster.pure.describe.spec import ClusterSpec, Node, Workload
from uneven.cluster.pure.simulate import Scenario, simulate
from uneven.cluster.virtual.server_copies_board import Board
from uneven.cluster.virtual.task import Classification
from uneven.cluster.virtual.virtual_replicas import SampleOrder, Sgd
from uneven.cluster.virtual.virtual_run import prepared
from uneven.cluster.virtual.virtual_training import Training
from uneven.policy.balance import balancers
from uneven.policy.core.cost import Affine
from uneven.policy.core.records import ExchangeRecord
from uneven.policy.sync import SyncPolicy, policies
from uneven_bench.inside import inside

Make = Callable[[nn.Module], torch.optim.Optimizer]


def plain(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def idle(model: nn.Module) -> torch.optim.Optimizer:
    """Whose steps change nothing."""
    return torch.optim.SGD(model.parameters(), lr=0.0)


class Run:
    """A session with all that belongs to a loop."""

    def __init__(self, sync: str | SyncPolicy, balance: Any = "even", make: Make = plain, **loader: Any) -> None:
        self.session = uneven.Session(sync=sync, balance=balance)
        self.model = loader.pop("model", net)()
        self.optimizer = make(self.model)
        self.session.setup(self.model, self.optimizer)
        data, batch = loader.pop("data", Numbered)(), loader.pop("batch", X)
        self.loader = self.session.loader(data, batch, **loader)
        self.exchanges: list[ExchangeRecord] = []
        self.agreement = inside(self.session).sync
        if self.agreement is not None:
            inside(self.session).records(self.exchanges.append)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        F.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def epoch(self, most: int | None = None) -> list[int]:
        """One epoch, or so many iterations of it; which samples this worker was given."""
        seen = []
        for count, (x, y, index) in enumerate(self.loader, 1):
            self.step(x, y)
            seen += index.tolist() if inside(self.session).part.batch(self.session.rank) else []
            if count == most:
                break
        return seen

    def epoch_in_rounds(self) -> list[int]:
        """One epoch whose first batches are handed to all before anybody takes a second one.

        Where no step is complete without everybody, each round is then a global batch.
        """
        seen: list[int] = []
        for x, y, index in self.loader:
            if not seen:
                dist.barrier()
            self.step(x, y)
            seen += index.tolist()
        return seen

    def shown(self) -> torch.Tensor:
        """The parameters of the model to evaluate."""
        with self.session.evaluation_model():
            return flat(self.model)

    def differ(self) -> None:
        """Let each replica start elsewhere."""
        with torch.no_grad():
            for one in self.model.parameters():
                one += self.session.rank


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([one.detach().reshape(-1) for one in model.parameters()])


def everybodys(value: torch.Tensor) -> torch.Tensor:
    """Shape (ranks, …)."""
    table = [torch.empty_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(table, value)
    return torch.stack(table)


def same(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


class Double(nn.Module):
    """The network in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net().double()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x.double())
        return found


class Normed(Double):
    """The same after a batch norm, which has running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.BatchNorm1d(5).double(), self.inner)


def virtual(sync: str | SyncPolicy, balance: str, sites: Sequence[str], steps: int, batch: int = X) -> Training:
    """Train :class:`Double` in virtual time, with one worker for each of ``sites`` and plain SGD."""
    x, y = tensors(torch.float64)
    task = Classification(net().double(), (x, y), (x, y), learning_rate=0.1)
    nodes = tuple(Node(name=f"n{rank}", site=site, cost=Affine(1.0, 0.0)) for rank, site in enumerate(sites))
    spec = ClusterSpec(name="virtual", nodes=nodes, workload=Workload(global_batch=batch, gradient_bytes=1000))
    policy = policies.resolve(sync)
    scenario = prepared(Scenario(spec=spec, balancer=balancers.resolve(balance), policy=policy, iterations=steps), task)
    board = Board(task, lambda record: None, batch)
    training = Training(
        Sgd(task, SampleOrder(task.samples, 0), board.losses), evaluation_model=policy.evaluation_model, board=board
    )
    simulate(scenario, lambda record: None, arithmetic=training)
    return training


def replicas(training: Training, workers: int) -> Tensor:
    """Parameters of each worker at the end, shape (workers, parameters)."""
    return torch.stack([training.parameters(rank) for rank in range(workers)])


def resumed(first: Run, sync: str, balance: str, state: dict[str, Any], **loader: Any) -> Run:
    """A run that starts from the checkpoint of another one."""
    again = Run(sync, balance, **loader)
    again.model.load_state_dict(first.model.state_dict())
    again.optimizer.load_state_dict(first.optimizer.state_dict())
    again.session.load_state_dict(state)
    return again
