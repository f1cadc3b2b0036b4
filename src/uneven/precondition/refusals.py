"""Optimizers and gradients that a preconditioner of averaged gradients (SOAP, Muon) does not support."""

from collections.abc import Iterable

import torch
from torch import nn

from uneven.errors import ConfigError, TrainingError

_SPARSE = "gradients of a few rows: use sparse=False, or give that table to another optimizer, such as SparseAdam"


def check_optimizer(name: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> set[int]:
    """Return the ids of the parameters that ``optimizer`` steps.

    Raises:
        ConfigError: it has a momentum, or steps a table with sparse gradients.
    """
    if any(group.get("momentum") or group.get("betas") for group in optimizer.param_groups):
        raise ConfigError(f"{name} has its own momentum: use an optimizer without momentum, SGD(…, momentum=0)")
    stepped = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    for module_name, module in model.named_modules():
        if getattr(module, "sparse", False) and id(getattr(module, "weight", None)) in stepped:
            raise ConfigError(f"{name} moves all rows at each step, and {module_name!r} gives {_SPARSE}")
    return stepped


def check_gradients(name: str, weights: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Raise :class:`TrainingError` if the gradient of one of the named ``weights`` is sparse."""
    for weight_name, weight in weights:
        if weight.grad is not None and weight.grad.layout != torch.strided:
            raise TrainingError(f"{name} moves all rows at each step, and {weight_name!r} has {_SPARSE}")
