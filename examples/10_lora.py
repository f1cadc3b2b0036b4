"""LoRA between home, lab and cloud: only adapters travel, and any machine may be switched off.

    python examples/10_lora.py base                                     a small GPT, trained by one process
    uneven run --nproc 3 --elastic 1:3 --sync diloco:every=8,outer_momentum=0.5 examples/10_lora.py tune
    python examples/10_lora.py read                                     the adapter, loaded by plain PEFT

With `decoupled:every=2,outer_momentum=0` and `--servers 1` no machine waits for another one; `bsp` works, too.
As root on Linux, emulate three machines, and one that is killed and comes back:

    uneven emulate examples/cluster/home_lab_cloud.toml --elastic 1:3 --sync bsp -- examples/10_lora.py tune

The GPT learns Shakespeare from the folder that UNEVEN_DATA names; without it, half of Python's manual, which comes with
Python. The adapters learn the other half of the manual. With ``--all``, all parameters are trained, as DDP does.
Needs `pip install '.[peft]'`.
"""

import argparse
import os
from pathlib import Path
from pydoc_data.topics import topics

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch.utils.data import TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM

import uneven

LENGTH, HELD_OUT = 64, 64


def windows(text, most):
    """Texts of LENGTH characters, int64 (n, LENGTH): those to train on, at most so many, and those held out."""
    codes = torch.tensor([ord(one) for one in text if one.isascii()])
    rows = codes[: len(codes) // LENGTH * LENGTH].view(-1, LENGTH)
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    return rows[HELD_OUT : HELD_OUT + most], rows[:HELD_OUT]


def texts(most):
    """Windows for the GPT and for the adapters."""
    manual = "\n".join(topics.values())
    there = Path(os.environ.get("UNEVEN_DATA", ""), "text", "tinyshakespeare.txt")
    found = "UNEVEN_DATA" in os.environ and there.exists()
    print("the GPT's text:", there if found else "half of Python's manual; UNEVEN_DATA has no text/tinyshakespeare.txt")
    first = there.read_text() if found else manual[: len(manual) // 2]
    return windows(first, most), windows(manual[len(manual) // 2 :], most)


def gpt():
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=128, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
            max_position_embeddings=LENGTH, bos_token_id=0, eos_token_id=1, use_cache=False,
        )
    )  # fmt: skip


@torch.no_grad()
def loss_on(model, rows):
    model.eval()
    return model(input_ids=rows, labels=rows).loss.item()


def train(session, model, learning_rate, rows, epochs, batch):
    """The usual loop; the session divides each batch among the workers."""
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=learning_rate)
    model, optimizer = session.setup(model, optimizer)
    loader = session.loader(TensorDataset(rows), global_batch_size=batch)
    for _ in range(loader.epoch, epochs):  # a machine that comes back starts in the current epoch
        for (x,) in loader:
            model.train()
            loss = model(input_ids=x, labels=x).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            session.log(loss=loss.item())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["base", "tune", "read"])
    parser.add_argument("--folder", type=Path, default=Path("runs/lora"))
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--windows", type=int, default=3072)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--all", action="store_true", help="train all parameters, without adapters")
    asked = parser.parse_args()

    base, adapter = asked.folder / "base.pt", asked.folder / "adapter"
    (first, first_held_out), (manual, held_out) = texts(asked.windows)
    model = gpt()
    if asked.what != "base":
        model.load_state_dict(torch.load(base))  # each machine has its own copy of it
    if asked.what == "read":
        before = loss_on(model, held_out)
        model = PeftModel.from_pretrained(model, adapter)
        print(f"held-out loss of the GPT {before:.3f}, with the adapter {loss_on(model, held_out):.3f}")
        return

    session = uneven.Session(seed=asked.seed)
    if asked.what == "base":
        train(session, model, 2e-3, first, asked.epochs, 24)
        print(f"held-out loss of the GPT on its own text {loss_on(model, first_held_out):.3f}")
        asked.folder.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), base)
        return

    torch.manual_seed(asked.seed)
    if not asked.all:
        model = get_peft_model(model, LoraConfig(r=1, lora_alpha=4, target_modules="all-linear"))
    train(session, model, 1e-3 if asked.all else 1e-2, manual, asked.epochs, 24)
    with session.evaluation_model():  # on every worker
        if session.rank == 0:
            print(f"held-out loss {loss_on(model, held_out):.4f}")
            if not asked.all:
                model.save_pretrained(adapter)
    session.close()


if __name__ == "__main__":
    main()
