"""Checks that a session can exchange a model's gradients, and that the model is the same on every rank."""

import hashlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from uneven.errors import ConfigError
from uneven.run.model.batch_norm import batch_norms

# Classes of modules, and of owners of their hooks, that exchange gradients or parameters. Names are compared, because
# importing torch's classes takes half a second that most runs do not need.
_EXCHANGERS = {
    "DistributedDataParallel": "DistributedDataParallel averages its gradients",
    "FullyShardedDataParallel": "FullyShardedDataParallel holds a part of its parameters on each rank",
    "FSDPModule": "fully_shard holds a part of its parameters on each rank",
    "_ReplicateState": "replicate averages its gradients",
}


def check_model(model: nn.Module) -> torch.device:
    """Return the device on which the model's parameters compute.

    Raises:
        ConfigError: the model is wrapped, has nothing to train, has parameters without values, or uses several devices.
    """
    if not is_sharded(model):
        refuse_wrapped(model)
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if is_lazy(parameter):
            raise ConfigError(
                f"parameter {name} has no shape yet: run one batch through the model before session.setup"
            )
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise ConfigError(
            f"none of the model's {len(parameters)} parameters has requires_grad=True: unfreeze some, or omit "
            "session.setup"
        )
    devices: dict[torch.device, str] = {}
    for name, parameter in parameters.items():
        mesh = getattr(parameter, "device_mesh", None)  # a shard computes there, also if it is kept in host memory
        there = parameter.device if mesh is None or parameter.is_meta else torch.device(mesh.device_type)
        devices.setdefault(there, name)
    if len(devices) > 1:
        places = ", ".join(f"{name} on {device}" for device, name in devices.items())
        raise ConfigError(f"parameters on different devices ({places}): move the model to one with model.to(device)")
    (device,) = devices
    if device.type == "meta":
        raise ConfigError("the model is on the device meta, without values: model.to_empty(device=…), then fill it")
    return device


def parts_called(model: nn.Module) -> list[nn.Module]:
    """Return the modules that a script calls: the model, or its parts if it has no ``forward``, such as a
    ModuleDict."""
    if getattr(model.forward, "__func__", None) is not nn.Module.forward:
        return [model]
    return list(dict.fromkeys(one for part in model.children() for one in parts_called(part)))


def check_optimizer(optimizer: torch.optim.Optimizer, knows: Callable[[nn.Parameter], object]) -> None:
    """Raise :class:`ConfigError` unless a session sees an optimizer's steps and ``knows`` all its parameters."""
    kind = type(optimizer).__name__
    if not hasattr(optimizer, "_optimizer_step_pre_hooks") or not hasattr(optimizer, "param_groups"):
        raise ConfigError(
            f"{kind}.__init__ does not call super().__init__(params, defaults), which a session needs: call it, or "
            f"give session.setup the optimizer that {kind} wraps"
        )
    for number, group in enumerate(optimizer.param_groups):
        for one in group["params"]:
            if one.requires_grad and not knows(one):
                raise ConfigError(
                    f"parameter group {number} of {kind} has a parameter of shape {tuple(one.shape)} that is not in "
                    "the model given to session.setup. Its gradient is not exchanged, so workers would diverge: "
                    "put the model and the owner of the parameter (a loss, a second model) into one module, "
                    "session.setup(nn.ModuleList([model, criterion]), optimizer), and call both as before"
                )


def is_sharded(model: nn.Module) -> bool:
    """Return whether ``fully_shard`` was called on this model."""
    return _is(model, "FSDPModule")


def shards_of(model: nn.Module) -> list[Any]:
    """Return the modules on which ``fully_shard`` was called, including the model itself."""
    return [module for module in model.modules() if _is(module, "FSDPModule")]


def check_sharded(model: nn.Module, workers: int, refusal: str) -> None:
    """Raise :class:`ConfigError` unless a session can weight the gradients of a ``fully_shard`` model.

    ``refusal`` is a reason that does not depend on the model; "" if there is none.
    """
    if refusal:
        raise ConfigError(f"a model of fully_shard {refusal}")
    for name, one in model.named_parameters():
        if not _is(one, "DTensor"):
            raise ConfigError(
                f"parameter {name} is outside of fully_shard, so its gradient would not be exchanged: call "
                "fully_shard on the whole model after its layers"
            )
        mesh = one.device_mesh  # type: ignore[attr-defined] # a DTensor has it
        if mesh.size() != workers or mesh.ndim > 2:
            raise ConfigError(
                f"parameter {name} is sharded over a mesh of shape {tuple(mesh.shape)}, but there are {workers} "
                "workers: give fully_shard a mesh of all of them, with one or (for replicas of shards) two "
                "dimensions. Its shards are equal; a machine with more memory holds more with more workers on it"
            )
        if mesh.device_type not in ("cpu", "cuda") and workers > 1:
            raise ConfigError(
                f"parameter {name} is sharded on {mesh.device_type}: waiting in torch's exchanges is measured on cpu "
                "and cuda only. Elsewhere all workers would seem equally fast; do not shard there"
            )


def _is(one: object, base: str) -> bool:
    return any(kind.__name__ == base for kind in type(one).__mro__)


def refuse_sparse_on_accelerator(model: nn.Module) -> None:
    """Raise :class:`ConfigError` for a layer with sparse gradients on an accelerator."""
    # gloo sums sparse gradients in host memory; no backend of ours sums them on accelerators.
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse and layer.weight.device.type != "cpu":
            raise ConfigError(
                f"{name or type(layer).__name__} has sparse=True on {layer.weight.device}: only CPUs exchange "
                "sparse gradients; use sparse=False, or keep the model on the CPU"
            )


def refuse_max_norm(model: nn.Module) -> None:
    """Raise :class:`ConfigError` for a layer whose forward pass renormalizes the rows that it reads."""
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
            raise ConfigError(
                f"{name or type(layer).__name__} has max_norm={layer.max_norm:g}: a worker renormalizes only the rows "
                f"of its part of the batch, so replicas would differ. Leave max_norm out, and after optimizer.step() "
                f"copy weight.renorm({layer.norm_type:g}, 0, {layer.max_norm:g}) into the weight"
            )


def refuse_complex(model: nn.Module) -> None:
    """Raise :class:`ConfigError` for a trained parameter of complex numbers: exchanges lose the imaginary part."""
    for name, one in model.named_parameters():
        if one.requires_grad and one.is_complex():
            raise ConfigError(
                f"parameter {name} is complex ({one.dtype}), which workers do not exchange: keep torch.view_as_real of "
                "it as the parameter, and use torch.view_as_complex in forward()"
            )


def refuse_inelastic(model: nn.Module) -> None:
    """Raise :class:`ConfigError`, with the remedy, if an elastic run cannot average the model's gradients."""
    why, trained = "", [one for one in model.parameters() if one.requires_grad]
    if odd := sorted({str(one.dtype) for one in trained} - {"torch.float32", "torch.float64"}):
        why = f"parameters of type {odd[0]}"
    elif any(isinstance(one, nn.SyncBatchNorm) for one in model.modules()):
        why = (
            "SyncBatchNorm, which torch has for accelerators only, and whose messages inside of the forward pass go "
            "over torch's default group, which an elastic run has none of: use BatchNorm"
        )
    elif any(isinstance(one, nn.Embedding | nn.EmbeddingBag) and one.sparse for one in model.modules()):
        why = "sparse gradients: use sparse=False"
    if why:
        raise ConfigError(f"an elastic run does not support {why}; or leave --elastic out")


def refuse_wrapped(model: nn.Module, since: str = "") -> None:
    """Raise :class:`ConfigError` if another library exchanges the model's gradients or parameters.

    ``since`` names what was called when the model was still plain, if anything.
    """
    what = next(_exchangers(model), None)
    if what is not None:
        raise ConfigError(
            f"{what}{f', since {since}' if since else ''}; session.setup exchanges gradients itself: give it the "
            "plain model (model.module of a wrapper), without DistributedDataParallel, fully_shard, "
            "accelerator.prepare(model) or fabric.setup(model)"
        )


def _exchangers(model: nn.Module) -> Iterator[str]:
    for path, module in model.named_modules():
        # `replicate` shows only in the owner of its hooks, not in the module's class.
        owners = (getattr(hook, "__self__", None) for hook in module._forward_pre_hooks.values())
        for base in chain(type(module).__mro__, *(type(owner).__mro__ for owner in owners)):
            if base.__name__ in _EXCHANGERS:
                yield f"the model{f' ({path})' if path else ''} is wrapped already: {_EXCHANGERS[base.__name__]}"
    for name, parameter in model.named_parameters():
        if _is(parameter, "DTensor"):
            yield f"parameter {name} is a DTensor with a part on each rank"


def describe_model(model: nn.Module) -> dict[str, str]:
    """Return names, shapes and types of parameters and shared buffers, to compare the ranks."""
    trained = {f"parameter {name}": p.requires_grad for name, p in model.named_parameters()}
    named = chain(
        ((f"parameter {name}", p) for name, p in model.named_parameters()),
        ((f"buffer {name}", b) for name, b in shared_buffers(model)),
    )
    return {
        name: f"{tuple(tensor.shape)} {tensor.dtype}{'' if trained.get(name, True) else ' frozen'}"
        for name, tensor in named
    }


def frozen_digest(model: nn.Module) -> str:
    """Return a digest of names and values of the parameters that are not trained; "" without any."""
    frozen = [(name, one) for name, one in model.named_parameters() if not one.requires_grad]
    digest = hashlib.blake2b(digest_size=16)
    for name, one in frozen:
        digest.update(name.encode())
        digest.update(one.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest() if frozen else ""


def travelling(model: nn.Module, frozen: str) -> list[torch.Tensor]:
    """Return the parameters and buffers that all workers take from the first one, detached.
    Frozen parameters are left out if ``frozen`` is their digest on all workers."""
    ignored = getattr(model, "_ddp_params_and_buffers_to_ignore", ())
    named = [one for name, one in model.named_parameters() if name not in ignored]
    parameters = [one for one in named if one.requires_grad or not frozen]
    return [one.detach() for one in chain(parameters, (buffer for _, buffer in shared_buffers(model)))]


def shared_buffers(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return the named buffers without those that DistributedDataParallel leaves out, too: each worker has its own."""
    ignored = getattr(model, "_ddp_params_and_buffers_to_ignore", ())
    return [(name, one) for name, one in model.named_buffers() if name not in ignored]


def unused_parameters(model: nn.Module, parameters: list[nn.Parameter], iteration: int) -> str:
    """Return a message with the names of parameters that the last backward pass did not reach."""
    ids = {id(p) for p in parameters if p.grad is None}
    names = [name for name, p in model.named_parameters() if id(p) in ids]
    shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
    return (
        f"iteration {iteration}: the last backward pass did not reach every parameter"
        f"{f' (without a gradient: {shown})' if shown else ''}; use "
        f"session.setup(model, optimizer, find_unused_parameters=True), or freeze what is not used"
    )


def least_samples(model: nn.Module) -> int:
    """Return the samples that a worker needs in a step: 2 if batch norm uses the variance of its part of the batch."""
    return 2 if any(not isinstance(model.get_submodule(name), nn.SyncBatchNorm) for name in batch_norms(model)) else 1
