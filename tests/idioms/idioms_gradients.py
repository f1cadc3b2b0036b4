"""What scripts do between the forward pass and the optimizer's step."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from idiom_base import (
    EPOCHS,
    Agrees,
    Differs,
    Equal,
    Refused,
    X,
    apart,
    fetching_ahead,
    idiom,
    mlp,
    samples,
    sgd,
    started,
    step,
)
from torch import nn

GRADIENTS = "Gradients"
PASSES = 3


@idiom("gradient accumulation, all but the last pass in `session.no_sync()`", GRADIENTS, linear=False)
def accumulated_unsynced(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for number, (x, y) in enumerate(loader, 1):
            last = number % PASSES == 0 or number == len(loader)
            with nullcontext() if last else session.no_sync():
                (F.cross_entropy(model(x), y) / PASSES).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
    return model


@idiom("gradient accumulation without `no_sync`", GRADIENTS, linear=False)
def accumulated_synced(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for number, (x, y) in enumerate(loader, 1):
            (F.cross_entropy(model(x), y) / PASSES).backward()
            if number % PASSES == 0 or number == len(loader):
                optimizer.step()
                optimizer.zero_grad()
    return model


@idiom("gradient accumulation that fetches the next batch between forward and backward (nanoGPT)", GRADIENTS,
       linear=False, whole=False, by=fetching_ahead())  # fmt: skip
def accumulated_fetching(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)

    def cycled() -> Any:
        while True:
            yield from loader

    batches = cycled()
    x, y = next(batches)
    for _ in range(4):
        for micro in range(2):
            with nullcontext() if micro == 1 else session.no_sync():
                loss = F.cross_entropy(model(x), y) / 2
                x, y = next(batches)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return model


@idiom("a forward pass inside `no_sync()` whose loss is never used", GRADIENTS, linear=False)
def unsynced_and_dropped(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for number, (x, y) in enumerate(loader):
            if number == 1:
                with session.no_sync():
                    model(x)
                continue
            step(model, optimizer, x, y)
    return model


@idiom("`optimizer.step()` on gradients of a pass inside `no_sync()`", GRADIENTS, expect=Refused("no_sync"),
       by=apart("gradients are not exchanged"))  # fmt: skip
def stepped_unsynced(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for x, y in loader:
        with session.no_sync():
            F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@idiom("gradient accumulation whose last pass is the closure of `optimizer.step(closure)` (Lightning)", GRADIENTS,
       linear=False)  # fmt: skip
def accumulated_closure(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for number, (x, y) in enumerate(loader, 1):

            def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                loss = F.cross_entropy(model(x), y) / PASSES
                loss.backward()
                return loss.detach()

            if number % PASSES == 0 or number == len(loader):
                optimizer.step(closure)
                optimizer.zero_grad()
            else:
                with session.no_sync():
                    closure()
    return model


@idiom("`optimizer.step(closure)`, its pass inside `no_sync()`", GRADIENTS, expect=Refused("no_sync"),
       by=apart("gradients are not exchanged"))  # fmt: skip
def closure_unsynced(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for x, y in loader:

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            with session.no_sync():
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss.detach()

        optimizer.step(closure)
    return model


@idiom("`.grad` of each parameter kept, and a second backward pass before the step (PCGrad, GradNorm)", GRADIENTS)
def gradients_kept(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            kept = [one.grad for one in model.parameters()]
            optimizer.zero_grad()
            (0.1 * model(x).square().mean()).backward()
            for one, first in zip(model.parameters(), kept, strict=True):
                assert one.grad is not None
                assert first is not None
                one.grad = one.grad + 0.5 * first
            optimizer.step()
            optimizer.zero_grad()
    return model


@idiom("a step up the gradient and back before the step (SAM), gradients kept by reference", GRADIENTS, linear=False)
def sharpness_aware(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            up = [one.grad for one in model.parameters()]
            with torch.no_grad():
                for one, ascent in zip(model.parameters(), up, strict=True):
                    one += 0.05 * ascent  # type: ignore[operator]
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for one, ascent in zip(model.parameters(), up, strict=True):
                    one -= 0.05 * ascent  # type: ignore[operator]
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    return model


@idiom("a step up each worker's own gradient, inside `no_sync()`, and back before the step (SAM, FGM)", GRADIENTS,
       expect=Agrees("each worker has its own ascent"), by=apart("replicas take steps of their own"))  # fmt: skip
def own_ascent(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for x, y in loader:
            with session.no_sync():
                F.cross_entropy(model(x), y).backward()
            before = [one.detach().clone() for one in model.parameters()]
            with torch.no_grad():
                for one in model.parameters():
                    one += 0.05 * one.grad  # type: ignore[operator]
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for one, was in zip(model.parameters(), before, strict=True):
                    one.copy_(was)
            optimizer.step()
            optimizer.zero_grad()
    return model


@idiom("the gradients of the step before, kept by reference and added to those of the next", GRADIENTS, linear=False)
def gradients_of_the_step_before(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    before: list[Any] = []
    for _ in range(EPOCHS):
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            now = [one.grad for one in model.parameters()]
            for one, gradient, last in zip(model.parameters(), now, before or now, strict=True):
                assert gradient is not None
                one.grad = gradient + 0.1 * last
            optimizer.step()
            optimizer.zero_grad()
            before = now
    return model


@idiom("clipping by norm", GRADIENTS, linear=False)
def clipped_by_norm(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad()
    return model


@idiom("clipping by value", GRADIENTS, linear=False)
def clipped_by_value(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.01)
            optimizer.step()
            optimizer.zero_grad()
    return model


@idiom("autocast to bfloat16", GRADIENTS, expect=Equal(2e-2), dtype=torch.float32)
def autocast(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for x, y in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


def scaled(session: Any, enabled: bool) -> nn.Module:
    model, optimizer, loader = started(session)
    scaler = torch.amp.GradScaler("cpu", enabled=enabled, init_scale=2.0**10)
    for _ in range(EPOCHS):
        for x, y in loader:
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return model


@idiom("`GradScaler`, disabled", GRADIENTS, expect=Equal(1e-6), dtype=torch.float32)
def scaler_disabled(session: Any) -> nn.Module:
    return scaled(session, enabled=False)


@idiom("`GradScaler`, enabled", GRADIENTS, expect=Equal(1e-6), dtype=torch.float32)
def scaler_enabled(session: Any) -> nn.Module:
    return scaled(session, enabled=True)


@idiom("`GradScaler` whose first scales overflow, with `nonfinite='raise'`", GRADIENTS, expect=Equal(1e-6),
       dtype=torch.float32, options={"nonfinite": "raise"})  # fmt: skip
def scaler_overflows(session: Any) -> nn.Module:
    model = mlp()
    model, optimizer = session.setup(model, sgd(model, 0.1 / 16))
    loader = session.loader(samples(), X)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)  # three steps are skipped, until 16 · scale is finite
    for _ in range(EPOCHS):
        for x, y in loader:
            scaler.scale(16 * F.cross_entropy(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return model


@idiom("hooks that clamp the gradients of parameters", GRADIENTS, expect=Differs(
       "a worker's part of the gradient is clamped, before the mean is taken", warns="has a hook on its gradient"),
       by=apart("replicas take steps of their own"))  # fmt: skip
def clamped_by_hooks(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for one in model.parameters():
        one.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    for _ in range(EPOCHS):
        for x, y in loader:
            step(model, optimizer, x, y)
    return model


@idiom("each worker's part cut by `x.split(n)`, a backward pass for each piece", GRADIENTS,
       expect=Refused("session.microbatches"), by=apart("replicas take steps of their own"))  # fmt: skip
def split_in_pieces(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for x, y in loader:
        for some, theirs in zip(x.split(3), y.split(3), strict=True):
            F.cross_entropy(model(some), theirs).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@idiom("several forward passes before one backward pass", GRADIENTS)
def several_forwards(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for x, y in loader:
            (F.cross_entropy(model(x), y) + F.cross_entropy(model(-x), y)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


@idiom("two backward passes on one forward pass (`retain_graph`)", GRADIENTS)
def backward_twice(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for x, y in loader:
            output = model(x)
            F.cross_entropy(output, y).backward(retain_graph=True)
            (0.1 * output.square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


@idiom("two backward passes on one forward pass, with `find_unused_parameters=True`", GRADIENTS)
def backward_twice_unused(session: Any) -> nn.Module:
    model = nn.ModuleDict({"used": mlp(), "spare": nn.Linear(2, 2)})
    model, optimizer = session.setup(OnlyUsed(model), sgd(model), find_unused_parameters=True)
    loader = session.loader(samples(), X)
    for _ in range(EPOCHS):
        for x, y in loader:
            output = model(x)
            F.cross_entropy(output, y).backward(retain_graph=True)
            (0.1 * output.square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


class OnlyUsed(nn.Module):
    """Leaves a part of its parameters out."""

    def __init__(self, parts: nn.ModuleDict) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, x: torch.Tensor) -> Any:
        return self.parts["used"](x)


@idiom("two forward and backward passes on one batch, one step", GRADIENTS)
def two_passes(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            F.cross_entropy(model(0.5 * x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


@idiom("a sum over samples, divided by the size of the global batch", GRADIENTS,
       expect=Differs("a sum of a part is weighted as if it were a mean"),
       by=apart("replicas take steps of their own"))  # fmt: skip
def summed(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for x, y in loader:
            (F.cross_entropy(model(x), y, reduction="sum") / X).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


@idiom("`reduction='none'`, then the mean", GRADIENTS)
def unreduced(session: Any) -> nn.Module:
    model = mlp()
    model, optimizer = session.setup(model, sgd(model))
    loader = session.loader(samples(), X)
    for _ in range(EPOCHS):
        for x, y in loader:
            F.cross_entropy(model(x), y, reduction="none").mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


@idiom("a `float32` model while torch's default is `float64`", GRADIENTS, expect=Equal(1e-6))
def other_default(session: Any) -> nn.Module:
    model = mlp().float()
    model, optimizer = session.setup(model, sgd(model))
    loader = session.loader(samples(), X)
    for _ in range(EPOCHS):
        for x, y in loader:
            step(model, optimizer, x.float(), y)
    return model


@idiom("a loss over pairs of samples (contrastive), with pairs inside one worker's part; with "
       "[embeddings of all workers](../losses.md#a-loss-over-pairs-of-the-global-batch) it is equal", GRADIENTS,
       expect=Differs("pairs across workers do not exist"), by=apart("replicas take steps of their own"))  # fmt: skip
def contrastive(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for x, _y in loader:
            near = F.normalize(model(x)) @ F.normalize(model(x + 0.1)).T
            F.cross_entropy(near / 0.1, torch.arange(len(x))).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model
