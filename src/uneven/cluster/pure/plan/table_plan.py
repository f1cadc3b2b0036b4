"""The number of table servers that trainers need, how far ahead they should ask, and the limit.

A trainer with ``ahead`` further batches requested takes, per batch,

    max(compute, (compute + round trip) / (ahead + 1), bytes of the batch / its link),

because no trainer waits for another. Together they get at most what the servers' processors (a message per batch and
server, and a sample's part of its rows) and links can answer. Nodes count as at time 0, without exchanges of the dense
part.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from uneven.cluster.pure.describe.spec import LIMITS, ClusterSpec, Node

MOST_SERVERS, MOST_AHEAD = 64, 8
_ENOUGH = 0.98  # of the maximum: then fewer servers or batches ahead are enough [default]


@dataclass(frozen=True, slots=True)
class TableForecast:
    """The result of a number of servers and of batches ahead."""

    servers: int
    ahead: int
    per_s: float  # examples a second of all trainers together
    limit: str  # one of LIMITS, what limits most of it
    server_load: float  # part of the servers' processors in use


@dataclass(frozen=True, slots=True)
class TablePlanned:
    """The choice."""

    best: TableForecast  # the fewest servers that are enough, and the fewest batches ahead with them
    rows: tuple[TableForecast, ...]  # with 1, 2, 4, … servers, at the best's batches ahead


def planned(spec: ClusterSpec) -> TablePlanned:
    """Return the choice for a cluster whose workload has tables."""
    counts = [1 << power for power in range(MOST_SERVERS.bit_length())]
    # First the servers, with as much latency hidden as possible; then the fewest batches ahead that hide it.
    fewest = _least([forecast(spec, servers, MOST_AHEAD) for servers in range(1, MOST_SERVERS + 1)]).servers
    best = _least([forecast(spec, fewest, ahead) for ahead in range(MOST_AHEAD + 1)])
    shown = sorted({fewest, *(one for one in counts if one <= min(2 * fewest, MOST_SERVERS))})
    return TablePlanned(best, tuple(forecast(spec, servers, best.ahead) for servers in shown))


def forecast(spec: ClusterSpec, servers: int, ahead: int) -> TableForecast:
    """Return the forecast for a number of servers and of batches ahead."""
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
    """Return one trainer's samples a second and its limit."""
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
