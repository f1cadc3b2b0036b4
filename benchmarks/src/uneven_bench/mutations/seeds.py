"""The good inputs to mutate, and the files that their commands name."""

from __future__ import annotations

import contextlib
import json
import shlex
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from uneven.policy.core import records

PLAYED_NODES = 64  # the largest number of nodes of a simulated cluster
SERIES = "s.csv"  # the recorded series that one of the clusters names

SEARCH = b"""\
[search]
train = "json:loads"
metric = "accuracy"
mode = "max"
trials = 8
scheduler = "asha:max_t=9,reduction_factor=3"
searcher = "optuna:random"
max_failures = 1
seed = 3
time_budget_s = 60.0
points_to_evaluate = [{ lr = 0.01, width = 32 }, { depth = 2 }]

[space]
lr = { loguniform = [1e-4, 1e-1] }
depth = { integer = [1, 4] }
width = { choice = [32, 64, 128] }
kind = { grid = ["a", "b"] }
mix = { uniform = [0, 1] }
batch = 64
"""

SEARCHED = b"""\
{"metric": "accuracy", "mode": "max", "time_attr": "training_iteration", "max_t": 3, "max_failures": 1, \
"nonfinite": "stop", "seed": 0, "points_to_evaluate": [{"x": 0.5}], "scheduler": "fifo", "searcher": "optuna:random", \
"space": {"domains": {"x": {"kind": "float", "low": 0, "high": 1, "log": false}}, "constants": {"fixed": "yes"}}}
{"event":"suggest","trial":0,"params":{"fixed":"yes","x":0.5},"at_s":1.0}
{"event":"start","trial":0,"at_s":1.0}
{"event":"define","trial":0,"name":"n","domain":{"kind":"int","low":1,"high":9,"log":false,"step":2},"at_s":1.1}
{"event":"report","trial":0,"t":1.0,"metric":0.25,"move":"continue","why":"","device":0,"seconds":0.1,"at_s":1.2}
{"event":"fail","trial":0,"why":"a bad day","lost":false,"at_s":1.3}
{"event":"start","trial":0,"at_s":1.4}
{"event":"report","trial":0,"t":2.0,"metric":0.5,"move":"continue","why":"","device":0,"seconds":0.1,"at_s":1.5}
{"event":"end","trial":0,"t":2.0,"metric":0.75,"device":0,"seconds":0.1,"at_s":1.6}
{"event":"clone","trial":0,"t":2.0,"changes":{"x":0.75},"at_s":1.7}
{"event":"start","trial":1,"at_s":1.8}
{"event":"report","trial":1,"t":3.0,"metric":0.5,"move":"stop","why":"max_t=3","device":0,"seconds":0.1,"at_s":1.9}
"""
"""The settings of a search, and its events."""

SETTINGS = b"""\
[run]
balance = "static:shares=3/2/1"
sync = "bmuf:every=4,nesterov=true"
seed = 7
overhead_budget = 0.01
timeout_s = 60.0
nonfinite = "raise"
threads = 1
"""

RUN_SETTINGS = b"""\
[[layer]]
source = "command line"
[layer.run]
balance = "lb-bsp"
seed = 3
timeout_s = 9.5

[[layer]]
source = "uneven.toml"
[layer.run]
seed = 7
"""

CLUSTERS = (
    b"""\
name = "pair"
about = "two"
assumptions = ["none"]
[workload]
global_batch = 64
gradient_bytes = 300_000
overhead_core_s = 0.002
per_sample_core_s = 0.0004
exchange_core_s = 0.002
backward = 0.6
bucket_bytes = 100_000
epoch_samples = 640
[defaults]
site = "eu"
latency_s = 0.001
[[nodes]]
name = "a-"
count = 2
cores = 0.6
share = { values = [1.0, 0.5], step_s = 0.2, speedup = 2, rotate = 1 }
up_bit_per_s = 1e8
cost = { kind = "saturating", floor_s = 0.01, overhead_s = 0.001, per_sample_s = 0.001 }
[[nodes]]
name = "b"
site = "us"
load = 2
memory_samples = 60
period_s = 0.1
jitter = 0.1
cost = { kind = "measured", points = [[1, 0.01], [32, 0.02], [64, 0.05]] }
[[nodes]]
name = "c"
present = { values = [1, 0, 1], step_s = 0.05 }
cost = { kind = "affine", overhead_s = 0.001, per_sample_s = 0.0005 }
[[events]]
do = "slow"
node = "b"
at_iteration = 1
factor = 0.5
for_s = 0.1
[[events]]
do = "cut_link"
node = "a-0"
at_s = 0.05
bit_per_s = 1e6
[[events]]
do = "kill"
node = "a-1"
at_iteration = 2
[[links]]
between = ["eu", "us"]
bit_per_s = { values = [1e8, 1e7], step_s = 0.1 }
latency_s = 0.01
""",
    b"""\
name = "one"
[[nodes]]
name = "alone"
count = 3
share = { file = "s.csv", column = 0, rows = [0], first = 0, steps = 2, scale = 0.5, least = 0.1, step_s = 1 }
""",
)

ENSEMBLE = b"""\
[ensemble]
dataset = "uneven_bench.mutations.seeds:samples"
validate = "uneven_bench.mutations.seeds:samples"
transform = "uneven_bench.mutations.seeds:alike"
metric = "accuracy"
patience = 3
least = 0.1
max_epochs = 60
seed = 1
[members]
small = "uneven_bench.mutations.seeds:member"
wide = { factory = "uneven_bench.mutations.seeds:member", width = 64 }
"""

COMMANDS = tuple(
    shlex.split(line)
    for line in (
        "run --nproc 2 --balance static:shares=3/2 --sync local:every=4 --seed 1 --run-dir new train.py --lr 0.1",
        "run --shares 0.6,0.4 --timeout 30 --threads 2 --sync shadow:ma --balance even --config settings.toml train.py",
        "run --nnodes 1:2 --node-rank 0 --rdzv-backend c10d --rdzv-endpoint h:29500 --max-restarts 1 train.py",
        "run --nproc 2 --rdzv-id x --servers 2 --master-addr 10.0.0.1 --master-port 29501 -m package.train",
        "emulate demo4 --unprivileged --leave-out latency_s --ready-within 5 --run-dir new -- train.py",
        "simulate cluster.toml --balance even --sync ssp:staleness=3 --iterations 3 --seed 2 --run-dir new",
        "simulate demo4 --iterations 3 --lookahead 1 --compare --no-journal",
        "simulate --costs run --iterations 3 --no-journal --sync shadow:ma:every=2",
        "simulate demo4 --iterations 3 --no-journal --train digits:hidden=0,learning_rate=0.2 --accuracy 0.9",
        "plan cluster.toml --balance even --sync bsp,ssp:staleness=3 --iterations 3 --seed 1 --format json",
        "plan run --balance lb-bsp --sync bsp --iterations 3",
        "fleet run ensemble.toml --devices 2 --run-dir new --batch-rule keep --engine local --report out.html",
        "watch run --every 0.5",
        "watch run --once --format json",
        "runs . --format json",
        "init --config new.toml --balance even --sync ssp:staleness=3 --seed 1",
        "report run --report out.html --trace out.json",
        "demo --data digits --epochs 4",
        "bench rivals --quick --json",
        "doctor --format json",
    )
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


def _records() -> list[records.Record]:
    run = records.RunRecord(
        run="one", rank=0, world_size=1, host="here", pid=1, started_at_s=1.0, settings={"sync": "bsp"}, versions={}
    )
    profile = records.ProfileRecord(rank=0, at_s=1.0, sizes=(1, 8), seconds=(0.1, 0.2), saturation=1, most=9)
    split = records.SplitRecord(
        decided_at=1, iteration=3, shares=(8,), speeds_per_s=(9.0,), predicted_per_s=(9.5,), reason="faster"
    )
    steps = [
        records.StepRecord(
            rank=0, iteration=i, epoch=0, batch=8 + i % 2, global_batch=9, data_s=0.01, compute_s=0.1 + i / 100,
            exchange_s=0.01, control_s=0.0, ended_at_s=1.0 + i / 5, others=0.1, memory=0.2,
        )
        for i in range(6)
    ]  # fmt: skip
    load = records.LoadRecord(
        rank=0, iteration=2, at_s=2.0, machine_cpu=0.5, machine_memory=0.5, process_cpu=1.0, process_memory_bytes=9,
        gpu=0.5, gpu_memory_bytes=7,
    )  # fmt: skip
    scalar = records.ScalarRecord(rank=0, iteration=2, at_s=2.0, name="loss", value=float("nan"))
    exchange = records.ExchangeRecord(
        rank=0, iteration=3, at_s=2.0, moment="step", members=1, samples=9, gap=1, took_s=0.1, sent_bytes=8
    )
    forecast = records.ForecastRecord(rank=0, iteration=2, predicted_per_s=9.0, doubt=0.1)
    end = records.EventRecord(rank=0, iteration=6, at_s=3.0, event="end", message="over")
    return [run, profile, split, *steps, load, scalar, exchange, forecast, end]


def _session_state() -> dict[str, Any]:
    return {
        "schema": 2,
        "loader": {
            "schema": 1, "seed": 0, "shuffle": True, "length": 40, "batch_size": 8, "epoch": 0, "cursor": 8,
            "iteration": 1, "left": [[8, 40]],
        },
        "control": {},
        "agreement": {},
        "vectors": {},
    }  # fmt: skip


FLEET_ASKED: dict[str, Any] = {"members": ["a", "b"], "samples": 5}

JOURNAL = "".join(records.to_json(one) + "\n" for one in _records()).encode()
SESSION = json.dumps(_session_state()).encode()
FLEET = json.dumps(
    {
        "schema": 1, "asked": FLEET_ASKED, "passes": 1, "rates": {"a": [1.0, 1.5], "b": [2.0, 3.0]},
        "members": {
            "a": {"status": "waiting", "why": "", "device_s": 1.5, "deaths": 0, "note": "", "epochs": [
                {"train_loss": 0.5, "metric": 0.5, "train_s": 1.0, "samples": 5, "devices": 1, "shares": [5]}
            ]},
            "b": {"status": "trained", "why": "converged", "device_s": 0.5, "deaths": 0, "note": "", "epochs": [
                {"train_loss": 0.5, "metric": 0.5, "train_s": 1.0, "samples": 5, "devices": 1, "shares": [5]}
            ]},
        },
        "running": {"a": 1}, "plan": [[0, {"a": 1}]], "wall_s": 2.0, "preprocess_cpu_s": 0.1, "prepared": 5,
        "scheduling_s": 0.0, "alone": {"a": 1.0}, "member_bytes": 100,
    }
).encode()  # fmt: skip


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
