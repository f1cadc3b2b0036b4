"""One worker's side of a parameter server, without others; the shard is a thread of this process."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from uneven.errors import CheckpointError, ConfigError, NonFiniteError, TrainingError
from uneven.policy.core.actions import Combined, Exchange, Moment, Payload, StepPlan, Via
from uneven.policy.core.records import ExchangeRecord
from uneven.policy.core.views import SyncView
from uneven.policy.merge import Kept, Merge
from uneven.policy.merge.merge import OuterMovement
from uneven.policy.samples.order import Portion
from uneven.policy.sync import EvaluationModel, SyncPolicy, policies
from uneven.run.replicas.server.client_copy import ServerParameters
from uneven.run.replicas.server.outer_round import check_shards
from uneven.run.samples.async_sampling.leased_samples import NoLeases
from uneven.runtime.parameter_server.client import Client, Reply
from uneven_bench.inside import inside

N, X = 22, 4


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(N, 5, generator=generator), torch.randint(0, 3, (N,), generator=generator))


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


class Worker:
    """A session under some policy, alone."""

    def __init__(self, sync: str | SyncPolicy, **options: str) -> None:
        self.session = uneven.Session(sync=sync, balance="even", timeout_s=20, nonfinite=options.get("nonfinite"))
        self.model = net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.5)
        self.session.setup(self.model, self.optimizer)
        self.loader = self.session.loader(data(), X, shuffle=False)
        self.records: list[ExchangeRecord] = []
        inside(self.session).records(self.records.append)

    def epoch(self, spoil: int | None = None) -> None:
        for count, (x, y) in enumerate(self.loader):
            step(self.model, self.optimizer, x, y)
            if count == spoil:
                with torch.no_grad():
                    next(self.model.parameters()).fill_(torch.nan)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


def plain(epochs: int) -> nn.Module:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    for _ in range(epochs):
        for start in range(0, N, X):
            x, y = data()[start : start + X]
            step(model, optimizer, x, y)
    return model


@dataclass(frozen=True, slots=True)
class SignPush(Merge):
    """Pushes the signs of a movement, as a merge that somebody else has written."""

    rate: float = 0.01
    truly: float = 1.0  # what its own arithmetic takes in of what the server does

    combined = Combined.SUM
    payloads = frozenset({Payload.DELTA})

    def contribute(self, own: torch.Tensor, kept: Kept, *, in_place: bool = False) -> torch.Tensor:
        return own.sign()

    def combine(
        self, kept: Kept, given: torch.Tensor, weight: float, *, in_place: bool = False
    ) -> tuple[Kept, torch.Tensor]:
        centre = kept["centre"] + self.truly * self.rate * given
        return {"centre": centre}, centre

    def served(self, payload: Payload) -> float | None:
        return self.rate if payload is Payload.DELTA else None


class Pushed(SyncPolicy):
    evaluation_model = EvaluationModel.CENTRE

    def __init__(self, merge: Merge) -> None:
        self.merge = merge

    def plan(self, view: SyncView) -> StepPlan:
        push = Exchange(
            payload=Payload.DELTA, members=view.members, merge=self.merge, moment=Moment.STEP, via=Via.SERVER
        )
        return StepPlan(exchanges=(push,))


def test_a_merge_of_ones_own_goes_through_the_shared_copy_where_the_server_can_do_it() -> None:
    worker, start = Worker(Pushed(SignPush(0.25))), net()
    worker.epoch()
    with worker.session.evaluation_model():
        for one, before in zip(worker.model.parameters(), start.parameters(), strict=True):
            votes = (one - before) / 0.25
            torch.testing.assert_close(votes, votes.round())
        variance = worker.model[1].running_var  # type: ignore[index]
        assert ((variance / 0.25).round() != variance / 0.25).any(), "statistics move by the factor times their own"
    worker.session.close()
    lying = Worker(Pushed(SignPush(0.25, truly=2.0)))
    with pytest.raises(ConfigError, match=r"SignPush.*adds 0.25 times the movement.*another result"):
        lying.epoch()
    lying.session.close()


@pytest.mark.parametrize("sync", ["asp", "ssp", "backup"])
def test_alone_it_is_the_plain_loop_with_batch_norms_statistics(sync: str) -> None:
    worker, reference = Worker(sync), plain(2)
    worker.epoch()
    worker.epoch()
    with worker.session.evaluation_model():
        for one, other in zip(worker.model.state_dict().values(), reference.state_dict().values(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    worker.session.close()
    assert [(one.gap, one.late, one.dropped) for one in worker.records] == [(1, 0, 0)] * 12
    assert sum(one.samples for one in worker.records) == 2 * N


@pytest.mark.parametrize(("sync", "count"), [("asp", 6), ("backup", 0)])
def test_after_a_resume_updates_are_numbered_as_the_server_counts_them(
    sync: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new server counts means of gradients from 0; of other updates it takes each worker's own number."""
    before = Worker(sync)
    before.epoch()
    state, begin, begun = before.session.state_dict(), ServerParameters.begin, []
    before.session.close()

    def noted(copy: ServerParameters, loaded: Any, clock: int = 0) -> None:
        begun.append(clock)
        begin(copy, loaded, clock)

    monkeypatch.setattr(ServerParameters, "begin", noted)
    after = Worker(sync)
    after.session.load_state_dict(state)
    after.epoch()
    after.session.close()
    assert begun == [count]


def test_what_a_shadow_has_not_been_told_of_is_in_the_copy_before_it_is_shown() -> None:
    worker = Worker("shadow:asp")
    worker.epoch()
    own = worker.model[0].weight.clone()  # type: ignore[index]
    with worker.session.evaluation_model():
        torch.testing.assert_close(worker.model[0].weight, own, rtol=1e-5, atol=1e-6)  # type: ignore[index]
    assert {one.moment for one in worker.records} == {"background"}
    assert sum(one.samples for one in worker.records) == N
    worker.session.close()


class Noting(NoLeases):
    """Notes what is in an update, as where workers leave and join."""

    notes = True


@pytest.mark.parametrize("sync", ["shadow:load=1:asp", "shadow:load=1:easgd"])
def test_a_shadow_gives_what_was_noted_for_it_and_no_later_step(sync: str) -> None:
    worker = Worker(sync)
    agreement: Any = inside(worker.session).sync
    agreement.aggregator.claims = Noting()
    noted: list[torch.Tensor] = []
    given: list[torch.Tensor] = []
    aggregator, later = agreement.aggregator, threading.Event()
    gives, swap, meet = aggregator.gives, aggregator.copy.swap, aggregator.meet

    def ordered(order: Any, background: bool) -> Any:
        noted.append(agreement._replica.flat.read())
        return gives(order, background)

    def held_up(*order: Any, **how: Any) -> Any:  # the shadow's thread is slow to begin
        assert later.wait(20.0)
        return meet(*order, **how)

    def swaps(exchange: Exchange, step: int, own: Any, due: int) -> Any:
        given.append(torch.from_numpy(own.copy()))
        return swap(exchange, step, own, due)

    aggregator.gives, aggregator.meet, aggregator.copy.swap = ordered, held_up, swaps
    for place, (x, y) in enumerate(worker.loader):
        step(worker.model, worker.optimizer, x, y)
        if place == 2:
            later.set()
            break
    agreement._thread.wait()
    assert torch.equal(given[0], noted[0])
    assert not torch.equal(given[0], agreement._replica.flat.read()), "there were later steps"
    worker.session.close()


class Ledger(Noting):
    """Notes it as a list."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def learnt(self, part: Portion) -> None:
        self.seen.append(("learnt", part.iteration))

    def gives(self, update: int) -> None:
        self.seen.append(("gives", update))

    def gave(self) -> None:
        self.seen.append(("gave", 0))


@pytest.mark.parametrize("trained", [True, False])
def test_an_evaluation_in_the_midst_of_a_step_notes_what_it_gives(trained: bool) -> None:
    worker = Worker("asp")
    agreement: Any = inside(worker.session).sync
    agreement.aggregator.claims = ledger = Ledger()
    for place, (x, y) in enumerate(worker.loader):
        if place == 1 and not trained:
            with worker.session.evaluation_model():
                pass
        step(worker.model, worker.optimizer, x, y)
        if place == 1 and trained:
            for _ in range(2):
                with worker.session.evaluation_model():
                    pass
        if place == 2:
            break
    first = [("learnt", 0), ("gives", 1), ("gave", 0)]
    within = [("gives", 1), ("gave", 0), ("learnt", 1)]
    if trained:
        within = [("learnt", 1), *[("gives", 2), ("gave", 0)] * 2]
    assert ledger.seen[:-1] == [*first, *within, ("gives", 2), ("gave", 0)]
    assert ledger.seen[-1] == ("learnt", 2)
    worker.session.close()


@pytest.mark.parametrize(("quorum", "shards", "carried"), [(2, 1, True), (2, 2, False), (1, 4, True), (3, 4, True)])
def test_a_quorum_of_some_is_refused_where_shards_could_wait_for_different_ones(
    quorum: int, shards: int, carried: bool
) -> None:
    policy = policies.resolve(f"decoupled:every=2,quorum={quorum}")
    with contextlib.nullcontext() if carried else pytest.raises(ConfigError, match="use --servers 1, or quorum=3"):
        check_shards(policy, (0, 1, 2), dict.fromkeys(range(3), ""), shards)
    with contextlib.nullcontext() if 1 in (quorum, shards) else pytest.raises(ConfigError, match="quorum of"):
        check_shards(policy, (0, 1, 2), dict.fromkeys(range(3), ""), shards, changes=True)


def group_net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 6), nn.GroupNorm(2, 6), nn.Tanh(), nn.Linear(6, 3))


def test_outer_steps_are_taken_on_the_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"running statistics \('1'\).*use group norm"):
        Worker("decoupled")
    monkeypatch.setattr(f"{__name__}.net", group_net)
    worker, reference = Worker("decoupled:every=1,quorum=1,outer_lr=1.0,outer_momentum=0.0"), group_net()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.5)
    agreement: Any = inside(worker.session).sync
    for place, (x, y) in enumerate(worker.loader):
        assert torch.equal(x, data()[X * place : X * (place + 1)][0])
        for model, stepping in ((worker.model, worker.optimizer), (reference, optimizer)):
            step(model, stepping, x, y)
        agreement._thread.wait()
    with worker.session.evaluation_model():
        for one, other in zip(worker.model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert {one.moment for one in worker.records} == {"background"}
    worker.session.close()


def test_a_merge_that_takes_another_outer_step_than_it_says_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.net", group_net)
    monkeypatch.setattr(OuterMovement, "served_step", lambda merge: (0.5, 1.0))
    worker = Worker("decoupled:every=1,quorum=1,outer_momentum=0.9")
    with pytest.raises(ConfigError, match=r"OuterMovement.*its combine\(\) gives another result"):
        worker.epoch()
    worker.session.close()


@pytest.mark.parametrize("sync", ["asp", "backup"])
def test_what_is_no_number_never_comes_into_the_copy(sync: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mean = Client.mean

    def late(client: Client, step: int) -> Reply:
        time.sleep(0.05)  # the shard has long refused what the mean is asked for with
        return mean(client, step)

    monkeypatch.setattr(Client, "mean", late)
    worker = Worker(sync)
    with pytest.warns(RuntimeWarning, match="non-finite movement on rank 0"):
        worker.epoch(spoil=2)
    assert [one.dropped for one in worker.records] == [0, 0, 1, 0, 0], "the third is dropped, and the fourth says so"
    assert all(one.isfinite().all() for one in worker.model.parameters()), "it went on from the copy"
    worker.session.close()
    strict = Worker(sync, nonfinite="raise")
    with pytest.raises(NonFiniteError):
        strict.epoch(spoil=0)
    strict.session.close()


def test_a_replica_that_no_exchange_takes_along_any_more_is_looked_at_before_the_evaluation() -> None:
    worker = Worker("easgd:every=4", nonfinite="raise")
    worker.epoch(spoil=4)  # an exchange has followed the fourth step, none follows the sixth and last
    with pytest.raises(NonFiniteError), worker.session.evaluation_model():
        pass
    worker.session.close()


def test_a_loop_that_was_left_has_its_last_step_in_the_copy_before_it_is_shown() -> None:
    worker = Worker("asp")
    for x, y in worker.loader:
        step(worker.model, worker.optimizer, x, y)
        break
    own = worker.model[0].weight.clone()  # type: ignore[index]
    assert worker.records == []
    with worker.session.evaluation_model():
        torch.testing.assert_close(worker.model[0].weight, own)  # type: ignore[index]
    assert len(worker.records) == 1
    worker.session.close()


def test_a_checkpoint_holds_the_evaluated_copy_and_not_the_narrower_replica() -> None:
    session = uneven.Session(sync="easgd:every=2", timeout_s=20)
    model = nn.Linear(5, 3).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session.setup(model, optimizer)
    for x, y in session.loader(data(), X):
        step(model, optimizer, x.to(torch.bfloat16), y)
    with session.evaluation_model():
        shown = session.state_dict()["vectors"]["centre"]
    copy = session.state_dict()["vectors"]["centre"]
    session.close()
    assert torch.equal(shown, copy)
    assert not torch.equal(shown, shown.to(torch.bfloat16).float()), "the copy is in single precision"


def test_an_exchange_at_the_end_of_an_epoch_replaces_the_replica_by_its_outcome() -> None:
    worker = Worker("shadow:load=1:easgd:every=4,alpha=0.9")
    worker.epoch()  # an exchange has followed the fourth step, none follows the sixth and last
    sync: Any = inside(worker.session).sync
    swap, outcomes = sync.aggregator.copy.swap, []

    def swaps(*given: Any) -> Any:
        outcomes.append(swap(*given)[0])
        return outcomes[-1], 0

    sync._thread.wait()
    sync._replica.flat.write(1e3 * torch.rand(sync._replica.flat.size))  # x + (m − x) is not m, rounded
    sync.aggregator.copy.swap = swaps
    sync.settle()
    assert len(outcomes) == 1
    assert (sync._replica.flat.read().numpy() == outcomes[0]).all()
    worker.session.close()


def test_what_makes_no_sense_is_refused() -> None:
    worker = Worker("easgd:every=1")
    state = worker.session.state_dict()
    with (
        worker.session.evaluation_model(),
        pytest.raises(TrainingError, match=r"inside session.evaluation_model\(\): train outside"),
    ):
        worker.epoch()
    with pytest.raises(CheckpointError, match="workers already share a copy: load a state before"):
        worker.session.load_state_dict(state)
    worker.session.close()
    other = Worker("easgd:every=1")
    state["vectors"]["centre"] = state["vectors"]["centre"][1:]
    with pytest.raises(CheckpointError, match="server in the checkpoint has 80 numbers, but this model 81"):
        other.session.load_state_dict(state)
    other.session.close()
    with uneven.Session(sync="asp", balance="even") as session:
        model = nn.Sequential(nn.Linear(5, 6), nn.SyncBatchNorm(6))
        with pytest.raises(ConfigError, match="SyncBatchNorm, which needs all workers"):
            session.setup(model)


def test_a_session_that_nobody_holds_ends_with_its_shard() -> None:
    before = set(threading.enumerate())
    worker = Worker("asp")
    worker.epoch()
    assert {one.name for one in set(threading.enumerate()) - before} >= {"uneven-shard-0", "uneven-line"}
    gone = weakref.ref(worker.session)
    del worker
    gc.collect()
    assert gone() is None
    assert not [one for one in set(threading.enumerate()) - before if one.name.startswith("uneven-")]
