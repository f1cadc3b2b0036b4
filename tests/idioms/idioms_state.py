"""Layers that look at their batch: buffers that forward passes move, and parameters that the first batch sets."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from idiom_base import EPOCHS, FEATURES, Differs, Equal, Refused, apart, idiom, mlp, started, step
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


class Remembers(nn.Module):
    """Keeps its last output, one row a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()
        self.register_buffer("last", torch.zeros(1, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.net(x)
        self.last = out.detach()
        return out


@idiom("a buffer that forward passes write, with a row for each sample (a hidden state)", MODELS,
       expect=Refused("buffer last, and its shape .* depends on"),
       by=apart("buffers that are not batch norm's stay with their worker"))  # fmt: skip
def buffer_of_samples(session: Any) -> nn.Module:
    return trained(session, Remembers())


class Drops(nn.Module):
    """Has buffers that do not stay what they are."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.calls = mlp(), 0
        for name in ("freed", "none", "whole", "sparse"):
            self.register_buffer(name, torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.calls == 1:
            del self.freed
            self.none, self.whole, self.sparse = None, torch.ones(3).long(), torch.ones(3, 3).to_sparse()
        self.calls += 1
        out: torch.Tensor = self.net(x)
        return out


@idiom("buffers that become `None`, integers or sparse, or are deleted", MODELS)
def buffers_that_go(session: Any) -> nn.Module:
    return trained(session, Drops())


@idiom("a parameter in `_ddp_params_and_buffers_to_ignore`, which each worker sets for itself", MODELS)
def parameter_left_out(session: Any) -> nn.Module:
    model = mlp()
    model.register_parameter("own", nn.Parameter(torch.zeros(3), requires_grad=False))
    model._ddp_params_and_buffers_to_ignore = ["own"]  # type: ignore[assignment]
    model, optimizer, loader = started(session, model)
    for _ in range(EPOCHS):
        for x, y in loader:
            model.own.fill_(float(session.rank))  # type: ignore[operator]
            step(model, optimizer, x, y)
    model.own.zero_()  # type: ignore[operator]
    return model
