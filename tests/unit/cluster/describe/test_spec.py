"""What a cluster description may say; values that do not fit are refused where they are made."""

import math
from dataclasses import replace
from typing import Any

import pytest

from uneven.cluster.pure.describe.spec import ClusterSpec, Do, Event, Node, SiteLink, Trace, Workload, steady
from uneven.errors import ConfigError, UnknownNameError
from uneven.policy.core.cost import Affine

A, B = Node(name="a", site="eu"), Node(name="b", site="us", up_bit_per_s=steady(1e9))


def cluster(**parts: Any) -> ClusterSpec:
    return ClusterSpec(**{"name": "test", "nodes": (A, B)} | parts)


def event(do: Do = Do.KILL, node: str = "a", **rest: Any) -> Event:
    return Event(do=do, node=node, **rest)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"name": ""}, "node '': use letters"),
        ({"name": "a b"}, "node 'a b'"),
        ({"name": "../x"}, "use letters"),
        ({"cores": 0.0}, r"node 'a': cores = 0\.0: it must be positive"),
        ({"cores": math.inf}, "cores = inf"),
        ({"share": steady(1.5)}, r"share reaches 1\.5.*a fraction of cores, or raise cores"),
        ({"share": steady(0.0)}, "share = 0"),
        ({"latency_s": -0.1}, r"latency_s = -0\.1"),
        ({"jitter": -0.1}, r"jitter = -0\.1"),
        ({"period_s": -0.1}, r"period_s = -0\.1"),
        ({"memory_bytes": 0}, "memory_bytes = 0"),
        ({"memory_samples": -4}, "memory_samples = -4"),
        ({"up_bit_per_s": steady(0.0)}, r"up_bit_per_s = 0\.0: it must be positive"),
        ({"down_bit_per_s": Trace(values=(0.0, 0.0), step_s=1.0)}, "down_bit_per_s"),
    ],
)
def test_nodes_that_cannot_be(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        replace(A, **values)


def test_a_link_or_a_share_may_be_gone_for_a_while() -> None:
    gone = Trace(values=(1.0, 0.0), step_s=1.0)
    assert replace(A, share=gone, up_bit_per_s=gone).available(1.0) == 0.0


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({}, "event 'kill' of node 'a' has no at_s and no at_iteration"),
        ({"at_s": 1.0, "at_iteration": 2}, "both at_s and at_iteration"),
        ({"at_s": -1.0}, r"at_s = -1\.0"),
        ({"at_s": math.inf}, "at_s = inf"),
        ({"at_iteration": -1}, "at_iteration = -1"),
        ({"at_s": 1.0, "factor": 0.5}, "factor does not apply"),
        ({"at_s": 1.0, "bit_per_s": 5.0, "for_s": 3.0}, "bit_per_s, for_s does not apply"),
        ({"do": Do.SLOW, "at_s": 1.0}, "'slow' of node 'a' needs factor"),
        ({"do": Do.SLOW, "at_s": 1.0, "bit_per_s": 1e6, "factor": 0.5}, "bit_per_s does not apply"),
        ({"do": Do.SLOW, "at_s": 1.0, "factor": 0.0}, r"factor = 0\.0: give the remaining part"),
        ({"do": Do.SLOW, "at_s": 1.0, "factor": 1.5}, r"factor = 1\.5"),
        ({"do": Do.SLOW, "at_s": 1.0, "factor": 0.5, "for_s": 0.0}, r"for_s = 0\.0"),
        ({"do": Do.CUT_LINK, "at_s": 1.0}, "needs bit_per_s or factor"),
        ({"do": Do.CUT_LINK, "at_s": 1.0, "factor": 0.5, "bit_per_s": 1e6}, "needs bit_per_s or factor"),
        ({"do": Do.CUT_LINK, "at_s": 1.0, "bit_per_s": 0.0}, r"bit_per_s = 0\.0"),
        ({"do": Do.CUT_LINK, "at_s": 1.0, "factor": 0.0}, "to cut a link to 0 for some time"),
        ({"do": Do.SLOW, "at_s": 1.0, "factor": 0.0, "for_s": 1.0}, r"factor = 0\.0: give the remaining part"),
        ({"do": Do.STOP, "at_s": 1.0}, "'stop' of node 'a' needs for_s, .* for good, use 'kill'"),
        ({"do": Do.STOP, "at_s": 1.0, "for_s": 1.0, "factor": 0.5}, "factor does not apply"),
        ({"node": "", "at_s": 1.0}, "event 'kill' needs either a node, or two sites in between"),
        ({"between": ("eu", "us"), "at_s": 1.0}, "needs either a node"),
        ({"node": "", "between": ("eu", "us"), "at_s": 1.0}, "the line between eu and us: .* is cut_link"),
    ],
)
def test_events_that_cannot_be(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        event(**values)


def test_an_event_may_start_with_the_run() -> None:
    assert event(at_s=0.0).at_s == 0.0
    assert event(at_iteration=0).at_iteration == 0


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ({"name": ""}, "a cluster needs a name"),
        ({"nodes": ()}, "cluster 'test' has no nodes"),
        ({"nodes": (A, A)}, "node 'a' occurs more than once"),
        ({"events": (event(Do.CUT_LINK, at_s=1.0, factor=0.5),)}, r"factor = 0\.5 applies to a link without a limit"),
        ({"events": (event(at_s=1.0), event(Do.LEAVE, at_s=2.0))}, "'leave' follows 'kill'"),
        ({"events": (event(Do.JOIN, at_s=1.0), event(Do.JOIN, at_s=2.0))}, "'join' follows 'join'"),
        ({"events": (event(at_s=5.0), event(Do.JOIN, at_s=2.0))}, "in the order in which they happen"),
        ({"events": (event(at_iteration=5), event(Do.JOIN, at_iteration=5))}, "in the order in which they happen"),
        ({"nodes": (A,), "events": (event(Do.JOIN, at_s=1.0),)}, "the run would begin without workers"),
    ],
)
def test_clusters_that_cannot_be(parts: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        cluster(**parts)


def test_unknown_names_get_the_nearest_one() -> None:
    with pytest.raises(UnknownNameError, match=r"node in event 'kill': 'aa'; did you mean 'a'"):
        cluster(events=(event(node="aa", at_s=1.0),))
    with pytest.raises(UnknownNameError, match=r"site in a link: 'uss'; did you mean 'us'"):
        cluster(links=(SiteLink(between=("eu", "uss"), bit_per_s=steady(1e6)),))


def test_a_line_that_is_cut_must_be_there() -> None:
    line = SiteLink(between=("eu", "us"), bit_per_s=steady(1e6))
    cut = Event(do=Do.CUT_LINK, between=("us", "eu"), at_s=1.0, factor=0.0, for_s=2.0)
    assert cluster(links=(line,), events=(cut,)).events == (cut,)
    with pytest.raises(UnknownNameError, match="line in event 'cut_link': 'us and eu'"):
        cluster(events=(cut,))


def test_a_line_has_a_capacity_each_way() -> None:
    line = SiteLink(between=("eu", "us"), bit_per_s=steady(1e6), back_bit_per_s=steady(2e6))
    assert [line.toward(site).at(0.0) for site in ("us", "eu")] == [1e6, 2e6]
    assert replace(line, back_bit_per_s=None).toward("eu").at(0.0) == 1e6
    with pytest.raises(ConfigError, match=r"back_bit_per_s = 0\.0"):
        replace(line, back_bit_per_s=steady(0.0))


def test_links_join_two_sites_once() -> None:
    line = SiteLink(between=("eu", "us"), bit_per_s=steady(1e6))
    assert cluster(links=(line,)).sites == ("eu", "us")
    assert cluster().links == ()  # a missing line is one without a limit
    with pytest.raises(ConfigError, match="link 'eu and us' occurs more than once"):
        cluster(links=(line, replace(line, between=("us", "eu"))))
    with pytest.raises(ConfigError, match="two different sites"):
        replace(line, between=("eu", "eu"))
    with pytest.raises(ConfigError, match=r"between 'eu' and 'us': bit_per_s = 0\.0"):
        replace(line, bit_per_s=steady(0.0))
    with pytest.raises(ConfigError, match=r"latency_s = -1"):
        replace(line, latency_s=-1)


def test_who_is_there_at_the_start() -> None:
    assert cluster().initial_members == ("a", "b")
    assert cluster(events=(event(Do.JOIN, "a", at_s=5.0),)).initial_members == ("b",)
    back = (event(Do.LEAVE, "a", at_s=5.0), event(Do.JOIN, "a", at_s=9.0))
    assert cluster(events=back).initial_members == ("a", "b")
    slowed = (event(Do.SLOW, "a", at_s=1.0, factor=0.5), event(Do.JOIN, "a", at_iteration=9))
    assert cluster(events=slowed).initial_members == ("b",)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"global_batch": 0}, "workload: global_batch = 0"),
        ({"epoch_samples": 0}, "epoch_samples = 0"),
        ({"gradient_bytes": -1}, "gradient_bytes = -1"),
        ({"per_sample_core_s": math.nan}, "per_sample_core_s = nan"),
        ({"backward": 1.5}, r"backward = 1\.5: it is a fraction"),
    ],
)
def test_workloads_that_cannot_be(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Workload(**values)


def test_the_cost_is_the_nodes_or_the_workloads() -> None:
    spec = cluster(
        nodes=(replace(A, cores=4.0), replace(B, cost=Affine(1.0, 2.0))),
        workload=Workload(overhead_core_s=0.2, per_sample_core_s=0.04),
    )
    assert spec.cost(spec.nodes[0]) == Affine(0.05, 0.01)
    assert spec.cost(spec.nodes[1]) == Affine(1.0, 2.0)
