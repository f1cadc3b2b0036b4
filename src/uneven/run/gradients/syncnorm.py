"""Correct ``SyncBatchNorm`` gradients for unequal batches.

Its backward pass sums gradients of all ranks inside the network, before the gradient hook weights them. So inside the
layer gradients must already be in units of the union batch. They are multiplied by n x_i / X where they enter its
backward pass, and divided by it where they leave: to the layers below, and to its own weight and bias.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from uneven.run.measure.meter import Meter
from uneven.run.model.hooks import ModelHook


class _LeaveLayer(torch.autograd.Function):
    """An identity before the layer, whose backward pass runs after the layer's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float, observer: Meter) -> torch.Tensor:
        ctx.factor, ctx.observer = factor, observer
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        ctx.observer.done()
        return gradients[0] * ctx.factor, None, None


class _Layer:
    """The weighting and timing of one layer's passes."""

    def __init__(self, relative_weight: Callable[[], float], observer: Meter) -> None:
        self._relative_weight = relative_weight
        self._observer = observer
        self._last = False  # whether the backward pass ends here, because nothing below needs a gradient

    def before(self, layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        self._last = not args[0].requires_grad
        entered = _LeaveLayer.apply(args[0], self._inverse(), self._observer)
        # The layer's wait for other ranks counts as communication. Otherwise a fast worker that waits here would look
        # as slow as the one it waits for, and nothing would be balanced.
        self._observer.ready()
        return (entered, *args[1:])

    def after(self, layer: nn.Module, args: Any, output: torch.Tensor) -> None:
        self._observer.done()
        # A hook, not an autograd function: an in-place activation may follow, and it does not accept a view.
        if output.requires_grad:
            output.register_hook(partial(self._enter, self._relative_weight()))

    def _enter(self, weight: float, gradient: torch.Tensor) -> torch.Tensor:
        weighed = gradient * weight
        self._observer.ready()
        return weighed

    def own(self, gradient: torch.Tensor) -> torch.Tensor:
        """Rescale the gradient of the layer's weight or bias, any shape, in a hook."""
        if self._last:
            self._observer.done()
        return gradient * self._inverse()

    def _inverse(self) -> float:
        weight = self._relative_weight()
        return 1.0 / weight if weight else 0.0


def weigh_sync_batch_norm(
    model: nn.Module,
    relative_weight: Callable[[], float],
    observer: Meter,
    kind: type[nn.Module] = nn.SyncBatchNorm,
) -> list[RemovableHandle]:
    """Install on every ``SyncBatchNorm`` layer of ``model``; return the handles that remove it.
    ``relative_weight`` is n x_i / X of the current batch; ``kind`` a class that synchronises like torch's, which needs
    GPUs."""
    handles: list[RemovableHandle] = []
    for layer in model.modules():
        if isinstance(layer, kind):
            weighed = _Layer(relative_weight, observer)
            handles.append(layer.register_forward_pre_hook(ModelHook(weighed.before)))
            handles.append(layer.register_forward_hook(ModelHook(weighed.after)))
            handles += [one.register_hook(weighed.own) for one in layer.parameters(recurse=False) if one.requires_grad]
    return handles
