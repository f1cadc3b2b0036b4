"""``uneven bench threads``: one worker whose replica is trained by one thread or by two, on this machine's cores.

Everything runs in this process, one way after the other in each round, from the same start and over the same samples.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from uneven.cli.demo.demo_training import network
from uneven.cluster.virtual.datasets import ImageData, images
from uneven.run.session import Session
from uneven_bench.harness.figures import Spread, in_turns
from uneven_bench.harness.show import Progress
from uneven_bench.harness.threads import threads
from uneven_bench.workloads.base import WholeStretch, whole

BATCH = 64
_RATE, _MOMENTUM = 0.02, 0.9
_SAMPLES, _QUICK = 60_000, 6_000
_ROUNDS, _QUICK_ROUNDS = 9, 3
PLAIN = "1 thread, 1 core"


@dataclass(frozen=True, slots=True)
class Way:
    """A way to train a replica."""

    threads: int  # that take steps in parallel
    cores: int  # into which torch splits operations, of all threads together
    own: bool = False  # each thread has a separate momentum; else they share one


WAYS = {
    PLAIN: Way(1, 1),
    "1 thread, 2 cores": Way(1, 2),
    "2 threads": Way(2, 2),
    "2 threads, momentum each": Way(2, 2, own=True),
}


def perceptron(data: ImageData) -> nn.Module:
    """Return a model of many small operations, between which Python's lock is held; the same weights on every call."""
    torch.manual_seed(0)
    pixels = math.prod(data.train.tensors[0].shape[1:])
    return nn.Sequential(
        nn.Flatten(), nn.Linear(pixels, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, data.classes)
    )


MODELS: dict[str, Callable[[ImageData], nn.Module]] = {
    "convolutions": lambda data: network(data, 16),
    "small layers": perceptron,
}


def run(quick: bool, data: str, progress: Progress) -> dict[str, Any]:
    """Measure every model in every way. Result: ``cases`` (model → way → ``samples_per_s``, ``of_plain`` (median, lower
    and upper quartile of the speed over that of one thread in the same round), ``loss`` (median on the held-out set
    after equal samples), ``loss_range`` (least and greatest)), ``samples``, ``rounds``, ``batch``."""
    rounds, samples = (_QUICK_ROUNDS, _QUICK) if quick else (_ROUNDS, _SAMPLES)
    rows = images(data)
    found: dict[str, dict[str, list[tuple[float, float]]]] = {model: {way: [] for way in WAYS} for model in MODELS}
    for number, model, way in in_turns(progress, "training", range(rounds), MODELS, WAYS):
        found[model][way].append(_train(MODELS[model](rows), rows, WAYS[way], samples, seed=number))
    cases = {model: {way: _summary(each, ways[PLAIN]) for way, each in ways.items()} for model, ways in found.items()}
    return {"cases": cases, "samples": samples, "rounds": rounds, "batch": BATCH}


def _train(model: nn.Module, rows: ImageData, way: Way, samples: int, seed: int) -> tuple[float, float]:
    """Return samples per second, and the loss on the held-out set afterwards."""
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE, momentum=_MOMENTUM)

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> None:
        stepper = torch.optim.SGD(model.parameters(), lr=_RATE, momentum=_MOMENTUM) if way.own else optimizer
        for x, y in batches:
            F.cross_entropy(model(x), y).backward()
            stepper.step()
            stepper.zero_grad()

    with threads(way.cores), Session(balance="even", sync="bsp", threads=way.threads, seed=seed) as session:
        session.setup(model, optimizer)
        session.loader(WholeStretch(rows.train, samples), BATCH, collate_fn=whole)
        began_s = time.perf_counter()
        session.train(loop)
        took_s = time.perf_counter() - began_s
    model.eval()
    x, y = rows.test.tensors
    with torch.no_grad():
        return samples / took_s, F.cross_entropy(model(x[:2000]), y[:2000]).item()


def _summary(each: list[tuple[float, float]], plain: list[tuple[float, float]]) -> dict[str, Any]:
    losses = [loss for _, loss in each]
    return {
        "samples_per_s": statistics.median(speed for speed, _ in each),
        "of_plain": Spread.ratio([speed for speed, _ in each], [speed for speed, _ in plain]).three,
        "loss": statistics.median(losses),
        "loss_range": [min(losses), max(losses)],
    }
