"""The trainings: nothing, for the overhead; a network on augmented pictures; a slot that rests in between."""

import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Subset

from uneven.cluster.virtual.datasets import images
from uneven.search import Trial
from uneven.search.pure.space import Params

BATCH = 32
SHARES = (0.6, 0.4, 0.2, 0.1)
UNIT_S = 0.03


def trivial(trial: Trial) -> None:
    trial.report(score=float(trial["x"]))  # type: ignore[arg-type]


def made(params: Params, side: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    width = int(params["width"])  # type: ignore[arg-type]
    model = nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(width * (side // 4) ** 2, 10),
    )  # fmt: skip
    return model, torch.optim.Adam(model.parameters(), lr=float(params["lr"]))  # type: ignore[arg-type]


def sets(data: str, samples: int) -> tuple[Subset[Any], Subset[Any]]:
    """Return pictures to train on, and half as many to test."""
    found = images(data)
    return Subset(found.train, range(samples)), Subset(found.test, range(min(len(found.test), samples // 2)))


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> None:
    model.train()
    for x, y in batches:
        F.cross_entropy(model(x.clone()), y).backward()
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def accuracy(model: nn.Module, batches: Any) -> float:
    """Return the share of the pictures with the right class."""
    model.eval()
    right = [(model(x).argmax(1) == y).float() for x, y in batches]
    return float(torch.cat(right).mean())


def pictures(trial: Trial) -> None:
    """Train the network on the search's data."""
    torch.manual_seed(trial.seed)
    model, optimizer = made(trial.params, int(trial["side"]))  # type: ignore[arg-type]
    for _, batches in trial.epochs(model, optimizer, batch_size=BATCH):
        learn(model, optimizer, batches)
        trial.report(accuracy=accuracy(model, trial.validation()))


def throttled(trial: Trial) -> None:
    """Compute in units with pauses, so that the slot has its share of a core."""
    for step in trial.steps():
        busy_s = UNIT_S * float(trial["cost"])  # type: ignore[arg-type]
        until_s = time.process_time() + busy_s
        while time.process_time() < until_s:
            pass
        time.sleep(busy_s / SHARES[trial.slot] - busy_s)
        trial.report(score=float(trial["x"]) * (step + 1))  # type: ignore[arg-type]
