"""Each flag of Lightning's and Hugging Face's Trainer that a page names: the weights that they give one process."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from session_parts import X, assert_same, batches, net, tensors
from test_trainers import EPOCHS, UNEQUAL, lightning_trainer, module, needs, texts, tiny
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import uneven
from brought import brought, refusal
from uneven.errors import ConfigError
from uneven.testing.ranks import RankContext, ranks, run_ranks


class Unions(IterableDataset[Any]):
    """The batches of one process, epoch by epoch."""

    def __init__(self, epochs: int) -> None:
        self.all = list(batches(epochs))
        self.length = len(self.all) // epochs
        self.epoch = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        first, self.epoch = self.epoch * self.length, self.epoch + 1
        return iter(self.all[first : first + self.length])


def lightning_cases() -> list[tuple[dict[str, Any], float]]:
    from lightning.pytorch import callbacks

    exact: list[dict[str, Any]] = [
        {"accumulate_grad_batches": 2}, {"accumulate_grad_batches": 3, "gradient_clip_val": 0.2},
        {"callbacks": [callbacks.GradientAccumulationScheduler({0: 1, 1: 2})]},
        {"gradient_clip_val": 0.02, "gradient_clip_algorithm": "value"}, {"precision": "64-true"},
        {"max_steps": 7}, {"max_steps": 3, "accumulate_grad_batches": 2}, {"max_time": "00:01:00:00"},
        {"limit_train_batches": 3, "max_epochs": 3}, {"limit_train_batches": 0.5}, {"fast_dev_run": True},
        {"overfit_batches": 2}, {"val_check_interval": 2}, {"check_val_every_n_epoch": 2}, {"num_sanity_val_steps": 0},
        {"detect_anomaly": True}, {"deterministic": True}, {"sync_batchnorm": True},
        {"callbacks": [callbacks.StochasticWeightAveraging(1e-2, swa_epoch_start=1, annealing_epochs=1)]},
        {"callbacks": [callbacks.EMAWeightAveraging()]}, {"callbacks": [callbacks.EarlyStopping("held_out")]},
    ]  # fmt: skip
    rough = ("bf16-mixed", "bf16-true", "16-mixed")
    return [(one, 1e-6) for one in exact] + [({"precision": one}, 1e-2) for one in rough]


def fitted(trainer: Any, batches: Any) -> Any:
    ours = module()
    trainer.fit(ours, batches, DataLoader(TensorDataset(*tensors()), 10))
    return ours.net.float()


@brought("loops", "Lightning", "`accumulate_grad_batches`, `GradientAccumulationScheduler`, `gradient_clip_val`")
@brought("loops", "Lightning", '`precision="64-true"`, `"bf16-mixed"`, `"bf16-true"`, `"16-mixed"`')
@brought("loops", "Lightning", "`max_steps`, `max_time`, `limit_train_batches`, `fast_dev_run`, `overfit_batches`")
@brought("loops", "Lightning", "`val_check_interval`, `check_val_every_n_epoch`, `EarlyStopping`")
@brought("loops", "Lightning", "`StochasticWeightAveraging`, `EMAWeightAveraging`")
@brought("loops", "Lightning", "`sync_batchnorm`, `deterministic`, `detect_anomaly`")
@needs("lightning")
@ranks(3, fresh=True, timeout_s=240.0)
def test_flags_of_lightning(me: RankContext, tmp_path: str) -> None:
    warnings.simplefilter("ignore")
    data, quiet = TensorDataset(*tensors()), {"enable_checkpointing": False}
    for (flags, tolerance), (same, _) in zip(lightning_cases(), lightning_cases(), strict=True):
        with uneven.Session(balance=UNEQUAL) as session:
            trainer = lightning_trainer(session, tmp_path, **quiet | flags)
            ours = fitted(trainer, session.loader(data, X))
        plain = lightning_trainer(None, tmp_path, strategy="auto", **quiet | same)
        assert_same(ours, fitted(plain, DataLoader(Unions(3), batch_size=None)), tolerance)
        assert trainer.global_step == plain.global_step, flags


@brought("loops", "Lightning", "a mean over tokens or classes: `session.loss_mean` in the strategy's `training_step`")
@brought("loops", "Lightning", "`Tuner(trainer).lr_find(…)` before `fit`, and a second `fit`")
@needs("lightning")
@ranks(3, fresh=True)
def test_counts_and_second_fits_of_lightning(me: RankContext, tmp_path: str) -> None:
    from lightning.pytorch.tuner import Tuner

    from uneven.integrations.lightning import BalancedStrategy

    warnings.simplefilter("ignore")
    of_class, (theirs, ours) = torch.tensor([0.2, 1.0, 3.0]), (net(), module())

    class ByClass(BalancedStrategy):
        def training_step(self, batch: Any, *rest: Any) -> Any:
            with self.session.loss_mean(of_class[batch[1]].sum()):
                return super().training_step(batch, *rest)

    ours.training_step = lambda batch, *_: F.cross_entropy(ours.net(batch[0]), batch[1], weight=of_class)
    ours.lr, ours.configure_optimizers = 0.1, lambda: torch.optim.SGD(ours.parameters(), lr=ours.lr)
    with uneven.Session(balance=UNEQUAL) as session:
        loader, options = session.loader(TensorDataset(*tensors()), X), {"enable_checkpointing": False, "max_epochs": 1}
        trainer = lightning_trainer(None, tmp_path, strategy=ByClass(session), **options)
        Tuner(trainer).lr_find(ours, loader, num_training=7, update_attr=False)
        for trainer.fit_loop.max_epochs in (1, 2):
            trainer.fit(ours, loader)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for x, y in batches(2):
        F.cross_entropy(theirs(x), y, weight=of_class).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert_same(ours.net, theirs, 1e-6)


@brought("loops", "Lightning", "loggers, `ModelCheckpoint`, `is_global_zero`, `local_rank`: one worker writes")
@needs("lightning")
@ranks(3, fresh=True)
def test_one_worker_of_lightning_writes(me: RankContext, tmp_path: str) -> None:
    from lightning.pytorch.loggers import CSVLogger

    warnings.simplefilter("ignore")
    with uneven.Session(balance=UNEQUAL) as session:
        trainer = lightning_trainer(session, tmp_path, logger=CSVLogger(tmp_path))
        fitted(trainer, session.loader(TensorDataset(*tensors()), X))
        assert (trainer.is_global_zero, trainer.local_rank) == (me.rank == 0, me.rank)
        session.mean(1.0)  # all have written
        written = sorted(str(one.relative_to(tmp_path)) for one in Path(tmp_path).rglob("*.*") if one.is_file())
    assert [Path(one).suffix for one in written] == [".ckpt", ".csv"], written
    assert all(one.startswith("lightning_logs/version_0/") for one in written)


def one_refusal(said: list[str]) -> None:
    with refusal(r"batches of the training are not the session's.*self\.trainer\.strategy\.session\.loader"):
        raise ConfigError(said[0])


@brought("loops", "Lightning", "a second training loader", refused=True)
@needs("lightning")
@ranks(2, fresh=True, check=one_refusal)
def test_a_loader_beside_the_sessions(me: RankContext, tmp_path: str) -> str:
    warnings.simplefilter("ignore")
    data = TensorDataset(*tensors())
    with uneven.Session() as session:
        both = {"ours": session.loader(data, X), "theirs": DataLoader(data, X)}
        trainer = lightning_trainer(session, tmp_path)
        with pytest.raises(ConfigError) as caught:
            trainer.fit(module(), both)
    return str(caught.value)


HUGGING_FACE: tuple[dict[str, Any], ...] = (
    {"gradient_accumulation_steps": 2, "max_grad_norm": 0.05}, {"max_grad_norm": 0.0}, {"bf16": True},
    {"lr_scheduler_type": "linear", "warmup_steps": 2}, {"max_steps": 4}, {"dataloader_drop_last": True},
    {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch", "lr_scheduler_kwargs": {"patience": 0}},
    {"label_smoothing_factor": 0.1, "gradient_accumulation_steps": 2}, {"gradient_checkpointing": True},
    {"optim": "adamw_torch", "learning_rate": 1e-3, "weight_decay": 0.1}, {"include_num_input_tokens_seen": "all"},
    {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True},
    {"torch_compile": True, "torch_compile_backend": "eager"}, {"average_tokens_across_devices": False},
)  # fmt: skip


def hugging_face(me: RankContext, folder: str) -> None:
    """Train with each flag: one process as it comes, several with a session; they compare."""
    from transformers import Trainer as Theirs
    from transformers import TrainingArguments

    from uneven.integrations.transformers import Trainer as Ours

    how: dict[str, Any] = {
        "use_cpu": True, "per_device_train_batch_size": 12 // me.size, "num_train_epochs": EPOCHS, "optim": "sgd",
        "learning_rate": 0.1, "lr_scheduler_type": "constant", "train_sampling_strategy": "sequential",
        "report_to": "none", "disable_tqdm": True, "dataloader_pin_memory": False, "save_strategy": "no",
    }  # fmt: skip
    for number, flags in enumerate(HUGGING_FACE):
        model, kept = tiny(), Path(folder) / f"{number}.pt"
        args = TrainingArguments(str(Path(folder) / f"{number}-{me.size}"), **how | flags)
        given: dict[str, Any] = {"train_dataset": texts(), "eval_dataset": texts()}
        if me.size == 1:
            Theirs(model, args, **given).train()
            torch.save(model.state_dict(), kept)
            continue
        with uneven.Session(balance=UNEQUAL) as session:
            trainer = Ours(model, args, session=session, **given)
            trainer.train()
            assert trainer.is_world_process_zero() == (me.rank == 0)
            assert trainer.args.local_process_index == me.rank
        theirs = tiny()
        theirs.load_state_dict(torch.load(kept, weights_only=True))
        assert_same(model, theirs, 1e-2 if "bf16" in flags else 1e-6)


@brought("loops", "HF Trainer", "`gradient_accumulation_steps`, `max_grad_norm`, `bf16`, `gradient_checkpointing`")
@brought("loops", "HF Trainer", "`label_smoothing_factor`, `average_tokens_across_devices`, `max_steps`")
@brought("loops", "HF Trainer", "`lr_scheduler_type`, `warmup_steps`, `optim`, `weight_decay`, `torch_compile`")
@brought("loops", "HF Trainer", "`eval_strategy`, `save_strategy`, `load_best_model_at_end`, `is_world_process_zero()`")
@needs("transformers", "accelerate")
def test_flags_of_hugging_face(tmp_path: Path) -> None:
    for size in (1, 3):
        run_ranks(size, hugging_face, str(tmp_path), fresh=True, timeout_s=240.0)
