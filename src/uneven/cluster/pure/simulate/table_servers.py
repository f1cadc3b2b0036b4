"""Embedding tables on servers in a simulated run: a step computes when its rows have arrived.

Rows of a batch are requested ``ahead`` batches before. The request and the gradients of an earlier batch go up the
trainer's link, each server reads its part and answers, rows come down::

    step k begins ─► asks for batch k + ahead: up ─► each server's link, processor, link ─► down ─► there
    step k computes when the rows of batch k are there

Links and processors serve in the order in which trainers ask. The dense part's exchanges do not share these links:
[tables] is counted separately, as in :mod:`uneven.cluster.pure.plan.table_plan`.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from uneven.cluster.pure.describe.spec import LIMITS, ClusterSpec
from uneven.errors import ConfigError

_BUSY = 0.95  # part of the time from which a busy resource is the limit
_WAITS = 0.05  # part of the time from which waits for rows are the limit, without such a resource: latency


class TableServers(NamedTuple):
    """The number of servers, and the number of batches that trainers ask ahead."""

    servers: int
    ahead: int


class TableOutcome(NamedTuple):
    """The utilization of the servers."""

    servers: int
    ahead: int
    rows_wait_share: float  # part of all trainers' time in which they waited for rows
    processor_share: float  # part of the time in which a server's processor was busy, mean
    link_share: float  # the same of its link
    trainer_link_share: float  # the same of the trainers' links
    asked: int  # batches

    @property
    def limit(self) -> str:
        """The entry of LIMITS that delays trainers most."""
        busy = dict(zip(LIMITS[2:], (self.trainer_link_share, self.processor_share, self.link_share), strict=True))
        most = max(busy, key=lambda name: busy[name])
        if busy[most] > _BUSY:
            return most
        return LIMITS[1] if self.rows_wait_share > _WAITS else LIMITS[0]


@dataclass(slots=True)
class _InTurn:
    """A resource that serves one request after the other."""

    free_s: float = 0.0
    busy_s: float = 0.0

    def serve(self, from_s: float, takes_s: float) -> float:
        self.busy_s += takes_s
        self.free_s = max(self.free_s, from_s) + takes_s
        return self.free_s


@dataclass(slots=True)
class _Server:
    down: _InTurn = field(default_factory=_InTurn)
    processor: _InTurn = field(default_factory=_InTurn)
    up: _InTurn = field(default_factory=_InTurn)


class VirtualTables:
    """The arrival times of rows."""

    def __init__(self, spec: ClusterSpec, how: TableServers) -> None:
        if how.servers < 1 or how.ahead < 0:
            raise ConfigError(
                f"tables on {how.servers} servers, {how.ahead} batches ahead: give at least 1 server and 0 batches"
            )
        self._spec = spec
        self._how = how
        self._servers = [_Server() for _ in range(how.servers)]
        self._links = [(_InTurn(), _InTurn()) for _ in spec.nodes]  # up, down
        self._there: dict[int, dict[int, float]] = {}  # rank → step → when
        self._waited_s: dict[int, float] = {}
        self.asked = 0

    def rows_s(self, rank: int, clock: int, batch: int, now_s: float) -> float:
        """Return when the rows of this worker's step arrive; request those of later steps once."""
        there = self._there.setdefault(rank, {})
        for step in range(clock, clock + self._how.ahead + 1):
            if step not in there:
                there[step] = self._ask(rank, batch, now_s)
        for step in [one for one in there if one < clock]:
            del there[step]
        return there[clock]

    def waited(self, rank: int, seconds: float) -> None:
        self._waited_s[rank] = self._waited_s.get(rank, 0.0) + seconds

    def outcome(self, present_s: float, ended_s: float) -> TableOutcome:
        many, whole = len(self._servers), max(ended_s, 1e-12)
        return TableOutcome(
            *self._how,
            sum(self._waited_s.values()) / max(present_s, 1e-12),
            sum(one.processor.busy_s for one in self._servers) / many / whole,
            sum(max(one.up.busy_s, one.down.busy_s) for one in self._servers) / many / whole,
            sum(max(up.busy_s, down.busy_s) for up, down in self._links) / len(self._links) / whole,
            self.asked,
        )

    def _ask(self, rank: int, batch: int, now_s: float) -> float:
        work, node, framing = self._spec.tables, self._spec.nodes[rank], self._spec.workload.framing
        self.asked += 1
        up, down = self._links[rank]
        latency_s = node.latency_s + work.server_latency_s
        sent_s, came_s = work.link_s(framing * batch, *node.link_bit_per_s(now_s))
        part_s = work.link_s(framing * batch / self._how.servers, work.server_bit_per_s, work.server_bit_per_s)
        read_s = work.message_s(batch, self._how.servers)
        at_s, answered_s = up.serve(now_s, sent_s) + latency_s, 0.0
        for server in self._servers:
            heard_s = server.down.serve(at_s, part_s[0])
            answered_s = max(answered_s, server.up.serve(server.processor.serve(heard_s, read_s), part_s[1]))
        return down.serve(answered_s + latency_s, came_s)
