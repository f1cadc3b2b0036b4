"""``fully_shard`` with a session: the weights of one process on unequal shares."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from session_parts import Moving, N, X, reference, sgd, tensors
from session_parts import net as net32
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.utils.data import TensorDataset

import uneven
from tiers import rest
from uneven.errors import ConfigError, TrainingError
from uneven.journal import read
from uneven.policy.core.records import LineRecord, StepRecord
from uneven.run.gradients import sharded_gradients
from uneven.run.measure.meter import Meter
from uneven.run.model.check import check_sharded
from uneven.testing.ranks import RankContext, ranks
from uneven.testing.staging import staging_forced

DATA = tensors(torch.float64)


def net() -> nn.Module:
    return net32().double()


def sharded(model: nn.Module, *shape: int, **how: Any) -> nn.Module:
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])
    for layer in (model[0], model[2], model):  # type: ignore[index]
        fully_shard(layer, mesh=mesh, **how)
    return model


def gathered(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: one.full_tensor() for name, one in model.state_dict().items()}


def equal(model: nn.Module, theirs: nn.Module, tolerance: float = 1e-12) -> None:
    found = gathered(model)
    for name, one in theirs.state_dict().items():
        torch.testing.assert_close(found[name], one, rtol=tolerance, atol=tolerance)


def train(
    model: nn.Module, epochs: int = 2, balance: Any = None, wrap: Callable[[nn.Module], Any] | None = None
) -> uneven.Session:
    session = uneven.Session(balance=Moving() if balance is None else balance, overhead_budget=0.9)
    train_on(session, model, epochs, wrap)
    return session


def train_on(
    session: uneven.Session, model: nn.Module, epochs: int, wrap: Callable[[nn.Module], Any] | None = None
) -> None:
    optimizer = sgd(model)
    model, optimizer = session.setup(model, optimizer)
    called = model if wrap is None else wrap(model)
    loader = session.loader(TensorDataset(*DATA), X)
    for _ in range(epochs):
        for x, y in loader:
            F.cross_entropy(called(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("copied", [False, True])
@ranks(3)
def test_fsdp2(me: RankContext, copied: bool) -> None:
    model = sharded(net(), 3)
    model.register_buffer("of_first", torch.full((2,), float(me.rank)), persistent=False)
    with staging_forced() if copied else nullcontext():
        session = train(model)
    equal(model, reference(2, net(), torch.float64))
    assert model.of_first.tolist() == [0.0, 0.0]
    session.close()


@ranks(2)
def test_a_worker_whose_shard_is_in_host_memory(me: RankContext) -> None:
    model = sharded(net(), 2, **({"offload_policy": CPUOffloadPolicy(pin_memory=False)} if me.rank else {}))
    session = train(model)
    equal(model, reference(2, net(), torch.float64))
    session.close()


@ranks(2)
def test_marks_of_a_device_that_waits_by_itself(me: RankContext) -> None:
    """torch's calls come in the order in which it gives them to a device; each wait is between two marks."""
    seen: list[str] = []

    def noted(what: str, call: Callable[..., Any], *those: Any) -> Any:
        seen.append(what)
        return call(*those)

    class Noting(Meter):
        def ready(self) -> None:
            noted("ready", super().ready)

        def done(self) -> None:
            noted("done" if self._ready is not None else "", super().done)

    gather, scatter = sharded_gradients.GatherWork, sharded_gradients.scatter_sum
    with (
        patch.multiple(
            sharded_gradients,
            host_carries=lambda *those: False,
            GatherWork=lambda *those: noted("gather", gather, *those),
            scatter_sum=lambda *those: noted("scatter", scatter, *those),
        ),
        patch("uneven.run.reports.step_accounting.Meter", Noting),
    ):
        model = sharded(net(), 2)
        session = train(model)
    equal(model, reference(2, net(), torch.float64))
    forward = [*2 * ["gather", "ready", "done"], "ready", "done"]  # the last two for statistics of batch norm
    last_layer = ["gather", "ready", "done", "gather", "ready", "done", "ready", "scatter"]
    first_layer = ["ready", "done", "ready", "done", "ready", "scatter", "done"]
    steps = 2 * -(-N // X)
    assert [one for one in seen if one] == steps * [*forward, *last_layer, *first_layer]
    session.close()


@ranks(4)
def test_hsdp(me: RankContext) -> None:
    """The replicas of shards begin as those of the first, whatever they were."""
    model = net()
    with torch.no_grad():
        for one in model.parameters():
            one += me.rank // 2
    model = sharded(model, 2, 2)
    session = train(model)
    equal(model, reference(2, net(), torch.float64))
    session.close()


@ranks(3)
def test_passes_that_wait_and_shares_that_move_between_them(me: RankContext) -> None:
    model, passes = sharded(net(), 3), 2
    optimizer = sgd(model)
    session = uneven.Session(balance=Moving(), overhead_budget=0.9)
    session.setup(model, optimizer)
    loader = session.loader(TensorDataset(*DATA), X, shuffle=False)
    theirs = net()
    steps = sgd(theirs)
    for _ in range(2):
        parts = zip(*(one.split(X) for one in DATA), strict=True)
        for number, ((x, y), whole) in enumerate(zip(loader, parts, strict=True), 1):
            F.cross_entropy(theirs(whole[0]), whole[1]).backward()
            if number % passes and number < len(loader):
                with session.no_sync():
                    F.cross_entropy(model(x), y).backward()
                if number == 1:
                    with pytest.raises(TrainingError, match=r"must run outside session.no_sync"):
                        optimizer.step()
                continue
            F.cross_entropy(model(x), y).backward()
            for one in (optimizer, steps):
                one.step()
                one.zero_grad()
    equal(model, theirs)
    session.close()


@ranks(3)
def test_a_mean_over_tokens(me: RankContext) -> None:
    model, (x, y) = sharded(net(), 3), DATA
    y = torch.where(torch.arange(N) % 3 == 0, -100, y)
    optimizer = sgd(model)
    session = uneven.Session(balance="static:shares=6/2/4")
    session.setup(model, optimizer)
    theirs = net()
    steps = sgd(theirs)
    loader = session.loader(TensorDataset(x, y), X, shuffle=False)
    for (some, labels), whole, all_labels in zip(loader, x.split(X), y.split(X), strict=True):
        with session.loss_mean((labels != -100).sum()):
            F.cross_entropy(model(some), labels).backward()
        F.cross_entropy(theirs(whole), all_labels).backward()
        for one in (optimizer, steps):
            one.step()
            one.zero_grad()
    equal(model, theirs)
    session.close()


@ranks(3)
def test_mixed_precision(me: RankContext) -> None:
    """Half the numbers' places, so by 2⁻⁸ and not by 10⁻⁶; gradients are summed in float32."""
    model = sharded(net32(), 3, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    session = uneven.Session(balance="static:shares=6/2/4")
    optimizer = sgd(model)
    session.setup(model, optimizer)
    for x, y in session.loader(TensorDataset(*tensors()), X):
        F.cross_entropy(model(x).float(), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    equal(model, reference(1, net32()), 2.0**-6)
    session.close()


@pytest.mark.parametrize("when", ["before", rest("in place"), "after"])
@ranks(2)
def test_compiled(me: RankContext, when: str) -> None:
    """Layers before they are divided, the divided model in place, or what ``setup`` was given."""
    torch._dynamo.reset()
    model = net()
    if when == "before":
        for layer in model:  # type: ignore[attr-defined]
            layer.compile(backend="aot_eager")
    model = sharded(model, 2)
    if when == "in place":
        model.compile(backend="aot_eager")
    session = train(model, wrap=None if when != "after" else lambda one: torch.compile(one, backend="aot_eager"))
    equal(model, reference(2, net(), torch.float64))
    session.close()


@ranks(3)
def test_a_distributed_checkpoint(me: RankContext, tmp_path: str) -> None:
    """Saved by three with one split, gone on from by the same three with another; the session's state goes along."""
    first = sharded(net(), 3)
    optimizer = sgd(first)
    session = uneven.Session(balance="static:shares=6/2/4")
    session.setup(first, optimizer)
    loader = session.loader(TensorDataset(*DATA), X)
    for number, (x, y) in enumerate(loader):
        F.cross_entropy(first(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == 1:
            break
    weights, moments = get_state_dict(first, optimizer)
    dcp.save({"model": weights, "optimizer": moments, "session": session}, checkpoint_id=tmp_path)
    session.close()

    second = sharded(net(), 3)
    optimizer = sgd(second)
    session = uneven.Session(balance="static:shares=1/9/2")
    session.setup(second, optimizer)
    loader = session.loader(TensorDataset(*DATA), X)
    weights, moments = get_state_dict(second, optimizer)
    dcp.load({"model": weights, "optimizer": moments, "session": session}, checkpoint_id=tmp_path)
    set_state_dict(second, optimizer, model_state_dict=weights, optim_state_dict=moments)
    for x, y in loader:
        F.cross_entropy(second(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    equal(second, reference(1, net(), torch.float64))
    session.close()


@ranks(2)
def test_what_is_waited_for_counts_as_waiting(me: RankContext, tmp_path: str) -> None:
    """Two layers of which each worker holds half: parameters come before a pass, gradients go behind it."""
    session = uneven.Session(balance="even", run_dir=tmp_path)
    train_on(session, sharded(net(), 2), 1)
    session.close()
    records = read(Path(tmp_path)).ranks[me.rank]
    steps = [one for one in records if isinstance(one, StepRecord)]
    assert len(steps) == -(-N // X)
    assert all(one.exchange_s > 0.0 for one in steps)
    (line,) = [one for one in records if isinstance(one, LineRecord) and one.line == "gradients"]
    halves = [sum(one.numel() for one in layer.parameters()) * 8 // 2 for layer in (net()[0], net()[2])]  # type: ignore[index]
    assert line.exchanges >= 2 * 2 * len(steps)
    assert line.sent_bytes >= 2 * sum(halves) * len(steps)


def part_of_all(model: nn.Module) -> nn.Module:
    fully_shard(model[0], mesh=init_device_mesh("cpu", (2,)))  # type: ignore[index]
    return model


def over_one(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("a", "b"))
    return fully_shard(model, mesh=mesh["b"])


@ranks(2)
def test_what_is_refused_before_training(me: RankContext) -> None:
    for make, message in ((part_of_all, "FSDPModule|fully_shard holds"), (over_one, "mesh of shape")):
        with uneven.Session() as session, pytest.raises(ConfigError, match=message):
            session.setup(make(net()))
    elsewhere = sharded(net(), 2)
    with patch.object(DeviceMesh, "device_type", "xpu"), pytest.raises(ConfigError, match="do not shard there"):
        check_sharded(elsewhere, 2, "")
    for sync in ("local:every=2", "asp", "shadow:ma"):
        with (
            uneven.Session(sync=sync, balance="even") as session,
            pytest.raises(ConfigError, match=r"fully_shard under sync = "),
        ):
            session.setup(sharded(net(), 2))
    with uneven.Session() as session:
        model = sharded(net(), 2)
        with pytest.raises(ConfigError, match="leave them out"):
            session.setup(model, find_unused_parameters=True)
    with uneven.Session() as session:
        model = session.setup(sharded(net(), 2))
        session.loader(TensorDataset(*DATA), X)
        for caller in (lambda: session.profile(print), lambda: session.evaluate(len, TensorDataset(*DATA))):
            with pytest.raises(ConfigError, match="needs all workers"):
                caller()


@ranks(2)
def test_a_pass_beside_the_hooks(me: RankContext) -> None:
    model = sharded(net(), 2)
    optimizer = sgd(model)
    with uneven.Session() as session:
        session.setup(model, optimizer)
        next(iter(session.loader(TensorDataset(*DATA), X)))
        with pytest.raises(TrainingError, match="no gradients were exchanged"):
            optimizer.step()
