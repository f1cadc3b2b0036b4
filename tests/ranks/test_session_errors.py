"""Mistakes are told before any training starts: the thing, the value and the way out."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from brought import brought, refusal
from uneven import journal
from uneven.errors import ConfigError, ConflictError, DataError, NonFiniteError, UnevenError, UnknownNameError
from uneven.policy.core.records import EventRecord
from uneven.run.start import connect
from uneven.runtime.world import World
from uneven.testing.ranks import RankContext, ranks
from uneven_bench.forked.scripts import run_script

X = 24


def samples(length: int = 96) -> TensorDataset:
    return TensorDataset(torch.randn(length, 6), torch.zeros(length, dtype=torch.long))


def linear() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(6, 3)


@contextlib.contextmanager
def said(kind: type[UnevenError], *words: str) -> Iterator[None]:
    """Just this kind of error, with all these words in its message."""
    with pytest.raises(kind) as caught:
        yield
    text = str(caught.value)
    assert type(caught.value) is kind, f"{type(caught.value).__name__}: {text}"
    assert not [word for word in words if word not in text], text


def on_meta() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3))
    model[1].weight = nn.Parameter(torch.empty(3, 3, device="meta"))
    return model


def frozen() -> nn.Module:
    model = linear()
    model.requires_grad_(False)
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "two devices": (on_meta, ["0.weight on cpu", "1.weight on meta", "model.to(device)"]),
    "all on meta": (lambda: nn.Linear(6, 3, device="meta"), ["device meta", "to_empty"]),
    "frozen": (frozen, ["none of the model's 2 parameters has requires_grad=True", "unfreeze"]),
    "no parameters": (nn.ReLU, ["none of the model's 0 parameters"]),
    "lazy": (lambda: nn.LazyLinear(3), ["parameter weight has no shape yet", "run one batch"]),
}


@pytest.mark.parametrize("case", MODELS)
def test_models_that_cannot_be_carried(case: str) -> None:
    build, words = MODELS[case]
    with uneven.Session() as session, said(ConfigError, *words):
        session.setup(build())


class NoSuper(torch.optim.Optimizer):
    """As wrappers of optimizers are often written."""

    def __init__(self, params: Any) -> None:
        self.param_groups = [{"params": list(params), "lr": 0.1}]


@brought("loops", "PyTorch", "an optimizer whose `__init__` does not call `super().__init__()`", refused=True)
def test_an_optimizer_without_hooks() -> None:
    model = linear()
    with uneven.Session() as session, refusal(r"NoSuper.__init__ does not call super\(\).__init__\(params, defaults\)"):
        session.setup(model, NoSuper(model.parameters()))


def test_pieces_of_a_model_without_forward() -> None:
    with uneven.Session() as session, said(ConfigError, "the ModuleDict", "whose forward() calls its parts"):
        session.setup(nn.ModuleDict({"model": linear()}))
        session.microbatches(torch.zeros(2, 6))


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("model.module.state_dict()", "write `model` instead of `model.module`"),
        ("session.close(); dist.destroy_process_group()", "leave out destroy_process_group()"),
        ("dist.all_gather([torch.empty(1)], torch.ones(2))", "pad all of them to the size max(session.shares)"),
    ],
)
def test_lines_of_a_script_for_ddp_end_with_advice(line: str, advice: str, tmp_path: Path) -> None:
    script = "import torch, torch.distributed as dist, uneven\nsession = uneven.Session()\n"
    if "gather" in line:
        script += f"dist.init_process_group('gloo', init_method='file://{tmp_path}/meet', rank=0, world_size=1)\n"
    script += f"model = session.setup(torch.nn.Linear(6, 3))\n{line}\n"
    done = run_script(["-c", script], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == 1
    assert advice in done.stderr.strip().splitlines()[-1], done.stderr


def test_a_session_that_has_ended_takes_no_model_and_no_data() -> None:
    session = uneven.Session()
    session.close()
    with said(ConfigError, "session.setup", "closed", "make another one"):
        session.setup(linear())
    with said(ConfigError, "session.loader", "closed", "make another one"):
        session.loader(samples(), global_batch_size=X)


@pytest.mark.parametrize("value", ["a", None, torch.ones(2), [1.0]], ids=["text", "none", "tensor", "list"])
def test_what_is_logged_or_averaged_is_a_number(value: Any) -> None:
    with uneven.Session() as session:
        session.setup(linear())
        with said(ConfigError, "session.log(loss=…)", "give a number"):
            session.log(loss=value)
        with said(ConfigError, "session.loss_mean", "give a number"):
            session.loss_mean(value)
        with said(ConfigError, "session.mean(weight=…)", "give a number"):
            session.mean(1.0, weight=[value])
        if not isinstance(value, torch.Tensor):  # its mean is one, too
            with said(ConfigError, "session.mean", "give a number"):
                session.mean(value)


SETTINGS: dict[str, tuple[dict[str, Any], type[UnevenError], list[str]]] = {
    "balancer": ({"balance": "proportionl"}, UnknownNameError, ["'proportionl'", "did you mean 'proportional'"]),
    "option": ({"balance": "lb-bsp:hysteresi=0.1"}, UnknownNameError, ["'hysteresi'", "did you mean 'hysteresis'"]),
    "predictor": ({"balance": "proportional:predictor=emma"}, UnknownNameError, ["'emma'", "did you mean 'ema'"]),
    "policy": ({"sync": "bps"}, UnknownNameError, ["'bps'", "did you mean 'bsp'"]),
    "budget": ({"overhead_budget": 2.0}, ConfigError, ["overhead_budget = 2.0", "between 0 and 1"]),
    "time-out": ({"timeout_s": 0.0}, ConfigError, ["timeout_s = 0.0", "positive"]),
    "nonfinite": ({"nonfinite": "ignore"}, ConfigError, ["nonfinite = 'ignore'", "'raise' or 'warn'"]),
    "seed": ({"seed": -1}, ConfigError, ["seed = -1", "zero or a positive"]),
    "type": ({"seed": "x"}, ConfigError, ["seed: 'x'", "whole number"]),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings(case: str) -> None:
    settings, kind, words = SETTINGS[case]
    with said(kind, *words):
        uneven.Session(**settings)


class NoLength:
    def __getitem__(self, index: int) -> int:
        return index


LOADERS: dict[str, tuple[Any, dict[str, Any], type[UnevenError], list[str]]] = {
    "neither length nor stream": (NoLength, {}, DataError, ["NoLength", "__len__", "__iter__"]),
    "iterator": (lambda: iter([1, 2]), {}, DataError, ["only once", "__iter__"]),
    "empty": (lambda: samples(0), {}, DataError, ["TensorDataset", "empty"]),
    "keyword": (samples, {"num_worker": 2}, UnknownNameError, ["'num_worker'", "did you mean 'num_workers'"]),
    "least": (samples, {"min_batch": 25}, DataError, ["batch of 24", "at least 25"]),
    "most": (samples, {"max_batch": 20}, ConfigError, ["20", "24"]),
    "crossed": (samples, {"min_batch": 9, "max_batch": 8}, ConfigError, ["9", "8"]),
    "no batch": (samples, {"min_batch": 0}, DataError, ["0", "at least 1"]),
}


@pytest.mark.parametrize("case", LOADERS)
def test_loaders(case: str) -> None:
    build, options, kind, words = LOADERS[case]
    with uneven.Session() as session, said(kind, *words):
        session.loader(build(), X, **options)


@ranks(3)
def test_batches_too_small_for_the_workers_and_limits_that_cannot_be_met(me: RankContext) -> None:
    with uneven.Session() as session, said(DataError, "global batch of 2", "3 workers", "global batch of at least 3"):
        session.loader(samples(), 2)
    with uneven.Session() as session, said(DataError, "global batch of 24", "at least 9", "at least 27"):
        session.loader(samples(), X, min_batch=9)
    with uneven.Session() as session, said(ConfigError, "limits", "21", "24"):
        session.loader(samples(), X, max_batch=7)
    with uneven.Session() as session, said(ConfigError, "rank 1"):  # rank 1 alone asks for the impossible
        session.loader(samples(), X, min_batch=5 if me.rank == 1 else 1, max_batch=4 if me.rank == 1 else None)


@ranks(2)
def test_ranks_with_different_settings(me: RankContext) -> None:
    first = me.rank == 0
    with said(ConflictError, "ranks differ in seed", "rank 0 has 1", "rank 1 has 2", "same script"):
        uneven.Session(seed=1 if first else 2)
    with said(ConflictError, "ranks differ in balance", "'even'", "'lb-bsp'"):
        uneven.Session(balance="even" if first else "lb-bsp")


@ranks(2)
def test_ranks_with_different_code(me: RankContext) -> None:
    digest = connect._code_digest
    connect._code_digest = lambda: f"version {me.rank}"
    try:
        with said(ConflictError, "ranks differ in code", "'version 0'", "'version 1'", "versions"):
            uneven.Session()
    finally:
        connect._code_digest = digest


@ranks(2)
def test_code_that_takes_no_part_in_a_run_may_differ(me: RankContext) -> None:
    """Each rank has a copy of the package; that of rank 1 is changed, file by file."""
    digest = connect._code_digest
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "uneven"
        shutil.copytree(Path(uneven.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
        connect._code_digest = lambda: connect.code_digest(copy)
        try:
            for other in ("cli/run.py", "cli/new.py", "cluster/pure/plan/rank.py", "fleet/ensemble.py"):
                if me.rank == 1:
                    (copy / other).write_text("x = 1")
            with uneven.Session():
                pass
            for part in ("run/step/loop.py", "policy/core/new.py", "run/session.py"):
                if me.rank == 1:
                    before = (copy / part).read_text() if (copy / part).exists() else None
                    (copy / part).write_text("x = 1")
                with said(ConflictError, "ranks differ in code", "same script, settings and versions"):
                    uneven.Session()
                if me.rank == 1:
                    (copy / part).unlink() if before is None else (copy / part).write_text(before)
            with uneven.Session():
                pass
        finally:
            connect._code_digest = digest


@ranks(2)
def test_ranks_with_different_data(me: RankContext) -> None:
    first = me.rank == 0
    with uneven.Session() as session, said(ConflictError, "session.loader", "batch_size", "24", "32"):
        session.loader(samples(), 24 if first else 32)
    with uneven.Session() as session, said(ConflictError, "length of the data set", "96", "97"):
        session.loader(samples(96 if first else 97), X)
    with uneven.Session() as session, said(ConflictError, "shuffle", "True", "False"):
        session.loader(samples(), X, shuffle=first)
    with uneven.Session() as session, said(ConflictError, "drop_last", "True", "False"):
        session.loader(samples(), X, drop_last=first)


@ranks(2)
def test_ranks_with_different_models(me: RankContext) -> None:
    first = me.rank == 0
    with uneven.Session() as session, said(ConflictError, "parameter bias", "(3,)", "(4,)"):
        session.setup(nn.Linear(6, 3 if first else 4))
    with uneven.Session() as session, said(ConflictError, "parameter 1.bias", "(6,)", "None"):
        session.setup(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6, bias=first)))
    model = nn.Linear(6, 3)
    model.bias.requires_grad_(first)
    with uneven.Session() as session, said(ConflictError, "parameter bias", "frozen"):
        session.setup(model)
    with uneven.Session() as session, said(ConflictError, "find_unused_parameters", "True", "False"):
        session.setup(nn.Linear(6, 3), find_unused_parameters=first)


@ranks(2)
def test_after_a_mistake_the_next_session_works(me: RankContext) -> None:
    with pytest.raises(ConflictError):
        uneven.Session(seed=me.rank)
    with uneven.Session() as session:
        model = session.setup(linear())
        for x, y in session.loader(samples(), X):
            F.cross_entropy(model(x), y).backward()
    with uneven.Session() as session, said(ConfigError, "session.setup was called twice", "one nn.Module"):
        session.setup(linear())
        session.setup(linear())
    with uneven.Session() as session, said(ConfigError, "session.loader was called twice", "another Session"):
        session.loader(samples(), X)
        session.loader(samples(), X)


def test_a_world_that_does_not_fit_the_group() -> None:
    """Checked without a second process: the launcher's variables and the group disagree about the size."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with said(ConfigError, "rank 0 of 1", "rank 1 of 2", "one launcher only"):
            connect.connect(World(rank=1, size=2), 5.0)
    finally:
        torch.distributed.destroy_process_group()


SCRIPT = """
import os, sys, uneven
try:
    uneven.Session(timeout_s=3)
except uneven.PeerError as error:
    print(error)
    sys.exit(3)
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_port_in_use(rank: int) -> None:
    """Somebody else's program listens and never answers: neither rank hangs."""
    import os

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        world = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        done = run_script(["-c", SCRIPT], env={**os.environ, **world})
    assert done.returncode == 3, done.stderr
    assert f"rank {rank} of 2 could not join" in done.stdout
    assert "MASTER_PORT" in done.stdout
    assert "--master-port" in done.stdout
    if rank == 0:
        assert str(port) in done.stdout
        assert "in use" in done.stdout


def events(run: Path, rank: int, kind: str) -> list[EventRecord]:
    return [r for r in journal.read(run).ranks[rank] if isinstance(r, EventRecord) and r.event == kind]


@ranks(2)
def test_a_non_finite_gradient_is_told_and_training_goes_on(me: RankContext, tmp_path: Path) -> None:
    run = Path(tmp_path)
    with uneven.Session(run_dir=run) as session, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model = session.setup(linear())
        count = 0
        for x, y in session.loader(samples(), X):
            loss = F.cross_entropy(model(x), y)
            (loss * float("inf" if me.rank == 1 and count == 2 else 1)).backward()
            model.zero_grad()
            count += 1
        assert count == 4
    told = [str(warning.message) for warning in seen]
    recorded = [(record.rank, record.iteration) for record in events(run, me.rank, "non-finite")]
    if me.rank == 1:
        assert len(told) == 1
        assert "non-finite gradient on rank 1 in iteration 2" in told[0]
        assert recorded == [(1, 2)]
    else:
        assert told == []
        assert recorded == []


@ranks(2)
def test_a_non_finite_loss_is_told_by_the_log(me: RankContext, tmp_path: Path) -> None:
    run = Path(tmp_path)
    with uneven.Session(run_dir=run, nonfinite="raise") as session:
        session.setup(linear())
        for count, _ in enumerate(session.loader(samples(), X)):
            if me.rank == 1 and count == 1:
                with pytest.raises(NonFiniteError, match="non-finite loss on rank 1 in iteration 1") as caught:
                    session.log(loss=float("nan"))
                assert (caught.value.ranks, caught.value.iteration) == ((1,), 1)
            else:
                session.log(loss=torch.tensor(1.0))
    assert len(events(run, me.rank, "non-finite")) == me.rank


def test_a_non_finite_loss_only_warns_by_default_and_then_counts(tmp_path: Path) -> None:
    """The warnings point to this file, and are few."""
    with uneven.Session(run_dir=tmp_path) as session, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(20):
            session.log(loss=float("inf"))
    assert len(events(tmp_path, 0, "non-finite")) == 20
    first, tenth = warned
    assert "non-finite loss on rank 0" in str(first.message)
    assert str(tenth.message).endswith("(number 10 on this rank)")
    assert {Path(first.filename), Path(tenth.filename)} == {Path(__file__)}


def test_the_model_comes_first() -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for given in ((optimizer, model), ([model, linear()],), (None,)):
        with uneven.Session() as session, pytest.raises(ConfigError, match=r"give the model first, one nn\.Module"):
            session.setup(*given)
