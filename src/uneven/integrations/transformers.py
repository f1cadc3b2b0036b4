"""Hugging Face's Trainer with a session: the Trainer's loop, arguments and checkpoints; the session's workers."""

import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.utils.data import RandomSampler, SequentialSampler
from transformers.trainer_utils import seed_worker

from uneven.errors import ConfigError
from uneven.integrations.epochs import CountedEpochs
from uneven.policy.core.actions import Payload
from uneven.policy.core.registry import describe
from uneven.policy.sync.sync_policy import Pace
from uneven.run.session import Session

_STATE = "uneven.json"  # the file with the session's state in the folder of each checkpoint
_IN_BACKWARD = ("lomo", "adalomo")  # Optimizers that step inside the backward pass; layer-wise optimizers do so too


class Balanced:
    """A mixin that makes a Trainer train on unequal parts::

        class BalancedSFTTrainer(Balanced, SFTTrainer): ...

    ``per_device_train_batch_size`` times the number of workers is the global batch, as without it; each worker takes a
    part that fits its speed. The weight of a loss over tokens is the number of tokens whose ``labels`` are not -100, of
    another loss the number of samples. If a loss has another divisor, override :meth:`loss_count`.

    Args:
        session: by default a new one with the Trainer's ``data_seed`` or ``seed``.

    Raises:
        ConfigError: an argument that a session does not support; the message names it.
    """

    def __init__(self, *given: Any, session: Session | None = None, **named: Any) -> None:
        super().__init__(*given, **named)
        trainer: Any = self
        _check(trainer)
        args = trainer.args
        accelerator = trainer.accelerator
        seed = args.seed if args.data_seed is None else args.data_seed
        self.session = Session(seed=seed) if session is None else session
        self._gradients = _exchanges_gradients(self.session)
        self._epochs: CountedEpochs | None = None
        self._items: float | None = None
        self._prepared = False
        # evaluation_mode makes Accelerate not wrap the model for training on several workers.
        accelerator.prepare_model = partial(accelerator.prepare_model, evaluation_mode=True)
        accelerator.no_sync = lambda model=None: self.session.no_sync()
        args.average_tokens_across_devices = False  # the session weights the losses instead

    def get_train_dataloader(self) -> Any:
        if self._epochs is None:
            self._epochs = CountedEpochs(self._loader())
        return self._epochs

    def _loader(self) -> Any:
        trainer: Any = self
        args, dataset, collate = trainer.args, trainer.train_dataset, trainer.data_collator
        if dataset is None:
            raise ConfigError("Trainer(train_dataset=None): there is nothing to train on")
        if hasattr(dataset, "remove_columns"):
            dataset = trainer._remove_unused_columns(dataset, description="training")
        else:
            collate = trainer._get_collator_with_removed_columns(collate, description="training")
        sampler = trainer._get_train_sampler(dataset)
        plain = sampler is None or type(sampler) in (RandomSampler, SequentialSampler)
        drawn = {} if plain else {"sampler": sampler}
        readers = args.dataloader_num_workers
        start = partial(seed_worker, num_workers=readers, rank=args.process_index)
        size, shuffle = args.train_batch_size * self.session.world_size, not isinstance(sampler, SequentialSampler)
        return self.session.loader(
            dataset,
            size,
            shuffle=shuffle,
            drop_last=args.dataloader_drop_last,
            collate_fn=collate,
            num_workers=readers,
            pin_memory=args.dataloader_pin_memory and args.device.type != "cpu",
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            multiprocessing_context=args.dataloader_multiprocessing_context,
            worker_init_fn=start if readers else None,
            **drawn,
        )

    def create_optimizer(self, *given: Any, **named: Any) -> Any:
        trainer: Any = self
        optimizer = super().create_optimizer(*given, **named)  # type: ignore[misc] # the other base class has it
        if not self._prepared:
            self._prepared = True
            unused = bool(trainer.args.ddp_find_unused_parameters)
            bucket_mb = trainer.args.ddp_bucket_cap_mb
            self.session.setup(trainer.model, optimizer, find_unused_parameters=unused, bucket_cap_mb=bucket_mb)
        return optimizer

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list[Any], Any]:
        """Return the ``num_batches`` batches of a step from ``epoch_iterator``, and this worker's divisor of the loss.
        It is an integer scalar tensor on ``device``, or None."""
        trainer: Any = self
        batches, counted = [], []
        for batch in islice(epoch_iterator, num_batches):
            batches.append(batch)
            # A batch without a share only fills up a last part, and has no weight.
            if self.session.shares[self.session.rank]:
                counted.append(batch)
        items = trainer._get_num_items_in_batch(batches, device)
        if items is None:
            self._items = None
            return batches, None
        items = trainer._get_num_items_in_batch(counted, device) if counted else torch.zeros_like(items)
        self._items = float(items)
        return batches, items.clamp(min=1)

    def loss_count(self, inputs: dict[str, Any]) -> float | None:
        """Return this worker's divisor of the loss of a batch, the ``inputs`` of the model; None if it is the number of
        samples."""
        labels = inputs.get("labels")
        if self._items is not None:
            return self._items
        if not isinstance(labels, torch.Tensor) or labels.dim() < 2 or labels.is_floating_point():
            return None
        shifted: bool = self._loss_shifts_labels  # type: ignore[attr-defined] # as above
        return float((labels[..., 1:] if shifted else labels).ne(-100).sum())

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *given: Any, **named: Any) -> torch.Tensor:
        """Return a scalar loss of ``model`` on a batch, its ``inputs``. The mean over the workers is the mean over the
        global batch."""
        # Where replicas are averaged, each steps on the mean over its own tokens, and counts by its samples.
        count = self.loss_count(inputs) if self._gradients else None
        with nullcontext() if count is None else self.session.loss_mean(count):
            loss: torch.Tensor = super().training_step(model, inputs, *given, **named)  # type: ignore[misc] # as above
        # The Trainer averages over equal workers, so undo that and apply this worker's weight.
        shares = self.session.shares
        weight = self.session.loss_weight if self._gradients else shares[self.session.rank] / sum(shares)
        return loss * (weight * self.session.world_size) if weight else torch.zeros_like(loss)

    def evaluation_loop(self, *given: Any, **named: Any) -> Any:
        with self.session.evaluation_model():
            return super().evaluation_loop(*given, **named)  # type: ignore[misc] # as above

    def log(self, logs: dict[str, float], *given: Any, **named: Any) -> None:
        numbers = {name: value for name, value in logs.items() if isinstance(value, int | float)}
        self.session.log(**numbers)
        super().log(logs, *given, **named)  # type: ignore[misc] # as above

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        trainer: Any = self
        with self.session.evaluation_model():
            super()._save_checkpoint(model, trial)  # type: ignore[misc] # as above
            if trainer.args.should_save:
                folder = Path(trainer._get_output_dir(trial=trial), f"checkpoint-{trainer.state.global_step}")
                (folder / _STATE).write_text(json.dumps(self.session.state_dict()))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc] # as above
        if checkpoint is None or self.args.ignore_data_skip:  # type: ignore[attr-defined] # as above
            return
        state = Path(checkpoint, _STATE)
        if not state.exists():
            raise ConfigError(
                f"{os.fspath(checkpoint)} has no {_STATE}, so no session has saved it, and the samples of the "
                f"epoch that it has seen are unknown: give TrainingArguments ignore_data_skip=True to begin it again"
            )
        self.session.load_state_dict(json.loads(state.read_bytes()))

    def _run_epoch(self, **named: Any) -> None:
        done = named["steps_trained_in_current_epoch"]
        if done and named["resume_from_checkpoint"] is not None and named["epoch"] == named["epochs_trained"]:
            left = named["steps_in_epoch"] - done  # the session yields only the remaining batches
            passes = self.args.gradient_accumulation_steps  # type: ignore[attr-defined] # as above
            named |= {
                "steps_trained_in_current_epoch": 0,
                "steps_in_epoch": left,
                "num_update_steps_per_epoch": -(-left // passes),
            }
        super()._run_epoch(**named)  # type: ignore[misc] # as above

    def _finalize_training(self, *given: Any, **named: Any) -> Any:
        if self._epochs is not None:
            self._epochs.finish()
        return super()._finalize_training(*given, **named)  # type: ignore[misc] # as above

    def hyperparameter_search(self, *given: Any, **named: Any) -> Any:
        raise ConfigError(
            "Trainer.hyperparameter_search makes a model for each trial, but a session has one: "
            "start each trial as a separate run, as `uneven search` does"
        )


class Trainer(Balanced, transformers.Trainer):
    """``transformers.Trainer`` on unequal parts::

        trainer = Trainer(model, arguments, train_dataset=train)
        trainer.train()

    See :class:`Balanced`.
    """


_REFUSED: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (lambda one: one.is_deepspeed_enabled, "deepspeed: it shards the model and exchanges gradients itself"),
    (lambda one: bool(one.args.fsdp), "fsdp: Accelerate shards the model and makes its optimizer; see uneven's page on "
        "fully_shard for a loop of your own"),
    (lambda one: one.is_distributed_loading_by_transformers, "a model that was sharded as it was loaded"),
    (lambda one: one.is_model_parallel, "a model on several devices"),
    (lambda one: one.args.n_gpu > 1, "several GPUs in one process: start one worker for each, with `uneven run`"),
    (lambda one: one.args.auto_find_batch_size, "auto_find_batch_size: one worker would change the batch of all; set "
        "per_device_train_batch_size"),
    (lambda one: getattr(one.accelerator, "parallelism_config", None) is not None, "parallelism_config: several "
        "workers would share a batch"),
    (lambda one: bool(one.args.accelerator_config.split_batches), "accelerator_config.split_batches: the session cuts "
        "batches"),
    (lambda one: bool(one.args.accelerator_config.dispatch_batches), "accelerator_config.dispatch_batches: the session "
        "hands out batches"),
    (lambda one: not one.args.dataloader_in_order, "dataloader_in_order=False: batches are known by their order"),
    (lambda one: str(one.args.train_sampling_strategy) == "batch_rebalance", "train_sampling_strategy="
        "'batch_rebalance': it gives all workers parts of equal cost; take 'group_by_length'"),
    (lambda one: _in_backward(str(getattr(one.args.optim, "value", one.args.optim))), "an optimizer that steps inside "
        "of the backward pass, before gradients are exchanged"),
)  # fmt: skip
"""The unsupported features of a Trainer: a test and a text for the error."""


def _exchanges_gradients(session: Session) -> bool:
    """Return whether the workers average gradients, and not parameters; raise ConfigError if they count no common
    steps."""
    policy = session._loop.context.policy
    facts, alone = policy.facts, session.world.alone
    if session.world.elastic is not None:
        raise ConfigError(
            "Hugging Face's Trainer in an elastic run: it makes its own process group, which no worker can leave or "
            "join. Start without --elastic, or write the loop"
        )
    if not alone and facts is not None and facts.pace in (Pace.OWN, Pace.BOUNDED):
        raise ConfigError(
            f"Hugging Face's Trainer under sync = {describe(policy)}: its workers take the same number of steps, "
            "but this policy's do not. Use sync = 'bsp', 'local' or 'diloco', or write the loop"
        )
    return alone or facts is None or facts.payloads == (Payload.GRADIENT,)


def _in_backward(optimizer: str) -> bool:
    return optimizer in _IN_BACKWARD or optimizer.endswith("layerwise")


def _check(trainer: Any) -> None:
    for has, what in _REFUSED:
        if has(trainer):
            raise ConfigError(f"Hugging Face's Trainer with a session, and {what}")
