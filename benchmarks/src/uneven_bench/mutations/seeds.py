"""The good inputs to mutate, and the files that their commands name."""

import contextlib
import json
import shlex
import sqlite3
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from uneven.embedding.pure.config import SGD, Table, TableSpec
from uneven.embedding.pure.route import Router
from uneven.embedding.pure.shard_tables import ShardSpec
from uneven.embedding.pure.sharding_plan import place

PLAYED_NODES = 64  # the largest number of nodes of a simulated cluster
SERIES = "s.csv"  # the recorded series that one of the clusters names

_GOOD = Path(__file__).with_name("good")


def _good(name: str) -> bytes:
    """Return a file; JSON as ``json.dumps`` writes it."""
    given = (_GOOD / name).read_bytes()
    return json.dumps(json.loads(given)).encode() if name.endswith(".json") else given


SEARCH, SETTINGS, RUN_SETTINGS = _good("search.toml"), _good("settings.toml"), _good("run_settings.toml")
SEARCHED = _good("searched.jsonl")
"""The settings of a search, and its events."""

CLUSTERS = _good("cluster.toml"), _good("cluster_of_a_series.toml")
ENSEMBLE = _good("ensemble.toml")
COMMANDS = tuple(map(shlex.split, _good("commands.txt").decode().splitlines()))


TABLES = TableSpec(
    (Table(50, 4, "item"), Table(None, 4, "user", ("user", "item")), Table(9, 2, "tags", no_id=0)), SGD()
)


@cache
def router() -> Router:
    return Router(TABLES, [ShardSpec(TABLES, ranges) for ranges in place(TABLES.tables, 2)])


LOOK_UPS = (
    b'{"ids": {"item": [3, 49], "user": [-5, 70000000000], "tags": [[1, 2, 0], []]}}',
    b'{"ids": {"item": [[3], [49, 1]], "user": [1, 2], "tags": [1, 2]}}',
)


def lay_out(here: Path) -> None:
    """Write the files that the commands name, good and bad ones."""
    (here / "train.py").write_text("print()\n")
    (here / "cluster.toml").write_bytes(CLUSTERS[0])
    (here / "settings.toml").write_bytes(SETTINGS)
    (here / "ensemble.toml").write_bytes(ENSEMBLE)
    (here / "noutf8.toml").write_bytes(b'name = "\xff"\n')
    (here / "empty").touch()
    (here / "dir").mkdir()
    (here / "run" / "journal").mkdir(parents=True)
    (here / "run" / "journal" / "rank00000.jsonl").write_bytes(JOURNAL)


JOURNAL = _good("journal.jsonl")
SESSION, FLEET = _good("session.json"), _good("fleet.json")
FLEET_ASKED: dict[str, Any] = json.loads(FLEET)["asked"]


def samples() -> TensorDataset:
    """Return forty samples of two numbers and a class."""
    return TensorDataset(torch.zeros(40, 2), torch.zeros(40, dtype=torch.int64))


def alike(sample: Any) -> Any:
    return sample


def member(width: int = 2) -> nn.Module:
    """Return a stand-in for a member, which is never trained: importing optimizers takes seconds."""
    return nn.Linear(width, 10)


def study() -> bytes:
    """Return a storage of Optuna, SQLite, with one study of four trials."""
    import optuna

    def loss(trial: optuna.Trial) -> float:
        trial.report(0.5, 0)
        return trial.suggest_float("lr", 1e-3, 0.1, log=True) + trial.suggest_int("depth", 1, 4)

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        storage = optuna.storages.RDBStorage(f"sqlite:///{folder}/study.db")
        sampler = optuna.samplers.RandomSampler(seed=0)
        optuna.create_study(study_name="seeds", storage=storage, sampler=sampler).optimize(loss, n_trials=4)
        storage.engine.dispose()
        with contextlib.closing(sqlite3.connect(Path(folder, "study.db"))) as opened:
            opened.execute("UPDATE trials SET datetime_start = '2026-01-01', datetime_complete = '2026-01-02'")
            opened.commit()
            opened.execute("VACUUM")  # so that the same rows are the same bytes
        return Path(folder, "study.db").read_bytes()
