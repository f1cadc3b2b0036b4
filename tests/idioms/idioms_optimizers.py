"""Optimizers, schedules and averaged copies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from idiom_base import (
    EPOCHS,
    STEPS,
    Equal,
    Refused,
    Unfit,
    X,
    apart,
    at_own_pace,
    idiom,
    mlp,
    samples,
    sgd,
    step,
)
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

OPTIMIZERS = "Optimizers, schedules, averages"
Make = Callable[[nn.Module], torch.optim.Optimizer]


def trained(session: Any, make: Make, model: nn.Module | None = None) -> nn.Module:
    model = mlp() if model is None else model
    model, optimizer = session.setup(model, make(model))
    loader = session.loader(samples(), X)
    for _ in range(EPOCHS):
        for x, y in loader:
            step(model, optimizer, x, y)
    return model


@idiom("SGD with momentum, Nesterov and weight decay", OPTIMIZERS, linear=False)
def momentum(session: Any) -> nn.Module:
    return trained(
        session,
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
    )


@idiom("Adam, AdamW, Adagrad, RMSprop, Adadelta", OPTIMIZERS, linear=False)
def adaptive(session: Any) -> Any:
    """One network for each in a module, each with its own optimizer."""
    kinds: list[Any] = [
        *(torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.Adadelta)
    ]
    model = Several(len(kinds))
    optimizers = [kind(net.parameters(), lr=0.01) for kind, net in zip(kinds, model.nets, strict=True)]
    model, *optimizers = session.setup(model, *optimizers)
    loader = session.loader(samples(), X)
    for _ in range(EPOCHS):
        for x, y in loader:
            sum(F.cross_entropy(output, y) for output in model(x)).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    return model


class Several(nn.Module):
    """Networks side by side."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.nets = nn.ModuleList(mlp() for _ in range(count))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [net(x) for net in self.nets]


@idiom("Adam with `foreach=True`, with `fused=True`", OPTIMIZERS, linear=False)
def foreach_and_fused(session: Any) -> Any:
    model = Several(2)
    optimizers = [
        torch.optim.Adam(net.parameters(), **{how: True})  # type: ignore[arg-type]
        for how, net in zip(("foreach", "fused"), model.nets, strict=True)
    ]
    model, *optimizers = session.setup(model, *optimizers)
    loader = session.loader(samples(), X)
    for _ in range(EPOCHS):
        for x, y in loader:
            for optimizer in optimizers:
                optimizer.zero_grad()
            sum(F.cross_entropy(output, y) for output in model(x)).backward()
            for optimizer in optimizers:
                optimizer.step()
    return model


@idiom("parameter groups with their own learning rates", OPTIMIZERS)
def groups(session: Any) -> nn.Module:
    def make(model: Any) -> torch.optim.Optimizer:
        biases = [one for name, one in model.named_parameters() if name.endswith("bias")]
        others = [one for name, one in model.named_parameters() if not name.endswith("bias")]
        return torch.optim.SGD(
            [{"params": biases, "weight_decay": 0.0}, {"params": others, "lr": 0.2}], lr=0.1, weight_decay=1e-2
        )

    return trained(session, make)


@idiom("an optimizer made after `setup`, and not given to it", OPTIMIZERS)
def made_after(session: Any) -> nn.Module:
    model = session.setup(mlp())
    optimizer = sgd(model)
    for _ in range(1):
        for x, y in session.loader(samples(), X):
            step(model, optimizer, x, y)
    return model


@idiom("two optimizers on one model, each with its own step", OPTIMIZERS)
def two_optimizers(session: Any) -> nn.Module:
    model: Any = mlp()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.SGD(model[2].parameters(), lr=0.05)
    model, first, second = session.setup(model, first, second)
    loader = session.loader(samples(), X)
    for _ in range(EPOCHS):
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            for optimizer in (first, second):
                optimizer.step()
                optimizer.zero_grad()
    return model


class Gan(nn.Module):
    """Generator and discriminator in one module, so that one session carries both."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.generator = nn.Linear(5, 5)
        self.discriminator = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor, what: str) -> torch.Tensor:
        if what == "generate":
            return self.generator(x)
        return self.discriminator(x if what == "judge" else self.generator(x)).squeeze(1)


@idiom("GAN: generator and discriminator in one module, two optimizers, three backward passes a batch (DCGAN)",
       OPTIMIZERS, linear=False,)  # fmt: skip
def gan(session: Any) -> nn.Module:
    model = Gan()
    of_d = torch.optim.SGD(model.discriminator.parameters(), lr=0.1)
    of_g = torch.optim.SGD(model.generator.parameters(), lr=0.1)
    model, of_d, of_g = session.setup(model, of_d, of_g, find_unused_parameters=True)
    loader = session.loader(samples(), X)
    real, fake = torch.ones(()), torch.zeros(())
    for _ in range(EPOCHS):
        for x, _y in loader:
            model.zero_grad()
            output = model(x, "judge")
            F.binary_cross_entropy_with_logits(output, real.expand_as(output)).backward()
            noise = x.flip(1)
            output = model(model(noise, "generate").detach(), "judge")
            F.binary_cross_entropy_with_logits(output, fake.expand_as(output)).backward()
            of_d.step()
            model.zero_grad()
            output = model(noise, "both")
            F.binary_cross_entropy_with_logits(output, real.expand_as(output)).backward()
            of_g.step()
    return model


@idiom("learning rates by epoch and by step (`StepLR`, `OneCycleLR`), or set manually", OPTIMIZERS,
       by=at_own_pace(Unfit("rates by step, where steps are not counted alike")))  # fmt: skip
def schedules(session: Any) -> nn.Module:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = session.setup(model, optimizer)
    loader = session.loader(samples(), X)
    by_step = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=EPOCHS * len(loader))
    by_epoch = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
    for _ in range(EPOCHS):
        for x, y in loader:
            step(model, optimizer, x, y)
            by_step.step()
        by_epoch.step()
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=len(loader), cycle_momentum=False)
    for x, y in loader:
        step(model, optimizer, x, y)
        cycle.step()
    return model


@idiom("`ReduceLROnPlateau` on the mean loss of all workers", OPTIMIZERS)
def plateau(session: Any) -> nn.Module:
    model = mlp()
    model, optimizer = session.setup(model, sgd(model, lr=0.5))
    plan = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    loader = session.loader(samples(), X)
    held_out, labels = samples().tensors
    for _ in range(EPOCHS):
        for x, y in loader:
            step(model, optimizer, x, y)
        with session.evaluation_model(), torch.no_grad():
            plan.step(F.cross_entropy(model(held_out), labels))
    return model


@idiom(
    "`ReduceLROnPlateau` on each rank's own loss",
    OPTIMIZERS,
    expect=Refused("learning rates differ, with sums of"),
    by=apart("replicas are averaged after the step"),
)
def own_plateau(session: Any) -> nn.Module:
    model = mlp()
    model, optimizer = session.setup(model, sgd(model, lr=0.5))
    plan = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    loader = session.loader(samples(), X)
    for epoch in range(EPOCHS + 3):
        for x, y in loader:
            step(model, optimizer, x, y)
        plan.step(-epoch if session.rank == 0 else epoch)  # the losses of two ranks, far apart
    return model


@idiom("LBFGS, whose closure returns the loss of all workers", OPTIMIZERS, expect=Equal(1e-9), linear=False,
       by=at_own_pace(Unfit("a collective in the loop, where steps are not counted alike")))  # fmt: skip
def lbfgs(session: Any) -> nn.Module:
    model = mlp()
    model, optimizer = session.setup(model, torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3))
    for x, y in session.loader(samples(), X):

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return session.everybodys(loss)

        optimizer.step(closure)
    return model


@idiom("a closure that returns its own loss, with SGD", OPTIMIZERS)
def closure_sgd(session: Any) -> nn.Module:
    model = mlp()
    model, optimizer = session.setup(model, sgd(model))
    loader = session.loader(samples(), X)
    for _ in range(EPOCHS):
        for x, y in loader:

            def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)
    return model


@idiom("frozen layers", OPTIMIZERS)
def frozen(session: Any) -> nn.Module:
    model: Any = mlp()
    model[0].requires_grad_(False)
    return trained(session, lambda model: torch.optim.SGD(filter(lambda p: p.requires_grad, model.parameters()), 0.1),
                   model)  # fmt: skip


@idiom("layers unfrozen after `setup`", OPTIMIZERS, whole=False,
       expect=Refused("had requires_grad=False when session.setup was called"))  # fmt: skip
def unfrozen_later(session: Any) -> nn.Module:
    model: Any = mlp()
    model[0].requires_grad_(False)
    model, optimizer = session.setup(model, sgd(model))
    loader = session.loader(samples(), X)
    for epoch in range(EPOCHS):
        if epoch == 1:
            model[0].requires_grad_(True)
        for x, y in loader:
            step(model, optimizer, x, y)
    return model


@idiom("layers frozen after `setup`, with `find_unused_parameters=True`", OPTIMIZERS)
def frozen_later(session: Any) -> nn.Module:
    model: Any = mlp()
    model, optimizer = session.setup(model, sgd(model), find_unused_parameters=True)
    loader = session.loader(samples(), X)
    for epoch in range(EPOCHS):
        if epoch == 1:
            model[0].requires_grad_(False)
        for x, y in loader:
            step(model, optimizer, x, y)
    return model


@idiom("a layer of the model is replaced after `setup`", OPTIMIZERS, whole=False,
       expect=Refused("find_unused_parameters|setup"))  # fmt: skip
def new_head(session: Any) -> nn.Module:
    model: Any = mlp()
    model = session.setup(model)
    model[2] = nn.Linear(8, 3)
    optimizer = sgd(model)
    loader = session.loader(samples(), X)
    for x, y in loader:
        step(model, optimizer, x, y)
    return model


@idiom("the optimizer's step inside gradient hooks (`register_post_accumulate_grad_hook`)", OPTIMIZERS, whole=False,
       expect=Refused("hook|setup|exchange"), by=apart("exchanges parameters"))  # fmt: skip
def step_in_backward(session: Any) -> nn.Module:
    model = session.setup(mlp())
    optimizers = {one: torch.optim.SGD([one], lr=0.1) for one in model.parameters()}

    def stepped(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for one in model.parameters():
        one.register_post_accumulate_grad_hook(stepped)
    loader = session.loader(samples(), X)
    for _ in range(EPOCHS):
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
    return model


@idiom("EMA: a `deepcopy` made before `setup`, updated after each step", OPTIMIZERS,
       by=apart("replicas are averaged after the copy was updated"))  # fmt: skip
def ema_by_copy(session: Any) -> Any:
    model = mlp()
    shadow = copy.deepcopy(model)
    model, optimizer = session.setup(model, sgd(model))
    loader = session.loader(samples(), X)
    for _ in range(EPOCHS):
        for x, y in loader:
            step(model, optimizer, x, y)
            with torch.no_grad():
                for ours, theirs in zip(shadow.parameters(), model.parameters(), strict=True):
                    ours.lerp_(theirs, 0.1)
    return [model, shadow]


@idiom("`AveragedModel` of torch (SWA and EMA), made after `setup`", OPTIMIZERS,
       by=apart("replicas are averaged after the copy was updated"))  # fmt: skip
def averaged_model(session: Any) -> Any:
    model = mlp()
    model, optimizer = session.setup(model, sgd(model))
    swa, ema = AveragedModel(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    loader = session.loader(samples(), X)
    for _ in range(EPOCHS):
        for number, (x, y) in enumerate(loader):
            step(model, optimizer, x, y)
            ema.update_parameters(model)
            if number >= STEPS // 2:
                swa.update_parameters(model)
            if session.rank == 0:
                with torch.no_grad():
                    ema(x)
    return [model, swa, ema]


@idiom("saving and loading the optimizer's and the scheduler's state in the loop", OPTIMIZERS)
def optimizer_state(session: Any) -> nn.Module:
    model = mlp()
    model, optimizer = session.setup(model, sgd(model))
    plan = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    loader = session.loader(samples(), X)
    for _ in range(EPOCHS):
        for x, y in loader:
            step(model, optimizer, x, y)
        plan.step()
        state = copy.deepcopy((optimizer.state_dict(), plan.state_dict()))
        optimizer = sgd(model)
        plan = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        optimizer.load_state_dict(state[0])
        plan.load_state_dict(state[1])
    return model
