"""Trial steps that leave model, optimizers and random states unchanged."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn


@contextmanager
def untouched(model: nn.Module, *optimizers: torch.optim.Optimizer) -> Iterator[None]:
    """Restore everything at the end, also after an error.

    That is: parameters, buffers, gradients, the modes of all modules, the optimizers' states, and the generators of
    torch, its CUDA devices, numpy and Python.
    """
    tensors = [*model.parameters(), *model.buffers()]
    # Copies on the host, to leave the device's memory to the trial steps.
    values = [tensor.detach().to("cpu", copy=True) for tensor in tensors]
    gradients = [tensor.grad for tensor in tensors]
    kept = [None if grad is None else grad.detach().to("cpu", copy=True) for grad in gradients]
    modes = [(module, module.training) for module in model.modules()]
    states = [_on_host(optimizer.state_dict()) for optimizer in optimizers]
    numbers = torch.get_rng_state(), random.getstate(), np.random.get_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value, grad, old in zip(tensors, values, gradients, kept, strict=True):
                tensor.copy_(value)
                tensor.grad = grad
                if grad is not None and old is not None:
                    grad.copy_(old)
        for module, training in modes:
            module.training = training
        for optimizer, state in zip(optimizers, states, strict=True):
            optimizer.load_state_dict(state)
        torch.set_rng_state(numbers[0])
        random.setstate(numbers[1])
        np.random.set_state(numbers[2])
        if devices:
            torch.cuda.set_rng_state_all(devices)


def _on_host(state: Any) -> Any:
    """Return a deep copy with every tensor on the host; loading it moves each to its parameter's device."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {key: _on_host(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_on_host(value) for value in state)
    return copy.deepcopy(state)
