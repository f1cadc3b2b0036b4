"""Lightning Fabric: precision and its helpers from Fabric, workers and gradients from the session."""

from __future__ import annotations

from typing import Any

import torch
from lightning_fabric import Fabric
from torch import nn

from uneven.errors import ConfigError
from uneven.session import Session


def prepare(session: Session, fabric: Fabric, model: nn.Module, *optimizers: torch.optim.Optimizer) -> Any:
    """Give the model to the session and to Fabric; what ``fabric.setup`` returns.

    Args:
        fabric: made with ``devices=1``: every worker has one of its own.

    Raises:
        ConfigError: Fabric has workers itself, which would average gradients once more, and by equal parts.
    """
    if fabric.world_size != 1:
        raise ConfigError(
            f"Fabric has {fabric.world_size} workers of its own, and would average gradients as if parts were equal: "
            f"make it with Fabric(devices=1, num_nodes=1), and start the workers with `uneven run`"
        )
    session.setup(model, *optimizers)
    return fabric.setup(model, *optimizers)
