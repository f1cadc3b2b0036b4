"""A model in which or around which somebody else exchanges something is refused, before setup and after it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from session_parts import X, assert_same, net, reference, sgd, tensors
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import uneven
from uneven.errors import ConfigError
from uneven.testing.ranks import RankContext, ranks

POLICIES = ("bsp", "local:every=2", "shadow:ma", "asp")


class Around(nn.Module):
    """As Lightning Fabric's module is: it has the wrapped model for a part."""

    def __init__(self, wrapped: nn.Module, inner: nn.Module) -> None:
        super().__init__()
        self._forward_module, self.inner = wrapped, [inner]

    def forward(self, x: torch.Tensor) -> Any:
        return self._forward_module(x)


def sharded(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (2,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model


def columns(model: nn.Module) -> nn.Module:
    parallelize_module(model, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel()})
    return model


BEFORE: dict[str, tuple[Callable[[nn.Module], nn.Module], str]] = {
    "ddp": (DistributedDataParallel, "the model is wrapped already: DistributedDataParallel averages"),
    "fabric": (lambda m: Around(DistributedDataParallel(m), m), r"model \(_forward_module\) is wrapped already: Dist"),
    "fsdp1": (lambda m: FullyShardedDataParallel(m, device_id=torch.device("cpu")), "FullyShardedDataParallel holds"),
    "replicate": (replicate, "is wrapped already: replicate averages"),
    "tensor parallel": (columns, "parameter 0.weight is a DTensor"),
}


@ranks(2)
def test_wrapped_before_setup(me: RankContext) -> None:
    for wrap, message in BEFORE.values():
        for sync in ("bsp", "local:every=2"):
            with uneven.Session(sync=sync) as session, pytest.raises(ConfigError, match=message):
                session.setup(wrap(net()))


AFTER: dict[str, tuple[Callable[[nn.Module], nn.Module], str]] = {
    "ddp": (DistributedDataParallel, "averaged twice: leave out DistributedDataParallel"),
    "fabric": (lambda m: Around(DistributedDataParallel(m), m), "averaged twice"),
    "fsdp2": (sharded, "fully_shard holds a part .* since session.setup was called"),
    "fsdp1": (BEFORE["fsdp1"][0], "parameters 0.weight, 0.bias, 2.weight … of the model .* are gone"),
    "replicate": (replicate, "replicate averages its gradients, since session.setup"),
}


@pytest.mark.parametrize("sync", POLICIES)
@ranks(2, join=False)
def test_wrapped_after_setup(me: RankContext, sync: str) -> None:
    for wrap, message in AFTER.values():
        with uneven.Session(sync=sync, balance="even") as session:
            model = net()
            session.setup(model)
            wrapped = wrap(model)
            loader = session.loader(TensorDataset(*tensors()), X)
            with pytest.raises(ConfigError, match=message):
                wrapped(next(iter(loader))[0])


@pytest.mark.parametrize("sync", POLICIES)
@ranks(2, join=False)
def test_the_model_inside_a_wrapper_is_given_to_setup_and_the_wrapper_called(me: RankContext, sync: str) -> None:
    with uneven.Session(sync=sync, balance="even") as session:
        wrapped = DistributedDataParallel(net())
        session.setup(wrapped.module)
        x, _ = next(iter(session.loader(TensorDataset(*tensors()), X)))
        with pytest.raises(ConfigError, match="averaged twice"):
            wrapped(x)
        wrapped.module(x)


class Judged(nn.Module):
    """Has another model, which is no part of it, look at what it does."""

    def __init__(self, judge: nn.Module) -> None:
        super().__init__()
        self.layer, self.judge = nn.Linear(5, 5), [judge]

    def forward(self, x: torch.Tensor) -> Any:
        return self.judge[0](self.layer(x))


@ranks(2)
def test_a_wrapper_around_another_model_is_none_of_ours(me: RankContext) -> None:
    with uneven.Session(balance="even") as session:
        model = net()
        session.setup(model)
        other = DistributedDataParallel(Judged(model))
        for x, _ in session.loader(TensorDataset(*tensors()), X):
            other(x).sum().backward()
        with torch.no_grad():
            model(x)


def another_layer(model: nn.Module) -> None:
    model[2] = nn.Linear(8, 3)


def one_more(model: nn.Module) -> None:
    model.append(nn.Linear(3, 3))


def assigned(model: nn.Module) -> None:
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)


def thawed(model: nn.Module) -> None:
    model[0].requires_grad_(True)


def synchronised(model: nn.Module) -> None:
    model[1] = nn.SyncBatchNorm.convert_sync_batchnorm(model[1])


CHANGED: dict[str, tuple[Callable[[nn.Module], None], str]] = {
    "another layer": (another_layer, "parameters 2.weight, 2.bias of the model that session.setup was given are gone"),
    "one more": (one_more, "parameters 3.weight, 3.bias came into the model after session.setup"),
    "assigned": (assigned, r"0.weight, 0.bias, 1.weight … .* are gone: .*load_state_dict\(assign=True\)"),
    "thawed": (thawed, "parameters 0.weight, 0.bias had requires_grad=False .* freeze after"),
    "synchronised": (synchronised, "1 layers have become SyncBatchNorm after session.setup"),
}


@pytest.mark.parametrize("sync", ["bsp", "local:every=2"])
@pytest.mark.parametrize("late", [False, True])
@ranks(2)
def test_a_model_that_changes_after_setup(me: RankContext, sync: str, late: bool) -> None:
    """At the latest before the next epoch."""
    for change, message in CHANGED.values():
        with uneven.Session(sync=sync, balance="even") as session:
            model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
            model[0].requires_grad_(False)
            session.setup(model)
            loader = session.loader(TensorDataset(*tensors()), X)
            if late:
                for _ in loader:
                    pass
            change(model)
            with pytest.raises(ConfigError, match=message):
                next(iter(loader))


@pytest.mark.parametrize("sync", ["bsp", "local:every=1"])
@ranks(2)
def test_a_layer_that_thaws_within_an_epoch(me: RankContext, sync: str) -> None:
    """As each epoch is in a loop over ``session.step``, which has one without an end."""
    with uneven.Session(sync=sync, balance="even") as session:
        model = net()
        model[0].requires_grad_(False)
        session.setup(model, optimizer := sgd(model))
        for number, (x, y) in enumerate(session.loader(TensorDataset(*tensors()), X)):
            model[0].requires_grad_(number == 2)
            F.cross_entropy(model(x), y).backward()
            if number == 2:
                with pytest.raises(ConfigError, match="had requires_grad=False when"):
                    optimizer.step()
                break
            optimizer.step()
            optimizer.zero_grad()


@ranks(2)
def test_layers_frozen_after_setup_may_thaw(me: RankContext) -> None:
    theirs = net()
    steps = sgd(theirs)
    with uneven.Session(balance="even") as session:
        model = net()
        model, optimizer = session.setup(model, sgd(model), find_unused_parameters=True)
        loader = session.loader(TensorDataset(*tensors()), X, shuffle=False)
        for epoch in range(2):
            for one in (model, theirs):
                one[0].requires_grad_(epoch > 0)
            for (x, y), (whole_x, whole_y) in zip(loader, whole(), strict=True):
                F.cross_entropy(model(x), y).backward()
                F.cross_entropy(theirs(whole_x), whole_y).backward()
                for one in (optimizer, steps):
                    one.step()
                    one.zero_grad()
    assert_same(model, theirs)


def whole() -> list[tuple[torch.Tensor, torch.Tensor]]:
    x, y = tensors()
    return list(zip(x.split(X), y.split(X), strict=True))


@ranks(2)
def test_parameters_that_are_replaced_for_one_call_are_not_gone(me: RankContext) -> None:
    with uneven.Session(balance="even") as session:
        model = net()
        model, optimizer = session.setup(model, sgd(model))
        for x, y in session.loader(TensorDataset(*tensors()), X):
            same = {name: one * 1.0 for name, one in model.named_parameters()}
            F.cross_entropy(torch.func.functional_call(model, same, (x,)), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_same(model, reference(1, net()))


@ranks(2)
def test_a_model_that_is_compiled_afterwards(me: RankContext) -> None:
    """Its hooks run beside what is compiled."""
    torch._dynamo.reset()
    with uneven.Session(sync="local:every=2", balance="even") as session:
        model = net()
        session.setup(model)
        compiled = torch.compile(model, backend="eager")
        x, _ = next(iter(session.loader(TensorDataset(*tensors()), X)))
        compiled(x).sum().backward()
        wrapped = DistributedDataParallel(compiled)
        with pytest.raises(ConfigError, match="averaged twice"):
            wrapped(x)
