"""Rivals as arms: the same model, samples and clock as every other arm, with the rival's division of the work.

Balancing rules run on plain DDP and see every iteration of every worker without delay, as in their authors' programs.
FlexRR, backup workers and accumulation replace the iteration by that of their carriers. They cut inputs out of the data
set without a loader, which is cheaper than the others' loaders.
"""

import math
import time
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from uneven.policy.balance import Balancer
from uneven.policy.core.views import Limits, Observation
from uneven.policy.samples.order import epoch_order
from uneven_bench.balancers.rivals import view_of
from uneven_bench.lb_bsp.arms import Arm, Block, DDPArm, Shares
from uneven_bench.peers.accumulate.carrier import AccumulateCarrier
from uneven_bench.peers.backup.carrier import BackupCarrier
from uneven_bench.peers.flexrr.carrier import FlexRRCarrier
from uneven_bench.workloads.base import TrainingWorkload

_PATIENCE_S = 900.0  # the longest wait of a carrier for a message: others' blocks and a profile come between its blocks


class RuleArm(DDPArm):
    """Plain DDP on a split that a rival's rule decides. Every ``every`` iterations the workers exchange samples and
    compute times during the optimizer's step; the new split counts in the next iteration. ``shares`` are the first
    ones, unless the rule gives others; ``rule`` is the same on every rank."""

    def __init__(
        self, model: nn.Module, work: TrainingWorkload, shares: Shares, block: int, *, rule: Balancer, every: int
    ) -> None:
        super().__init__(model, work, shares, block)
        self._rule = rule
        self._every = every
        self._limits = Limits.uniform(len(shares), sum(shares))
        self._nothing()
        self._step_s = 0.0
        self._iteration = -1
        self._row = torch.zeros(2, dtype=torch.float64)
        self._rows = torch.zeros(len(shares), 2, dtype=torch.float64)
        self._told: dist.Work | None = None
        self._split((None,) * len(shares))

    @property
    def settles(self) -> bool:
        return True

    def _nothing(self) -> None:
        self._samples = self._count = 0
        self._local_s = 0.0

    def exchanged(self, begun_s: float) -> None:
        """Add this iteration's compute time, the last optimizer's step included; send the sum if it is due."""
        self._exchanged_s = time.perf_counter()
        self._local_s += self.mark.ready_s - begun_s + self._step_s
        self._samples += self.split[dist.get_rank()]
        self._iteration += 1
        self._count += 1
        if self._count == self._every:
            self._row[0], self._row[1] = self._samples, self._local_s
            self._told = dist.all_gather(list(self._rows.unbind()), self._row, async_op=True)

    def ended(self) -> None:
        """Receive the sums, and decide."""
        self._step_s = time.perf_counter() - self._exchanged_s
        if self._told is None:
            return
        self._told.wait()
        self._told = None
        seen = tuple(
            Observation(iteration=self._iteration, samples=round(samples), local_s=local_s, iterations=self._count)
            for samples, local_s in self._rows.tolist()
        )
        self._nothing()
        self._split(seen)

    def _split(self, seen: tuple[Observation | None, ...]) -> None:
        self.take(self._rule.split(view_of(self._iteration + 1, self.split, seen, self._limits)).shares)


class _CarriedArm(Arm):
    """The base of arms with a carrier."""

    carrier: FlexRRCarrier | AccumulateCarrier | BackupCarrier

    def order(self) -> list[int]:
        """Return the places of this block's samples, as every other arm takes them."""
        return epoch_order(length=len(self.data), seed=0, epoch=self.blocks - 1).tolist()

    def sum_of(self, places: list[int]) -> torch.Tensor:
        x, y = self.data.take(places)
        return self.work.loss(self.model, x, y) * len(places)

    def close(self) -> None:
        self.carrier.close()


class FlexRRArm(_CarriedArm):
    """Even shares in micro-batches of ``grain`` samples, some of which faster workers take over."""

    def __init__(self, model: nn.Module, work: TrainingWorkload, shares: Shares, block: int, *, grain: int) -> None:
        super().__init__(model, work, sum(shares), block)
        self._shares = shares
        self._firsts = [sum(shares[:rank]) for rank in range(len(shares))]
        self.carrier: FlexRRCarrier = FlexRRCarrier(model, grain=grain, timeout_s=_PATIENCE_S)
        self._optimizer = work.optimizer(model.parameters())

    def train(self) -> tuple[float, ...]:
        order, exposed_s = self.order(), []
        for start in range(0, len(order), self.total):

            def loss(owner: int, first: int, samples: int, start: int = start) -> torch.Tensor:
                begin = start + self._firsts[owner] + first
                return self.sum_of(order[begin : begin + samples])

            self.carrier.backward(self._shares, loss)
            exposed_s.append(time.perf_counter() - self.carrier.ready_s)
            self._optimizer.step()
        return tuple(exposed_s)


class AccumulateArm(_CarriedArm):
    """hivemind-style: micro-batches of ``grain`` samples until there are X together."""

    def __init__(self, model: nn.Module, work: TrainingWorkload, total: int, block: int, *, grain: int) -> None:
        super().__init__(model, work, total, block)
        self.carrier: AccumulateCarrier = AccumulateCarrier(model, grain=grain, timeout_s=_PATIENCE_S)
        self._optimizer = work.optimizer(model.parameters())
        self._done = 0

    def train(self) -> tuple[float, ...]:
        order, exposed_s = self.order(), []
        rank, size = dist.get_rank(), dist.get_world_size()
        cursor, self._done = rank * len(order) // size, 0  # each rank draws its own samples, from its own place on
        for _ in range(self.iterations):

            def loss(first: int, samples: int, cursor: int = cursor) -> torch.Tensor:
                return self.sum_of([order[(cursor + first + place) % len(order)] for place in range(samples)])

            done = self.carrier.backward(self.total, loss)
            exposed_s.append(time.perf_counter() - self.carrier.ready_s)
            self._optimizer.step()
            cursor += self.carrier.own
            self._done += done
        return tuple(exposed_s)

    def block(self) -> Block:
        """Train a block as :meth:`Arm.block`; it reports the excess of the batches over X."""
        return replace(super().block(), samples=self._done / (self.total * self.iterations))


class BackupArm(_CarriedArm):
    """Redundant execution: the first n − b gradients count; ``spares`` is b."""

    def __init__(self, model: nn.Module, work: TrainingWorkload, total: int, block: int, *, spares: int) -> None:
        super().__init__(model, work, total, block)
        self.carrier: BackupCarrier = BackupCarrier(model, work.optimizer, spares=spares, timeout_s=_PATIENCE_S)
        self._each = self.carrier.samples_each(total)
        self._took_s = math.inf

    def train(self) -> tuple[float, ...]:
        order, first = self.order(), self.carrier.version
        rank, size = dist.get_rank(), dist.get_world_size()

        def loss(version: int) -> torch.Tensor:
            begin = ((version - first) * size + rank) * self._each
            return self.sum_of([order[(begin + place) % len(order)] for place in range(self._each)]) / self._each

        del self.carrier.exposed_s[:]
        started_s = time.perf_counter()
        self.carrier.train(self.blocks * self.iterations, loss)
        self._took_s = time.perf_counter() - started_s
        return tuple(self.carrier.exposed_s)

    def block(self) -> Block:
        """Train a block as :meth:`Arm.block`, until the first rank has the last version: late gradients do not count,
        and a longer run would not wait for them."""
        found = super().block()
        first_s = torch.tensor([self._took_s], dtype=torch.float64)
        dist.all_reduce(first_s, op=dist.ReduceOp.MIN)
        return replace(found, wall_s=float(first_s) / self.iterations)
