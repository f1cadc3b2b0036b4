"""The difference between the statistics by which two sites would normalize."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from uneven.errors import ConfigError


def batch_norms(model: nn.Module) -> list[str]:
    """Return the names of the layers that normalize by batch statistics."""
    return [name for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)]


@torch.no_grad()
def divergence(model: nn.Module, here: Iterable[Tensor], there: Iterable[Tensor], layer: str | None = None) -> Tensor:
    """Return |m₀ − m₁| ÷ |(m₀ + m₁) / 2| of the mean inputs of a layer at two sites; shape (channels,).

    The measure is that of Hsieh et al. (2020) [recalled]: a few per cent for similar data, tens for different data. The
    model is not changed.

    Args:
        here, there: batches of inputs of each site; the result is the mean over pairs.
        layer: its name; by default the first batch norm or group norm.

    Raises:
        ConfigError: there is no such layer, or a site has no batches.
    """
    kinds = (_BatchNorm, nn.GroupNorm)
    layers = {
        name: one for name, one in model.named_modules() if name == layer or (layer is None and isinstance(one, kinds))
    }
    if not layers:
        raise ConfigError(f"{type(model).__name__} has no layer {layer or 'that normalizes'}: name one of its layers")
    means: list[Tensor] = []
    watched = next(iter(layers.values()))
    hook = watched.register_forward_pre_hook(lambda _, given: means.append(given[0].transpose(0, 1).flatten(1).mean(1)))
    training = model.training  # restored below
    model.eval()  # so that the passes do not change running statistics
    try:
        apart = []
        for one, other in zip(here, there, strict=False):
            means.clear()
            model(one)
            model(other)
            apart.append((means[0] - means[1]).abs() / ((means[0] + means[1]) / 2).abs().clamp_min(1e-12))
    finally:
        hook.remove()
        model.train(training)
    if not apart:
        raise ConfigError("a site has no batches: give at least one batch per site")
    return torch.stack(apart).mean(0)
