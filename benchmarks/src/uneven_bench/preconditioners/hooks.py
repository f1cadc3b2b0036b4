"""The cost of K-FAC's hooks in a step in which they do nothing."""

import statistics
import time
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

import uneven
from uneven.testing.callbacks import alone
from uneven_bench.harness.figures import by_turns
from uneven_bench.harness.threads import threads
from uneven_bench.preconditioners.models import MODELS


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
