"""One worker's side of the exchanges, where no other worker is needed to see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from uneven.errors import ConfigError, NonFiniteError, PeerError
from uneven.policy.control.ledger import StepLedger
from uneven.policy.control.step_plans import StepPlans
from uneven.policy.core.actions import StepPlan, Via
from uneven.policy.core.records import ExchangeRecord
from uneven.policy.core.views import SyncView
from uneven.policy.samples.order import Portion
from uneven.policy.sync import BMUF, MA, RandomGroups, Shadow, Shuffle, SyncPolicy
from uneven.run.replicas.background_thread import BackgroundThread
from uneven.run.replicas.peer_aggregator import PeerAggregator, PeerLines
from uneven.run.replicas.replica import Replica, announce
from uneven.run.replicas.replica_sync import ReplicaSync
from uneven_bench.inside import inside


class Nobody:
    """Nobody measures."""

    def ready(self) -> None: ...
    def done(self) -> None: ...


def agreement(
    policy: SyncPolicy,
    model: nn.Module,
    said: Callable[[Any], None] = lambda record: None,
    members: tuple[int, ...] = (0, 1),
) -> ReplicaSync:
    """Of the last of these workers; what leaves it comes back alone."""
    replica, thread, rank = Replica(model), BackgroundThread(), members[-1]
    announce(replica, policy, members, {})
    lines, shadowed = PeerLines(), isinstance(policy, Shadow)
    aggregator = PeerAggregator(policy, rank, replica, thread, lines, shadowed=shadowed)
    ledger = StepLedger(StepPlans(policy, rank, members, {}))
    how = {"observer": Nobody(), "on_record": said, "on_nonfinite": lambda: None}
    return ReplicaSync(ledger, replica, aggregator, thread, **how)


def part(iteration: int, *shares: int) -> Portion:
    return Portion(iteration=iteration, epoch=0, start=0, size=sum(shares), shares=shares)


def linear() -> tuple[nn.Linear, torch.optim.Optimizer]:
    model = nn.Linear(2, 1, bias=False)
    model.weight.data.fill_(1.0)
    return model, torch.optim.SGD(model.parameters(), lr=1.0)


def step(one: ReplicaSync, now: Portion, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Whose gradient is 1 everywhere."""
    one.before(now, one.plan())
    model(torch.ones(1, 2)).sum().backward()
    one.still(optimizer, (), {})
    optimizer.step()


def test_a_batch_that_does_not_count_is_not_learnt_from() -> None:
    model, optimizer = linear()
    one = agreement(MA(every=9), model)
    step(one, part(0, 3, 2), model, optimizer)
    assert model.weight.tolist() == [[0, 0]]
    one.after(part(0, 3, 2), leaving=False)
    optimizer.zero_grad()
    step(one, part(1, 1, 0), model, optimizer)
    assert model.weight.tolist() == [[0, 0]]
    one.after(part(1, 1, 0), leaving=False)

    model(torch.ones(1, 2)).sum().backward()  # accumulated: what waited before the batch stays
    step(one, part(2, 1, 0), model, optimizer)
    assert model.weight.tolist() == [[-1, -1]]


def test_samples_steps_and_what_is_owed() -> None:
    model, optimizer = linear()
    records: list[ExchangeRecord] = []
    one = agreement(MA(every=2), model, records.append)
    for iteration in range(3):
        step(one, part(iteration, 3, 2), model, optimizer)
        assert one.after(part(iteration, 3, 2), leaving=False) == (iteration == 1), "who waits for all, and when"
    assert [(met.iteration, met.gap, met.samples) for met in records] == [(1, 2, 4)]
    step(one, part(3, 3, 2), model, optimizer)
    one.after(part(3, 3, 2), leaving=True)
    numbers, vectors = one.state_dict(())
    assert (numbers["clock"], numbers["owed"], vectors) == (4, True, {})
    assert len(records) == 1
    one.before(part(4, 3, 2), one.plan())
    assert [(met.iteration, met.gap, met.samples) for met in records[1:]] == [(3, 2, 4)]


def test_samples_of_a_replica_that_was_replaced_do_not_count() -> None:
    model, optimizer = linear()
    records: list[ExchangeRecord] = []
    one = agreement(MA(every=2), model, records.append)
    step(one, part(0, 3, 2), model, optimizer)
    one.after(part(0, 3, 2), leaving=False)
    one.load_state_dict(*agreement(MA(every=3), model).state_dict(()))  # of another policy
    step(one, part(1, 3, 2), model, optimizer)
    one.after(part(1, 3, 2), leaving=False)
    assert [(met.gap, met.samples) for met in records] == [(1, 2)]


def test_who_is_alone_in_a_group_knows_when_the_others_meet() -> None:
    model, optimizer = linear()
    one = agreement(Shuffle(MA(every=2), RandomGroups(size=2)), model, members=(1,))
    said = []
    for iteration in range(4):
        now = replace(part(iteration, 2), members=(1,))
        one.before(now, one.plan())
        assert one.ledger.plan.exchanges == ()
        optimizer.step()
        said.append(one.after(now, leaving=False))
    assert said == [False, True, False, True]


class Turning(MA):
    """Another plan after the third step, which nobody could have seen before."""

    def plan(self, view: SyncView) -> StepPlan:
        plan = super().plan(view)
        if view.clock < 3 * self.every:
            return plan
        return StepPlan(exchanges=tuple(replace(one, via=Via.SERVER) for one in plan.exchanges))


def test_a_plan_that_no_carrier_carries_is_refused_when_it_comes() -> None:
    model, optimizer = linear()
    with uneven.Session(sync=Turning(every=1), balance="even") as session:
        session.setup(model, optimizer)
        batches = iter(session.loader(TensorDataset(torch.ones(10, 2)), 1))
        for _ in range(3):
            next(batches)
        with pytest.raises(ConfigError, match=r"step 3 of Turning\(.*through a parameter server"):
            next(batches)


def test_a_replica_that_is_no_number_any_more_is_told() -> None:
    model, optimizer = linear()
    with uneven.Session(sync="ma:every=1", balance="even", nonfinite="raise") as session:
        session.setup(model, optimizer)
        batches = iter(session.loader(TensorDataset(torch.ones(10, 2)), 1))
        next(batches)
        next(batches)
        model.weight.data.fill_(float("nan"))
        with pytest.raises(NonFiniteError, match="parameter"):
            next(batches)
        assert inside(session).sync.ledger.equal, "the exchange is complete, so no evaluation needs a mean"


class Barrier:
    """A barrier at which all workers arrive; it keeps the names of the calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def meet(self) -> list[int]:
        self.calls.append("meet")
        return []

    def __getattr__(self, call: str) -> Any:
        return lambda: self.calls.append(call)


def test_a_worker_leaves_the_barrier_of_an_evaluation_whose_mean_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    one, barrier = agreement(MA(every=9), linear()[0]), Barrier()

    def fails(*given: Any) -> None:
        raise PeerError("rank 0 is gone")

    monkeypatch.setattr(one.aggregator, "shown", fails)
    one._barrier = barrier  # type: ignore[assignment]
    with pytest.raises(PeerError, match="rank 0 is gone"), one.evaluation_model():
        pass
    assert barrier.calls == ["arrive", "wait", "meet", "leave"], "otherwise it would take no samples any more"
    one.leave(failed=True)


def test_one_worker_alone_trains_as_without_a_policy_but_for_the_momentum_of_blocks() -> None:
    found = {}
    plain = ("bsp", "ma:every=2", "local:every=3,warmup=2", "shuffle", "hierarchical")
    for policy in (*plain, "bmuf:every=2,momentum=0.5"):
        model, optimizer = linear()
        with uneven.Session(sync=policy, balance="even") as session:
            session.setup(model, optimizer)
            for (x,) in session.loader(TensorDataset(torch.ones(8, 2)), 1):
                (model(x) ** 2).sum().mul(0.1).backward()
                optimizer.step()
                optimizer.zero_grad()
            with session.evaluation_model():
                found[policy] = model.weight.tolist()
    last = found.pop("bmuf:every=2,momentum=0.5")
    assert len({str(one) for one in found.values()}) == 1, found
    assert last != found["bsp"]


def test_a_shadow_of_one_exchanges_beside_the_training_and_ends() -> None:
    model, optimizer = linear()
    with uneven.Session(sync="shadow:bmuf:every=1,momentum=0.5", balance="even") as session:
        session.setup(model, optimizer)
        for (x,) in session.loader(TensorDataset(torch.ones(40, 2)), 1):
            (model(x) ** 2).sum().mul(0.01).backward()
            optimizer.step()
            optimizer.zero_grad()
        with session.evaluation_model():
            assert model.weight.isfinite().all()


def test_the_state_of_a_block_is_as_long_as_the_model() -> None:
    model, optimizer = linear()
    one = agreement(BMUF(every=2), model)
    step(one, part(0, 1, 1), model, optimizer)
    numbers, vectors = one.state_dict((part(0, 1, 1),))
    assert (numbers["clock"], numbers["gap"], numbers["fresh"]) == (1, 1, [1, 1])
    assert {name: len(vector) for name, vector in vectors.items()} == dict.fromkeys(vectors, 2)


@pytest.mark.parametrize(("load", "exchanges"), [(1.0, 12), (1e-9, 2)])
def test_a_shadow_leaves_the_processor_to_the_training_as_far_as_its_load_says(load: float, exchanges: int) -> None:
    model, optimizer = linear()
    said: list[ExchangeRecord] = []
    one = agreement(Shadow("ma", load=load), model, said.append, (0,))
    for iteration in range(12):  # of which the first few tell how long a step is
        now = part(iteration, 4)
        step(one, now, model, optimizer)
        one.after(now, leaving=False)
        one._thread.wait()  # what is begun lands before the next step
    one.leave(failed=False)  # all come to rest, which is an exchange of the steps that no other one has had
    assert len(said) == exchanges
    assert sum(exchange.gap for exchange in said) == 12


def test_where_exchanges_are_rare_an_order_names_all_steps_since_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = linear()
    one = agreement(Shadow("ma"), model, members=(0,))
    begun: list[Any] = []
    begun_at = [1, 3, 7]
    monkeypatch.setattr(one, "_free_for", lambda exchange: one.clock in begun_at)
    monkeypatch.setattr(one, "_launch", begun.append)
    for iteration in range(9):
        now = part(iteration, 4 if iteration < 3 else 5)
        step(one, now, model, optimizer)
        one.after(now, leaving=False)
    one.leave(failed=True)
    before = [0, *begun_at]
    assert [order.clock for order in begun] == begun_at
    assert [order.merges.gap for order in begun] == [clock - last for last, clock in pairwise(before)]
    assert [order.dropped for order in begun] == [order.merges.gap - 1 for order in begun]
    used = [4, 4, 4, 5, 5, 5, 5, 5, 5]
    assert [order.merges.own for order in begun] == [sum(used[last:clock]) for last, clock in pairwise(before)]


@pytest.mark.parametrize(("timeout_s", "patience_s"), [(60.0, 30.0), (3600.0, 300.0)])
def test_nobody_lets_the_others_wait_for_an_exchange_until_they_give_up(timeout_s: float, patience_s: float) -> None:
    model, optimizer = linear()
    with uneven.Session(sync="shadow:ma", balance="even", timeout_s=timeout_s) as session:
        session.setup(model, optimizer)
        assert inside(session).sync._thread._budget._patience_s == patience_s


def test_to_rest_moves_no_centre_and_a_checkpoint_knows_how_long_blocks_are() -> None:
    model, _ = linear()
    one = Replica(model)
    exchange = Shadow(BMUF(every=1, momentum=0.5)).plan(SyncView(rank=0, clock=0, members=(0,))).exchanges[0]
    one.expect([exchange.merge], centre=True)
    one.begin()
    weights = []
    for learnt, samples in ((1.0, 8), (0.0, 0), (0.0, 0), (1.0, 4)):
        with torch.no_grad():
            model.weight += learnt
        one.meet(exchange, samples, lambda vector, exchange: 0)
        weights.append(model.weight.detach()[0, 0].item())
        again = Replica(model)
        again.expect([exchange.merge], centre=True)
        again.load_state_dict(*one.state_dict())
        one = again
    assert weights == [2.0, 2.0, 2.0, 3.25], "half as long a block is carried on by half of the momentum"
