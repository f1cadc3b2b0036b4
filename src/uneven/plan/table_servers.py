"""How many table servers trainers need, how far ahead they should ask, and where the limit is. Pure.

A trainer with ``ahead`` batches asked for beside its own does one batch in

    max(compute, (compute + there and back) / (ahead + 1), bytes of the batch / its link),

for nobody waits for anybody else. All together they get what the servers can answer: processors, a message for each
batch and server and a sample's part of its rows, and links. Numbers of the nodes at time 0, exchanges of the dense part
not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from uneven.cluster.spec import ClusterSpec, Node
from uneven.cluster.table_work import LIMITS

MOST_SERVERS, MOST_AHEAD = 64, 8
_ENOUGH = 0.98
"""Part of the most that there is to have, with which fewer servers or batches ahead are enough."""


@dataclass(frozen=True, slots=True)
class TableForecast:
    """What so many servers bring.

    Attributes:
        per_s: examples a second of all trainers together.
        limit: one of LIMITS, what binds most of it.
        server_load: part of the servers' processors in use.
    """

    servers: int
    ahead: int
    per_s: float
    limit: str
    server_load: float


@dataclass(frozen=True, slots=True)
class TablePlanned:
    """The answer.

    Attributes:
        best: the fewest servers that bring nearly all there is to have, and the fewest batches ahead with them.
        rows: with 1, 2, 4, … servers, at the best's batches ahead.
    """

    best: TableForecast
    rows: tuple[TableForecast, ...]


def planned(spec: ClusterSpec) -> TablePlanned:
    """Choose; the cluster's workload has tables."""
    counts = [1 << power for power in range(MOST_SERVERS.bit_length())]
    fewest = _least([forecast(spec, servers, MOST_AHEAD) for servers in range(1, MOST_SERVERS + 1)]).servers
    best = _least([forecast(spec, fewest, ahead) for ahead in range(MOST_AHEAD + 1)])
    shown = sorted({fewest, *(one for one in counts if one <= min(2 * fewest, MOST_SERVERS))})
    return TablePlanned(best, tuple(forecast(spec, servers, best.ahead) for servers in shown))


def forecast(spec: ClusterSpec, servers: int, ahead: int) -> TableForecast:
    """With so many servers and batches ahead."""
    work, nodes = spec.tables, [node for node in spec.nodes if node.name in spec.initial_members]
    batch = max(1.0, spec.workload.global_batch / len(nodes))
    message_s = work.message_s(batch, servers)
    found = [_trainer(spec, node, batch, ahead, message_s) for node in nodes]
    wanted = sum(rate for rate, _ in found)
    processors = servers * work.server_cores / (work.server_core_s + servers * work.message_core_s / batch)
    a_sample_s = max(work.link_s(spec.workload.framing, work.server_bit_per_s, work.server_bit_per_s))
    links = servers / a_sample_s if a_sample_s else float("inf")
    per_s = min(wanted, processors, links)
    if per_s < wanted:
        limit = LIMITS[3] if processors <= links else LIMITS[4]
    else:
        shares = {name: sum(rate for rate, one in found if one == name) for name in LIMITS}
        limit = max(shares, key=lambda name: shares[name])
    return TableForecast(servers, ahead, per_s, limit, per_s / processors)


def _trainer(spec: ClusterSpec, node: Node, batch: float, ahead: int, message_s: float) -> tuple[float, str]:
    """Samples a second of one trainer, and what binds it."""
    work = spec.tables
    compute_s = spec.cost(node).seconds(round(batch)) / max(node.available(0.0), 1e-9)
    up_s, down_s = work.link_s(spec.workload.framing * batch, *node.link_bit_per_s(0.0))
    there_and_back_s = 2 * (node.latency_s + work.server_latency_s) + up_s + down_s + message_s
    each_s = {
        LIMITS[0]: compute_s,
        LIMITS[1]: (compute_s + there_and_back_s) / (ahead + 1),
        LIMITS[2]: max(up_s, down_s),
    }
    limit = max(each_s, key=lambda name: each_s[name])
    return batch / each_s[limit], limit


def _least(every: Sequence[TableForecast]) -> TableForecast:
    most = max(one.per_s for one in every)
    return next(one for one in every if one.per_s >= _ENOUGH * most)
