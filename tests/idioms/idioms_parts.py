"""Models whose parts the script calls, and parameters that the model does not have."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from idiom_base import EPOCHS, Refused, X, idiom, mlp, samples, sgd
from idioms_optimizers import OPTIMIZERS, Gan
from torch import nn


@idiom("GAN: an `nn.ModuleDict` whose parts the script calls, with `find_unused_parameters=True`", OPTIMIZERS,
       linear=False)  # fmt: skip
def gan_of_parts(session: Any) -> nn.Module:
    whole = Gan()
    parts = nn.ModuleDict({"g": whole.generator, "d": whole.discriminator})
    of_d, of_g = (torch.optim.SGD(parts[key].parameters(), lr=0.1) for key in "dg")
    parts, of_d, of_g = session.setup(parts, of_d, of_g, find_unused_parameters=True)
    loader = session.loader(samples(), X)
    judged = F.binary_cross_entropy_with_logits
    for _ in range(EPOCHS):
        for x, _y in loader:
            of_d.zero_grad()
            fake, real = parts["g"](x.flip(1)), parts["d"](x)
            judged(real, torch.ones_like(real)).backward()
            output = parts["d"](fake.detach())
            judged(output, torch.zeros_like(output)).backward()
            of_d.step()
            of_g.zero_grad()
            output = parts["d"](fake)
            judged(output, torch.ones_like(output)).backward()
            of_g.step()
    return parts


class Margins(nn.Module):
    """A loss with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 3))

    def forward(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output * self.scale, y)


def with_criterion(session: Any, *, known: bool, late: bool = False) -> Any:
    model, criterion = mlp(), Margins()
    optimizer = sgd(model)
    if not late:
        optimizer.add_param_group({"params": criterion.parameters()})
    session.setup(nn.ModuleList([model, criterion]) if known else model, optimizer)
    loader = session.loader(samples(), X)
    for epoch in range(EPOCHS):
        if late and epoch == 1:
            optimizer.add_param_group({"params": criterion.parameters()})
        for x, y in loader:
            criterion(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return nn.ModuleList([model, criterion])


@idiom("a loss with parameters, in the optimizer and not in `setup`", OPTIMIZERS, whole=False,
       expect=Refused("not in the model"))  # fmt: skip
def criterion_unknown(session: Any) -> Any:
    return with_criterion(session, known=False)


@idiom("a loss with parameters: `setup(nn.ModuleList([model, criterion]), optimizer)`", OPTIMIZERS)
def criterion_known(session: Any) -> Any:
    return with_criterion(session, known=True)


@idiom("`add_param_group` during training, with parameters that `setup` has not seen", OPTIMIZERS, whole=False,
       expect=Refused("not in the model"))  # fmt: skip
def group_added(session: Any) -> Any:
    return with_criterion(session, known=False, late=True)


@idiom("an optimizer made after `setup`, which holds parameters of the model and others", OPTIMIZERS, whole=False,
       expect=Refused("not in the model"))  # fmt: skip
def optimizer_later_of_more(session: Any) -> Any:
    model, criterion = session.setup(mlp()), Margins()
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1)
    for x, y in session.loader(samples(), X):
        criterion(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@idiom("two heads in an `nn.ModuleDict`, a loss of one or both, with `find_unused_parameters=True`", OPTIMIZERS,
       linear=False)  # fmt: skip
def heads(session: Any) -> nn.Module:
    torch.manual_seed(4)
    parts = nn.ModuleDict({"body": nn.Linear(5, 6), "a": nn.Linear(6, 3), "b": nn.Linear(6, 3)})
    parts, optimizer = session.setup(parts, sgd(parts), find_unused_parameters=True)
    loader = session.loader(samples(), X)
    for _ in range(EPOCHS):
        for number, (x, y) in enumerate(loader):
            seen = torch.tanh(parts["body"](x))
            losses = [F.cross_entropy(parts[key](seen), y) for key in "ab"]
            (losses[0] if number == 1 else losses[0] + 0.5 * losses[1]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return parts
