"""Lightning Fabric with a session: Fabric handles precision, the session workers and gradients."""

from typing import Any, TypeVar, TypeVarTuple, overload

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.strategies.single_device import SingleDeviceStrategy
from torch import nn

from uneven.errors import ConfigError
from uneven.integrations.epochs import waited
from uneven.run.session import Session


class _OfSession(SingleDeviceStrategy):
    """A single-device strategy that knows the session's other workers."""

    session: Session

    @property
    def is_global_zero(self) -> bool:
        return self.session.rank == 0

    barrier, broadcast = waited(DDPStrategy.barrier), waited(DDPStrategy.broadcast)
    all_reduce, all_gather = waited(DDPStrategy.all_reduce), waited(DDPStrategy.all_gather)
    _determine_ddp_device_ids = DDPStrategy._determine_ddp_device_ids  # the barrier calls it


Model = TypeVar("Model", bound=nn.Module)
Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)
More = TypeVarTuple("More")


@overload
def prepare(session: Session, fabric: Fabric, model: Model) -> Model: ...
@overload
def prepare(
    session: Session, fabric: Fabric, model: Model, optimizer: Optimizer, /, *more: *More
) -> tuple[Model, Optimizer, *More]: ...
def prepare(  # type: ignore[misc] # mypy does not match it with TypeVarTuples
    session: Session, fabric: Fabric, model: nn.Module, *optimizers: torch.optim.Optimizer
) -> Any:
    """Pass the model and its optimizers to the session and to Fabric; return them as Fabric wraps them::

        model, optimizer = prepare(session, Fabric(devices=1), model, optimizer)

    After it, Fabric knows the session's workers: ``global_rank``, ``is_global_zero``, ``save``, ``all_reduce``, ….

    Args:
        fabric: made with ``devices=1``: every worker has its own.

    Raises:
        ConfigError: Fabric has its own workers, and would average gradients a second time, with equal weights.
    """
    strategy: Any = fabric.strategy
    if type(strategy) not in (SingleDeviceStrategy, _OfSession):
        raise ConfigError(
            f"Fabric has {fabric.world_size} workers in {type(strategy).__name__}, and would average "
            f"gradients as if parts were equal: make it with Fabric(devices=1, num_nodes=1) and without strategy=…, "
            f"and start the workers with `uneven run`"
        )
    # Before setup, whose hooks need parameters of the final type and device.
    model = strategy.precision.convert_module(model)
    strategy.module_to_device(model)
    session.setup(model, *optimizers)
    world, strategy.__class__, strategy.session = session.world, _OfSession, session
    strategy.global_rank, strategy.world_size = session.rank, session.world_size
    strategy.local_rank, strategy.node_rank = world.local_rank, world.rank // world.local_size
    return fabric.setup(model, *optimizers)
