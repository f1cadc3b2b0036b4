"""Is this a model whose gradients can be carried, and is it the same on every rank?"""

from __future__ import annotations

from itertools import chain

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from uneven.errors import ConfigError


def check_model(model: nn.Module) -> torch.device:
    """The device of the model's parameters.

    Raises:
        ConfigError: it is wrapped already, has nothing to train, has parameters without values, or is spread
            over devices.
    """
    if isinstance(model, DistributedDataParallel):
        raise ConfigError(
            "the model is already wrapped in DistributedDataParallel: pass the plain model (model.module); "
            "session.setup carries the gradients itself"
        )
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if is_lazy(parameter):
            raise ConfigError(
                f"parameter {name} has no shape yet: run one batch through the model before session.setup"
            )
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise ConfigError(
            f"none of the model's {len(parameters)} parameters has requires_grad=True: there is nothing to train; "
            f"unfreeze some, or leave session.setup out"
        )
    devices: dict[torch.device, str] = {}
    for name, parameter in parameters.items():
        devices.setdefault(parameter.device, name)
    if len(devices) > 1:
        places = ", ".join(f"{name} on {device}" for device, name in devices.items())
        raise ConfigError(f"parameters on different devices ({places}): move the model to one with model.to(device)")
    (device,) = devices
    if device.type == "meta":
        raise ConfigError("the model is on the device meta, without values: model.to_empty(device=…), then fill it")
    return device


def refuse_sparse_on_accelerator(model: nn.Module) -> None:
    """Sparse gradients are added up by gloo, in host memory; nothing adds them up on accelerators.

    Raises:
        ConfigError: naming the layer.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse and layer.weight.device.type != "cpu":
            raise ConfigError(
                f"{name or type(layer).__name__} has sparse=True on {layer.weight.device}: sparse gradients are "
                f"exchanged on CPUs only; make it with sparse=False, or leave the model on the CPU"
            )


def describe_model(model: nn.Module) -> dict[str, str]:
    """Names, shapes and types, for the comparison of the ranks."""
    trained = {f"parameter {name}": p.requires_grad for name, p in model.named_parameters()}
    named = chain(
        ((f"parameter {name}", p) for name, p in model.named_parameters()),
        ((f"buffer {name}", b) for name, b in model.named_buffers()),
    )
    return {
        name: f"{tuple(tensor.shape)} {tensor.dtype}{'' if trained.get(name, True) else ' frozen'}"
        for name, tensor in named
    }


def unused_parameters(model: nn.Module, parameters: list[nn.Parameter], iteration: int) -> str:
    """A message that names those that the last backward pass did not reach."""
    ids = {id(p) for p in parameters if p.grad is None}
    names = [name for name, p in model.named_parameters() if id(p) in ids]
    shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
    return (
        f"iteration {iteration}: the last backward pass did not reach every parameter"
        f"{f' (without a gradient: {shown})' if shown else ''}; use "
        f"session.setup(model, optimizer, find_unused_parameters=True), or freeze what is not used"
    )
