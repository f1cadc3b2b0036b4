"""What would train another model without a word is refused by name; see also tests/idioms."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from session_parts import Numbered, X, net
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, get_worker_info

import uneven
from uneven.errors import ConfigError, DataError, TrainingError
from uneven.policy.core.actions import Exchange, Mean, Moment, Payload, StepPlan
from uneven.policy.core.views import SyncView
from uneven.policy.sync import Facts, SyncPolicy
from uneven.policy.sync.local import LocalSGD
from uneven.testing.ranks import RankContext, ranks

FEATURES, CLASSES = 5, 3


def _started(loader: Any = None, model: nn.Module | None = None, **settings: Any) -> tuple[Any, ...]:
    session = uneven.Session(**settings)
    model = net() if model is None else model
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return session, model, optimizer, session.loader(Numbered() if loader is None else loader, X)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("sync", ["bsp", "local:every=1"])
@ranks(3)
def test_who_leaves_an_epoch_early_is_named_with_its_place(me: RankContext, sync: str) -> None:
    session, model, optimizer, loader = _started(sync=sync, balance="even")

    def train() -> None:
        for _ in range(2):
            for number, (x, y, _) in enumerate(loader):
                _step(model, optimizer, x, y)
                if me.rank == 0 and number == 1:
                    break

    with pytest.raises(TrainingError, match=r"rank 0: iteration \d of epoch 1; rank 1, 2: iteration \d of epoch 0"):
        train()
    session.close()


class _Stream(IterableDataset[Any]):
    def __init__(self, kind: str, rank: int) -> None:
        self._kind, self._rank = kind, rank

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(60, generator=torch.Generator().manual_seed(self._rank * (self._kind == "shuffled")))
        for index in order.tolist():
            if self._kind == "sharded" and index % 3 != self._rank:
                continue
            x = torch.randn(FEATURES, generator=torch.Generator().manual_seed(index))
            if self._kind == "augmented":
                x = x + torch.randn(FEATURES, generator=torch.Generator().manual_seed(60 + index + 60 * self._rank))
            yield x, index % CLASSES, index


class _Index(Dataset[Any]):
    """Sixty samples with an index; each rank has seeds of its own."""

    def __init__(self, kind: str, rank: int) -> None:
        self._kind, self._rank, self._random = kind, rank, torch.Generator().manual_seed(rank)
        order = torch.randperm(60, generator=self._random)
        self._order = order.tolist() if kind == "split" else list(range(60))
        self.file, self.files = io.BytesIO(), {}

    def __len__(self) -> int:
        return 60

    def __getitem__(self, number: int) -> Any:
        index = self._order[number]
        self.opened = self.files["samples"] = True
        if self._kind == "asks":
            assert get_worker_info().id == 0
        if self._kind == "bfloat16":
            return torch.arange(60 + self._rank, dtype=torch.bfloat16)[index : index + 1]
        if self._kind == "object":
            return _Sample(index, {8, 0} if self._rank else {0, 8})
        x = torch.randn(FEATURES, generator=torch.Generator().manual_seed(index))
        if self._kind != "split":
            rare = self._kind == "rare" and torch.rand(1, generator=self._random) > 0.1
            x = x if rare else x + torch.randn(FEATURES, generator=self._random)
        return x if self._kind == "rare" else (x, x.clone()) if self._kind == "views" else (x, index % CLASSES)

    def __del__(self) -> None:
        self.file.close()


class _Sample:
    """Has a set, whose order may differ in each process."""

    def __init__(self, index: int, tags: set[int]) -> None:
        self.index, self.tags = index, tags


@pytest.mark.parametrize("readers", [0, 1])
@ranks(3)
def test_data_sets_that_differ_are_refused_and_random_ones_are_not(me: RankContext, readers: int) -> None:
    for kind in ("views", "augmented", "rare", "bfloat16", "object", *["asks"] * readers):
        session = uneven.Session(balance="even")
        before = torch.random.get_rng_state()
        session.loader(ConcatDataset([dataset := _Index(kind, me.rank)]), X, num_workers=readers)
        assert torch.equal(torch.random.get_rng_state(), before)
        shared = hasattr(dataset, "opened") or dataset.files
        assert not shared, "a file that is opened here would be shared by all readers"
        assert not dataset.file.closed, "what the data set has opened is not closed"
        session.close()
    with (
        uneven.Session(balance="even") as session,
        pytest.raises(DataError, match=r"session.loader: the data set of rank 1, 2 differs from that of rank 0"),
    ):
        session.loader(_Index("split", me.rank), X, num_workers=readers)


@ranks(2)
def test_an_evaluation_on_each_ranks_own_split_is_refused(me: RankContext) -> None:
    session, model, _, _ = _started(balance="even")
    with pytest.raises(DataError, match=r"session.evaluate: the data set of rank 1 differs from that of"):
        session.evaluate(lambda batch: model(batch[0]).sum(), _Index("split", me.rank))
    session.close()


@pytest.mark.parametrize("sync", ["bsp", "shadow:ma"])
@pytest.mark.parametrize("kind", ["sharded", "shuffled", "augmented", "same"])
@ranks(3)
def test_streams_that_differ_between_ranks_are_refused(me: RankContext, sync: str, kind: str) -> None:
    session, model, optimizer, loader = _started(_Stream(kind, me.rank), sync=sync, balance="even")

    def epoch() -> int:
        return sum(_step(model, optimizer, x, y) is None for x, y, _ in loader)

    if kind in ("same", "augmented"):
        assert epoch() == epoch() == -(-60 // X)
    else:
        with pytest.raises(DataError, match=r"stream or sampler of rank 1.* differs from that of rank 0.*set_epoch"):
            epoch()
    session.close()


class _Late(SyncPolicy):
    """Means from the step at ``clock`` on; what it states about itself does not say so."""

    def __init__(self, clock: int, states: bool) -> None:
        self.clock, self.states = clock, states

    @property
    def facts(self) -> Facts | None:
        return replace(LocalSGD(every=1).facts, payloads=()) if self.states else None

    def plan(self, view: SyncView) -> StepPlan:
        if view.clock < self.clock:
            return StepPlan()
        mean = Exchange(payload=Payload.PARAMETERS, members=view.members, merge=Mean(), moment=Moment.STEP)
        return StepPlan(exchanges=(mean,))


@ranks(2)
def test_a_policy_without_facts_is_carried_however_late_its_first_exchange_comes(me: RankContext) -> None:
    session, model, optimizer, loader = _started(sync=_Late(3, states=False), balance="static:shares=2/1")
    begun = [one.detach().clone() for one in model.parameters()]
    for x, y, _ in loader:
        _step(model, optimizer, x, y)
    everybody = [torch.empty_like(begun[0]) for _ in range(2)]
    torch.distributed.all_gather(everybody, next(model.parameters()).detach())
    torch.testing.assert_close(everybody[0], everybody[1])
    session.close()


@ranks(2)
def test_an_exchange_that_nothing_was_made_for_is_refused_when_its_step_comes(me: RankContext) -> None:
    session, model, optimizer, loader = _started(sync=_Late(3, states=True), balance="even")
    batches = iter(loader)
    for _ in range(3):
        x, y, _ = next(batches)
        _step(model, optimizer, x, y)
    with pytest.raises(ConfigError, match=r"step 3 of _Late.*parameters among ranks 0, 1.*facts"):
        next(batches)
    session.close()


class _Recorder:
    """Stands for the meter: the order of what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def ready(self) -> None:
        self.told.append("ready")

    def done(self) -> None:
        self.told.append("done")


@pytest.mark.parametrize("below", [True, False])
def test_each_pass_of_a_synchronised_layer_is_told_as_waiting(below: bool) -> None:
    from uneven.run.gradients.syncnorm import weigh_sync_batch_norm

    seen, layer = _Recorder(), nn.BatchNorm1d(4)
    model = nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 2)) if below else nn.Sequential(layer, nn.Linear(4, 2))
    weigh_sync_batch_norm(model, lambda: 1.0, seen, nn.BatchNorm1d)
    output = model(torch.randn(8, 4))
    assert seen.told == ["ready", "done"]
    output.sum().backward()
    assert seen.told[:4] == ["ready", "done", "ready", "done"]
    assert set(seen.told[4:]) <= {"done"}


@pytest.mark.parametrize("shares", ["even", "static:shares=3/1"])
@ranks(2)
def test_sparse_gradients_are_weighted_like_others(me: RankContext, shares: str) -> None:
    class Bags(nn.Module):
        def __init__(self, sparse: bool) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.bags = nn.EmbeddingBag(40, 6, sparse=sparse)
            self.head = nn.Linear(6, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.bags(x))

    generator = torch.Generator().manual_seed(11)
    ids, labels = torch.randint(0, 40, (50, 4), generator=generator), torch.arange(50) % CLASSES
    data = torch.utils.data.TensorDataset(ids, labels)  # a last part of two samples
    session = uneven.Session(balance=shares)
    model = Bags(True).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    session.setup(model, optimizer)
    for x, y in session.loader(data, 12, shuffle=False):
        _step(model, optimizer, x, y)
    alone = Bags(False).double()
    stepper = torch.optim.SGD(alone.parameters(), lr=0.5)
    for start in range(0, 50, 12):
        _step(alone, stepper, ids[start : start + 12], labels[start : start + 12])
    for own, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-12)
    session.close()
