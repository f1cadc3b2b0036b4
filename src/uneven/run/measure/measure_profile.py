"""Measures a worker's profile: the time of a step at several batch sizes, and the samples that its memory holds."""

import copy
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from uneven.errors import ConfigError
from uneven.policy.balance.profiled import Profile, fits, next_size
from uneven.run.measure.memory import forget_peak, limit_bytes, peak_bytes, used_bytes


@contextmanager
def untouched(model: nn.Module, *optimizers: torch.optim.Optimizer) -> Iterator[None]:
    """Restore everything at the end, also after an error.

    That is: parameters, buffers, gradients, the modes of all modules, the optimizers' states, and the generators of
    torch, its CUDA devices, numpy and Python.
    """
    tensors = [*model.parameters(), *model.buffers()]
    buffers = [(module, module._buffers.copy()) for module in model.modules()]
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
        for module, own in buffers:
            module._buffers.update(own)  # a forward pass may have assigned other tensors
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


_STEPS = 3  # that are timed at each size at least, after one that warms up

# Quotas of processor time have periods of up to this length. A step that fits into the rest of a period would hide the
# quota, so short steps are repeated for this time, and their mean counts. Our choice.
_LONG_ENOUGH_S = 0.1

# Texts in the plain RuntimeError with which torch, and some libraries on a device, report missing memory: there is no
# class for it on the host.
_NO_MEMORY = ("DefaultCPUAllocator", "not enough memory", "can't allocate memory", "out of memory")


def take_profile(
    step: Callable[[int], object],
    model: nn.Module,  # the model that `step` uses
    *optimizers: torch.optim.Optimizer,
    most: int,  # largest batch that this worker may ever get, at least 1
    least: int = 1,
    device: torch.device | None = None,  # on which it computes; the default is that of the model's parameters
    within_s: float = 10.0,
    sharers: int = 1,
    progress: Callable[[int, float], None] | None = None,
) -> Profile:
    """Try growing batches: ``least``, twice as many, …, up to ``most``, a limit of memory, or the end of the time.

    The first batch that is not expected to fit, or fails, ends the profile. Model, optimizers and random states are
    restored. Workers do not exchange anything, so ``step`` must not either: pass the model before
    DistributedDataParallel wraps it.

    Args:
        step: forward and backward on a batch of a number of samples, as in training; it may step the optimizers.
        optimizers: those that ``step`` may step.
        least: smallest batch that it may ever get (batch norm needs at least 2).
        within_s: time for the whole profile. Running steps are not interrupted; sizes are chosen to end in time, and
            two steps of the smallest batch are always taken.
        sharers: processes that fill the same memory at the same time, including this one; each has an equal part of the
            free memory.
        progress: called with each size and the fraction of the time that is spent, 0 … 1.

    Raises:
        ConfigError: least, most, within_s or sharers are out of range, or the smallest batch does not fit the memory.
    """
    if not 1 <= least <= most or not within_s > 0.0 or sharers < 1:
        raise ConfigError(
            f"profile: 1 ≤ least = {least!r} ≤ most = {most!r} are samples, within_s = {within_s!r} must be above "
            f"0, and sharers = {sharers!r} at least 1"
        )
    where = _device(model) if device is None else device
    end_s = time.perf_counter() + within_s
    limit, base = limit_bytes(where), used_bytes(where)
    if limit is not None:
        limit = base + max(0, limit - base) // sharers
    sizes: tuple[int, ...] = ()
    seconds: tuple[float, ...] = ()
    peaks: tuple[tuple[int, int], ...] = ()
    failed = None
    with untouched(model, *optimizers):
        while True:
            left_s = end_s - time.perf_counter()
            size = next_size(sizes, seconds, most=most, left_s=left_s, steps=_STEPS + 1, least=least)
            if size is None:
                break
            if progress is not None:
                progress(size, min(1.0, max(0.0, 1.0 - left_s / within_s)))
            forget_peak(where)
            high = peak_bytes(where)  # the host's peak cannot be reset: use below an old peak is invisible
            took_s = _timed(step, size, where, end_s) if fits(base, peaks, size, limit) else None
            if took_s is None:
                failed = size
                break
            sizes, seconds = (*sizes, size), (*seconds, took_s)
            peak = peak_bytes(where)
            peaks = (*peaks, (size, peak if peak > high else used_bytes(where)))
    if not sizes:
        raise ConfigError(
            f"profile: the memory does not fit the smallest batch ({least} sample{'s' if least > 1 else ''}): use a "
            "smaller model, or leave this worker out"
        )
    return Profile(sizes=sizes, seconds=seconds, failed=failed)


def _timed(step: Callable[[int], object], size: int, device: torch.device, end_s: float) -> float | None:
    """Return a step's seconds, the median of three or the mean of many short ones; None if the memory does not
    suffice."""
    times: list[float] = []
    try:
        step(size)
        _wait(device)
        first_s = now_s = time.perf_counter()
        while not times or ((len(times) < _STEPS or now_s - first_s < _LONG_ENOUGH_S) and now_s < end_s):
            begin_s = time.perf_counter()
            step(size)
            _wait(device)
            now_s = time.perf_counter()
            times.append(now_s - begin_s)
    except (torch.OutOfMemoryError, MemoryError):
        times = []
    except RuntimeError as error:
        if not any(words in str(error) for words in _NO_MEMORY):
            raise
        times = []
    if times:
        return max(statistics.median(times) if len(times) <= _STEPS else statistics.fmean(times), 1e-9)
    gc.collect()  # frees tensors in reference cycles of the failed step, after its frames have ended
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()
    return None


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _device(model: nn.Module) -> torch.device:
    parameter = next(model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device
