"""The cost of K-FAC's hooks in a step in which they do nothing."""

from __future__ import annotations

import statistics
import time

import torch
import torch.nn.functional as F

import uneven
from uneven.testing.callbacks import alone
from uneven_bench.preconditioners.models import MODELS


def hook_overhead(repeats: int) -> float:
    """Return processor time of forward and backward pass with hooks on all layers, over that without; one thread, by
    turns."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        timed = MODELS["resnet20"]
        plain, hooked = timed.make(), timed.make()
        optimizer = torch.optim.SGD(hooked.parameters(), lr=0.1)
        part = uneven.KFAC(factor_update_steps=10, inv_update_steps=100, grad_worker_fraction=1.0)
        alone(hooked, optimizer, part)
        part.clock = 1
        part.stepped()
        taken: dict[bool, list[float]] = {False: [], True: []}
        for number in range(repeats + 3):
            x, y = timed.draw(timed.each)
            for with_hooks, model in ((False, plain), (True, hooked)):
                began_s = time.process_time()
                F.cross_entropy(model(x), y).backward()
                if number >= 3:
                    taken[with_hooks].append(time.process_time() - began_s)
        part.close()
        return statistics.median(taken[True]) / statistics.median(taken[False]) - 1.0
    finally:
        torch.set_num_threads(threads)
