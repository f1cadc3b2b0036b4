"""What lines between sites have carried, in a simulated run's journal."""

from __future__ import annotations

import pytest
from small_world import Ran, cluster, node

from uneven.cluster.pure.describe.spec import SiteLink, steady
from uneven.policy.core.records import LineRecord


def test_each_line_says_what_it_has_carried() -> None:
    line = SiteLink(between=("a", "b"), bit_per_s=steady(8e6))
    spec = cluster(node("n0", site="a"), node("n1", site="b"), links=(line,))
    ran = Ran(spec, "bsp", iterations=3)
    lines = [one for one in ran.records if isinstance(one, LineRecord)]
    assert {one.line for one in lines} == {"a to b", "b to a"}
    sent = sum(one.sent_bytes for one in lines if one.line == "a to b")
    assert sent == pytest.approx(3 * spec.workload.gradient_bytes * spec.workload.framing, rel=0.01)
    assert {(one.line, one.rank) for one in lines} == {("a to b", 0), ("b to a", 1)}
    without = Ran(cluster(node("n0"), node("n1")), "bsp", iterations=3)
    assert not [one for one in without.records if isinstance(one, LineRecord)]
