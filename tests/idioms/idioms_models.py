"""What models are made of, and what is done with their gradients on the way."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from idiom_base import (
    CLASSES,
    EPOCHS,
    FEATURES,
    Agrees,
    Refused,
    Unfit,
    X,
    apart,
    idiom,
    mlp,
    samples,
    sgd,
    started,
    step,
)
from torch import nn
from torch.func import functional_call, grad
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

MODELS = "Models"
DIFFERENTIATED = "Other ways to differentiate"


def trained(session: Any, model: nn.Module, **setup: Any) -> nn.Module:
    model, optimizer, loader = started(session, model, **setup)
    for _ in range(EPOCHS):
        for x, y in loader:
            step(model, optimizer, x, y)
    return model


def seeded(*layers: Any) -> nn.Sequential:
    """Layers made under one seed: ``(type, arguments…)``."""
    torch.manual_seed(2)
    return nn.Sequential(*(one[0](*one[1:]) for one in layers))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.a, self.b, self.head = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, 3)
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.b(torch.tanh(self.a(x)))))


@idiom("tied weights", MODELS)
def tied(session: Any) -> nn.Module:
    return trained(session, Tied())


class Spare(nn.Module):
    """Uses one of two heads, or both by turns."""

    def __init__(self, turns: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.heads, self.turns, self.count = nn.ModuleList(nn.Linear(FEATURES, CLASSES) for _ in range(2)), turns, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += self.turns
        return self.heads[self.count % 2](x)


@idiom("unused parameters, with `find_unused_parameters=True`", MODELS)
def unused(session: Any) -> nn.Module:
    return trained(session, Spare(turns=False), find_unused_parameters=True)


@idiom("parameters that alternate steps use, with `find_unused_parameters=True`", MODELS,
       by=apart("turns are counted by each"))  # fmt: skip
def unused_by_turns(session: Any) -> nn.Module:
    return trained(session, Spare(turns=True), find_unused_parameters=True)


@idiom("unused parameters, without `find_unused_parameters=True`", MODELS,
       expect=Refused("find_unused_parameters=True"),
       by=apart("exchanges parameters"))  # fmt: skip
def unused_and_unsaid(session: Any) -> nn.Module:
    return trained(session, Spare(turns=False))


@idiom("`LayerNorm`, `GroupNorm`, `GELU`", MODELS)
def normalised(session: Any) -> nn.Module:
    return trained(session, seeded((nn.Linear, FEATURES, 8), (nn.LayerNorm, 8), (nn.GELU,), (nn.GroupNorm, 2, 8),
                                   (nn.Linear, 8, CLASSES)))  # fmt: skip


@idiom("`BatchNorm`: each worker normalizes its part of the batch", MODELS,
       expect=Agrees("statistics are those of each worker's part"))  # fmt: skip
def batch_norm(session: Any) -> nn.Module:
    model = seeded((nn.BatchNorm1d, FEATURES), (nn.Linear, FEATURES, CLASSES))
    model, optimizer = session.setup(model, sgd(model))
    loader = session.loader(samples(), X)
    for _ in range(EPOCHS):
        for x, y in loader:
            step(model, optimizer, x, y)
    return model


@idiom("`SyncBatchNorm` on the CPU", MODELS, expect=Refused("SyncBatchNorm"))
def sync_batch_norm(session: Any) -> nn.Module:
    model = seeded((nn.BatchNorm1d, FEATURES), (nn.Linear, FEATURES, CLASSES))
    return trained(session, nn.SyncBatchNorm.convert_sync_batchnorm(model))


@idiom("`Dropout`: each worker draws for its part of the batch", MODELS,
       expect=Agrees("other samples are dropped out than in one process"))  # fmt: skip
def dropout(session: Any) -> nn.Module:
    torch.manual_seed(10 + session.rank)
    return trained(session, nn.Sequential(mlp(), nn.Dropout(0.2)))


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.body = nn.Sequential(nn.Conv1d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten())
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x.unsqueeze(1)))


@idiom("convolutions and pooling", MODELS)
def convolutional(session: Any) -> nn.Module:
    return trained(session, Convolutional())


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.embed = nn.Linear(1, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embed(x.unsqueeze(-1))).mean(1))


@idiom("a transformer's encoder layer", MODELS)
def transformer(session: Any) -> nn.Module:
    return trained(session, Attentive())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.rnn, self.head = nn.LSTM(1, 6, batch_first=True), nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x.unsqueeze(-1))[0][:, -1])


@idiom("an LSTM", MODELS)
def recurrent(session: Any) -> nn.Module:
    return trained(session, Recurrent())


class Recommender(nn.Module):
    """As DLRM: tables for what is counted, layers for what is measured."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.bag = nn.EmbeddingBag(9, 4, mode="sum", sparse=sparse)
        self.table = nn.Embedding(9, 4)
        self.bottom, self.top = nn.Linear(FEATURES, 4), nn.Linear(12, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        counted = (x.abs() * 4).long().clamp(max=8)
        parts = [torch.relu(self.bottom(x)), self.bag(counted), self.table(counted[:, 0])]
        return self.top(torch.cat(parts, 1))


@idiom("embeddings, dense gradients (DLRM)", MODELS)
def embeddings(session: Any) -> nn.Module:
    return trained(session, Recommender(sparse=False))


@idiom("embeddings with `sparse=True` (DLRM)", MODELS)
def sparse_embeddings(session: Any) -> nn.Module:
    model = Recommender(sparse=True)
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = session.loader(samples(), X)
    for _ in range(EPOCHS):
        for x, y in loader:
            step(model, optimizer, x, y)
    return model


@idiom(
    "embeddings with `max_norm`, whose rows a forward pass renormalizes",
    MODELS,
    expect=Refused("table has max_norm=1"),
    by=apart("replicas are averaged after the step"),
)
def renormalized_embeddings(session: Any) -> nn.Module:
    model = Recommender(sparse=False)
    model.table.max_norm = 1.0
    return trained(session, model)


@idiom("`weight_norm` and `spectral_norm`", MODELS)
def parametrized(session: Any) -> nn.Module:
    torch.manual_seed(2)
    first, second = weight_norm(nn.Linear(FEATURES, 8)), spectral_norm(nn.Linear(8, CLASSES))
    return trained(session, nn.Sequential(first, nn.Tanh(), second), find_unused_parameters=False)


class Counting(nn.Module):
    """Writes a buffer in its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen += 1
        return {"logits": self.net(x)}


@idiom("a dictionary as output, a buffer written in the forward pass", MODELS)
def structured(session: Any) -> nn.Module:
    model, optimizer, loader = started(session, Counting())
    for _ in range(EPOCHS):
        for x, y in loader:
            F.cross_entropy(model(x)["logits"], y).backward()
            optimizer.step()
            model.zero_grad(set_to_none=False)
    return model


@idiom(
    "`torch.compile` before or after `setup`, or `model.compile()`",
    MODELS,
    by=dict.fromkeys(("local", "shadow:ma", "asp"), Unfit("not tried")),
    shown="tests/ranks/test_session_models.py::test_a_compiled_model",
)
def compiled_before(session: Any) -> nn.Module:
    torch._dynamo.reset()
    return trained(session, torch.compile(mlp(), backend="aot_eager", dynamic=True))


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.net: Any = mlp()
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.net[0](x)
        rest = nn.Sequential(*self.net[1:])
        return checkpoint(rest, hidden, use_reentrant=self.reentrant)


@idiom("activation checkpointing, reentrant and not", MODELS)
def checkpointed(session: Any) -> nn.Module:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = Checkpointed(False), Checkpointed(True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x) + self.b(x)

    return trained(session, Both())


@idiom("hooks on modules, and on gradients that scale them", MODELS)
def hooked(session: Any) -> nn.Module:
    model: Any = mlp()
    seen: list[Any] = []
    model[0].register_forward_hook(lambda module, args, output: seen.append(output.shape))
    model[2].register_full_backward_hook(lambda module, before, after: seen.append(after[0].shape))
    for one in model.parameters():
        one.register_hook(lambda gradient: 0.5 * gradient)
    return trained(session, model)


@idiom("`.grad` read and changed between backward pass and step", MODELS)
def grad_changed(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            for one in model.parameters():
                assert one.grad is not None
                one.grad.mul_(0.5).add_(one.detach(), alpha=1e-3)
            optimizer.step()
            for one in model.parameters():
                one.grad = None
    return model


@idiom("a gradient penalty (`create_graph=True`)", MODELS)
def gradient_penalty(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for x, y in loader:
            x = x.requires_grad_()
            output = model(x)
            (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
            (F.cross_entropy(output, y) + 0.1 * (slope.norm(dim=1) - 1).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


@idiom("several losses added up, a regularizer on the weights", MODELS)
def several_losses(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for x, y in loader:
            output = model(x)
            weights = sum(one.square().sum() for one in model.parameters())
            (F.cross_entropy(output, y) + 0.3 * output.abs().mean() + 1e-3 * weights).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


@idiom("`functional_call` with the model's own parameters", DIFFERENTIATED)
def called_functionally(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for x, y in loader:
            F.cross_entropy(functional_call(model, dict(model.named_parameters()), (x,)), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


@idiom("gradients by `torch.func.grad`, put into `.grad`", DIFFERENTIATED, whole=False,
       expect=Refused("no gradients were exchanged"), by=apart("exchanges parameters"))  # fmt: skip
def func_grads(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)

    def loss(parameters: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(functional_call(model, parameters, (x,)), y)

    for x, y in loader:
        found = grad(loss)({name: one.detach() for name, one in model.named_parameters()}, x, y)
        for name, one in model.named_parameters():
            one.grad = found[name]
        optimizer.step()
    return model


@idiom("gradients by `torch.autograd.grad`, put into `.grad`", DIFFERENTIATED, whole=False,
       expect=Refused("no gradients were exchanged"), by=apart("exchanges parameters"))  # fmt: skip
def autograd_grads(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for x, y in loader:
        found = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
        for one, gradient in zip(model.parameters(), found, strict=True):
            one.grad = gradient
        optimizer.step()
    return model


@idiom("gradients by `torch.autograd.grad`, and a manual update", DIFFERENTIATED, whole=False,
       expect=Refused("no gradients were exchanged"), by=apart("exchanges parameters"))  # fmt: skip
def updated_by_hand(session: Any) -> nn.Module:
    model = session.setup(mlp())
    loader = session.loader(samples(), X)
    for _ in range(EPOCHS):
        for x, y in loader:
            found = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
            with torch.no_grad():
                for one, gradient in zip(model.parameters(), found, strict=True):
                    one -= 0.1 * gradient
    return model


@idiom("a manual update after `loss.backward()`, without an optimizer", DIFFERENTIATED)
def without_optimizer(session: Any) -> nn.Module:
    model = session.setup(mlp())
    loader = session.loader(samples(), X)
    for _ in range(EPOCHS):
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for one in model.parameters():
                    one -= 0.1 * one.grad
                    one.grad = None
    return model
