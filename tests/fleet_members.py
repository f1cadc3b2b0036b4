"""Small members for the tests of uneven.fleet; they lie here because other processes import them."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from uneven.cluster.virtual.datasets import digits
from uneven.fleet import Ensemble, Member, accuracy

NUMBER = 3


def make(width: int = 16, batch_size: int = 50, scheduled: bool = False) -> Member:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) if scheduled else None
    return Member(model, optimizer, batch_size=batch_size, scheduler=scheduler)


def raises() -> Member:
    raise ValueError("this factory is broken")


class Hangs(nn.Module):
    """Never comes back from a forward pass, once it has written a file."""

    def __init__(self, noted: Path) -> None:
        super().__init__()
        self.noted, self.inner = noted, nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.noted.touch()
        threading.Event().wait()
        return self.inner(x.flatten(1))


def hangs(noted: Path) -> Member:
    model = Hangs(noted)
    return Member(model, torch.optim.SGD(model.parameters(), lr=0.1))


class Diverging:
    """Cross-entropy; in one step it is no number, or only its gradient is none."""

    def __init__(self, step: int, hidden: bool) -> None:
        self.step, self.hidden, self.steps = step, hidden, 0

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        loss = F.cross_entropy(output, target)
        if self.steps != self.step:
            return loss
        return loss + torch.sqrt(loss * 0.0) if self.hidden else loss * math.nan


def diverges(step: int, hidden: bool = False) -> Member:
    """On 400 samples in batches of 50, so an epoch has eight steps."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Member(model, optimizer, batch_size=50, loss=Diverging(step, hidden))


def normed(batch_size: int, drop_last: bool = False) -> Member:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Member(model, optimizer, batch_size=batch_size, drop_last=drop_last)


def disagrees() -> Member:
    model = nn.Linear(3, 10)
    return Member(model, torch.optim.SGD(model.parameters(), lr=0.1))


def no_member() -> int:
    return 3


def loads() -> Member:
    """Reads the data with the workers of a DataLoader, for the scale of its first layer."""
    x = torch.cat([image for image, _ in DataLoader(few(), batch_size=20, num_workers=2)])
    member = make(8)
    with torch.no_grad():
        member.model[1].weight /= x.std()  # type: ignore[index]
    return member


class Deadly(nn.Module):
    """Kills its process in every forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return self.inner(x.flatten(1))


def deadly() -> Member:
    model = Deadly()
    return Member(model, torch.optim.SGD(model.parameters(), lr=0.1))


def jitter(sample: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    image, label = sample
    return image + 0.05 * torch.randn_like(image), label


def ensemble(max_epochs: int = 3, **options: object) -> Ensemble:
    data = digits()
    given: dict[str, object] = {
        "members": {
            "small": partial(make, 8, 32),
            "wide": partial(make, 64, 100),
            "scheduled": partial(make, 16, 50, True),
        },
        "dataset": Subset(data.train, range(400)),
        "validate": Subset(data.test, range(100)),
        "transform": jitter,
        "metric": accuracy,
        "max_epochs": max_epochs,
    }
    return Ensemble(**(given | options))  # type: ignore[arg-type]


def loss_of(model: nn.Module, data: TensorDataset) -> float:
    x, y = data[:]
    return float(F.cross_entropy(model(x), y))


def slow_jitter(sample: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, and late, so that there is time to be killed."""
    time.sleep(0.0005)
    return jitter(sample)


def fails_always(sample: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    raise ValueError("none")


def few() -> Subset[tuple[torch.Tensor, ...]]:
    return Subset(digits().train, range(60))


class Noted:
    """A loss that writes down whom it was asked about: one file for each process that trains."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with (self.folder / f"{os.getpid()}.txt").open("a") as file:
            file.write(" ".join(map(str, target.tolist())) + "\n")
        return F.cross_entropy(output, target % 10)


class Numbered:
    """Digits whose label tells the sample's number too: the label is the last digit of the target."""

    def __init__(self, samples: int) -> None:
        self.data = Subset(digits().train, range(samples))

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, label = self.data[index]
        return image, label + 10 * index


def plain(batch_size: int = 50, noted: Path | None = None, delay_s: float = 0.0, drop_last: bool = False) -> Member:
    """Draws nothing and looks at no batch as a whole, so it learns the same in however many parts."""
    torch.manual_seed(1)
    layers = (nn.Flatten(), Late(delay_s), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    loss = Noted(noted) if noted else F.cross_entropy
    return Member(model, optimizer, batch_size=batch_size, loss=loss, drop_last=drop_last)


class Late(nn.Module):
    """Takes so long for each sample where it is the second worker of its member."""

    def __init__(self, delay_s: float) -> None:
        super().__init__()
        self.delay_s = delay_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and self.delay_s and dist.is_initialized() and dist.get_rank() == 1:
            time.sleep(self.delay_s * len(x))
        return x


class SecondRaises(nn.Module):
    """Fails in the second worker."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if dist.is_initialized() and dist.get_rank() == 1:
            raise ValueError("not here")
        return self.inner(x.flatten(1))


def second_raises() -> Member:
    model = SecondRaises()
    return Member(model, torch.optim.SGD(model.parameters(), lr=0.1))


def same(one: Any, other: Any) -> bool:
    """Whether two checkpoints are the same, to the bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
