"""What a simulated cluster learns is what its steps, merged as they were, make of it by hand."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from quadratics import Plain, Quadratic, Trained, by_hand
from small_world import Ran, cluster, node

from uneven.cluster.pure.describe.cluster_events import Do, Event
from uneven.cluster.pure.simulate import Scenario
from uneven.cluster.virtual import Goal, tasks, train
from uneven.errors import ConfigError, UnknownNameError
from uneven.policy.balance import balancers
from uneven.policy.core.records import EventRecord, Record, ScalarRecord, to_json
from uneven.policy.sync import policies

SPEEDS = (1.0, 1.3, 2.9, 0.7)


def uneven_four(**workload: float):  # type: ignore[no-untyped-def]
    return cluster(*(node(f"n{rank}", step_s) for rank, step_s in enumerate(SPEEDS)), **workload)


def ranges(first: int, last: int, size: int) -> list[list[range]]:
    return [[range(k * size, (k + 1) * size)] for k in range(first, last)]


@pytest.mark.parametrize("balance", ["even", "static:shares=1/7/5/3", "lb-bsp"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_bsp_is_plain_sgd_on_the_union_whatever_the_split(balance: str, momentum: float) -> None:
    task = Quadratic.random(37, momentum=momentum)
    ran = Trained(uneven_four(), task, balance=balance)
    expected = by_hand(task, ran.order, ranges(0, 12, 16))
    assert torch.allclose(ran.replicas(), expected.expand(4, 3), atol=1e-12)


def test_bsp_is_plain_sgd_where_each_goes_on_when_its_own_part_of_an_exchange_is_over() -> None:
    task = Quadratic.random(37, momentum=0.9)
    nodes = (node(f"n{rank}", cores=0.3, period_s=0.01) for rank in range(4))
    ran = Trained(cluster(*nodes, exchange_core_s=0.004), task, balance="static:shares=1/7/5/3")
    assert len({step.ended_at_s for step in ran.steps}) > 12
    assert torch.allclose(ran.replicas(), by_hand(task, ran.order, ranges(0, 12, 16)).expand(4, 3), atol=1e-12)


def test_bsp_holds_one_replica_and_computes_one_gradient_for_all() -> None:
    task = Quadratic.random(37)
    ran = Trained(uneven_four(), task, iterations=5)
    assert len(task.calls) == 5
    assert len({id(ran.training.parameters(rank)) for rank in range(4)}) == 1


def test_gradients_of_single_workers_merge_to_that_of_the_union() -> None:
    task = Quadratic.random(64)
    united = Trained(uneven_four(), task, balance="static:shares=1/7/5/3")
    # The first steps on shares of their own and the mean of the parameters after each: the same for plain SGD.
    single = Trained(uneven_four(), task, "ma:every=1", balance="static:shares=1/7/5/3")
    assert torch.allclose(single.replicas(), united.replicas(), atol=1e-12)
    assert len(task.calls) == 12 + 4 * 12


def test_ssp_without_slack_is_bsp_on_plain_sgd() -> None:
    task = Quadratic.random(37)
    bsp, ssp = Trained(uneven_four(), task), Trained(uneven_four(), task, "ssp:staleness=0")
    # Positions are handed out in another order within an iteration, the union is the same.
    assert torch.allclose(ssp.training._centre, bsp.training.parameters(0), atol=1e-12)


@pytest.mark.parametrize("policy", ["asp", "ssp", "bsp", "shadow:asp", "local:every=3", "backup"])
def test_one_worker_alone_trains_plainly_under_every_policy(policy: str) -> None:
    task = Quadratic.random(37, momentum=0.5)
    ran = Trained(cluster(node("alone")), task, policy)
    expected = by_hand(task, ran.order, ranges(0, 12, 4))
    assert torch.allclose(ran.training.parameters(0), expected, atol=1e-12)


@pytest.mark.parametrize("policy", ["asp", "ssp", "easgd", "shadow:ma"])
def test_at_their_own_pace_workers_use_each_sample_once_an_epoch(policy: str) -> None:
    task = Quadratic.random(48)
    ran = Trained(uneven_four(), task, policy, iterations=9)
    used = Counter(sample for call in task.calls for sample in call)
    assert set(used) == set(range(48))
    assert max(used.values()) - min(used.values()) <= 1
    assert 9 * 16 <= used.total() <= 9 * 16 + 3 * 4  # who was waiting for others may take one more step
    fast, slow = (sum(step.rank == rank for step in ran.steps) for rank in (3, 2))
    assert fast > (3 * slow if policy != "ssp" else slow)


@pytest.mark.parametrize("events", [
    (Event(node="n1", do=Do.LEAVE, at_iteration=4),),
    (Event(node="n1", do=Do.KILL, at_s=7.0),),
    (Event(node="n3", do=Do.JOIN, at_iteration=5),),
    (Event(node="n0", do=Do.LEAVE, at_iteration=3), Event(node="n0", do=Do.JOIN, at_iteration=6)),
])  # fmt: skip
@pytest.mark.parametrize("policy", ["bsp", "backup"])
def test_replicas_stay_equal_when_workers_come_and_go(policy: str, events: tuple[Event, ...]) -> None:
    task = Quadratic.random(37)
    ran = Trained(replace(uneven_four(), events=events), task, policy)
    batches: list[list[range]] = [[] for _ in range(12)]
    for step in ran.steps:
        if step.batch:
            batches[step.iteration].append(ran.training.computed[step.rank, step.iteration])
    expected = by_hand(task, ran.order, batches)
    ends = [worker.rank for worker in ran.outcome.workers if worker.clock == 12]
    assert len(ends) >= 3
    for rank in ends:
        assert torch.allclose(ran.training.parameters(rank), expected, atol=1e-12)


def test_what_comes_too_late_is_not_in_the_model() -> None:
    task = Quadratic.random(64)
    ran = Trained(cluster(node("a"), node("b"), node("late", 1.7)), task, "backup", iterations=10)
    assert {step.batch for step in ran.steps if step.rank == 2} == {0}
    expected = by_hand(task, ran.order, [[range(12 * k, 12 * k + 8)] for k in range(10)])
    assert torch.allclose(ran.training.parameters(0), expected, atol=1e-12)


def staggered(workers: int):  # type: ignore[no-untyped-def]
    """Equal workers that take turns: each is slowed down at first, by its part of a step."""
    slowed = tuple(
        Event(node=f"n{rank}", do=Do.SLOW, at_s=0.0, factor=0.5, for_s=2 * rank / workers) for rank in range(1, workers)
    )
    return cluster(*(node(f"n{rank}") for rank in range(workers)), events=slowed)


def largest(rate: float, policy: str) -> float:
    """Of the last parameters, where the loss is ½ x² less a little: training starts at a distance of 1."""
    task = Quadratic(torch.ones(32, 1), torch.ones(32, 1), learning_rate=rate)
    ran = Trained(staggered(8), task, policy, iterations=150)
    return float((ran.training._model(0) - 1).abs().max())


def test_staleness_hurts_from_the_step_size_on_from_which_it_must() -> None:
    # Of 8 workers in turn each pushes (rate / 8) · (1 − x) as it was 7 pushes ago, x ← x − r · x_(τ ago) with r =
    # rate / 8 and τ = 7 converges exactly if r < 2 sin(π / (2 (2 τ + 1))).
    bound = 8 * 2 * math.sin(math.pi / (2 * 15))
    assert bound == pytest.approx(1.672, abs=1e-3)
    assert largest(0.97 * bound, "asp") < 0.1
    assert largest(1.03 * bound, "asp") > 10
    assert largest(1.03 * bound, "bsp") < 1e-9  # without staleness the bound is 2
    assert largest(1.98, "bsp") < 0.1
    assert largest(2.02, "bsp") > 10


def test_the_same_training_writes_the_same_lines() -> None:
    spec = cluster(*(node(f"n{rank}", step_s, jitter=0.2) for rank, step_s in enumerate(SPEEDS)))

    def lines(seed: int) -> list[str]:
        records: list[Record] = []
        scenario = Scenario(
            spec=spec, balancer=balancers.resolve("even"), policy=policies.resolve("asp"), iterations=20, seed=seed
        )
        train(scenario, tasks.resolve("digits"), records.append)
        return [to_json(record) for record in records]

    first = lines(0)
    assert first == lines(0)
    assert first != lines(1)


def test_digits_are_learnt_and_training_ends_at_the_goal() -> None:
    records: list[Record] = []
    spec = uneven_four(global_batch=256)
    scenario = Scenario(spec=spec, balancer=balancers.resolve("even"), policy=policies.resolve("ssp"), iterations=200)
    learnt = train(scenario, tasks.resolve("digits"), records.append, goal=Goal(0.9))
    assert learnt.reached is not None
    assert learnt.reached.accuracy >= 0.9 > max(point.accuracy for point in learnt.points[:-1])
    assert learnt.reached == learnt.points[-1]
    assert learnt.reached.samples < 100 * 256
    scalars = [record for record in records if isinstance(record, ScalarRecord) and record.name == "accuracy"]
    assert [(one.at_s, one.value) for one in scalars] == [(p.at_s, p.accuracy) for p in learnt.points]
    assert [one.at_s for one in scalars] == sorted(one.at_s for one in scalars)
    ends = [record for record in records if isinstance(record, EventRecord) and record.event == "end"]
    assert {end.at_s for end in ends} == {learnt.reached.at_s}
    assert len(ends) == 4


def test_a_model_that_has_lost_its_way_is_told_and_ends() -> None:
    records: list[Record] = []
    task = Quadratic(torch.full((8, 1), 1e200, dtype=torch.float64), torch.ones(8, 1), learning_rate=1e100)
    scenario = Scenario(spec=uneven_four(), balancer=balancers.resolve("even"), policy=policies.resolve("bsp"))
    learnt = train(scenario, task, records.append)
    assert learnt.diverged
    assert learnt.reached is None
    assert learnt.outcome.iterations < 200
    (told,) = [record for record in records if isinstance(record, EventRecord) and record.event == "non-finite"]
    assert "lower the learning rate" in told.message


def test_times_are_those_of_the_simulation_without_a_model() -> None:
    task = Quadratic.random(37)
    for policy in ("bsp", "local", "shuffle", "backup"):
        with_model = Trained(uneven_four(), task, policy)
        without = Ran(uneven_four(), policy, iterations=12)
        assert [(s.rank, s.ended_at_s) for s in with_model.steps] == [(s.rank, s.ended_at_s) for s in without.steps]


def test_a_task_is_named_with_its_options() -> None:
    softmax = tasks.resolve("digits:hidden=0,learning_rate=0.2,momentum=0.9")
    assert (softmax.samples, softmax.learning_rate, softmax.momentum) == (1_442, 0.2, 0.9)
    assert softmax.initial().shape == (650,)
    assert torch.equal(softmax.initial(), tasks.resolve("digits:hidden=0").initial())
    with pytest.raises(UnknownNameError, match="did you mean 'digits'"):
        tasks.resolve("digit")
    for bad in ("digits:learning_rate=0", "digits:momentum=1.0", "digits:hidden=-1", "digits:hidden=much"):
        with pytest.raises(ConfigError, match="must be"):
            tasks.resolve(bad)
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        Goal(90.0)


def test_plain_orders_are_for_tests_that_know_who_takes_what() -> None:
    assert Plain(5).samples(range(3, 8)).tolist() == [3, 4, 0, 1, 2]
