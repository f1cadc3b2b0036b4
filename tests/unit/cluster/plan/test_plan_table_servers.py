"""How many table servers, how far ahead, and where the limit is: by arithmetic that can be done by hand."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest

from uneven.cluster.pure.describe.parse import from_toml, to_toml
from uneven.cluster.pure.describe.spec import ClusterSpec, Node, TableWork, Workload, steady
from uneven.cluster.pure.plan.table_plan import LIMITS, forecast, planned
from uneven.errors import ConfigError


def cluster(nodes: int = 4, **tables: Any) -> ClusterSpec:
    made = {"features": 26, "server_core_s": 5e-6, "message_core_s": 0.0} | tables
    work = Workload(global_batch=128 * nodes, overhead_core_s=0.0, per_sample_core_s=50e-6, framing=1.0)
    machines = tuple(Node(name=f"n{place}") for place in range(nodes))
    return ClusterSpec(name="c", nodes=machines, workload=work, tables=TableWork(**made))


def test_trainers_are_the_limit_until_the_servers_are() -> None:
    found = forecast(cluster(4), 1, 1)
    assert (found.per_s, found.limit) == (pytest.approx(80_000), LIMITS[0])
    assert found.server_load == pytest.approx(0.4)
    busy = forecast(cluster(20), 1, 1)
    assert (busy.per_s, busy.limit) == (pytest.approx(200_000), LIMITS[3])
    assert planned(cluster(20)).best.servers == 2
    assert planned(cluster(4)).best == forecast(cluster(4), 1, 1)


def test_latency_is_hidden_by_asking_ahead() -> None:
    far = cluster(2, server_latency_s=0.003)  # there and back about as long as a batch lasts
    alone, ahead = forecast(far, 8, 0), forecast(far, 8, 1)
    assert alone.limit == LIMITS[1]
    assert alone.per_s == pytest.approx(2 * 128 / (0.0064 + 0.006 + 0.00008))
    assert ahead.limit == LIMITS[0]
    assert planned(far).best.ahead == 1
    assert planned(replace(far, tables=replace(far.tables, server_latency_s=0.02))).best.ahead == 7


def test_links_limit_and_half_the_bytes_help() -> None:
    thin = cluster(8, server_bit_per_s=1e8)
    moved = 26 * 16 * 4 + 26 * 8
    assert forecast(thin, 2, 4).per_s == pytest.approx(2e8 / 8 / moved)
    assert forecast(thin, 2, 4).limit == LIMITS[4]
    half = replace(thin, tables=replace(thin.tables, number_bytes=2))
    assert planned(half).best.servers < planned(thin).best.servers
    nodes = tuple(replace(node, up_bit_per_s=steady(1e7)) for node in thin.nodes)
    assert forecast(replace(cluster(8), nodes=nodes), 8, 4).limit == LIMITS[2]


def test_more_servers_cost_messages() -> None:
    dear = cluster(20, message_core_s=2e-3)
    assert forecast(dear, 64, 2).per_s < 64 / 2 * forecast(dear, 2, 2).per_s / 4


def test_a_description_has_tables_and_a_plan_shows_them() -> None:
    from uneven.cli.plan_page import _show_table_servers
    from uneven.journal.report.console import Console

    spec = cluster(20)
    read = from_toml(to_toml(spec), "here", lambda path, column: None)  # type: ignore[arg-type,return-value]
    assert read == spec
    console = Console(file=io.StringIO(), width=120)
    _show_table_servers(planned(spec), console)
    assert "Take --tables 2 and ahead=" in console.file.getvalue()  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="server_cores"):
        TableWork(server_cores=0)
