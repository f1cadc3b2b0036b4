"""Costs from a recorded run, and the run played again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from small_world import Ran, cluster

from uneven import journal
from uneven.cluster import files
from uneven.cluster.pure.describe.spec import ClusterSpec, Node, Workload, steady
from uneven.cluster.pure.simulate import Scenario, costs_from_journal, described, simulate, with_costs
from uneven.errors import ConfigError
from uneven.journal import ManyWriters
from uneven.journal.report.pure.live_state import RunProgress
from uneven.policy.balance import balancers
from uneven.policy.core.cost import Affine
from uneven.policy.core.records import Record, RunRecord, StepRecord
from uneven.policy.sync import policies


def steps(rank: int, batches: list[int], seconds: list[float], transfer_s: float = 0.0) -> list[Record]:
    start: Record = RunRecord(run="r", rank=rank, world_size=2, host="h", pid=1, started_at_s=0.0)
    rows = [
        StepRecord(
            rank=rank, iteration=i, epoch=i // 4, batch=batch, global_batch=64, data_s=0.25 * time,
            compute_s=0.75 * time, exchange_s=0.5, control_s=0.0, ended_at_s=float(i), transfer_s=transfer_s,
        )
        for i, (batch, time) in enumerate(zip(batches, seconds, strict=True))
    ]  # fmt: skip
    return [start, *rows]


BATCHES = [8, 8, 16, 16, 24, 24]


def test_an_affine_cost_is_found_where_the_batches_varied() -> None:
    learnt = costs_from_journal(steps(0, BATCHES, [9.0] + [0.1 + 0.01 * x for x in BATCHES[1:]], 0.03))
    (cost,) = learnt.costs
    assert (cost.seconds(0), cost.seconds(100)) == (pytest.approx(0.1), pytest.approx(1.1))
    assert learnt.exchange_s == (0.03,)
    assert learnt.deviations[0] == pytest.approx(0.0, abs=1e-9)
    assert (learnt.global_batch, learnt.epoch_samples, learnt.iterations) == (64, 256, 6)


def test_one_burst_does_not_spoil_the_fit() -> None:
    batches = [8, *[8] * 5, *[16] * 5, *[24] * 5]
    times = [0.1 + 0.01 * x for x in batches]
    times[7] = 50.0
    (cost,) = costs_from_journal(steps(0, batches, times)).costs
    assert cost.seconds(24) == pytest.approx(0.34)


def test_without_variation_the_fixed_part_is_what_is_given() -> None:
    rows = steps(0, [16] * 6, [0.4] * 6)
    (alone,) = costs_from_journal(rows).costs
    assert (alone.seconds(0), alone.seconds(32)) == (0.0, pytest.approx(0.8))
    (known,) = costs_from_journal(rows, {0: 0.1}).costs
    assert (known.seconds(0), known.seconds(32)) == (0.1, pytest.approx(0.7))


def test_the_cost_of_a_worker_is_that_of_all_its_threads() -> None:
    start, *rows = steps(0, [16] * 6, [0.4] * 6)
    (cost,) = costs_from_journal([start, *(replace(row, threads=2) for row in rows)]).costs
    assert cost.seconds(16) == pytest.approx(0.2)


def test_times_that_fall_with_the_batch_are_not_believed() -> None:
    (cost,) = costs_from_journal(steps(0, BATCHES, [1.0 - 0.01 * x for x in BATCHES])).costs
    assert isinstance(cost, Affine)
    assert (cost.overhead_s, cost.per_sample_s > 0) == (0.0, True)


def test_workers_that_only_an_earlier_start_had_are_left_out() -> None:
    def life(workers: int) -> list[Record]:
        started = [steps(rank, BATCHES, [1.0] * 6) for rank in range(workers)]
        return [replace(one, world_size=workers) if isinstance(one, RunRecord) else one for it in started for one in it]

    assert len(costs_from_journal(life(4)).costs) == 4
    assert len(costs_from_journal([*life(4), *life(2)]).costs) == 2
    by_rank = sorted([*life(4), *life(2)], key=lambda one: getattr(one, "rank", 0))  # as a journal is read
    assert len(costs_from_journal(by_rank).costs) == 2
    progress = RunProgress()
    progress.feed(by_rank)
    assert progress.members == 2


def test_a_later_start_counts_and_the_earlier_one_does_not() -> None:
    rows = [*steps(0, [16] * 6, [9.0] * 6), *steps(0, [16] * 6, [0.4] * 6)]
    assert costs_from_journal(rows).costs[0].seconds(16) == pytest.approx(0.4)


def test_too_little_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no steps"):
        costs_from_journal([])
    with pytest.raises(ConfigError, match="rank 1 has 3 recorded steps"):
        costs_from_journal([*steps(0, BATCHES, [1.0] * 6), *steps(1, [1, 2, 3], [1.0] * 3)])


def test_a_run_on_described_nodes_gives_the_description_back() -> None:
    nodes = tuple(Node(name=f"n{i}", share=steady(share)) for i, share in enumerate((1.0, 0.25)))
    spec = ClusterSpec(name="two", nodes=nodes, workload=Workload(global_batch=64, exchange_core_s=0.01))
    recorded = Ran(spec, balance="lb-bsp", iterations=40).records
    learnt = costs_from_journal(recorded, {0: 0.005, 1: 0.02})
    again, exchange_s = with_costs(spec, learnt)
    for rank, node in enumerate(again.nodes):
        assert again.cost(node).seconds(20) == pytest.approx(spec.cost(spec.nodes[rank]).seconds(20), rel=1e-6)
    assert exchange_s == pytest.approx({0: 0.01, 1: 0.01})
    with pytest.raises(ConfigError, match="has 3 nodes and the recorded run had 2 workers"):
        with_costs(cluster(*(Node(name=f"n{i}") for i in range(3))), learnt)


@pytest.mark.parametrize(("recorded", "replayed"), [("lb-bsp", "even"), ("lb-bsp", "lb-bsp")])
def test_a_run_is_played_again_another_way_without_a_description(recorded: str, replayed: str, tmp_path: Path) -> None:
    spec = files.load("demo4")

    def play(spec: ClusterSpec, balance: str, **rest: object) -> Scenario:
        return Scenario(
            spec=spec, balancer=balancers.resolve(balance), policy=policies.resolve("bsp"), iterations=60, **rest
        )  # type: ignore[arg-type]

    with ManyWriters(tmp_path) as writers:
        simulate(play(spec, recorded), writers.write)
    learnt = costs_from_journal(journal.read(tmp_path).records())
    again = simulate(play(described(learnt), replayed, exchange_s=dict(enumerate(learnt.exchange_s))))
    truth = simulate(play(spec, replayed))
    assert again.iteration_s == pytest.approx(truth.iteration_s, rel=0.01)
