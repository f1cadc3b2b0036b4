"""Select the layers for K-FAC, and hook their inputs and output gradients."""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from uneven.errors import ConfigError
from uneven.precondition.kfac.layer import Layer, Numbers
from uneven.run.model.hooks import ModelHook


def find_layers(
    model: nn.Module, optimizer: torch.optim.Optimizer, numbers: Numbers, skipped: Callable[[str], bool]
) -> tuple[list[Layer], dict[str, str]]:
    """Return the layers of a model, and the reason why each other module with weights keeps its plain gradient."""
    uses = Counter(
        id(weight) for module in model.modules() for weight in module._parameters.values() if weight is not None
    )
    stepped = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    found, notes = [], {}
    for name, module in model.named_modules():
        weights = [one for one in module._parameters.values() if one is not None]
        if isinstance(module, ParametrizationList) or not (weights or is_parametrized(module)):
            continue  # the note of the layer that owns such a list names it
        why = "skipped by skip_layers" if skipped(name) else _plain(module, weights, uses, stepped)
        if why is None:
            try:
                found.append(Layer(name, module, numbers))
            except ConfigError as error:
                why = str(error)
        if why is not None:
            notes[name or "the model"] = why
    return found, notes


def _plain(module: nn.Module, weights: list[nn.Parameter], uses: Counter[int], stepped: set[int]) -> str | None:
    """Return why a module keeps its plain gradient, or None."""
    kind = type(module).__name__
    if not isinstance(module, nn.Linear | nn.Conv2d):
        return f"{kind} is not a Linear or Conv2d"
    if {"weight", "bias"} - module._parameters.keys():
        return "its weight is computed from other parameters (weight_norm, a parametrization, pruning)"
    if isinstance(module, NonDynamicallyQuantizableLinear):
        return "MultiheadAttention uses its weight without calling it"
    if type(module).forward not in (nn.Linear.forward, nn.Conv2d.forward):
        return f"{kind} overrides forward(), which may use the weight in another way"
    if not module.weight.requires_grad:
        return "its weight is frozen"
    if any(uses[id(one)] > 1 for one in weights):
        return "its weight is tied to another layer's, so its inputs alone do not determine the gradient"
    if any(one.requires_grad and id(one) not in stepped for one in weights):
        return "another optimizer steps it"
    if isinstance(module, nn.Conv2d):
        if module.groups != 1:
            return f"it has groups={module.groups}"
        if any(one != 1 for one in module.dilation):
            return f"it has dilation={module.dilation}"
        if module.padding_mode != "zeros":
            return f"it has padding_mode={module.padding_mode!r}"
    return None


class LayerWatch:
    """A forward hook per layer that, on armed steps only, hooks the output's gradient.

    Args:
        take: called with layer, input, output gradient and ``about()`` after each backward pass.
    """

    def __init__(
        self, layers: Iterable[Layer], take: Callable[[Layer, Tensor, Tensor, Any], None], about: Callable[[], Any]
    ) -> None:
        self.armed = False
        self._take = take
        self._about = about
        self._handles = [
            one.module.register_forward_hook(ModelHook(partial(self._forward, one)), with_kwargs=False)
            for one in layers
        ]

    def _forward(self, layer: Layer, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        if self.armed and module.training and torch.is_grad_enabled() and output.requires_grad and args:
            # A tensor hook, not a full backward hook of the module: it costs nothing on other steps, and works with
            # in-place activations behind the layer.
            output.register_hook(partial(self._backward, layer, args[0].detach(), self._about()))

    def _backward(self, layer: Layer, seen: Tensor, about: Any, gradient: Tensor) -> None:
        if self.armed:
            with torch.no_grad(), torch.autocast(seen.device.type, enabled=False):
                self._take(layer, seen, gradient, about)

    def close(self) -> None:
        for one in self._handles:
            one.remove()
        self._handles.clear()
