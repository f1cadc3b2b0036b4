"""PEFT's adapters under Hugging Face's Trainer and TRL's SFTTrainer: those of one process, loaded by plain PEFT."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from test_trainers import EPOCHS, LENGTH, SAMPLES, UNEQUAL, X, needs, texts, tiny
from test_trainers import imported as imported
from torch import nn

import uneven
from brought import brought
from uneven.errors import ConfigError
from uneven.testing.ranks import RankContext, ranks


def adapted() -> Any:
    from peft import LoraConfig, get_peft_model

    model = tiny()
    torch.manual_seed(2)
    return get_peft_model(model, LoraConfig(r=2, lora_alpha=8, target_modules=["q_proj", "v_proj"]))


def arguments(workers: int) -> dict[str, Any]:
    return {
        "use_cpu": True, "per_device_train_batch_size": X // workers, "num_train_epochs": EPOCHS, "optim": "sgd",
        "learning_rate": 0.5, "lr_scheduler_type": "constant", "train_sampling_strategy": "sequential",
        "report_to": "none", "disable_tqdm": True, "logging_steps": 1, "dataloader_pin_memory": False,
        "save_strategy": "no",
    }  # fmt: skip


def hugging(folder: str, session: uneven.Session, model: Any) -> Any:
    from transformers import TrainingArguments

    from uneven.integrations.transformers import Trainer

    return Trainer(model, TrainingArguments(folder, **arguments(3)), train_dataset=texts(), session=session)


def supervised(folder: str, session: uneven.Session, model: Any) -> Any:
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    from uneven.integrations.transformers import Balanced

    class Ours(Balanced, SFTTrainer):  # type: ignore[misc]
        pass

    words = Tokenizer(models.WordLevel({str(number): number for number in range(30)}, unk_token="2"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="1", pad_token="0", unk_token="2")
    data = Dataset.from_dict({key: [one[key].tolist() for one in texts()] for key in ("input_ids", "labels")})
    args = SFTConfig(folder, max_length=LENGTH, bf16=False, **arguments(3))
    return Ours(model, args=args, train_dataset=data, processing_class=tokenizer, session=session)


def adapter(model: Any) -> torch.Tensor:
    return torch.cat([one.detach().flatten() for one in model.parameters() if one.requires_grad])


def loaded(folder: Path) -> Any:
    from peft import PeftModel

    return PeftModel.from_pretrained(tiny(), folder, is_trainable=True)


def of_one_process() -> torch.Tensor:
    """What the same training gives on the whole batches."""
    model = adapted()
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.5)
    for _ in range(EPOCHS):
        for start in range(0, SAMPLES, X):
            some = texts()[start : start + X]
            words, labels = (torch.stack([one[key] for one in some]) for key in ("input_ids", "labels"))
            model(input_ids=words, labels=labels).loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return adapter(model)


def trains_adapters(me: RankContext, folder: str, kind: Any) -> None:
    warnings.simplefilter("ignore")
    exact = kind(folder, uneven.Session(balance=UNEQUAL), adapted())
    exact.train()
    exact.session.close()
    torch.testing.assert_close(adapter(exact.model), of_one_process(), rtol=0, atol=1e-6)
    for sync in ("local:every=2", "diloco:every=2"):
        ours = kind(folder, uneven.Session(balance=UNEQUAL, sync=sync), adapted())
        ours.train()
        assert 2.0 < ours.state.log_history[0]["loss"] < 5.0, "of one worker's tokens, weighted by its samples"
        with ours.session.evaluation_model():
            ours.model.save_pretrained(Path(folder) / f"{sync}-{me.rank}")
            torch.testing.assert_close(adapter(loaded(Path(folder) / f"{sync}-{me.rank}")), adapter(ours.model))
        ours.session.close()
    with pytest.raises(ConfigError, match="take the same number of steps"):
        kind(folder, uneven.Session(sync="decoupled"), adapted())


@brought("loops", "HF Trainer", "adapters of PEFT, as LoRA")
@needs("transformers", "accelerate", "peft")
@ranks(3, fresh=True, timeout_s=240.0)
def test_of_hugging_face(me: RankContext, tmp_path: str) -> None:
    trains_adapters(me, tmp_path, hugging)


@brought("loops", "HF Trainer", "TRL's `SFTTrainer`, behind `Balanced`")
@needs("transformers", "accelerate", "peft", "trl", "datasets")
@ranks(3, fresh=True, timeout_s=240.0)
def test_of_trl(me: RankContext, tmp_path: str) -> None:
    trains_adapters(me, tmp_path, supervised)
