"""The arms of ``uneven bench sync``: each trains its own copy of the model, step by step, and knows which model counts.

An arm in which nobody waits for anybody trains for so many seconds, each worker by its own clock; the others take so
many steps together. Bytes are those that leave a worker's interface, whatever sent them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

import uneven
from uneven.policy.core.registry import parse_spec
from uneven.policy.samples.order import epoch_order
from uneven.policy.sync import Pace, policies
from uneven.run.replicas.peers.background_thread import ShadowThread
from uneven_bench.sync.arm import SyncArm
from uneven_bench.sync.cases import HIVEMIND, TORCHFT
from uneven_bench.workloads.base import whole


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
        self._length = length
        self._batch = batch
        self._rank = rank
        self._total = batch * workers
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


class NoExchange(SyncArm):
    """Exchanges nothing at all."""

    own_pace = True

    def __init__(self, model: nn.Module, data: TensorDataset, batch: int, seed: int) -> None:
        super().__init__(model)
        self.batches = iter(loader_of(data, batch, seed))

    def counted(self) -> AbstractContextManager[Any]:
        """Each has a model of its own; rank 0's is looked at."""
        return nullcontext()


class Bare(NoExchange):
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
        self.net, self.optimizer = self.session.setup(model, self.optimizer, gradient_as_bucket_view=True)
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
        return (NoExchange if name == "none" else Bare)(model, data, batch, seed)
    batches, every = loader_of(data, batch, seed), options.get("every", 1)
    assert isinstance(every, int)
    if name.startswith(TORCHFT):
        from uneven_bench.sync.torchft_arms import TorchFT  # late: it may not be installed

        return TorchFT(model, batches, name.removeprefix(TORCHFT), every)
    if name == HIVEMIND:
        from uneven_bench.sync.hivemind_arms import Hivemind

        return Hivemind(model, batches, every)
    from uneven_bench.sync.stock_arms import PostLocal, Stock  # late: torch's optimizers complain when imported

    if name == "ddp":
        return Stock(model, batches, str(options.get("hook", "none")))
    assert name == "post-local"
    return PostLocal(model, batches, every)


def loader_of(data: TensorDataset, batch: int, seed: int) -> DataLoader[Any]:
    """Torch's own, for arms without a session."""
    sampler = EvenSampler(len(data), batch, dist.get_rank(), dist.get_world_size(), seed)
    return DataLoader(Images(data), batch_sampler=sampler, collate_fn=whole)


def _for_ever(loader: Any) -> Generator[Any, None, None]:
    while True:
        yield from loader
