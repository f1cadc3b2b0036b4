"""What a training costs, on spot machines too, and how far a budget and a deadline reach."""

from __future__ import annotations

import csv
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from uneven.cluster import files
from uneven.cluster.pure.describe.quantities import comings_and_goings
from uneven.cluster.pure.describe.spec import ClusterSpec, Node, SiteLink, Trace, Workload, steady
from uneven.cluster.pure.plan import (
    Allowance,
    Choice,
    CombinationResult,
    Figures,
    TrainingOutcome,
    played,
    price,
    priced,
    ranked,
    spot,
)
from uneven.cluster.pure.plan.what_if import kinds, one_more, without
from uneven.cluster.pure.simulate import Scenario, simulate
from uneven.policy.balance import balancers
from uneven.policy.core.cost import Affine
from uneven.policy.sync import policies


def node(name: str, **rest: object) -> Node:
    return Node(name=name, cost=Affine(0.0, 0.01), **rest)  # type: ignore[arg-type]


def cluster(*nodes: Node, links: tuple[SiteLink, ...] = ()) -> ClusterSpec:
    load = Workload(global_batch=100 * len(nodes), gradient_bytes=1_000_000, framing=1.0)
    return ClusterSpec(name="c", nodes=nodes, links=links, workload=load)


def figures(spec: ClusterSpec, sync: str = "bsp", iterations: int = 20) -> Figures:
    balancer, policy = balancers.resolve("even"), policies.resolve(sync)
    return played(Scenario(spec=spec, balancer=balancer, policy=policy, iterations=iterations))


def test_machines_cost_by_the_hour() -> None:
    spec = cluster(node("a", price_per_hour=3.0), node("b", price_per_hour=0.6), node("own"))
    paid = price(spec, figures(spec))  # 300 samples/s
    assert paid.per_hour == pytest.approx(3.6)
    assert paid.per_million == pytest.approx(3.6 * 1e6 / 300 / 3600)
    assert paid.of_s(1800) == pytest.approx(1.8)
    assert priced(spec)
    assert not priced(cluster(node("a")))


def test_bytes_between_sites_cost_both_ways() -> None:
    line = SiteLink(between=("us", "eu"), bit_per_s=steady(1e9), price_per_gb=0.02)
    spec = cluster(node("a", site="us"), node("b", site="eu"), links=(line,))
    shown = figures(spec, "local:every=1")
    assert shown.sent_bytes == {"us to eu": 20 * 1_000_000, "eu to us": 20 * 1_000_000}
    paid = price(spec, shown)
    assert paid.of_s(shown.ended_at_s) == pytest.approx(0.04 * 0.02)


def test_a_machine_that_leaves_is_paid_until_then() -> None:
    here = Trace(values=(1.0, 0.0, 0.0, 0.0), step_s=5.0)
    spec = cluster(node("a", price_per_hour=1.0), node("b", price_per_hour=1.0))
    spec = replace(spec, events=tuple(comings_and_goings("b", here)))
    shown = figures(spec)
    assert price(spec, shown).per_hour == pytest.approx(1.0 + 5.0 / shown.ended_at_s, rel=0.1)


AVAILABLE = (
    (1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 1, 1),
    (1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1),
    (1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0),
)


def spots(**rest: object) -> ClusterSpec:
    """One machine that stays and three spot machines."""
    series = [Trace(values=tuple(map(float, row)), step_s=100.0) for row in AVAILABLE]
    nodes = [
        node(f"spot{place}", price_per_hour=3.0, spot_price_per_hour=1.0, spot=one, **rest)
        for place, one in enumerate(series)
    ]
    return cluster(node("stays", price_per_hour=3.0), *nodes)


def test_spot_machines_are_as_fast_as_the_same_machines_that_come_and_go() -> None:
    spec = spots()
    forecast = spot(spec, figures(spec))
    assert forecast is not None
    pairs = [(one.name, one.spot) for one in spec.nodes if one.spot is not None]
    events = [event for pair in pairs for event in comings_and_goings(*pair)]
    changing = replace(spec, events=tuple(sorted(events, key=lambda event: event.at_s or 0.0)))
    balancer, policy = balancers.resolve("proportional"), policies.resolve("bsp")
    shown = simulate(Scenario(spec=changing, balancer=balancer, policy=policy, iterations=1000))
    per_s = sum(worker.samples for worker in shown.workers) / shown.ended_at_s
    assert forecast.price.samples_per_s == pytest.approx(per_s, rel=0.05)
    assert forecast.available == pytest.approx((12 + 9 + 10 + 10) / 48)
    assert forecast.price.per_hour == pytest.approx(3.0 + 29 / 12)
    assert forecast.interruptions_per_hour == pytest.approx((2 + 1 + 2) * 3)


def test_starts_and_repeated_batches_cost_samples() -> None:
    spec = spots(restart_s=50.0)
    shown = figures(spec)
    without_starts, with_starts = spot(spots(), shown), spot(spec, shown)
    assert without_starts is not None
    assert with_starts is not None
    assert 0 < without_starts.lost < 0.01
    assert with_starts.lost == pytest.approx(5 * 50 / (12 + 29) / 100, rel=0.05)
    assert with_starts.price.per_hour == without_starts.price.per_hour
    assert spot(cluster(node("a", price_per_hour=1.0)), shown) is None


def result(sync: str, samples_per_s: float, sent: int = 0, reached_s: float | None = None) -> CombinationResult:
    lesson = None if reached_s is None else TrainingOutcome(reached_s=reached_s, reached_samples=1, best=1.0)
    shown = replace(figures(cluster(node("a"))), samples_per_s=samples_per_s, ended_at_s=3600.0)
    shown = replace(shown, sent_bytes={"us to eu": sent})
    return CombinationResult(choice=Choice("even", sync), facts=None, figures=shown, lesson=lesson)


def test_a_budget_prefers_what_sends_less_and_a_deadline_what_is_faster() -> None:
    line = SiteLink(between=("us", "eu"), bit_per_s=steady(1e9), price_per_gb=1.0)
    spec = cluster(node("a", site="us", price_per_hour=1.0), node("b", site="eu"), links=(line,))
    both = [result("bsp", 100.0, sent=9_000_000_000), result("local", 50.0)]  # 10 and 1 an hour

    def first(allowance: Allowance) -> str:
        return ranked(both, allowance).best.result.choice.sync

    assert first(Allowance(spec)) == "bsp"
    assert first(Allowance(spec, budget=5.0)) == "local"
    assert first(Allowance(spec, deadline_s=1800.0)) == "bsp"
    assert Allowance(spec, budget=5.0).seconds(both[0]) == pytest.approx(1800.0)
    assert Allowance(spec, budget=5.0, deadline_s=600.0).samples(both[0]) == pytest.approx(60_000)
    trained = [result("bsp", 100.0, 9_000_000_000, reached_s=3600.0), result("local", 50.0, reached_s=7200.0)]
    order = [row.result.choice.sync for row in ranked(trained, Allowance(spec, budget=5.0)).rows]
    assert order == ["local", "bsp"], "bsp is sooner, and costs 10"
    assert math.isinf(Allowance(spec).samples(both[0]))


def test_one_machine_more_or_fewer_keeps_the_batch() -> None:
    line = SiteLink(between=("us", "eu"), bit_per_s=steady(1e9))
    spec = cluster(node("a", site="us"), node("b", site="us"), node("c", site="eu", price_per_hour=1.0), links=(line,))
    assert kinds(spec) == [0, 2]
    assert [one.name for one in one_more(spec, 0).nodes] == ["a", "b", "c", "a-more"]
    assert [one.name for one in without(spec, 0).nodes] == ["b", "c"]
    assert without(spec, 2).links == ()
    assert without(spec, 1).workload == spec.workload


def test_the_recorded_spot_machines_of_the_shipped_data(tmp_path: Path) -> None:
    folder = os.environ.get("UNEVEN_DATA", "")
    if not (Path(folder) / "traces" / "spot_traces.npz").is_file():
        pytest.skip("UNEVEN_DATA has no traces/spot_traces.npz")
    (tmp_path / "spot.toml").write_text(
        'name = "spot"\ncurrency = "€"\nnodes = [{ name = "v100-", count = 2, price_per_hour = 3.06, restart_s = 120, '
        'spot_price_per_hour = 0.92, spot = { file = "traces/spot_traces.npz", step_s = 195, rotate = 1000, '
        'key = "availability|1-node|aws-02-15-2023|us-west-2b_v100_1" } }]\n'
    )
    spec = files.load(tmp_path / "spot.toml")
    forecast = spot(spec, figures(spec))
    assert forecast is not None
    assert (round(forecast.available, 2), round(forecast.interruptions_per_hour, 2)) == (0.90, 0.17)
    assert forecast.price.per_hour == pytest.approx(2 * 0.92 * forecast.available)
    assert 0.0 < forecast.lost < 0.01


DILOCO = """algorithm,every,bandwidth,repeat,measured_ms
localsgd,1,1g,0,1527.54
localsgd,8,1g,0,213.38
diloco,32,1g,0,73.62
diloco,128,5g,0,31.58
"""


def test_four_measured_runs_cost_what_they_would_have_cost() -> None:
    """A machine-hour at 9.32 / 5 $: an excerpt of diloco-measured (Apache-2.0), of which the bench has 73 runs."""
    for row in csv.DictReader(DILOCO.splitlines()):
        every = int(row["every"])
        up, down = steady({"1g": 1e9, "5g": 5e9}[row["bandwidth"]]), steady(20e9)
        machine = Node(name="l40s", cost=Affine(0.0252, 0.0), up_bit_per_s=up, down_bit_per_s=down)
        nodes = tuple(replace(machine, name=f"l40s-{rank}", price_per_hour=9.32 / 5) for rank in range(4))
        spec = ClusterSpec(
            name="diloco-measured", nodes=nodes, workload=Workload(global_batch=16, gradient_bytes=123_386_880)
        )
        sync = f"{'local' if row['algorithm'] == 'localsgd' else 'diloco'}:every={every}"
        paid = price(spec, figures(spec, sync, 3 * every))
        measured = 4 * 9.32 / 5 * float(row["measured_ms"]) / 3.6e6 / 16 * 1e6
        assert paid.per_million == pytest.approx(measured, rel=0.14)
