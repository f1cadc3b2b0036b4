"""Lightning's Trainer: its loop, callbacks and checkpoints as ever; workers, parts and gradients from a session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.fabric.plugins.environments import ClusterEnvironment
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn

from uneven.data.loader import BalancedLoader
from uneven.errors import CheckpointError, ConfigError
from uneven.integrations.epochs import CountedEpochs
from uneven.session import Session

_STATE = "uneven"
"""Where the run is, in each checkpoint."""


class SessionEnvironment(ClusterEnvironment):
    """The workers that have met, as Lightning asks for them; somebody else has started them."""

    creates_processes_externally = True
    main_address, main_port = "", 0

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._world = session.world

    @staticmethod
    def detect() -> bool:
        """Whether Lightning is to choose it by itself."""
        return False

    def world_size(self) -> int:
        """Workers."""
        return self._world.size

    def set_world_size(self, size: int) -> None:
        """It is not Lightning's to set."""

    def global_rank(self) -> int:
        """This worker."""
        return self._world.rank

    def set_global_rank(self, rank: int) -> None:
        """It is not Lightning's to set."""

    def local_rank(self) -> int:
        """This worker among those of its machine."""
        return self._world.local_rank

    def node_rank(self) -> int:
        """This machine."""
        return self._world.rank // self._world.local_size


class _TrainingStep(nn.Module):
    """The user's ``training_step`` as a forward pass, on which the session hangs."""

    def __init__(self, module: LightningModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.module.training_step(*given, **named)


class BalancedStrategy(DDPStrategy):
    """Trains on unequal parts::

        session = uneven.Session()
        trainer = lightning.Trainer(strategy=BalancedStrategy(session), devices=1)
        trainer.fit(module, session.loader(dataset, batch_size=512))     # the global batch

    ``training_step`` returns a mean over this worker's part. Validation and test run in equal parts.

    Raises:
        ConfigError: in ``fit``, where the training's batches are not the session's, or the module optimizes by itself.
    """

    strategy_name = "uneven"

    def __init__(
        self, session: Session, *, find_unused_parameters: bool = False, bucket_cap_mb: float | None = None
    ) -> None:
        super().__init__(cluster_environment=SessionEnvironment(session))
        self._session = session
        self._how: dict[str, Any] = {"find_unused_parameters": find_unused_parameters, "bucket_cap_mb": bucket_cap_mb}
        self._step: _TrainingStep | None = None
        self._epochs: CountedEpochs | None = None

    @property
    def root_device(self) -> torch.device:
        """This worker's, one of those that the Trainer has."""
        devices = self.parallel_devices
        return devices[self.local_rank % len(devices)]

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """How Lightning divides data for validation and tests."""
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def configure_ddp(self) -> None:
        """Nothing wraps the module."""

    def setup_optimizers(self, trainer: Trainer) -> None:
        """Lightning's, with which the module is given to the session."""
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
            self._session.setup(self._step, *self.optimizers, **self._how)

    def process_dataloader(self, dataloader: object) -> object:
        """The session's loader ends its epochs as Lightning counts them."""
        if not isinstance(dataloader, BalancedLoader):
            return dataloader
        if self._epochs is None:
            self._epochs = CountedEpochs(dataloader)
        return self._epochs

    def training_step(self, *given: Any, **named: Any) -> Any:
        """The module's."""
        if self._epochs is None:
            raise ConfigError(
                "the batches of the training are not the session's, so each worker would train on all of them: call "
                "trainer.fit(module, session.loader(dataset, batch_size=…)), with the global batch"
            )
        assert self._step is not None
        with self.precision_plugin.train_step_context():
            return self._step(*given, **named)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Passes that are accumulated."""
        with self._session.no_sync():
            yield

    def on_train_end(self) -> None:
        """The last step is over."""
        if self._epochs is not None:
            self._epochs.finish()

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Lightning's, with where the run is."""
        state = {_STATE: self._session.state_dict()} if self._epochs is not None else {}
        super().save_checkpoint(checkpoint | state, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Lightning's; a training goes on where it was.

        Raises:
            CheckpointError: no session has saved it.
        """
        checkpoint: dict[str, Any] = super().load_checkpoint(checkpoint_path, weights_only)
        if self.lightning_module.trainer.state.fn == TrainerFn.FITTING:
            if _STATE not in checkpoint:
                raise CheckpointError(
                    f"{checkpoint_path} was not saved with this strategy, so which samples it has seen is not known: "
                    f"load its weights into the module, and call trainer.fit without ckpt_path"
                )
            self._session.load_state_dict(checkpoint[_STATE])
        return checkpoint

    # What Lightning says to all workers is waiting, and no work of this one.
    def barrier(self, *given: Any, **named: Any) -> None:
        """Lightning's."""
        with self._session.waiting():
            super().barrier(*given, **named)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Lightning's."""
        with self._session.waiting():
            return super().broadcast(obj, src)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Lightning's; each worker counts alike."""
        with self._session.waiting():
            return super().reduce(tensor, group, reduce_op)

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """Lightning's."""
        with self._session.waiting():
            gathered: Tensor = super().all_gather(tensor, group, sync_grads)
        return gathered
