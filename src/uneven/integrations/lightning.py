"""Lightning's Trainer with a session, which provides the workers and exchanges gradients.

The import registers ``strategy="uneven"``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.fabric.plugins.environments import ClusterEnvironment
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, ParallelStrategy, StrategyRegistry
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn
from torch.utils._pytree import tree_leaves

from uneven.errors import CheckpointError, ConfigError
from uneven.integrations.epochs import CountedEpochs, waited
from uneven.run.samples.loader import BalancedLoader
from uneven.run.session import Session

_STATE = "uneven"  # key of the session's state in each checkpoint


class _SessionEnvironment(ClusterEnvironment):
    """The ``ClusterEnvironment`` of a session, whose workers an external launcher has started."""

    creates_processes_externally = True
    main_address, main_port = "", 0

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._world = session.world

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self._world.size

    def set_world_size(self, size: int) -> None:
        pass  # the session has set it

    def global_rank(self) -> int:
        return self._world.rank

    def set_global_rank(self, rank: int) -> None:
        pass  # the session has set it

    def local_rank(self) -> int:
        return self._world.local_rank

    def node_rank(self) -> int:
        return self._world.rank // self._world.local_size


class _TrainingStep(nn.Module):
    """The user's ``training_step`` as a forward pass, to which the session attaches its hooks."""

    def __init__(self, module: LightningModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.module.training_step(*given, **named)


class BalancedStrategy(DDPStrategy):
    """A strategy for training on unequal parts::

        session = uneven.Session()
        trainer = lightning.Trainer(strategy=BalancedStrategy(session), devices=1)
        trainer.fit(module, session.loader(dataset, global_batch_size=512))     # the global batch

    ``Trainer(strategy="uneven")`` makes one with a new session, once this module is imported.
    ``training_step`` must return a mean over this worker's part. Validation and test use equal parts.

    Args:
        session: a new one if None; a ``LightningDataModule`` finds it as ``self.trainer.strategy.session``.
        find_unused_parameters, bucket_cap_mb: as for ``DistributedDataParallel``.

    Raises:
        ConfigError: in ``fit``, if the run is elastic, some training batches are not the session's, or the module uses
            manual optimization.
    """

    strategy_name = "uneven"

    def __init__(
        self,
        session: Session | None = None,
        *,
        find_unused_parameters: bool = False,
        bucket_cap_mb: float | None = None,
    ) -> None:
        self.session = Session() if session is None else session
        super().__init__(cluster_environment=_SessionEnvironment(self.session))
        self._how: dict[str, Any] = {"find_unused_parameters": find_unused_parameters, "bucket_cap_mb": bucket_cap_mb}
        self._step: _TrainingStep | None = None
        self._epochs: CountedEpochs | None = None

    @property
    def root_device(self) -> torch.device:
        devices = self.parallel_devices
        return devices[self.local_rank % len(devices)]

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def setup_distributed(self) -> None:
        reset_seed()
        self.set_world_ranks()  # the session has connected the workers already

    def setup(self, trainer: Trainer) -> None:
        above = ParallelStrategy if self.session.world.alone else DDPStrategy  # DDPStrategy broadcasts rank 0's weights
        above.setup(self, trainer)

    def _setup_model(self, model: nn.Module) -> Any:
        return model

    def configure_ddp(self) -> None:
        pass  # the module is not wrapped

    def setup_optimizers(self, trainer: Trainer) -> None:
        super().setup_optimizers(trainer)
        module = self.lightning_module
        if not module.automatic_optimization:
            raise ConfigError(
                f"{type(module).__name__} has automatic_optimization=False: its backward passes run inside of "
                f"training_step, which is the forward pass that a session sees; write such a loop with "
                f"uneven.integrations.fabric, or plain"
            )
        if self._step is None:
            self._step = _TrainingStep(module)
            self.session.setup(self._step, *self.optimizers, **self._how)
        elif self._step.module is not module:
            raise ConfigError("a BalancedStrategy trains one module: give each module its own strategy and session")

    def process_dataloader(self, dataloader: object) -> object:
        if not isinstance(dataloader, BalancedLoader):
            return dataloader
        if self._epochs is None:
            self._epochs = CountedEpochs(dataloader)
        return self._epochs

    def on_train_start(self) -> None:
        if any(one is not self._epochs for one in tree_leaves(self.lightning_module.trainer.train_dataloader)):
            raise ConfigError(
                "batches of the training are not the session's, so each worker would train on all of them: call "
                "trainer.fit(module, session.loader(dataset, global_batch_size=…)), with the global batch, or let "
                "train_dataloader return self.trainer.strategy.session.loader(…)"
            )

    def training_step(self, *given: Any, **named: Any) -> Any:
        assert self._step is not None
        with self.precision_plugin.train_step_context():
            return self._step(*given, **named)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        with self.session.no_sync():
            yield

    def on_train_end(self) -> None:
        if self._epochs is not None:
            self._epochs.finish()

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        super().save_checkpoint(checkpoint | {_STATE: self.session.state_dict()}, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        checkpoint: dict[str, Any] = super().load_checkpoint(checkpoint_path, weights_only)
        if self.lightning_module.trainer.state.fn == TrainerFn.FITTING:
            if _STATE not in checkpoint:
                raise CheckpointError(
                    f"{checkpoint_path} was not saved with this strategy, so the samples that it has seen are unknown: "
                    f"load its weights into the module, and call trainer.fit without ckpt_path"
                )
            self.session.load_state_dict(checkpoint[_STATE])
        return checkpoint

    barrier, broadcast = waited(DDPStrategy.barrier), waited(DDPStrategy.broadcast)
    reduce, all_gather = waited(DDPStrategy.reduce), waited(DDPStrategy.all_gather)


StrategyRegistry.register(BalancedStrategy.strategy_name, BalancedStrategy, "parts of a batch by speed", override=True)
