"""Table servers in virtual time: what a plan says of the same description, and what a plan cannot say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from uneven.cluster.pure.describe.spec import ClusterSpec, Node, TableWork, Workload, steady
from uneven.cluster.pure.plan.table_plan import forecast
from uneven.cluster.pure.simulate import Outcome, Scenario, TableServers, simulate
from uneven.errors import ConfigError
from uneven.policy.balance import Even
from uneven.policy.sync import LocalSGD


def cluster(nodes: int = 4, **tables: Any) -> ClusterSpec:
    made = {"features": 26, "server_core_s": 5e-6, "message_core_s": 0.0} | tables
    work = Workload(
        global_batch=128 * nodes, overhead_core_s=0.0, per_sample_core_s=50e-6, framing=1.0, gradient_bytes=1,
        report_core_s=0.0,
    )  # fmt: skip
    machines = tuple(Node(name=f"n{place}") for place in range(nodes))
    return ClusterSpec(name="c", nodes=machines, workload=work, tables=TableWork(**made))


def played(spec: ClusterSpec, servers: int, ahead: int, iterations: int = 200) -> Outcome:
    """Trainers that meet no more after the first steps."""
    policy, how = LocalSGD(every=1000), TableServers(servers, ahead)
    return simulate(Scenario(spec=spec, balancer=Even(), policy=policy, iterations=iterations, tables=how))


THIN = cluster(8, server_bit_per_s=1e8)
CASES = {
    "trainers": (cluster(4), 1, 1),
    "processors of servers": (cluster(20), 1, 2),
    "two servers": (cluster(20), 2, 2),
    "latency": (cluster(2, server_latency_s=0.003), 8, 0),
    "latency hidden": (cluster(2, server_latency_s=0.003), 8, 1),
    "links of servers": (THIN, 2, 4),
    "links of trainers": (
        replace(cluster(8), nodes=tuple(replace(one, up_bit_per_s=steady(1e7)) for one in cluster(8).nodes)), 8, 4,
    ),
    "messages": (cluster(20, message_core_s=2e-3), 4, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_a_plan_says_comes_true(name: str) -> None:
    spec, servers, ahead = CASES[name]
    found, said = played(spec, servers, ahead), forecast(spec, servers, ahead)
    assert found.samples_per_s == pytest.approx(said.per_s, rel=0.03)
    assert found.tables is not None
    assert found.tables.limit == said.limit
    assert found.tables.processor_share == pytest.approx(said.server_load, rel=0.05)
    assert found.tables.asked == len(spec.nodes) * (200 + ahead)


def test_waits_for_rows_are_waits_for_data() -> None:
    calm, held_up = played(cluster(4), 1, 1), played(THIN, 1, 1)
    assert calm.tables is not None
    assert held_up.tables is not None
    assert calm.tables.rows_wait_share < 0.01
    assert held_up.tables.rows_wait_share > 0.5
    assert held_up.tables.link_share == pytest.approx(1.0, abs=0.02)


def test_a_slow_trainer_holds_up_nobody() -> None:
    """A plan's trainers are each for themselves; here one shares servers with others, and they do not feel it."""
    slow = replace(cluster(4), nodes=(Node(name="slow", share=steady(0.1)), *cluster(4).nodes[1:]))
    found = played(slow, 1, 1)
    rates = [one.samples / one.present_s for one in found.workers]
    assert rates[1:] == pytest.approx([20_000.0] * 3, rel=0.02)
    assert rates[0] == pytest.approx(2_000.0, rel=0.02)


@pytest.mark.parametrize(("servers", "ahead"), [(0, 1), (1, -1)])
def test_numbers_that_cannot_be_are_refused(servers: int, ahead: int) -> None:
    with pytest.raises(ConfigError, match="at least 1 server and 0 batches"):
        played(cluster(2), servers, ahead, 2)
