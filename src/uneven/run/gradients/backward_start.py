"""The moment in which a backward pass reaches a model's output, and the weighting of the gradient there.

All gradients of the model are linear in that gradient.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel.distributed import _find_tensors
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


def weighted_on_entering(output: Any, weight: Callable[[], float]) -> tuple[Any, int]:
    """Return the output, shapes unchanged, and how many tensors in it lead to the model.
    A backward pass multiplies the gradient at each such tensor by ``weight()``, called at that time."""
    found: list[torch.Tensor] = []

    def weighted(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.requires_grad:
            return tensor
        found.append(tensor)
        entering: torch.Tensor = _Entering.apply(tensor, weight)
        return entering

    # Each tensor is wrapped separately, so one that the model computed from another (a loss from logits) enters once.
    return tree_map_only(torch.Tensor, weighted, output), len(found)


def on_entering(output: Any, call: Callable[[torch.Tensor], None]) -> bool:
    """Call ``call`` with an output tensor's gradient (its shape) when a backward pass reaches it.
    Returns whether any tensor of the output leads to the model."""
    found = [one for one in _find_tensors(output) if one.requires_grad]
    for one in found:
        one.register_hook(call)
    return bool(found)
