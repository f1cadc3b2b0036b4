"""Training on moving, unequal shares ends where one process on the union batch ends."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from uneven.errors import ConfigError, NonFiniteError, TrainingError
from uneven.policy.balance import Balancer
from uneven.policy.core.actions import Split
from uneven.policy.core.apportion import proportional
from uneven.policy.core.views import BalanceView
from uneven.policy.samples.order import epoch_order
from uneven.run.gradients.syncnorm import weigh_sync_batch_norm
from uneven.run.lines import staging
from uneven.run.start.connect import Connection
from uneven.testing.ranks import RankContext, ranks
from uneven.testing.staging import staging_forced
from uneven_bench.inside import inside

X = 24
SAMPLES = 98  # four full iterations and a last part of 2, fewer than there are workers
FEATURES, CLASSES = 6, 3


class Moving(Balancer):
    """Another very unequal split after every report."""

    def split(self, view: BalanceView) -> Split:
        weights = [1.0 + (7 * view.iteration + 3 * rank) % 11 for rank in view.members]
        return Split(proportional(weights, view.global_batch, view.limits))


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(SAMPLES, FEATURES, generator=generator)
    return TensorDataset(x, torch.randint(0, CLASSES, (SAMPLES,), generator=generator))


def mlp() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.a = nn.Linear(FEATURES, FEATURES)
        self.b = nn.Linear(FEATURES, FEATURES)
        self.b.weight = self.a.weight
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.b(torch.tanh(self.a(x)))))


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.used = nn.Linear(FEATURES, CLASSES)
        self.spare = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


class Sides(nn.Module):
    """Two parts of one size, whose gradients are ready in another order if they are called in another order."""

    def __init__(self, *, turned: bool = False) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.parts = nn.ModuleList([nn.Linear(FEATURES, CLASSES), nn.Linear(FEATURES, CLASSES)])
        self._order = (1, 0) if turned else (0, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = {place: self.parts[place](x) for place in self._order}
        return found[0] + 2.0 * found[1]


def frozen() -> nn.Module:
    model = mlp()
    model[0].weight.requires_grad_(False)
    return model


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


Make = tuple[Callable[[], nn.Module], Callable[[nn.Module], torch.optim.Optimizer]]
CASES: dict[str, Make] = {
    "momentum and weight decay": (mlp, sgd),
    "adam": (mlp, adam),
    "tied": (Tied, sgd),
    "unused": (Unused, sgd),
    "frozen": (frozen, sgd),
}


def alone(make: Make, *, epochs: int, clip: float | None = None, autocast: bool = False) -> nn.Module:
    """One process, plain PyTorch, the same samples in the same order."""
    model = make[0]()
    optimizer = make[1](model)
    x, y = dataset().tensors
    for epoch in range(epochs):
        order = torch.from_numpy(epoch_order(length=SAMPLES, seed=0, epoch=epoch))
        for part in order.split(X):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = F.cross_entropy(model(x[part]), y[part])
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return model


def together(
    make: Make, *, epochs: int, clip: float | None = None, autocast: bool = False, unused: bool = False
) -> tuple[nn.Module, set[tuple[int, ...]]]:
    """The same on all ranks with a split that never stands still; also every split that was used."""
    splits = set()
    with uneven.Session(balance=Moving()) as session:
        model = make[0]()
        model, optimizer = session.setup(model, make[1](model), find_unused_parameters=unused)
        loader = session.loader(dataset(), global_batch_size=X)
        for _ in range(epochs):
            for x, y in loader:
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    loss = F.cross_entropy(model(x), y)
                loss.backward()
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
                splits.add(session.shares)
    return model, splits


def assert_same(ours: nn.Module, theirs: nn.Module, tolerance: float = 2e-6) -> None:
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("case", CASES)
@ranks(4)
def test_equals_one_process_on_the_union_batch(me: RankContext, case: str) -> None:
    model, splits = together(CASES[case], epochs=3, unused=case == "unused")
    assert len(splits) > 5, "the split did not move"
    assert_same(model, alone(CASES[case], epochs=3))


@ranks(4)
def test_workers_that_copy_next_to_others_that_need_no_copies(me: RankContext) -> None:
    """As a GPU next to a CPU: both put the same numbers into the same exchanges."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "forced", me.rank % 2 == 0)
        patch.setattr(Connection, "found", lambda connection, kinds: setattr(connection, "staged", True))
        model, _ = together(CASES["unused"], epochs=3, unused=True)
    assert_same(model, alone(CASES["unused"], epochs=3))


@ranks(2)
def test_with_copies_all_take_the_first_ones_order_of_gradients(me: RankContext) -> None:
    with staging_forced():
        model, _ = together((partial(Sides, turned=me.rank == 1), sgd), epochs=2)
    assert_same(model, alone((Sides, sgd), epochs=2))


@ranks(4)
def test_clipping_after_the_exchange(me: RankContext) -> None:
    model, _ = together((mlp, sgd), epochs=2, clip=0.05)
    assert_same(model, alone((mlp, sgd), epochs=2, clip=0.05))


@ranks(4)
def test_autocast_to_bfloat16(me: RankContext) -> None:
    model, _ = together((mlp, sgd), epochs=2, autocast=True)
    assert_same(model, alone((mlp, sgd), epochs=2, autocast=True), tolerance=2e-2)


@ranks(4)
def test_naive_averaging_would_differ(me: RankContext) -> None:
    """The guard of this file: equal weights on unequal shares are noticed."""
    with uneven.Session(balance=Moving()) as session:
        model = mlp()
        model, optimizer = session.setup(model, sgd(model))
        inside(session).gradients.turn_now = lambda: None  # weights stay at 1/n
        loader = session.loader(dataset(), global_batch_size=X)
        for _ in range(3):
            for x, y in loader:
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
    with pytest.raises(AssertionError):
        assert_same(model, alone((mlp, sgd), epochs=3))


@pytest.mark.parametrize("synced", [False, True])
@ranks(4)
def test_gradient_accumulation(me: RankContext, synced: bool) -> None:
    """Three backward passes per step, with and without an exchange after each; shares move in between."""
    passes = 3
    reference = mlp()
    steps = sgd(reference)
    x, y = dataset().tensors
    with uneven.Session(balance=Moving()) as session:
        model = mlp()
        model, optimizer = session.setup(model, sgd(model))
        loader = session.loader(dataset(), global_batch_size=X)
        count = 0
        for epoch in range(3):
            parts = torch.from_numpy(epoch_order(length=SAMPLES, seed=0, epoch=epoch)).split(X)
            for (mine, labels), part in zip(loader, parts, strict=True):
                count += 1
                (F.cross_entropy(reference(x[part]), y[part]) / passes).backward()
                last = count % passes == 0
                if synced or last:
                    (F.cross_entropy(model(mine), labels) / passes).backward()
                else:
                    with session.no_sync():
                        (F.cross_entropy(model(mine), labels) / passes).backward()
                if last:
                    for one in (optimizer, steps):
                        one.step()
                        one.zero_grad()
    assert_same(model, reference)


@ranks(2)
def test_a_step_on_gradients_that_were_not_exchanged_is_refused(me: RankContext) -> None:
    with uneven.Session() as session:
        model = mlp()
        model, optimizer = session.setup(model, sgd(model))
        loader = session.loader(dataset(), global_batch_size=X)
        x, y = next(iter(loader))
        with session.no_sync():
            F.cross_entropy(model(x), y).backward()
        with pytest.raises(TrainingError, match="no_sync"):
            optimizer.step()


@ranks(4)
def test_batch_norm_statistics_are_the_weighted_mean(me: RankContext) -> None:
    torch.manual_seed(4)
    plain = nn.BatchNorm1d(FEATURES)
    model = nn.Sequential(plain, nn.Linear(FEATURES, CLASSES))
    before = copy.deepcopy(plain)
    with uneven.Session(balance="static:shares=1/2/4/5") as session:
        session.setup(model)
        loader = session.loader(dataset(), global_batch_size=X, min_batch=2)
        x, y = next(iter(loader))
        F.cross_entropy(model(x), y).backward()
        before(x)
        expected = before.running_var * (len(x) / X)
        dist.all_reduce(expected)
        torch.testing.assert_close(plain.running_var, expected)
        everybody = [torch.empty_like(plain.running_mean) for _ in range(me.size)]
        dist.all_gather(everybody, plain.running_mean)
        assert all(torch.equal(one, everybody[0]) for one in everybody)


class _AllSum(torch.autograd.Function):
    """Sum over the ranks, forwards and backwards."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: object, *gradient: torch.Tensor) -> torch.Tensor:
        g = gradient[0].clone()
        dist.all_reduce(g)
        return g


class CpuSyncBatchNorm(nn.BatchNorm1d):
    """torch's own refuses CPU tensors; this one does the same arithmetic, so that our weights can be tested."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = _AllSum.apply(torch.tensor([float(len(x))]))
        mean = _AllSum.apply(x.sum(0)) / count
        variance = _AllSum.apply((x - mean).square().sum(0)) / count
        return F.relu_((x - mean) / (variance + self.eps).sqrt() * self.weight + self.bias)


@ranks(4)
def test_synchronised_batch_norm(me: RankContext) -> None:
    def build(norm: type[nn.Module]) -> nn.Module:
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(FEATURES, 8), norm(8), nn.Linear(8, CLASSES))

    whole = build(nn.BatchNorm1d)
    whole.insert(2, nn.ReLU())
    x, y = dataset().tensors
    part = torch.from_numpy(epoch_order(length=SAMPLES, seed=0, epoch=0))[:X]
    F.cross_entropy(whole(x[part]), y[part]).backward()
    with uneven.Session(balance="static:shares=1/2/4/5") as session:
        model = session.setup(build(CpuSyncBatchNorm))
        gradients = inside(session).gradients
        weigh_sync_batch_norm(model, lambda: gradients.turn.weight * me.size, gradients.observer, CpuSyncBatchNorm)
        mine, labels = next(iter(session.loader(dataset(), global_batch_size=X)))
        F.cross_entropy(model(mine), labels).backward()
    for (name, a), b in zip(model.named_parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


@ranks(2)
def test_a_gradient_that_is_not_finite_names_rank_and_iteration(me: RankContext) -> None:
    with uneven.Session(nonfinite="raise") as session:
        model = session.setup(mlp())
        loader = session.loader(dataset(), global_batch_size=X)
        for iteration, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y)
            if iteration == 2:
                if me.rank == 1:
                    with pytest.raises(NonFiniteError, match="rank 1 in iteration 2"):
                        (loss * float("nan")).backward()
                else:
                    loss.backward()
                break
            loss.backward()


@ranks(2)
def test_unused_parameters_are_named(me: RankContext) -> None:
    with uneven.Session() as session:
        model = session.setup(Unused())
        loader = session.loader(dataset(), global_batch_size=X)

        def one_epoch() -> None:
            for x, y in loader:
                F.cross_entropy(model(x), y).backward()

        with pytest.raises(TrainingError, match=r"find_unused_parameters=True"):
            one_epoch()


@ranks(2)
def test_a_wrapped_model_is_refused(me: RankContext) -> None:
    with uneven.Session() as session, pytest.raises(ConfigError, match=r"model\.module"):
        session.setup(nn.parallel.DistributedDataParallel(mlp()))


@ranks(2)
def test_training_without_setup_is_refused(me: RankContext) -> None:
    with uneven.Session() as session:
        loader = session.loader(dataset(), global_batch_size=X)
        with pytest.raises(ConfigError, match=r"session\.setup was not called"):
            next(iter(loader))
