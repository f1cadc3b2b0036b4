"""Attention over sequences and a cross on unequal workers: the rows of one process without servers."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import pytest
import torch

from uneven.embedding import SGD, PlainTables
from uneven.embedding.pure.config import TableSpec
from uneven_bench.forked.scripts import run_script

SCRIPT = Path(__file__).parents[2] / "ranks" / "tables_sequences_script.py"


@pytest.mark.parametrize("workers", [1, 3])
def test_sequences_learn_as_in_one_process(tmp_path: Path, workers: int) -> None:
    run = ["-m", "uneven_bench.forked.run", "run", "--nproc", workers, "--tables", "2", "--run-dir", tmp_path / "run"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    chosen = [SCRIPT, tmp_path / "rows.pt", "/".join(str(one) for one in range(workers, 0, -1))]
    done = run_script([*map(str, run), *map(str, chosen)], cwd=tmp_path, env=env, merged=True, timeout_s=300)
    assert done.returncode == 0, done.stdout
    before, after = torch.load(tmp_path / "rows.pt", weights_only=True)
    script = runpy.run_path(str(SCRIPT))
    rows = {key.removeprefix("tables."): one.clone() for key, one in before.items() if key.startswith("tables.")}
    model = script["Model"](PlainTables(TableSpec(tuple(script["TABLES"]), SGD()), rows, unpooled=True))
    model.load_state_dict(before)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for ids, target in zip(*(one.split(script["BATCH"]) for one in script["data"]().tensors), strict=True):
        (model(ids) - target).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    for key, weight in model.state_dict().items():
        assert torch.allclose(after[key], weight, atol=1e-5), key
        assert not torch.allclose(before[key], weight, atol=1e-4), key
