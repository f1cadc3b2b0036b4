"""Compiled models with tables and what users of TorchRec bring, alone and on unequal workers: rows of plain modules."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from brought import brought
from uneven.embedding import SGD, EmbeddingBagCollection, EmbeddingCollection, Table
from uneven_bench.forked.scripts import run_script

SCRIPT = Path(__file__).parents[2] / "ranks" / "tables_brought_script.py"
BATCH = 12


def rows_of_one_process(state: dict[str, Tensor], batches: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """What plain tensors become in the same steps; a table has one row more, that of the padding, at its begin."""
    both, mean = (state[f"tables.embedding_bags.{name}.weight"] for name in ("both", "mean"))
    both = torch.cat([torch.zeros(1, 4), both]).requires_grad_()
    found = {
        "both": both,
        "mean": mean.clone().requires_grad_(),
        "weight": state["top.weight"].clone().requires_grad_(),
        "bias": state["top.bias"].clone().requires_grad_(),
    }
    optimizer = torch.optim.SGD(found.values(), lr=0.5)
    for ids, target in batches:
        left, right = ids.unbind(1)
        bags = torch.cat([
            embedding_bag(left + 1, found["both"], mode="sum", padding_idx=0),
            embedding_bag(right + 1, found["both"], mode="sum", padding_idx=0),
            embedding_bag(left, found["mean"], mode="mean", padding_idx=0),
        ], 1)  # fmt: skip
        out = torch.nn.functional.linear(bags, found["weight"], found["bias"]).squeeze(1)
        optimizer.zero_grad()
        (out - target).square().mean().backward()
        optimizer.step()
    return found | {"both": found["both"][1:]}


@pytest.mark.parametrize(
    ("workers", "backend"),
    [pytest.param(1, "eager", marks=brought("tables", "PyTorch", '`torch.compile(backend="eager")`, one worker')),
     pytest.param(3, "aot_eager", marks=[
         brought("tables", "PyTorch", '`torch.compile(backend="aot_eager")`, three unequal workers'),
         brought("tables", "TorchRec", "one feature in two tables, `inverse_indices`, −1 and `padding_idx`, three "
                 "unequal workers")])],
)  # fmt: skip
def test_rows_after_steps_are_those_of_plain_modules(tmp_path: Path, workers: int, backend: str) -> None:
    run = ["-m", "uneven_bench.forked.run", "run", "--nproc", workers, "--tables", "2", "--run-dir", tmp_path / "run"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    chosen = [SCRIPT, backend, tmp_path / "rows.pt", "/".join(str(one) for one in range(workers, 0, -1))]
    done = run_script([*map(str, run), *map(str, chosen)], cwd=tmp_path, env=env, merged=True, timeout_s=300)
    assert done.returncode == 0, done.stdout
    before, after, batches = torch.load(tmp_path / "rows.pt", weights_only=True)
    expected = rows_of_one_process(before, batches)
    for name, key in (("both", "tables.embedding_bags.both.weight"), ("mean", "tables.embedding_bags.mean.weight"),
                      ("weight", "top.weight"), ("bias", "top.bias")):  # fmt: skip
        assert torch.allclose(after[key], expected[name], atol=1e-5), name
        assert not torch.allclose(after[key], before[key], atol=1e-3), name


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo looks at it
@pytest.mark.parametrize("kind", [EmbeddingBagCollection, EmbeddingCollection])
def test_compiled_models_with_tables(kind: type) -> None:
    torch.compiler.reset()
    tables = [Table(40, 4, "one", ["f", "g"]), Table(40, 4, "two", ["f"])]
    ours, plain = (kind(tables, optimizer=SGD(lr=0.5)) for _ in range(2))

    def loss(tables: Any, ids: Any) -> Tensor:
        out = tables(ids)
        return torch.cat([(out[name] * 3).reshape(-1) for name in out.keys()]).square().mean()  # noqa: SIM118

    compiled = torch.compile(loss, backend="eager")
    for rows in (3, 4):
        ids = torch.arange(2 * rows).view(rows, 2)
        one, other = compiled(ours, ids), loss(plain, ids)
        assert torch.allclose(one, other)
        for each, of in ((one, ours), (other, plain)):
            each.backward()
            of.flush()
    state = plain.to_state_dict()
    assert all(torch.allclose(rows, state[key], atol=1e-6) for key, rows in ours.to_state_dict().items())
    for one in (ours, plain):
        one.close()
