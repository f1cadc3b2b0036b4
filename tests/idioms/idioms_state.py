"""Layers that look at their batch: buffers that forward passes move, and parameters that the first batch sets."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from idiom_base import FEATURES, Differs, Equal, Refused, apart, idiom, mlp
from idioms_models import MODELS, trained
from torch import nn


class Normalizing(nn.Module):
    """Subtracts a running mean of its inputs, by an assignment as many scripts do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()
        self.register_buffer("mean", torch.zeros(FEATURES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x - self.mean  # before it moves: each worker has a part of the batch
        if self.training:
            self.mean = self.mean * 0.9 + (x + self.mean).mean(0).detach() * 0.1
        return self.net(x)


@idiom(
    "a running normalizer: a buffer that moves to the mean of each batch",
    MODELS,
    expect=Equal(warns="write the buffers mean"),
    by=apart("buffers that are not batch norm's stay with their worker"),
)
def normalizing(session: Any) -> nn.Module:
    return trained(session, Normalizing())


class Codes(nn.Module):
    """A codebook whose entries move to the sums and counts of what is nearest to them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()
        self.register_buffer("codes", torch.linspace(-1.0, 1.0, 4 * FEATURES).view(4, FEATURES))
        self.register_buffer("counts", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nearest = torch.cdist(x, self.codes).argmin(1)
        if self.training:
            chosen = F.one_hot(nearest, 4).to(x)
            self.counts.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
            self.codes.lerp_(chosen.T @ x / self.counts[:, None], 0.1)
        return self.net(x + self.codes[nearest])


@idiom(
    "a codebook: buffers that move by sums over the batch, averaged over workers",
    MODELS,
    expect=Differs("a mean over workers of sums is not the sum", warns="write the buffers codes, counts"),
    by=apart("buffers that are not batch norm's stay with their worker"),
)
def codebook(session: Any) -> nn.Module:
    return trained(session, Codes())


class FirstBatch(nn.Module):
    """Sets its scale by the first batch, as ActNorm does."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.scale, self.ready = mlp(), nn.Parameter(torch.ones(FEATURES)), False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.ready:
            self.scale.data, self.ready = 1.0 / x.std(0, correction=0).clamp(min=0.1), True
        return self.net(x * self.scale)


@idiom(
    "a layer that its first batch initializes (ActNorm)",
    MODELS,
    expect=Refused("parameter scale differs, with sums of"),
    by=apart("replicas are averaged after the step"),
)
def first_batch(session: Any) -> nn.Module:
    return trained(session, FirstBatch())
