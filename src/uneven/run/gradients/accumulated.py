"""A backward pass that changes no gradient, but marks all of them ready for DDP's reducer."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


class _Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*parameters)
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(one.new_zeros(()).expand_as(one) for one in ctx.saved_tensors)


def nothing_of(parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    """Return a zero, shape (), computed from all parameters."""
    # Last layers first, the order in which a backward pass usually reaches them.
    found: torch.Tensor = _Nothing.apply(*reversed(parameters))
    return found
