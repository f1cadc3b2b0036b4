"""Weighs the gradient that enters a model by its output; all gradients of the model are linear in that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only


class _Entering(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, weight: Callable[[], float]) -> torch.Tensor:
        ctx.weight = weight
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        weight = ctx.weight()
        return gradient * weight if weight else torch.zeros_like(gradient), None


def weighted_on_entering(output: Any, weight: Callable[[], float]) -> tuple[Any, bool]:
    """A model's output by which a backward pass enters with its gradient times ``weight``, asked for then.

    Each tensor is wrapped by itself, so what the model has made of another one, its loss of its logits, enters once.

    Returns:
        The output, and whether any tensor in it leads to the model.
    """
    found: list[torch.Tensor] = []

    def weighted(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.requires_grad:
            return tensor
        found.append(tensor)
        entering: torch.Tensor = _Entering.apply(tensor, weight)
        return entering

    return tree_map_only(torch.Tensor, weighted, output), bool(found)
