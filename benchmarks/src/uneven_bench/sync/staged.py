"""The time of a step whose gradients are copied in host memory, as those of a GPU, next to one without copies.

Run it on two workers: ``uneven run --nproc 2 --module uneven_bench.sync.staged 1024``, with the samples of a step. Both
kinds of steps take turns in the same processes. On a busy machine, processor time says more than wall-clock time.
"""

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from uneven.testing.staging import staging_forced

ROUNDS, STEPS = 20, 12
WIDTH = 724  # two layers of 724 × 724 float32 are 4.2 MB of gradients
CLOCKS: dict[str, Callable[[], float]] = {"wall clock": time.perf_counter, "processor": time.process_time}


def main(samples: int) -> None:
    """Print the median step of each kind, and the median and the middle half of their ratio by round."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(samples * STEPS, WIDTH), torch.randn(samples * STEPS, WIDTH))
    kinds = []
    for context in (nullcontext(), staging_forced()):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with context:
            session = uneven.Session(balance="even")
            session.setup(model, optimizer)
            kinds.append((session, model, optimizer, session.loader(data, samples)))
            for batch in kinds[-1][3]:  # buckets are made in the first steps
                step(model, optimizer, batch)
    took_s: dict[str, list[list[float]]] = {name: [] for name in CLOCKS}
    for number in range(ROUNDS):
        for name in CLOCKS:
            took_s[name].append([0.0, 0.0])
        for place in (0, 1) if number % 2 else (1, 0):
            _, model, optimizer, loader = kinds[place]
            times_s: dict[str, list[float]] = {name: [] for name in CLOCKS}
            for batch in loader:
                began_s = {name: clock() for name, clock in CLOCKS.items()}
                step(model, optimizer, batch)
                for name, clock in CLOCKS.items():
                    times_s[name].append(clock() - began_s[name])
            for name, each in times_s.items():
                took_s[name][-1][place] = statistics.median(each)
    for name, rows in took_s.items():
        ratios = sorted(staged / plain for plain, staged in rows)
        plain_s, staged_s = (statistics.median(column) for column in zip(*rows, strict=True))
        kinds[0][0].print(
            f"{name}: {1e3 * plain_s:.2f} ms as they are, {1e3 * staged_s:.2f} ms staged: "
            f"{statistics.median(ratios):.3f} ({ratios[len(ratios) // 4]:.3f} … {ratios[-len(ratios) // 4]:.3f})"
        )
    for session, *_ in reversed(kinds):
        session.close()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: list[torch.Tensor]) -> None:
    x, y = batch
    F.mse_loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


if __name__ == "__main__":
    main(int(sys.argv[1]))
