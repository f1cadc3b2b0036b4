"""The arms of ``uneven bench sync``: each trains its own copy of the model, step by step, and knows which model counts.

An arm in which nobody waits for anybody trains for so many seconds, each worker by its own clock; the others take so
many steps together. Bytes are those that leave a worker's interface, whatever sent them.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

import uneven
from uneven.data.order import epoch_order
from uneven.emulate.names import INTERFACE
from uneven.registry import parse_spec
from uneven.sync import Pace, policies
from uneven.transport.shadow import ShadowThread
from uneven_bench.lb_bsp.arms import fillers
from uneven_bench.sync.cases import TORCHFT
from uneven_bench.workloads.base import whole

RATE, MOMENTUM = 0.02, 0.9

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Block:
    """What one worker did in a stretch of training.

    Attributes:
        seconds: by its own clock, until it had taken its last step.
        sent_bytes: that left its interface until all were through.
    """

    seconds: float
    steps: int
    samples: int
    sent_bytes: int

    @classmethod
    def of(cls, turns: Sequence[Block]) -> Block:
        """Several stretches, taken for one."""
        columns = zip(*map(astuple, turns), strict=True)
        return cls(*(sum(column) for column in columns))


class Images(Dataset[Any]):
    """A data set whose batches are fetched at once."""

    def __init__(self, data: TensorDataset) -> None:
        self._tensors = data.tensors

    def __len__(self) -> int:
        return len(self._tensors[0])

    def __getitem__(self, place: int) -> tuple[torch.Tensor, ...]:
        return tuple(tensor[place] for tensor in self._tensors)

    def __getitems__(self, places: list[int]) -> tuple[torch.Tensor, ...]:
        """What torch's loader asks for if it is there."""
        return tuple(tensor[places] for tensor in self._tensors)


class EvenSampler(Sampler[list[int]]):
    """This rank's equal part of every global batch, epoch after epoch, in the order that a session's loader has."""

    def __init__(self, length: int, batch: int, rank: int, workers: int, seed: int = 0) -> None:
        self._length, self._batch, self._rank, self._total = length, batch, rank, batch * workers
        self._seed = seed

    def __iter__(self) -> Iterator[list[int]]:
        epoch = 0
        while True:
            order = epoch_order(length=self._length, seed=self._seed, epoch=epoch)
            for first in range(0, self._length - self._total + 1, self._total):
                start = first + self._rank * self._batch
                yield order[start : start + self._batch].tolist()
            epoch += 1


def mlp(inputs: int, classes: int, seed: int = 0) -> nn.Module:
    """Two hidden layers and about a million parameters, 4 MB; the same weights on every call with one seed.

    Args:
        inputs: numbers of an image.
    """
    torch.manual_seed(seed)
    first = 960
    second = max(64, (1_000_000 - inputs * first) // (first + classes))
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(),
        nn.Linear(second, classes),
    )  # fmt: skip


class SyncArm(ABC):
    """One way to train ``model``.

    Attributes:
        own_pace: whether nobody waits for anybody, so that each worker may stop when it likes.
        every: steps after which what is exchanged begins anew.
    """

    own_pace = False
    every = 1

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
        self.net: nn.Module = model  # what is called in a step
        self.batches: Batches
        self._hand: tuple[torch.Tensor, torch.Tensor] | None = None
        self._rng = np.random.default_rng()

    def _step(self) -> int:
        """On the batch in hand; how many samples it took."""
        assert self._hand is not None
        x, y = self._hand
        F.cross_entropy(self.net(x), y).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return len(y)

    def _fetch(self) -> None:
        """Ask for the next batch, before which what is due after a step is done."""
        self._hand = next(self.batches)

    def train(self, *, seconds: float, steps: int, through: bool = False) -> Block:
        """A stretch of training: for so long at one's own pace, else for so many steps. All begin together.

        Args:
            through: go on until nothing is exchanged any more, and leave the loop then: what comes until the next
                stretch is another arm's, and must not pay for this one's exchange, nor be taken for a step of it.
        """
        held = fillers(self._rng)
        dist.barrier()
        if self._hand is None:
            self._fetch()
        sent, taken, samples, going_on = sent_bytes(), 0, 0, True
        started_s = time.perf_counter()
        while going_on:
            samples += self._step()
            taken += 1
            self._hand = None
            going_on = self._goes_on(started_s + seconds, steps - taken) or (through and self.exchanging())
            if going_on or not through:
                self._fetch()
        took_s = time.perf_counter() - started_s
        if through:
            self.leave()
        dist.barrier()
        del held
        return Block(took_s, taken, samples, sent_bytes() - sent)

    def _goes_on(self, until_s: float, missing: int) -> bool:
        return time.perf_counter() < until_s if self.own_pace else missing > 0

    def exchanging(self) -> bool:
        """Whether something is exchanged beside the training."""
        return False

    def leave(self) -> None:  # noqa: B027 - of most arms' loops nobody takes the time
        """Leave the loop, where that makes a difference."""

    @abstractmethod
    def counted(self) -> AbstractContextManager[Any]:
        """Inside, ``model`` is the one to evaluate. Every worker enters it."""

    def close(self) -> None:  # noqa: B027 - most arms have nothing to let go of
        """Let go of what the arm opened."""


class Alone(SyncArm):
    """Exchanges nothing at all."""

    own_pace = True

    def __init__(self, model: nn.Module, data: TensorDataset, batch: int, seed: int) -> None:
        super().__init__(model)
        self.batches = iter(loader_of(data, batch, seed))

    def counted(self) -> AbstractContextManager[Any]:
        """Each has a model of its own; rank 0's is looked at."""
        return nullcontext()


class Bare(Alone):
    """Beside it gloo sums up as many zeros as the model has parameters, back to back, of which nothing is used.

    So much is what any exchange beside the training costs at least, where it is made of gloo's all-reduces.
    """

    def __init__(self, model: nn.Module, data: TensorDataset, batch: int, seed: int) -> None:
        super().__init__(model, data, batch, seed)
        self._zeros = torch.zeros(sum(one.numel() for one in model.parameters()) + 1)
        self._group: Any = dist.new_group()
        self._shadow: ShadowThread[int] = ShadowThread(self._meet)

    def _fetch(self) -> None:
        """If nothing is under way then, a sum is begun."""
        super()._fetch()
        if self._shadow.idle:
            self._shadow.offer(0)

    def _meet(self, order: int, resting: bool) -> bool:
        self._zeros[-1] = float(resting)
        dist.all_reduce(self._zeros, group=self._group, async_op=True).wait()
        return round(float(self._zeros[-1])) == dist.get_world_size()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """As of one who exchanges nothing; no sum is under way."""
        self._shadow.rest(0)
        yield

    def close(self) -> None:
        """End the thread."""
        self._shadow.rest(0)
        self._shadow.close()


class Ours(SyncArm):
    """A session with a balancer and a policy."""

    def __init__(
        self, model: nn.Module, data: TensorDataset, batch: int, seed: int, *, balance: str, sync: str, journal: Path
    ) -> None:
        super().__init__(model)
        policy = policies.resolve(sync)
        facts = policy.facts
        assert facts is not None, "every policy that ships states its facts"
        self.own_pace, self.every = facts.pace is Pace.OWN, facts.every
        self.session = uneven.Session(balance=balance, sync=sync, seed=seed, journal=journal)
        self.net, self.optimizer = self.session.setup(model, self.optimizer)
        total = batch * dist.get_world_size()
        self._loader = self.session.loader(Images(data), batch_size=total, drop_last=True, collate_fn=whole)
        self._begin()

    def _begin(self) -> None:
        self._epochs = _for_ever(self._loader)
        self.batches = self._epochs

    def exchanging(self) -> bool:
        """As the session says."""
        return self.session.exchanging

    def leave(self) -> None:
        """The last step is over, and nothing is taken for one until the next batch is asked for, of a new epoch."""
        self._epochs.close()
        self._begin()

    def counted(self) -> AbstractContextManager[Any]:
        """What the policy says is the one."""
        return self.session.evaluated()

    def close(self) -> None:
        """Leave the loop, then the others."""
        self.session.close()


def make(who: str, model: nn.Module, data: TensorDataset, batch: int, journal: Path, seed: int = 0) -> SyncArm:
    """An arm from its text: ``none``, ``ddp:hook=fp16``, ``post-local:every=8``, or ``BALANCER POLICY`` for ours.

    Args:
        seed: of the order of the samples.

    Raises:
        ConfigError: what the text names is refused.
    """
    balance, _, sync = who.partition(" ")
    if sync:
        return Ours(model, data, batch, seed, balance=balance, sync=sync, journal=journal)
    name, options = parse_spec(who)
    if name in ("none", "bare"):
        return (Alone if name == "none" else Bare)(model, data, batch, seed)
    batches, every = loader_of(data, batch, seed), options.get("every", 1)
    assert isinstance(every, int)
    if name.startswith(TORCHFT):
        from uneven_bench.sync.torchft_arms import TorchFT  # late: it may not be installed

        return TorchFT(model, batches, name.removeprefix(TORCHFT), every)
    from uneven_bench.sync.stock_arms import PostLocal, Stock  # late: torch's optimizers complain when imported

    if name == "ddp":
        return Stock(model, batches, str(options.get("hook", "none")))
    assert name == "post-local"
    return PostLocal(model, batches, every)


def sent_bytes() -> int:
    """Bytes that have left this node's interface; 0 where it has no interface of its own."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == INTERFACE:
            return int(numbers.split()[8])
    return 0


def loader_of(data: TensorDataset, batch: int, seed: int) -> DataLoader[Any]:
    """Torch's own, for arms without a session."""
    sampler = EvenSampler(len(data), batch, dist.get_rank(), dist.get_world_size(), seed)
    return DataLoader(Images(data), batch_sampler=sampler, collate_fn=whole)


def _for_ever(loader: Any) -> Generator[Any, None, None]:
    while True:
        yield from loader
