"""Makes ``SyncBatchNorm`` right for unequal batches.

Its backward pass adds up everybody's gradients *inside* the network, before our hook weighs them at the end,
and so takes each rank's mean loss at face value. Inside the layer the gradients must therefore already be in
units of the union batch: what enters its backward pass is multiplied by n x_i / X, and what leaves it (to the
layers below, and to its own weight and bias) is divided by the same, since the hook will multiply once more.

The layer waits for everybody in both passes. That is time in an exchange, not of computing: a fast worker that waits
there would else look as slow as the one that it waits for, and nothing would be balanced.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from uneven.run.model.hooks import ModelHook
from uneven.run.observer import ExchangeObserver


class _LeaveLayer(torch.autograd.Function):
    """Its backward pass follows the layer's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float, observer: ExchangeObserver) -> torch.Tensor:
        ctx.factor, ctx.observer = factor, observer
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        ctx.observer.done()
        return gradients[0] * ctx.factor, None, None


class _Layer:
    """Weighs and times the passes of one layer."""

    def __init__(self, relative_weight: Callable[[], float], observer: ExchangeObserver) -> None:
        self._relative_weight, self._observer = relative_weight, observer
        self._last = False  # whether the backward pass ends here, as nothing below needs a gradient

    def before(self, layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        self._last = not args[0].requires_grad
        entered = _LeaveLayer.apply(args[0], self._inverse(), self._observer)
        self._observer.ready()
        return (entered, *args[1:])

    def after(self, layer: nn.Module, args: Any, output: torch.Tensor) -> None:
        self._observer.done()
        # A hook, not a function: an activation that works in place may follow, and it must not meet a view.
        if output.requires_grad:
            output.register_hook(partial(self._enter, self._relative_weight()))

    def _enter(self, weight: float, gradient: torch.Tensor) -> torch.Tensor:
        weighed = gradient * weight
        self._observer.ready()
        return weighed

    def own(self, gradient: torch.Tensor) -> torch.Tensor:
        """A hook on the gradient of its weight or bias."""
        if self._last:
            self._observer.done()
        return gradient * self._inverse()

    def _inverse(self) -> float:
        weight = self._relative_weight()
        return 1.0 / weight if weight else 0.0


def weigh_sync_batch_norm(
    model: nn.Module,
    relative_weight: Callable[[], float],
    observer: ExchangeObserver,
    kind: type[nn.Module] = nn.SyncBatchNorm,
) -> list[RemovableHandle]:
    """Install on every ``SyncBatchNorm`` layer of ``model``; returns what takes it off again.

    Args:
        relative_weight: n x_i / X of the batch that a pass is on; 1 for equal batches.
        observer: notified of each layer's passes, of which the most is waiting where workers are unequal.
        kind: torch's layer works on GPUs only; another one that synchronises in the same way may be named.
    """
    handles: list[RemovableHandle] = []
    for layer in model.modules():
        if isinstance(layer, kind):
            weighed = _Layer(relative_weight, observer)
            handles.append(layer.register_forward_pre_hook(ModelHook(weighed.before)))
            handles.append(layer.register_forward_hook(ModelHook(weighed.after)))
            handles += [one.register_hook(weighed.own) for one in layer.parameters(recurse=False) if one.requires_grad]
    return handles
