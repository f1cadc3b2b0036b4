"""The sentences are about the right node, with the right numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from uneven.cluster.pure.describe.cluster_events import Do, Event
from uneven.cluster.pure.describe.spec import ClusterSpec, Node, SiteLink, Workload, steady
from uneven.cluster.pure.plan import Choice, CombinationResult, Plan, TrainingOutcome, doubts, findings, ranked, reason
from uneven.cluster.pure.plan import played as figures_of
from uneven.cluster.pure.plan.reasons import bottleneck
from uneven.cluster.pure.simulate import Scenario
from uneven.policy.balance import balancers
from uneven.policy.core.cost import Affine
from uneven.policy.sync import policies


def node(name: str, per_sample_s: float = 0.01, **rest: object) -> Node:
    return Node(name=name, cost=Affine(0.0, per_sample_s), **rest)  # type: ignore[arg-type]


def cluster(*nodes: Node, **rest: object) -> ClusterSpec:
    load = Workload(global_batch=10 * len(nodes), exchange_core_s=0.0, gradient_bytes=1_000_000)
    return ClusterSpec(name="c", nodes=nodes, workload=load, **rest)  # type: ignore[arg-type]


THREE = cluster(node("quick"), node("middle"), node("tardy", 0.04))


def played(spec: ClusterSpec, *pairs: tuple[str, str], lessons: dict[str, TrainingOutcome] | None = None) -> Plan:
    results = []
    for balance, sync in pairs:
        policy = policies.resolve(sync)
        figures = figures_of(Scenario(spec=spec, balancer=balancers.resolve(balance), policy=policy, iterations=60))
        lesson = (lessons or {}).get(sync)
        results.append(
            CombinationResult(choice=Choice(balance, sync), facts=policy.facts, figures=figures, lesson=lesson)
        )
    return ranked(results)


def why(plan: Plan, balance: str, sync: str) -> str:
    (row,) = [row for row in plan.rows if row.result.choice == Choice(balance, sync)]
    return reason(row, plan)


def test_the_slowest_and_the_waiting_are_named() -> None:
    plan = played(THREE, ("even", "bsp"), ("lb-bsp", "bsp"))
    _, first = findings(THREE, plan)
    assert first == (
        "tardy computes 4.0 × slower than quick, the fastest: equal batches leave the others waiting 75 % of the time"
    )
    assert why(plan, "even", "bsp") == "equal batches: the others wait 75 % of their time for tardy"
    balanced = why(plan, "lb-bsp", "bsp")
    assert balanced.startswith("quick takes 14 samples and tardy 3: waiting takes ")  # 30 as 4 : 4 : 1
    assert balanced.endswith(" instead of 50 %")


def test_equal_nodes_have_little_to_balance() -> None:
    spec = cluster(node("a"), node("b", 0.0101))
    plan = played(spec, ("even", "bsp"), ("lb-bsp", "bsp"))
    assert findings(spec, plan)[1:] == ["All 2 nodes compute about as fast: there is little to balance"]
    assert why(plan, "even", "bsp") == "equal batches, about equal workers"


def test_a_narrow_link_is_named_with_what_it_costs() -> None:
    spec = cluster(node("a"), node("b", up_bit_per_s=steady(10e6), down_bit_per_s=steady(1e9)), node("c"))
    heavy = findings(spec, played(spec, ("even", "bsp")))[-1]
    # A ring moves 2 · 2/3 MB over the link up at 10 Mbit/s; the buckets of a megabyte hide little of it.
    assert heavy.startswith("An exchange takes 1.12 s, computing 100 ms on")
    assert heavy.endswith("the link of b (10 Mbit/s) is the bottleneck")
    mistyped = cluster(node("a"), node("b", up_bit_per_s=steady(10.0), down_bit_per_s=steady(1e9)), node("c"))
    typed = findings(mistyped, played(mistyped, ("even", "bsp")))[-1]
    assert typed.endswith("the link of b (10 bit/s) is the bottleneck; check that all bandwidths are in bit/s")


def test_bottlenecks() -> None:
    assert bottleneck(THREE) is None
    both = cluster(*(node(name, up_bit_per_s=steady(1e9)) for name in "ab"))
    assert getattr(bottleneck(both), "what", "") == "every node's link (1 Gbit/s)"
    line = SiteLink(between=("east", "west"), bit_per_s=steady(20e6), latency_s=0.0)
    sites = cluster(node("a", site="east"), node("b", site="west"), links=(line,))
    assert getattr(bottleneck(sites), "what", "") == "the line between east and west (20 Mbit/s)"
    back = replace(sites, links=(replace(line, back_bit_per_s=steady(5e6)),))
    assert getattr(bottleneck(back), "what", "") == "the line between east and west (5 Mbit/s)"
    less = Event(between=("west", "east"), do=Do.CUT_LINK, at_s=1.0, factor=0.1)
    assert getattr(bottleneck(replace(sites, events=(less,))), "what", "") == (
        "the line between west and east, cut to 2 Mbit/s,"
    )
    cut = Event(node="a", do=Do.CUT_LINK, at_s=1.0, bit_per_s=1e6)
    cut_off = bottleneck(cluster(node("a"), node("b"), events=(cut,)))
    assert getattr(cut_off, "what", "") == "the link of a, cut to 1 Mbit/s,"
    far = cluster(node("a", latency_s=0.2), node("b", latency_s=0.1))
    assert getattr(bottleneck(far), "what", "") == "the latency of 300 ms between two nodes"
    assert getattr(bottleneck(far), "seconds", 0.0) == pytest.approx(2 * 2 * 0.3), "two pairs of pieces, there and back"


def test_every_pace_has_its_reason() -> None:
    pairs = [("even", sync) for sync in ("bsp", "ssp:staleness=2", "asp", "backup", "shadow:ma", "shuffle", "local")]
    plan = played(THREE, *pairs)
    told = {sync: why(plan, "even", sync) for _, sync in pairs}
    assert told["ssp:staleness=2"].startswith("runs at the pace of tardy once the lead is used up: the others then ")
    assert "quick takes 4.1 × as many steps as tardy, whose updates are 8 steps stale" in told["asp"]
    assert told["backup"].startswith("does not wait for the last: 11 % of all steps are dropped, 100 % of those ")
    assert "an exchange runs in the background, one in" in told["shadow:ma"]
    assert told["shuffle"].endswith("only a group waits for its slowest, and meets another group next")
    assert told["local"] == "equal batches: the others wait 75 % of their time for tardy"


def test_learning_is_compared_in_samples() -> None:
    lessons = {
        "bsp": TrainingOutcome(reached_s=10.0, reached_samples=1_000, best=0.9),
        "asp": TrainingOutcome(reached_s=5.0, reached_samples=1_400, best=0.9),
        "easgd": TrainingOutcome(reached_s=None, reached_samples=None, best=0.4),
        "shadow:ma": TrainingOutcome(reached_s=None, reached_samples=None, best=0.1, diverged=True),
        "ssp": TrainingOutcome(reached_s=9.0, reached_samples=1_010, best=0.9),
    }
    plan = played(THREE, *(("even", sync) for sync in lessons), lessons=lessons)
    assert why(plan, "even", "asp").endswith("; needs 40 % more samples than bsp with even shares")
    assert why(plan, "even", "easgd").endswith("; but it reaches only 40 %")
    assert why(plan, "even", "shadow:ma").endswith("; but the model diverges")
    assert "samples than" not in why(plan, "even", "ssp")


def test_what_happens_on_the_way_is_told() -> None:
    events = (
        Event(node="quick", do=Do.LEAVE, at_s=1.0),
        Event(node="middle", do=Do.SLOW, at_s=1.0, factor=0.5),
        Event(node="tardy", do=Do.SLOW, at_s=1.0, factor=0.5),
    )
    spec = cluster(*THREE.nodes, events=events)
    assert findings(spec, played(spec, ("even", "bsp")))[-1] == "On the way, quick leaves, 2 are slowed down"


def test_free_communication_is_said_once_and_only_without_links() -> None:
    free = "No link is limited, so communication is free here: give the nodes up_bit_per_s and down_bit_per_s"
    assert free in findings(THREE, played(THREE, ("even", "bsp")))
    assert doubts(cluster(node("only")), 0.0) == []
    assert doubts(cluster(node("a"), node("b", latency_s=0.1)), 0.0) == []
    assert doubts(THREE, 0.02) == [], "a worker's own side of an exchange takes time"


def test_a_bandwidth_below_a_kilobit_is_questioned() -> None:
    mbit = {"up_bit_per_s": steady(50), "down_bit_per_s": steady(250)}
    (question,) = doubts(cluster(node("a", **mbit), node("b")), 0.5)
    assert question == "A's link up has 50 bit/s. Is the unit right? 50 Mbit/s is 50e6"
    west = replace(THREE, nodes=(*THREE.nodes[:2], replace(THREE.nodes[2], site="west")))
    lined = replace(west, links=(SiteLink(between=("", "west"), bit_per_s=steady(999)),))
    assert "between  and west has 999 bit/s. Is the unit right?" in doubts(lined, 0.5)[0]
    assert doubts(replace(lined, links=(SiteLink(between=("", "west"), bit_per_s=steady(1000)),)), 0.5) == []
