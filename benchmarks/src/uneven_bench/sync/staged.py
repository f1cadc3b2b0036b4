"""The time of a step whose gradients are copied in host memory, as those of a GPU, next to one without copies.

Run it on two workers: ``uneven run --nproc 2 --module uneven_bench.sync.staged``. Both kinds of steps take turns in the
same processes.
"""

from __future__ import annotations

import statistics
import time
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from uneven.testing.staging import staging_forced

ROUNDS, STEPS = 12, 20
WIDTH, BATCH = 724, 256  # two layers of 724 × 724 float32 are 4.2 MB of gradients


def main() -> None:
    """Print the median step of each kind, and the median and the middle half of their ratio by round."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(BATCH * STEPS, WIDTH), torch.randn(BATCH * STEPS, WIDTH))
    kinds = []
    for context in (nullcontext(), staging_forced()):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with context:
            session = uneven.Session(balance="even")
            session.setup(model, optimizer)
            kinds.append((session, model, optimizer, session.loader(data, BATCH)))
            for _ in kinds[-1][3]:  # buckets are made in the first steps
                step(model, optimizer, _)
    took_s: list[list[float]] = []
    for number in range(ROUNDS):
        row = [0.0, 0.0]
        for place in (0, 1) if number % 2 else (1, 0):
            _, model, optimizer, loader = kinds[place]
            times_s = []
            for batch in loader:
                began_s = time.perf_counter()
                step(model, optimizer, batch)
                times_s.append(time.perf_counter() - began_s)
            row[place] = statistics.median(times_s)
        took_s.append(row)
    session = kinds[0][0]
    ratios = sorted(staged / plain for plain, staged in took_s)
    plain_s, staged_s = (statistics.median(column) for column in zip(*took_s, strict=True))
    session.print(
        f"{1e3 * plain_s:.2f} ms as they are, {1e3 * staged_s:.2f} ms staged: {statistics.median(ratios):.3f} "
        f"({ratios[len(ratios) // 4]:.3f} … {ratios[-len(ratios) // 4]:.3f})"
    )
    for session, *_ in reversed(kinds):
        session.close()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: list[torch.Tensor]) -> None:
    x, y = batch
    F.mse_loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


if __name__ == "__main__":
    main()
