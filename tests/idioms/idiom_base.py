"""What the idioms are written with: a table to stand in, small data and models, and a session that is plain PyTorch.

An idiom is a function that takes a session, trains as a public script would, and returns what it has trained. It runs
twice: with :class:`Plain` in one process, and with a real session on each of several ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import uneven
from uneven.policy.samples.order import Portion, epoch_order
from uneven.run.samples.stream import is_stream

N, X = 62, 20  # three full iterations and a last part of 2, fewer than there are workers
STEPS = 4
EPOCHS = 2
FEATURES, CLASSES = 5, 3


@dataclass(frozen=True)
class Equal:
    """The weights are those of one process on the global batch, on every rank.

    Attributes:
        warns: words of a warning that nothing is wrong with here.
    """

    tolerance: float = 1e-12
    warns: str = ""


@dataclass(frozen=True)
class Agrees:
    """Other weights than one process has, but inside ``session.evaluation_model()`` all ranks hold the same ones."""

    why: str


@dataclass(frozen=True)
class Refused:
    """Some rank raises an error with these words in it (a regular expression), and no rank ends well."""

    words: str


@dataclass(frozen=True)
class Either:
    """Refused with these words, or else as it says: which of them depends on the shares, or on who was faster."""

    words: str
    otherwise: Equal | Agrees = field(default_factory=Equal)


@dataclass(frozen=True)
class Differs:
    """Neither equal nor refused, and docs/limits.md says so.

    Attributes:
        warns: words of the warning; "" if nothing can notice it.
    """

    why: str
    warns: str = ""


@dataclass(frozen=True)
class Unfit:
    """Makes no sense under this policy, and is not run."""

    why: str


Expect = Equal | Agrees | Refused | Either | Differs | Unfit

OWN_PACE = ("shadow:ma", "asp")
"""Under which each worker takes samples when it is ready for them, so that ranks take different numbers of steps."""


def at_own_pace(expect: Expect) -> dict[str, Expect]:
    return dict.fromkeys(OWN_PACE, expect)


def fetching_ahead() -> dict[str, Expect]:
    """What comes of it where parameters are exchanged when the next batch is asked for."""
    return dict.fromkeys(("local", "asp"), Refused("asked for the next batch before"))


def apart(why: str) -> dict[str, Expect]:
    """What the policies that exchange parameters make of an idiom that concerns gradients."""
    return dict.fromkeys(("local", *OWN_PACE), Agrees(why))


@dataclass(frozen=True, kw_only=True)
class Idiom:
    """One row of the matrix.

    Attributes:
        says: what the page calls it.
        group: the part of the page that it stands in.
        expect: under ``bsp``, whatever the shares.
        by: what else happens under a policy ("local"), or under a policy and shares ("bsp moving").
        linear: whether the mean of everybody's parameters after each step is the step on the mean gradient, so that
            ``local:every=1`` is equal to one process, too.
        like: the idiom whose weights in one process it is to have, where that is another one.
        whole: whether it goes through whole epochs, so that every sample is used once in each.
        options: for the session, in addition to policy and shares.
        dtype: torch's default while it runs.
        shown: the test that shows it instead of the matrix, under ``bsp``, where it takes long.
    """

    says: str
    group: str
    body: Callable[[Any], Any]
    expect: Expect = field(default_factory=Equal)
    by: dict[str, Expect] = field(default_factory=dict)
    linear: bool = True
    like: str = ""
    whole: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float64
    shown: str = ""

    @property
    def name(self) -> str:
        """The function's, which is also the key in tables."""
        return self.body.__name__


IDIOMS: dict[str, Idiom] = {}
"""In the order of the page."""


def idiom(says: str, group: str, **rest: Any) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Put a function into the table."""

    def enter(body: Callable[[Any], Any]) -> Callable[[Any], Any]:
        assert body.__name__ not in IDIOMS, body.__name__
        IDIOMS[body.__name__] = Idiom(says=says, group=group, body=body, **rest)
        return body

    return enter


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(N, FEATURES, generator=generator, dtype=torch.float64).to(torch.get_default_dtype())
    return x, torch.randint(0, CLASSES, (N,), generator=generator)


def samples() -> TensorDataset:
    return TensorDataset(*tensors())


def seed(number: int) -> None:
    """Seed the processor's generator only: ``torch.manual_seed`` keeps a stack trace for each kind of device."""
    torch.default_generator.manual_seed(number)


def mlp() -> nn.Module:
    seed(1)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    """Without momentum, so that what it does is linear in the gradient."""
    return torch.optim.SGD(model.parameters(), lr=lr, weight_decay=1e-2)


def started(session: Any, model: nn.Module | None = None, **setup: Any) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    """Model, optimizer and loader, as the README makes them."""
    model = mlp() if model is None else model
    model, optimizer = session.setup(model, sgd(model), **setup)
    return model, optimizer, session.loader(samples(), X)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


class PlainLoader:
    """torch's own ``DataLoader`` on the global batches of each epoch."""

    def __init__(self, dataset: Any, batch_size: int, shuffle: bool, drop_last: bool, options: dict[str, Any]) -> None:
        self.dataset, self.batch_size, self._options = dataset, batch_size, options
        self._shuffle, self._drop_last = shuffle, drop_last
        self.epoch = self.start = 0

    def __len__(self) -> int:
        return len(self.dataset) // self.batch_size if self._drop_last else -(-len(self.dataset) // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        if is_stream(self.dataset):
            self._options.pop("stream_sharded", None)
            yield from DataLoader(self.dataset, batch_size=self.batch_size, **{**self._options, "num_workers": 0})
            return
        order = epoch_order(length=len(self.dataset), seed=0, epoch=self.epoch, shuffle=self._shuffle).tolist()
        batches = [order[at : at + self.batch_size] for at in range(0, len(order), self.batch_size)]
        if self._drop_last and len(batches[-1]) < self.batch_size:
            batches.pop()
        self.epoch += 1
        yield from DataLoader(self.dataset, batch_sampler=batches, **self._options)


class Plain:
    """What a session would be where there is one worker and nothing to exchange, in plain PyTorch."""

    rank, world_size, exchanging = 0, 1, False
    device = torch.device("cpu")
    shares = (X,)

    def __init__(self, **options: Any) -> None:
        pass

    def setup(self, model: nn.Module, *optimizers: torch.optim.Optimizer, **options: Any) -> Any:
        return (model, *optimizers) if optimizers else model

    def loader(
        self, dataset: Any, global_batch_size: int, *, shuffle: bool = True, drop_last: bool = False,
        min_batch: int = 1, max_batch: int | None = None, epochs: int | None = None, **dataloader: Any,
    ) -> PlainLoader:  # fmt: skip
        return PlainLoader(dataset, global_batch_size, shuffle, drop_last, dataloader)

    def loss_mean(self, count: float) -> AbstractContextManager[None]:
        return nullcontext()

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()

    def evaluation_model(self) -> AbstractContextManager[None]:
        return nullcontext()

    def log(self, **scalars: float) -> None:
        pass

    def everybodys(self, value: torch.Tensor) -> torch.Tensor:
        """The mean over the global batch of what is a mean over each worker's part."""
        return value.detach().clone()

    def close(self) -> None:
        pass


class Watched(uneven.Session):
    """A session that remembers which parts of each epoch it has handed out."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.parts: list[Portion] = []
        self.successor: Watched | None = None
        self._options = options

    def another(self) -> Watched:
        """With the same settings."""
        return Watched(**self._options)

    def again(self) -> Watched:
        """As a run that is started again: this session is closed, and there is another one."""
        self.close()
        self.successor = self.another()
        self.successor.parts = self.parts
        return self.successor

    def _begin(self, part: Portion) -> None:
        self.parts.append(part)
        super()._begin(part)

    def everybodys(self, value: torch.Tensor) -> torch.Tensor:
        total = value.detach() * (self.shares[self.rank] / sum(self.shares))
        torch.distributed.all_reduce(total)
        return total

    def taken(self) -> list[tuple[int, int, int]]:
        """Epoch, first and last position but one of each batch of this worker that counts."""
        spans = ((part.epoch, part.span(self.rank)) for part in self.parts)
        return [(epoch, span.start, span.stop) for epoch, span in spans if span]
