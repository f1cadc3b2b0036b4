"""Models that something else carries, ranks that do not do the same, and calls that do not belong together."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from idiom_base import (
    EPOCHS,
    OWN_PACE,
    Agrees,
    Refused,
    Unfit,
    X,
    apart,
    idiom,
    mlp,
    samples,
    sgd,
    started,
    step,
    tensors,
)
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from uneven.policy.core.actions import Exchange, Mean, Moment, Payload, StepPlan
from uneven.policy.core.views import SyncView
from uneven.policy.sync import EvaluationModel, SyncPolicy

WRAPPED = "Wrapped models"
SESSIONS = "Sessions and ranks"


def loop(session: Any, model: nn.Module, optimizer: Any = None) -> nn.Module:
    optimizer = sgd(model) if optimizer is None else optimizer
    loader = session.loader(samples(), X)
    for _ in range(EPOCHS):
        for x, y in loader:
            step(model, optimizer, x, y)
    return model


@idiom("`DistributedDataParallel(model)` before `setup`", WRAPPED, expect=Refused(r"DistributedDataParallel"))
def ddp_before(session: Any) -> nn.Module:
    return loop(session, session.setup(DistributedDataParallel(mlp())))


@idiom("`DistributedDataParallel(model)` after `setup`", WRAPPED, expect=Refused(r"DistributedDataParallel"))
def ddp_after(session: Any) -> nn.Module:
    return loop(session, DistributedDataParallel(session.setup(mlp())))


class Wrapper(nn.Module):
    """As Fabric's: a module around the DDP module, which hands on what it does not know."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self._forward_module = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward_module(*args, **kwargs)


@idiom("a module around DDP (Lightning Fabric's `setup`) before `setup`", WRAPPED,
       expect=Refused(r"DistributedDataParallel"))  # fmt: skip
def fabric_before(session: Any) -> nn.Module:
    return loop(session, session.setup(Wrapper(DistributedDataParallel(mlp()))))


@idiom("a module around DDP (Lightning Fabric's `setup`) after `setup`", WRAPPED,
       expect=Refused(r"DistributedDataParallel"))  # fmt: skip
def fabric_after(session: Any) -> nn.Module:
    return loop(session, Wrapper(DistributedDataParallel(session.setup(mlp()))))


class Accelerator:
    """As Accelerate's, as far as a model goes: DDP around it, and a forward pass under autocast."""

    def prepare(self, model: nn.Module) -> nn.Module:
        model = DistributedDataParallel(model)
        inner = model.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast("cpu", enabled=False):
                return inner(*args, **kwargs)

        model.forward = forward  # type: ignore[method-assign]
        return model


@idiom("`accelerator.prepare(model)` (Accelerate) after `setup`", WRAPPED, expect=Refused(r"DistributedDataParallel"))
def accelerate_after(session: Any) -> nn.Module:
    return loop(session, Accelerator().prepare(session.setup(mlp())))


@idiom("`DataParallel(model)` before `setup`, on the CPU (no effect there)", WRAPPED)
def data_parallel_before(session: Any) -> nn.Module:
    return loop(session, session.setup(nn.DataParallel(mlp())))


def fully_sharded(model: nn.Module) -> nn.Module:
    if not dist.is_initialized():  # one process, to compare with
        return model
    return fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),)))


def divisible() -> nn.Module:
    """By four workers."""
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4))


@idiom("FSDP2's `fully_shard(model)` before `setup`", WRAPPED,
       by=dict.fromkeys(("local", *OWN_PACE), Refused("fully_shard under sync")))  # fmt: skip
def fsdp2_before(session: Any) -> nn.Module:
    model = loop(session, session.setup(fully_sharded(divisible())))
    whole = divisible()
    whole.load_state_dict(
        {name: one.full_tensor() if isinstance(one, DTensor) else one for name, one in model.state_dict().items()}
    )
    return whole


@idiom("FSDP2's `fully_shard(model)` after `setup`", WRAPPED, expect=Refused("fully_shard|FSDP"))
def fsdp2_after(session: Any) -> nn.Module:
    return loop(session, fully_sharded(session.setup(divisible())))


@idiom("`model.forward(x)` or parts of the model, past its hooks", WRAPPED,
       expect=Refused("no gradients were exchanged"), by=apart("exchanges parameters"))  # fmt: skip
def past_the_hooks(session: Any) -> nn.Module:
    model = mlp()
    model, optimizer = session.setup(model, sgd(model))
    for x, y in session.loader(samples(), X):
        F.cross_entropy(model.forward(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@idiom("ranks start with different weights (`setup` broadcasts rank 0's)", SESSIONS, like="plain_loop")
def own_weights(session: Any) -> nn.Module:
    model = mlp()
    with torch.no_grad():
        for one in model.parameters():
            one += session.rank
    return loop(session, session.setup(model))


@idiom("weights loaded on rank 0 alone, before `setup`", SESSIONS)
def loaded_before(session: Any) -> nn.Module:
    model = mlp()
    if session.rank == 0:
        model.load_state_dict({name: 0.5 * one for name, one in mlp().state_dict().items()})
    return loop(session, session.setup(model))


@idiom("weights loaded on rank 0 alone, after `setup`", SESSIONS,
       expect=Refused("weight differs, with sums of"), by=apart("exchanges parameters"))  # fmt: skip
def loaded_after(session: Any) -> nn.Module:
    model = session.setup(mlp())
    if session.rank == 0:
        model.load_state_dict({name: 0.5 * one for name, one in mlp().state_dict().items()})
    return loop(session, model)


@idiom("`load_state_dict(assign=True)` after `setup`", SESSIONS, expect=Refused("find_unused_parameters|setup"))
def assigned(session: Any) -> nn.Module:
    model = session.setup(mlp())
    model.load_state_dict(mlp().state_dict(), assign=True)
    return loop(session, model)


@idiom("ranks with different models", SESSIONS, expect=Refused("ranks differ"))
def other_model(session: Any) -> nn.Module:
    model = nn.Linear(5, 3) if session.rank == 1 else mlp()
    return loop(session, session.setup(model))


@idiom("ranks with different global batches", SESSIONS, expect=Refused("ranks differ in batch_size"))
def other_batch(session: Any) -> nn.Module:
    model = session.setup(mlp())
    session.loader(samples(), X + session.rank)
    return model


@idiom("the loop without `setup`", SESSIONS, expect=Refused(r"session\.setup was not called"))
def without_setup(session: Any) -> nn.Module:
    return loop(session, mlp())


@idiom("`setup` for each of two models", SESSIONS, expect=Refused(r"setup was called twice"))
def setup_twice(session: Any) -> Any:
    return [session.setup(mlp()), session.setup(mlp())]


@idiom("`session.loader` twice", SESSIONS, expect=Refused(r"loader was called twice"))
def loader_twice(session: Any) -> nn.Module:
    model, _, _ = started(session)
    session.loader(samples(), X)
    return model


@idiom("a second session for a second model, one loader for both", SESSIONS, expect=Refused("session"))
def second_session(session: Any) -> Any:
    first, of_first, loader = started(session)
    with session.another() as another:
        second = mlp()
        second, of_second = another.setup(second, sgd(second))
        for _ in range(EPOCHS):
            for x, y in loader:
                step(first, of_first, x, y)
                step(second, of_second, x, y)
    return [first, second]


@idiom("a NaN on one rank, with `nonfinite='raise'`", SESSIONS, expect=Refused("rank 1 in iteration 1"),
       options={"nonfinite": "raise"}, by=dict.fromkeys(("local", "shadow:ma", "asp"), Unfit("not tried")),
       shown="tests/ranks/test_exactness.py::test_a_gradient_that_is_not_finite_names_rank_and_iteration")  # fmt: skip
def one_nan(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for number, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        if session.rank == 1 and number == 1:
            loss = loss * float("nan")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


class LocalSGD(SyncPolicy):
    """As the architecture page prints it."""

    evaluation_model = EvaluationModel.MEAN

    def __init__(self, every: int) -> None:
        self.every = every

    def plan(self, view: SyncView) -> StepPlan:
        if (view.clock + 1) % self.every:
            return StepPlan()
        mean = Exchange(payload=Payload.PARAMETERS, members=view.members, merge=Mean(), moment=Moment.STEP)
        return StepPlan(exchanges=(mean,))


@idiom("a custom policy without `facts`, whose first exchange is at step 3", SESSIONS,
       expect=Agrees("replicas are averaged after every third step"), options={"sync": LocalSGD(3)},
       by=dict.fromkeys(("local", "shadow:ma", "asp"), Unfit("it is the policy")))  # fmt: skip
def own_policy(session: Any) -> nn.Module:
    model, optimizer, loader = started(session)
    for _ in range(EPOCHS):
        for x, y in loader:
            step(model, optimizer, x, y)
    gap = torch.stack([one.detach().abs().sum() for one in model.parameters()]).sum()
    rows = [torch.empty_like(gap) for _ in range(session.world_size)]
    dist.all_gather(rows, gap)
    assert len(tensors()) == 2
    return model
