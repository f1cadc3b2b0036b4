"""Lightning Fabric: precision and its helpers from Fabric, workers and gradients from the session."""

from __future__ import annotations

from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.strategies.single_device import SingleDeviceStrategy
from torch import nn

from uneven.errors import ConfigError
from uneven.integrations.exchanges import waited
from uneven.session import Session


class _OfSession(SingleDeviceStrategy):
    """A Fabric of one device that knows the session's other workers."""

    session: Session

    @property
    def is_global_zero(self) -> bool:
        return self.session.rank == 0

    barrier, broadcast = waited(DDPStrategy.barrier), waited(DDPStrategy.broadcast)
    all_reduce, all_gather = waited(DDPStrategy.all_reduce), waited(DDPStrategy.all_gather)
    _determine_ddp_device_ids = DDPStrategy._determine_ddp_device_ids  # the barrier asks for it


def prepare(session: Session, fabric: Fabric, model: nn.Module, *optimizers: torch.optim.Optimizer) -> Any:
    """Give the model to the session and to Fabric; what ``fabric.setup`` returns.

    From here on Fabric knows the session's workers: ``global_rank``, ``is_global_zero``, ``save``, ``all_reduce``, ….

    Args:
        fabric: made with ``devices=1``: every worker has one of its own.

    Raises:
        ConfigError: Fabric has workers itself, which would average gradients once more, and by equal parts.
    """
    strategy: Any = fabric.strategy
    if type(strategy) not in (SingleDeviceStrategy, _OfSession):
        raise ConfigError(
            f"Fabric has {fabric.world_size} workers in {type(strategy).__name__}, and would average "
            f"gradients as if parts were equal: make it with Fabric(devices=1, num_nodes=1) and without strategy=…, "
            f"and start the workers with `uneven run`"
        )
    model = strategy.precision.convert_module(model)  # before the session hangs on parameters of its type and device
    strategy.module_to_device(model)
    session.setup(model, *optimizers)
    world, strategy.__class__, strategy.session = session.world, _OfSession, session
    strategy.global_rank, strategy.world_size = session.rank, session.world_size
    strategy.local_rank, strategy.node_rank = world.local_rank, world.rank // world.local_size
    return fabric.setup(model, *optimizers)
