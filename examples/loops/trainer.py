"""Fine-tuning with Hugging Face's Trainer: a small Llama, texts with padding, nothing to download.

    uneven run --nproc 4 --shares 0.6,0.4,0.2,0.1 examples/loops/trainer.py

What differs from ``trainer_plain.py``: the lines that name uneven or its session.
"""

import os

import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

from uneven.integrations.transformers import Trainer

LENGTH, BATCH = 10, 24
torch.manual_seed(0)
words = torch.randint(2, 50, (120, LENGTH))
ends = torch.randint(2, LENGTH + 1, (120, 1))
labels = torch.where(torch.arange(LENGTH) < ends, words, -100)
dataset = [{"input_ids": text, "labels": label} for text, label in zip(words, labels, strict=True)]

config = LlamaConfig(
    vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
    max_position_embeddings=LENGTH, bos_token_id=0, eos_token_id=1,
)  # fmt: skip
model = LlamaForCausalLM(config)
arguments = TrainingArguments(
    "runs/trainer", use_cpu=True, per_device_train_batch_size=BATCH // int(os.environ.get("WORLD_SIZE", "1")),
    num_train_epochs=2, optim="sgd", learning_rate=0.1, train_sampling_strategy="sequential", save_strategy="no",
    report_to="none", disable_tqdm=True, dataloader_pin_memory=False,
)  # fmt: skip
trainer = Trainer(model, arguments, train_dataset=dataset)
trainer.train()
