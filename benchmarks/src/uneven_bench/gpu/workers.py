"""The workers of ``uneven bench gpu``; other processes import it by name."""

import os
import statistics
import time
from contextlib import closing

import torch
import torch.nn.functional as F
from torch import nn

import uneven
from uneven.testing.ranks import RankContext
from uneven_bench.preconditioners.models import MODELS

BALANCES = ("even", "lb-bsp", "numerical", "analytic")
SAMPLE_S = (0.0002, 0.0006)  # a sample's extra time for each worker of the pair, as both use the same GPU
PAIR_BATCH, UNLIKE_BATCH = 256, 512
_SETTLED = 2  # the last of these parts of a run counts: the shares are found by then


def _iteration_s(balance: str, model: nn.Module, batch: int, iterations: int, sample_s: float) -> float:
    """Return the median iteration of the last half."""
    device = next(model.parameters()).device
    x, y = (one.to(device) for one in MODELS["resnet20"].draw(batch))
    taken_s = []
    with closing(uneven.Session(balance=balance)) as session:
        _, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.01))
        for _ in range(iterations):
            began_s = time.perf_counter()
            with session.step(batch) as n:
                time.sleep(sample_s * n)
                F.cross_entropy(model(x[:n]), y[:n]).backward()
                optimizer.step()
                optimizer.zero_grad()
            if device.type == "cuda":
                torch.cuda.synchronize()
            taken_s.append(time.perf_counter() - began_s)
    return statistics.median(taken_s[-(len(taken_s) // _SETTLED) :])


def pair(me: RankContext, iterations: int) -> dict[str, float]:
    """Return seconds of an iteration by balancer, and of the best division if the GPU's own work took nothing."""
    found = {}
    for balance in BALANCES:
        torch.manual_seed(0)
        model = MODELS["resnet20"].make().cuda()
        found[balance] = _iteration_s(balance, model, PAIR_BATCH, iterations, SAMPLE_S[me.rank])
    found["limit"] = PAIR_BATCH / sum(1.0 / one for one in SAMPLE_S)
    return found


def unlike(me: RankContext, iterations: int) -> dict[str, float]:
    """Return seconds of an iteration of the GPU alone, and with a worker on one core by balancer."""
    if me.rank:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        torch.set_num_threads(1)
    found = {}
    if me.rank == 0:
        found["alone"] = _alone_s(iterations)
    for balance in ("even", "lb-bsp"):
        torch.manual_seed(0)
        model = MODELS["resnet20"].make().to("cpu" if me.rank else "cuda")
        found[balance] = _iteration_s(balance, model, UNLIKE_BATCH, iterations, 0.0)
    return found


def _alone_s(iterations: int) -> float:
    torch.manual_seed(0)
    model = MODELS["resnet20"].make().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = (one.cuda() for one in MODELS["resnet20"].draw(UNLIKE_BATCH))
    taken_s = []
    for _ in range(iterations):
        began_s = time.perf_counter()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        taken_s.append(time.perf_counter() - began_s)
    return statistics.median(taken_s)
