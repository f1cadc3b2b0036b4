"""Hugging Face's and Lightning's Trainer with a session: the weights of one process on unequal shares."""

from __future__ import annotations

import importlib.util
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from session_parts import assert_same, batches, net, reference, sgd, tensors
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from brought import brought
from uneven.errors import CheckpointError, ConfigError
from uneven.testing.ranks import RankContext, ranks
from uneven_bench.forked.scripts import run_script

SAMPLES, LENGTH, X, EPOCHS = 26, 7, 12, 2
UNEQUAL = "static:shares=6/2/4"


def needs(*names: str) -> pytest.MarkDecorator:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}: pip install '.[…]'")


@pytest.fixture(autouse=True, scope="module")
def imported() -> None:
    """The new processes of each test here are forks of one that has imported it; each took two seconds for that."""
    if importlib.util.find_spec("transformers"):
        assert run_script(["-c", ""], imported=("transformers.trainer", "transformers.models.llama")).returncode == 0


def texts() -> list[dict[str, torch.Tensor]]:
    """Of unequal length, so that parts hold unequally many tokens."""
    generator = torch.Generator().manual_seed(3)
    found = []
    for words in torch.randint(0, 30, (SAMPLES, LENGTH), generator=generator):
        labels = words.clone()
        labels[int(torch.randint(2, LENGTH, (1,), generator=generator)) :] = -100
        found.append({"input_ids": words, "labels": labels})
    return found


def tiny() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    sizes: dict[str, Any] = {"vocab_size": 30, "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 1}
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, max_position_embeddings=LENGTH, **sizes, **ends))


def one_process(passes: int) -> Any:
    """The same training on the union batches, each step of so many of them."""
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    size = X * passes
    for _ in range(EPOCHS):
        for start in range(0, SAMPLES, size):
            some = texts()[start : start + size]
            words, labels = (torch.stack([one[key] for one in some]) for key in ("input_ids", "labels"))
            model(input_ids=words, labels=labels).loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return model


def trainer(me: RankContext, folder: str | Path, model: Any, balance: str = UNEQUAL, **more: Any) -> Any:
    from transformers import TrainingArguments

    from uneven.integrations.transformers import Trainer

    how: dict[str, Any] = {
        "use_cpu": True, "per_device_train_batch_size": X // me.size, "num_train_epochs": EPOCHS, "optim": "sgd",
        "learning_rate": 0.1, "lr_scheduler_type": "constant", "train_sampling_strategy": "sequential",
        "report_to": "none", "disable_tqdm": True, "logging_steps": 1, "dataloader_pin_memory": False,
    }  # fmt: skip
    args = TrainingArguments(str(folder), **how | more)
    return Trainer(model, args, train_dataset=texts(), session=uneven.Session(balance=balance))


@needs("transformers", "accelerate")
@pytest.mark.parametrize("passes", [1, 2])
@ranks(3, fresh=True)
def test_hugging_face(me: RankContext, tmp_path: str, passes: int) -> None:
    ours = trainer(me, tmp_path, tiny(), gradient_accumulation_steps=passes, save_strategy="no")
    ours.train()
    theirs = one_process(passes)
    assert_same(ours.model, theirs, 1e-6)
    losses = [one["loss"] for one in ours.state.log_history if "loss" in one]
    assert len(losses) == EPOCHS * -(-SAMPLES // (X * passes))
    ours.session.close()


@needs("transformers", "accelerate")
@ranks(3, fresh=True)
def test_hugging_face_goes_on_from_its_checkpoint(me: RankContext, tmp_path: str) -> None:
    """In the midst of an epoch, and at the end of one."""
    ours = trainer(me, tmp_path, tiny(), save_strategy="steps", save_steps=2)
    ours.train()
    ours.session.close()
    steps = -(-SAMPLES // X)
    for at in (2, 2 * 2):
        again = trainer(me, Path(tmp_path) / str(at), tiny(), save_strategy="no")
        again.train(resume_from_checkpoint=str(Path(tmp_path) / f"checkpoint-{at}"))
        assert again.state.global_step == EPOCHS * steps
        assert_same(again.model, ours.model, 1e-7)
        again.session.close()
    (Path(tmp_path) / "checkpoint-2" / "uneven.json").unlink(missing_ok=True)
    plain = trainer(me, Path(tmp_path) / "plain", tiny(), save_strategy="no")
    with pytest.raises(ConfigError, match=r"checkpoint-2 has no uneven.json"):
        plain.train(resume_from_checkpoint=str(Path(tmp_path) / "checkpoint-2"))
    plain.session.close()


@needs("transformers", "accelerate")
@ranks(1, fresh=True)
def test_what_hugging_face_has_and_a_session_has_not(me: RankContext, tmp_path: str) -> None:
    refused: dict[str, dict[str, Any]] = {
        "auto_find_batch_size": {"auto_find_batch_size": True},
        "split_batches": {"accelerator_config": {"split_batches": True}},
        "dataloader_in_order": {"dataloader_in_order": False},
        "batch_rebalance": {"train_sampling_strategy": "batch_rebalance"},
    }
    for what, arguments in refused.items():
        with pytest.raises(ConfigError, match=what):
            trainer(me, tmp_path, tiny(), save_strategy="no", **arguments)


def module() -> Any:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            x, y = batch
            return F.cross_entropy(self.net(x), y)

        def validation_step(self, batch: Any, number: int) -> None:
            self.log("held_out", self.training_step(batch, number), sync_dist=True)

        def predict_step(self, batch: Any, number: int) -> torch.Tensor:
            return self.net(batch[0])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return sgd(self)

    return Module()


def lightning_trainer(session: uneven.Session | None, folder: str | Path, **more: Any) -> Any:
    import lightning

    from uneven.integrations.lightning import BalancedStrategy

    how: dict[str, Any] = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    how |= {"accelerator": "cpu", "devices": 1, "default_root_dir": folder, "max_epochs": 2}
    if session is not None:
        how["strategy"] = BalancedStrategy(session)
    return lightning.Trainer(**how | more)


def in_module() -> Any:
    """A DataModule, which makes its loader by the strategy's session."""
    import lightning

    class Data(lightning.LightningDataModule):
        def setup(self, stage: str) -> None:
            self.data = TensorDataset(*tensors())

        def train_dataloader(self) -> Any:
            return self.trainer.strategy.session.loader(self.data, X)

        def val_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(self.data, 10)

    return Data


@brought("loops", "Lightning", "alone (`python train.py`), and under `uneven run --nproc 1`: `fit`, `test`, `predict`")
@brought("loops", "Lightning", "`BalancedStrategy()` without a session, and a `LightningDataModule`")
@needs("lightning")
@ranks(1, fresh=True, join=False)
def test_lightning_alone(me: RankContext, tmp_path: str) -> None:
    from uneven.integrations.lightning import BalancedStrategy

    warnings.simplefilter("ignore")
    held_out = torch.utils.data.DataLoader(TensorDataset(*tensors()), 10)
    for variables in ((), ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        for one in variables:
            os.environ.pop(one, None)
        ours, strategy = module(), BalancedStrategy()
        trainer = lightning_trainer(None, tmp_path, strategy=strategy, enable_checkpointing=False)
        trainer.fit(ours, datamodule=in_module()())
        assert_same(ours.net, reference(2, net()), 1e-6)
        assert trainer.validate(ours, held_out, verbose=False)[0]["held_out"] > 0
        assert len(trainer.predict(ours, held_out)) == len(held_out)
        strategy.session.close()


@brought("loops", "Lightning", '`Trainer(strategy="uneven")`, after the import of `uneven.integrations.lightning`')
@needs("lightning")
@ranks(3, fresh=True)
def test_lightning_finds_the_strategy_by_name(me: RankContext, tmp_path: str) -> None:
    import uneven.integrations.lightning  # noqa: F401

    warnings.simplefilter("ignore")
    os.chdir(tmp_path)
    Path("uneven.toml").write_text(f'[run]\nbalance = "{UNEQUAL}"\n')
    ours = module()
    trainer = lightning_trainer(None, tmp_path, strategy="uneven", enable_checkpointing=False)
    trainer.fit(ours, datamodule=in_module()())
    assert_same(ours.net, reference(2, net()), 1e-6)
    session = trainer.strategy.session
    assert session.next_shares == (6, 2, 4)
    session.close()


@brought("loops", "Lightning", "`LightningCLI(…)`, with the strategy as a `class_path`")
@needs("lightning", "jsonargparse")
@ranks(3, fresh=True)
def test_lightning_command_line(me: RankContext, tmp_path: str) -> None:
    from lightning.pytorch.cli import LightningCLI

    warnings.simplefilter("ignore")
    flags = {"accelerator": "cpu", "devices": 1, "max_epochs": 2, "logger": False, "enable_progress_bar": False,
             "strategy": '{"class_path": "uneven.integrations.lightning.BalancedStrategy"}',
             "default_root_dir": tmp_path}  # fmt: skip
    given = ["fit", *(f"--trainer.{name}={value}" for name, value in flags.items())]
    done = LightningCLI(type(module()), in_module(), args=given, save_config_callback=None)
    assert_same(done.model.net, reference(2, net()), 1e-6)
    assert done.trainer.world_size == 3
    done.trainer.strategy.session.close()


@needs("lightning")
@ranks(3, fresh=True)
def test_lightning(me: RankContext, tmp_path: str) -> None:
    warnings.simplefilter("ignore")  # it advises on everything
    data = TensorDataset(*tensors())
    held_out = torch.utils.data.DataLoader(data, 10)
    ours = module()
    session = uneven.Session(balance=UNEQUAL)
    trainer = lightning_trainer(session, tmp_path, enable_checkpointing=False)
    trainer.fit(ours, session.loader(data, X), held_out)
    assert_same(ours.net, reference(2, net()), 1e-6)
    assert trainer.world_size == 3
    assert trainer.global_rank == me.rank
    assert trainer.callback_metrics["held_out"].isfinite()
    trainer.save_checkpoint(Path(tmp_path) / "end.ckpt")
    session.close()

    again, session = module(), uneven.Session(balance=UNEQUAL)
    trainer = lightning_trainer(session, tmp_path, max_epochs=3, enable_checkpointing=False)
    trainer.fit(again, session.loader(data, X), ckpt_path=Path(tmp_path) / "end.ckpt")
    assert_same(again.net, reference(3, net()), 1e-6)
    session.close()


@brought("loops", "Lightning", "`Trainer(accumulate_grad_batches=2, gradient_clip_val=0.5)`")
@needs("lightning")
@ranks(3, fresh=True)
def test_lightning_accumulates_and_clips(me: RankContext, tmp_path: str) -> None:
    """The last pass is inside of the optimizer's closure; an epoch's last step is of a single batch."""
    warnings.simplefilter("ignore")
    ours, theirs = module(), net()
    optimizer, left = sgd(theirs), 2 * 5
    for x, y in batches(2):
        left -= 1
        (F.cross_entropy(theirs(x), y) / 2).backward()
        if left % 5 in (3, 1, 0):
            nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    with uneven.Session(balance=UNEQUAL) as session:
        options = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5, "enable_checkpointing": False}
        lightning_trainer(session, tmp_path, **options).fit(ours, session.loader(TensorDataset(*tensors()), X))
    assert_same(ours.net, theirs, 1e-6)


@needs("lightning")
@ranks(2, fresh=True)
def test_what_lightning_has_and_a_session_has_not(me: RankContext, tmp_path: str) -> None:
    warnings.simplefilter("ignore")
    data = TensorDataset(*tensors())
    by_hand = module()
    by_hand.automatic_optimization = False
    foreign = Path(tmp_path) / f"foreign-{me.rank}.ckpt"
    torch.save({"state_dict": {}, "pytorch-lightning_version": "2.6.6"}, foreign)
    with uneven.Session() as session, pytest.raises(ConfigError, match=r"trainer.fit\(module, session.loader"):
        lightning_trainer(session, tmp_path).fit(module(), torch.utils.data.DataLoader(data, X))
    with uneven.Session() as session, pytest.raises(ConfigError, match="automatic_optimization=False"):
        lightning_trainer(session, tmp_path).fit(by_hand, session.loader(data, X))
    with uneven.Session() as session, pytest.raises(CheckpointError, match="not saved with this strategy"):
        lightning_trainer(session, tmp_path).fit(module(), session.loader(data, X), ckpt_path=foreign)
