"""The arms of ``uneven bench sync``: each trains its own copy of the model step by step.

An arm without waiting trains for a number of seconds, each worker by its own clock; the others take their steps
together. Bytes are all those that leave a worker's interface.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import uneven
from uneven.policy.core.registry import parse_spec
from uneven.policy.samples.order import epoch_order
from uneven.policy.sync import Pace, policies
from uneven.run.replicas.background_thread import BackgroundThread
from uneven_bench.sync.arm import SyncArm
from uneven_bench.sync.cases import HIVEMIND, TORCHFT
from uneven_bench.workloads.base import Images, for_ever, whole


def even_batches(length: int, batch: int, rank: int, workers: int, seed: int = 0) -> Iterator[list[int]]:
    """Yield this rank's equal part of every global batch, epoch after epoch, in a session loader's order."""
    for epoch in count():
        order = epoch_order(length=length, seed=seed, epoch=epoch)
        for first in range(0, length - batch * workers + 1, batch * workers):
            yield order[first + rank * batch : first + (rank + 1) * batch].tolist()


def mlp(inputs: int, classes: int, seed: int = 0) -> nn.Module:
    """Return two hidden layers and about a million parameters, 4 MB, with the same weights for the same seed."""
    torch.manual_seed(seed)
    first = 960
    last = max(64, (1_000_000 - inputs * first) // (first + classes))
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, first), nn.ReLU(), nn.Linear(first, last), nn.ReLU(), nn.Linear(last, classes)
    )


class NoExchange(SyncArm):
    """An arm without any exchange."""

    own_pace = True

    def __init__(self, model: nn.Module, data: TensorDataset, batch: int, seed: int) -> None:
        super().__init__(model)
        self.batches = iter(loader_of(data, batch, seed))


class Bare(NoExchange):
    """An arm next to which gloo sums zeros, as many as the model's parameters, without pause: the least cost of any
    background exchange with gloo's all-reduces."""

    def __init__(self, model: nn.Module, data: TensorDataset, batch: int, seed: int) -> None:
        super().__init__(model, data, batch, seed)
        self._zeros = torch.zeros(sum(one.numel() for one in model.parameters()) + 1)
        self._group: Any = dist.new_group()
        self._thread = BackgroundThread()

    def _fetch(self) -> None:
        """Begin a sum, if none is under way."""
        super()._fetch()
        if self._thread.free():
            self._thread.launch(self._meet)

    def _meet(self, resting: bool = False) -> bool:
        self._zeros[-1] = float(resting)
        dist.all_reduce(self._zeros, group=self._group, async_op=True).wait()
        return round(float(self._zeros[-1])) == dist.get_world_size()

    @contextmanager
    def counted(self) -> Iterator[None]:
        self._thread.rest(partial(self._meet, resting=True))
        yield

    def close(self) -> None:
        self._thread.rest(partial(self._meet, resting=True))
        self._thread.close()


class Ours(SyncArm):
    """A session with a balancer and a policy."""

    def __init__(
        self, model: nn.Module, data: TensorDataset, batch: int, seed: int, *, balance: str, sync: str, journal: Path
    ) -> None:
        super().__init__(model)
        policy = policies.resolve(sync)
        facts = policy.facts
        assert facts is not None, "every policy that ships states its facts"
        self.own_pace = facts.pace is Pace.OWN
        self.every = facts.every
        self.session = uneven.Session(balance=balance, sync=sync, seed=seed, run_dir=journal)
        self.net, self.optimizer = self.session.setup(model, self.optimizer, gradient_as_bucket_view=True)
        total = batch * dist.get_world_size()
        self._loader = self.session.loader(Images(data), global_batch_size=total, drop_last=True, collate_fn=whole)
        self._begin()

    def _begin(self) -> None:
        self._epochs = for_ever(self._loader)
        self.batches = self._epochs

    def exchanging(self) -> bool:
        return self.session.exchanging

    def leave(self) -> None:
        """End the last step, so that the time before the next batch, of a new epoch, does not count as one."""
        self._epochs.close()
        self._begin()

    def counted(self) -> AbstractContextManager[Any]:
        """Evaluate the policy's model."""
        return self.session.evaluation_model()

    def close(self) -> None:
        self.session.close()


def make(who: str, model: nn.Module, data: TensorDataset, batch: int, journal: Path, seed: int = 0) -> SyncArm:
    """Make an arm from its text: ``none``, ``ddp:hook=fp16``, ``post-local:every=8``, or ``BALANCER POLICY`` for ours.
    ``seed``: of the order of the samples. Raises ConfigError: an unknown name."""
    balance, _, sync = who.partition(" ")
    if sync:
        return Ours(model, data, batch, seed, balance=balance, sync=sync, journal=journal)
    name, options = parse_spec(who)
    if name in ("none", "bare"):
        return (NoExchange if name == "none" else Bare)(model, data, batch, seed)
    batches, every = loader_of(data, batch, seed), options.get("every", 1)
    assert isinstance(every, int)
    if name.startswith(TORCHFT):
        from uneven_bench.sync.torchft_arms import TorchFT  # here, as it may not be installed

        return TorchFT(model, batches, every)
    if name == HIVEMIND:
        from uneven_bench.sync.hivemind_arms import Hivemind

        return Hivemind(model, batches, every)
    from uneven_bench.sync.stock_arms import PostLocal, Stock  # here, as torch's optimizers warn at their import

    if name == "ddp":
        return Stock(model, batches, str(options.get("hook", "none")))
    assert name == "post-local"
    return PostLocal(model, batches, every)


def loader_of(data: TensorDataset, batch: int, seed: int) -> DataLoader[Any]:
    """Return torch's loader, for arms without a session."""
    batches = even_batches(len(data), batch, dist.get_rank(), dist.get_world_size(), seed)
    return DataLoader(Images(data), batch_sampler=batches, collate_fn=whole)
