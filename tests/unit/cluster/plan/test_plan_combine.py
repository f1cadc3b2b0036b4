"""Which combinations are played, and which are not, with the reason."""

from __future__ import annotations

import pytest

from uneven.cluster.files import load
from uneven.cluster.pure.describe.spec import ClusterSpec, Node
from uneven.cluster.pure.plan import Choice, combinations, default_syncs, enough_iterations
from uneven.cluster.pure.plan.combine import same_plans
from uneven.errors import UnknownNameError
from uneven.policy.balance import balancers
from uneven.policy.sync import exact, policies


def cluster(*sites: str) -> ClusterSpec:
    return ClusterSpec(name="c", nodes=tuple(Node(name=f"n{place}", site=site) for place, site in enumerate(sites)))


def test_every_policy_that_has_a_name_is_played_or_left_out_with_a_reason() -> None:
    choices, left = combinations(load("demo4"))
    named = {choice.sync for choice in choices} | {one.sync for one in left}
    assert named == set(default_syncs()) >= set(policies) - {"shadow"}
    tried = set(balancers)
    assert {choice.balance for choice in choices if choice.sync == "bsp"} == tried
    assert all(one.why for one in left)
    assert len(choices) + sum(1 for one in left if one.balance) == len(tried) * len({c.sync for c in choices})


def test_shares_decide_nothing_where_nobody_waits() -> None:
    choices, left = combinations(load("demo4"), ["even", "lb-bsp"], ["asp", "ssp:staleness=2", "bsp"])
    assert choices == [
        Choice("even", "asp"), Choice("even", "ssp:staleness=2"), Choice("even", "bsp"), Choice("lb-bsp", "bsp")
    ]  # fmt: skip
    whys = {one.sync: one.why for one in left}
    assert whys["asp"] == "no worker waits, and each worker takes samples at its own pace"
    assert "far behind" in whys["ssp:staleness=2"]


def test_the_same_plans_are_played_once() -> None:
    choices, left = combinations(cluster("", "", "", ""), ["even"], ["local", "ma", "hierarchical", "bsp", "local"])
    assert [choice.sync for choice in choices] == ["local", "hierarchical"]
    assert [(one.sync, one.why) for one in left] == [
        ("ma", "makes the same plans as local here"),
        ("bsp", "makes the same plans as hierarchical here"),
    ]


@pytest.mark.parametrize(("one", "other", "sites", "same"), [
    ("hierarchical", "bsp", ("a", "a", "a", "a"), True),
    ("hierarchical", "bsp", ("a", "a", "b", "b"), False),
    ("asp", "ssp:staleness=5", ("", "", "", ""), False),  # they differ from step 6 on
    ("ssp:staleness=2", "ssp:staleness=3", ("", "", "", ""), False),
    ("ma:every=50", "bmuf:every=50", ("", "", "", ""), False),
    ("shuffle:groups=grid,columns=2", "shuffle:groups=digits,base=2", ("", "", "", ""), True),  # 2 × 2 is both
    ("shuffle:groups=grid,columns=3", "shuffle:groups=digits,base=2", ("", "", "", "", "", ""), False),
])  # fmt: skip
def test_whether_two_policies_do_the_same(one: str, other: str, sites: tuple[str, ...], same: bool) -> None:
    assert same_plans(policies.resolve(one), policies.resolve(other), cluster(*sites)) is same


def test_a_wrong_name_is_named() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'lb-bsp'"):
        combinations(load("demo4"), ["lb-bsb"])
    with pytest.raises(UnknownNameError, match="staleness"):
        combinations(load("demo4"), [], ["ssp:stale=3"])


def test_a_large_cluster_gets_fewer_batches_and_rare_exchanges_get_more() -> None:
    assert [enough_iterations(nodes) for nodes in (1, 8, 16, 64, 1000)] == [200, 200, 100, 25, 25]
    assert [enough_iterations(64, every) for every in (1, 16, 100, 500)] == [25, 128, 200, 200]


def test_one_worker_has_one_combination() -> None:
    spec = ClusterSpec(name="laptop", nodes=(Node(name="only"),))
    choices, left = combinations(spec)
    assert [(one.balance, one.sync) for one in choices] == [("even", "bsp")]
    assert not left


def test_local_sgd_after_a_long_warm_up_is_not_bsp() -> None:
    late = "local:every=8,warmup=9000"
    assert not exact(late, ["a", "a"])
    choices, left = combinations(load("demo4"), ["even"], ["bsp", late])
    assert ([one.sync for one in choices], left) == (["bsp", late], [])
