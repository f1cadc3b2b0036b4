"""Accelerate: precision and its helpers from the accelerator, workers and gradients from the session."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn

from uneven.errors import ConfigError
from uneven.session import Session


def prepare(
    session: Session, accelerator: Accelerator, model: nn.Module, *optimizers: torch.optim.Optimizer
) -> tuple[object, ...]:
    """Give the model to the session and to Accelerate, which leaves it without ``DistributedDataParallel``.

    The loader stays the session's. Several passes for a step are ``session.no_sync()``, not ``accelerator.accumulate``.

    Returns:
        The model and the optimizers to use in the loop.

    Raises:
        ConfigError: the accelerator shards models, or accumulates gradients itself.
    """
    kind = accelerator.distributed_type.value
    if kind not in ("NO", "MULTI_CPU", "MULTI_GPU"):
        raise ConfigError(f"Accelerate with {kind}: the session exchanges gradients of whole models; leave it out")
    if accelerator.gradient_accumulation_steps != 1:
        raise ConfigError(
            f"gradient_accumulation_steps = {accelerator.gradient_accumulation_steps}: Accelerate would leave out "
            f"steps of which the session knows nothing; leave it at 1, and use session.no_sync()"
        )
    session.setup(model, *optimizers)
    # Evaluation mode is Accelerate's word for a model that is not wrapped for training by several workers.
    return accelerator.prepare_model(model, evaluation_mode=True), *map(accelerator.prepare_optimizer, optimizers)
