"""Epochs and processor seconds to a target, in one process of one thread, each method at the best of a small grid.

Also the cost of K-FAC's hooks in a step in which they do nothing.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import uneven
from uneven.cluster.virtual.datasets import images
from uneven.testing.callbacks import alone
from uneven_bench.harness.figures import by_turns
from uneven_bench.harness.show import Told
from uneven_bench.harness.threads import threads
from uneven_bench.preconditioners.arms import optimizers
from uneven_bench.preconditioners.models import MODELS

Split = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class TargetTask:
    """A task with its target."""

    draw: Callable[[int], Split]  # seed → training inputs and targets, test inputs and targets
    make: Callable[[Split], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    score: Callable[[Tensor, Tensor], Tensor]  # of a model on test data; lower is better
    target: float  # score to reach
    epochs: int  # the limit
    batch: int
    kfac: Sequence[tuple[float, float, float | None]]  # lr, λ, bound of the clip


def _regression(seed: int) -> Split:
    """Draw 64 inputs whose covariance has a condition number of 10⁴, rotated; the teacher weighs all equally."""
    make = torch.Generator().manual_seed(1000 + seed)
    whitened = torch.randn(6144, 64, generator=make)
    rotation = torch.linalg.qr(torch.randn(64, 64, generator=make))[0]
    inputs = whitened * torch.logspace(0, -2, 64) @ rotation
    hidden = torch.tanh(whitened @ torch.randn(64, 8, generator=make) * 1.5 / 8)
    wanted = hidden @ torch.randn(8, 1, generator=make)
    wanted = (wanted - wanted.mean()) / wanted.std() + 0.2 * torch.randn(wanted.shape, generator=make)
    return inputs[:4096], wanted[:4096], inputs[4096:], wanted[4096:]


def _images(seed: int, data: str, small: bool) -> Split:
    """Split the images, a third for testing; ``small``: their targets are themselves."""
    x, y = images(data).train.tensors
    x, y = x[:6000], y[:6000]
    if x.shape[-1] > 14:
        x = F.avg_pool2d(x, 2)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    x, y = x[order], y[order]
    cut = len(x) * 2 // 3
    if small:
        x = x.flatten(1)
        return x[:cut], x[:cut], x[cut:], x[cut:]
    return x[:cut], y[:cut], x[cut:], y[cut:]


def _mlp(split: Split) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))


def _autoencoder(split: Split) -> nn.Module:
    sides = [split[0].shape[1], 200, 100, 50, 12, 50, 100, 200, split[0].shape[1]]
    layers: list[nn.Module] = []
    for a, b in pairwise(sides):
        layers += [nn.Linear(a, b), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def _cnn(split: Split) -> nn.Module:
    left = split[0].shape[-1] // 4
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * left * left, 10),
    )  # fmt: skip


def _squares(found: Tensor, wanted: Tensor) -> Tensor:
    return 0.5 * (found - wanted).square().sum(1).mean()


def tasks(data: str) -> dict[str, TargetTask]:
    error = lambda found, wanted: (found - wanted).square().mean()  # noqa: E731
    wrong = lambda found, wanted: (found.argmax(1) != wanted).double().mean()  # noqa: E731
    return {
        "regression": TargetTask(
            _regression, _mlp, F.mse_loss, error, 0.17, 60, 128,
            [(lr, damping, None) for lr in (0.03, 0.1) for damping in (0.1, 0.3)],
        ),
        "autoencoder": TargetTask(
            lambda seed: _images(seed, data, True), _autoencoder, _squares,
            lambda found, wanted: (found - wanted).square().sum(1).mean(), 1.5 if data == "digits" else 3.0, 30, 64,
            [(lr, damping, 0.01) for lr in (0.1, 0.3) for damping in (1.0, 3.0)],
        ),
        "cnn": TargetTask(
            lambda seed: _images(seed, data, False), _cnn, F.cross_entropy, wrong,
            0.05 if data == "digits" else 0.17, 10, 64,
            [(lr, damping, 0.01) for lr in (0.03, 0.1) for damping in (0.1, 0.3)],
        ),
    }  # fmt: skip


LRS = {"sgd": (0.03, 0.1, 0.2), "adamw": (1e-3, 3e-3, 1e-2), "muon": (3e-3, 1e-2, 3e-2), "soap": (3e-3, 1e-2, 3e-2)}
"""Learning rates that are tried."""


METHODS = (*LRS, "kfac", "kfac adaptive")


def methods(task: TargetTask) -> dict[str, list[dict[str, Any]]]:
    """Return the settings to try of each method."""
    found: dict[str, list[dict[str, Any]]] = {name: [{"lr": lr} for lr in lrs] for name, lrs in LRS.items()}
    found["kfac"] = [{"lr": lr, "damping": damping, "kl_clip": clip} for lr, damping, clip in task.kfac]
    found["kfac adaptive"] = [
        {"lr": lr, "damping": f"adaptive:start={damping}", "kl_clip": clip} for lr, damping, clip in task.kfac
    ]
    return found


@dataclass(frozen=True, slots=True)
class LearningRun:
    """One training. ``epochs, cpu_s``: to the target; infinite if it was not reached."""

    epochs: float
    cpu_s: float
    blown: bool  # its loss was not finite, or at the end above that of the first weights
    best: float  # score


def train(task: TargetTask, method: str, how: dict[str, Any], seed: int, epochs: int | None = None) -> LearningRun:
    """Train until the target is reached."""
    split = task.draw(seed)
    x, y, tx, ty = split
    torch.manual_seed(seed)
    model, worker = task.make(split), None
    if method == "soap" or method.startswith("kfac"):
        momentum = 0.0 if method == "soap" else 0.9
        stepping: list[Any] = [torch.optim.SGD(model.parameters(), lr=how["lr"], momentum=momentum)]
        more = {key: it for key, it in how.items() if key != "lr"}
        part = (
            uneven.SOAP(grad_worker_fraction=1.0)
            if method == "soap"
            else uneven.KFAC(grad_worker_fraction=1.0, factor_decay="exp", **more)
        )
        worker = alone(model, stepping[0], part)
    else:
        stepping = optimizers(model, method, how["lr"])

    def score() -> float:
        with torch.no_grad():
            return float(task.score(model(tx), ty))

    first, spent_s, best = score(), 0.0, math.inf
    for epoch in range(epochs or task.epochs):
        began_s = time.process_time()
        for rows in torch.randperm(len(x)).split(task.batch):
            if worker is not None:
                worker.step(x[rows], y[rows], loss=lambda model, a, b: task.loss(model(a), b))
                continue
            task.loss(model(x[rows]), y[rows]).backward()
            for one in stepping:
                one.step()
                one.zero_grad()
        spent_s += time.process_time() - began_s
        found = score()
        if not math.isfinite(found) or found > 10.0 * first:
            return LearningRun(math.inf, math.inf, True, best)
        best = min(best, found)
        if found <= task.target and epochs is None:
            return LearningRun(epoch + 1, spent_s, False, best)
    return LearningRun(math.inf, math.inf, found > 0.98 * first, best)


def to_target(
    data: str, seeds: int, told: Told, names: Sequence[str] | None = None, only: str | None = None
) -> dict[str, dict[str, Any]]:
    """Return task → method → medians over seeds of epochs and seconds at the setting with the fewest epochs of the
    first seed; ``only`` this method, or all."""
    found: dict[str, dict[str, Any]] = {}
    everything = {name: task for name, task in tasks(data).items() if names is None or name in names}
    for number, (name, task) in enumerate(everything.items()):
        found[name] = {}
        tried = {method: settings for method, settings in methods(task).items() if only in (None, method)}
        for place, (method, settings) in enumerate(tried.items()):
            told(f"{name}, {method}", (number + place / len(tried)) / len(everything))
            first = [train(task, method, how, 0) for how in settings]
            best = min(range(len(settings)), key=lambda at: (first[at].epochs, first[at].best))
            chosen = settings[best]
            runs = [first[best], *(train(task, method, chosen, seed) for seed in range(1, seeds))]
            reached = all(math.isfinite(one.epochs) for one in runs)
            found[name][method] = {
                "epochs": statistics.median(one.epochs for one in runs) if reached else None,
                "seconds": statistics.median(one.cpu_s for one in runs) if reached else None,
                "best": statistics.median(one.best for one in runs),
                "setting": chosen,
                "blown": sum(one.blown for one in first),
                "settings": len(settings),
            }
    return found


def blow_ups(data: str, told: Told, most: int = 24) -> dict[str, Any]:
    """Count the settings of ``most`` that blow up or stick with a fixed λ, and with an adaptive one from the same
    start."""
    grid = [*product(("regression", "autoencoder", "cnn"), (0.03, 0.1), (0.03, 0.3), (None, 0.01))]
    grid = grid[:: len(grid) // most]
    found: dict[str, list[Any]] = {"fixed": [], "adaptive": []}
    everything = tasks(data)
    for number, (name, lr, damping, clip) in enumerate(grid):
        told(name, number / len(grid))
        for which, it in (("fixed", damping), ("adaptive", f"adaptive:start={damping}")):
            one = train(everything[name], "kfac", {"lr": lr, "damping": it, "kl_clip": clip}, 0, epochs=3)
            if one.blown:
                found[which].append([name, lr, damping, clip])
    return {"settings": len(grid), **{which: len(them) for which, them in found.items()}, "which": found}


@threads()
def hook_overhead(repeats: int) -> float:
    """Return processor time of forward and backward pass with hooks on all layers, over that without; one thread, by
    turns."""
    timed = MODELS["resnet20"]
    plain, hooked = timed.make(), timed.make()
    optimizer = torch.optim.SGD(hooked.parameters(), lr=0.1)
    part = uneven.KFAC(factor_update_steps=10, inv_update_steps=100, grad_worker_fraction=1.0)
    alone(hooked, optimizer, part)
    part.clock = 1
    part.stepped()
    x, y = timed.draw(timed.each)

    def passes(model: nn.Module) -> None:
        F.cross_entropy(model(x), y).backward()

    arms = {"plain": partial(passes, plain), "hooked": partial(passes, hooked)}
    taken = by_turns(arms, repeats, warm=3, clock=time.process_time)
    part.close()
    return statistics.median(taken["hooked"]) / statistics.median(taken["plain"]) - 1.0
