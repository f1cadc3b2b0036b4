"""Makes ``SyncBatchNorm`` right for unequal batches.

Its backward pass adds up everybody's gradients *inside* the network, before our hook weighs them at the end,
and so takes each rank's mean loss at face value. Inside the layer the gradients must therefore already be in
units of the union batch: what enters its backward pass is multiplied by n x_i / X, and what leaves it (to the
layers below, and to its own weight and bias) is divided by the same, since the hook will multiply once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from uneven.transport.hooks import ModelHook


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0] * ctx.factor, None


def weigh_sync_batch_norm(
    model: nn.Module, relative_weight: Callable[[], float], kind: type[nn.Module] = nn.SyncBatchNorm
) -> list[RemovableHandle]:
    """Install on every ``SyncBatchNorm`` layer of ``model``; returns what takes it off again.

    Args:
        relative_weight: n x_i / X of the batch in hand; 1 for equal batches.
        kind: torch's layer works on GPUs only; another one that synchronises in the same way may be named.
    """

    def inverse() -> float:
        weight = relative_weight()
        return 1.0 / weight if weight else 0.0

    def before(layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (_ScaleGradient.apply(args[0], inverse()), *args[1:])

    def after(layer: nn.Module, args: Any, output: torch.Tensor) -> None:
        # A hook, not a function: an activation that works in place may follow, and it must not meet a view.
        if output.requires_grad:
            weight = relative_weight()
            output.register_hook(lambda gradient: gradient * weight)

    handles: list[RemovableHandle] = []
    for layer in model.modules():
        if isinstance(layer, kind):
            handles.append(layer.register_forward_pre_hook(ModelHook(before)))
            handles.append(layer.register_forward_hook(ModelHook(after)))
            for parameter in layer.parameters(recurse=False):
                if parameter.requires_grad:
                    handles.append(parameter.register_hook(lambda gradient: gradient * inverse()))
    return handles
