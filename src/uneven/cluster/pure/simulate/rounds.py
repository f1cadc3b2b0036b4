"""Rounds of exchanges: the k-th exchange of one member meets the k-th of the others."""

import math
from dataclasses import dataclass, field

from uneven.cluster.pure.simulate.event_queue import Handle
from uneven.cluster.pure.simulate.links import Flow, Route
from uneven.cluster.pure.simulate.members import ByMembers
from uneven.cluster.pure.simulate.virtual_worker import Worker
from uneven.policy.core.actions import Exchange, Payload


@dataclass(slots=True, eq=False)
class Group:
    """The members that exchange with each other in one generation."""

    members: tuple[int, ...]
    active: int  # number of them that still take steps
    # (payload, rank) → exchanges that the rank has started with this group
    met: dict[tuple[Payload, int], int] = field(default_factory=dict)
    rounds: "dict[tuple[Payload, int], Round]" = field(default_factory=dict)  # those that still wait for a member
    # payload → number and clock of the newest closed round
    newest: dict[Payload, tuple[int, int]] = field(default_factory=dict)
    routes: dict[object, Route] = field(default_factory=dict)  # cache, because routes are long


@dataclass(slots=True, eq=False)
class Round:
    """One exchange of a group."""

    group: Group
    exchange: Exchange
    number: int
    missing: int  # number of active members that have not contributed yet
    overlapped: bool = False
    arrived: dict[int, Worker] = field(default_factory=dict)  # workers whose contribution counts
    excused: set[int] = field(default_factory=set)  # members that are not waited for
    clock: int = 0  # the furthest step of a contribution
    closed: bool = False  # whether the outcome exists, so that later contributions are late
    launched: bool = False  # whether it is in transit
    errands: "list[Errand]" = field(default_factory=list)  # of workers that wait for the parameter server's answer
    parts: tuple[float, ...] = (1.0,)  # end of each bucket as a part of the payload
    bucket: int = 0  # in transit
    free_s: float = 0.0  # when the previous bucket arrived
    own_end_s: float = 0.0  # when the members' own sides are done
    # rank → when its own side is done, if members continue one by one
    ends_s: dict[int, float] = field(default_factory=dict)
    counted: int | None = None  # samples of all contributions; None if unknown, or not of all members
    opened_s: float = math.nan  # first contribution; NaN before
    due_s: float = math.nan  # until when a quorum waits for more; NaN if unknown
    flow: Flow | None = None
    event: Handle | None = None

    @property
    def key(self) -> tuple[Payload, int]:
        return self.exchange.payload, self.number

    @property
    def complete(self) -> bool:
        """True if the round waits for no further member."""
        quorum = self.exchange.quorum
        return bool(self.arrived) and (not self.missing or (quorum is not None and len(self.arrived) >= quorum.count))

    def arrive(self, worker: Worker, clock: int) -> None:
        """Add a contribution of the step at this clock, unless the round is closed."""
        if not self.closed:
            self.arrived[worker.rank] = worker
            self.clock = max(self.clock, clock)
        self.excuse(worker.rank)

    def excuse(self, rank: int) -> None:
        if rank not in self.excused:
            self.excused.add(rank)
            self.missing -= 1
            if not self.missing and self.closed:
                self.forget()

    def forget(self) -> None:
        self.group.rounds.pop(self.key, None)


@dataclass(slots=True, eq=False)
class Errand:
    """One worker's exchange with the parameter server."""

    worker: Worker
    exchange: Exchange
    clock: int  # of its step
    group: Group
    meeting: Round | None = None  # the round, if it waits for others
    parts: tuple[float, ...] = (1.0,)  # end of each bucket as a part of the payload
    bucket: int = 0  # next
    own_end_s: float = 0.0  # when the worker's own side is done


class Groups:
    """All groups, by generation and members."""

    def __init__(self) -> None:
        self._active: set[int] = set()
        self._by_generation: dict[int, ByMembers[Group]] = {}
        self._with: dict[int, list[Group]] = {}
        # At their own pace, so the steps of two of them are in different generations at the same time.
        self.learners = Group((), 0)

    def _make(self, members: tuple[int, ...]) -> Group:
        here = [rank for rank in members if rank in self._active]
        group = Group(members, len(here))
        for rank in here:
            self._with.setdefault(rank, []).append(group)
        return group

    def enter(self, rank: int) -> None:
        self._active.add(rank)
        self._with.setdefault(rank, []).append(self.learners)
        self.learners.active += 1
        for one in self.learners.rounds.values():
            one.missing += rank not in one.excused

    def of(self, generation: int, members: tuple[int, ...]) -> Group:
        if generation not in self._by_generation:
            self._by_generation[generation] = ByMembers(self._make)
        return self._by_generation[generation][members]

    def meet(self, group: Group, worker: Worker, exchange: Exchange) -> Round:
        """Return the round of this worker's next exchange of this payload."""
        mine = exchange.payload, worker.rank
        number = group.met.get(mine, 0)
        group.met[mine] = number + 1
        key = exchange.payload, number
        found = group.rounds.get(key)
        if found is None:
            found = group.rounds[key] = Round(group, exchange, number, group.active)
        return found

    def join(self, group: Group, worker: Worker, exchange: Exchange) -> Round:
        """Return the open round of this payload, regardless of the rounds that the worker has missed."""
        number = group.newest.get(exchange.payload, (-1, 0))[0] + 1
        key = exchange.payload, number
        if key not in group.rounds:
            gone = worker.rank not in self._active  # its last contribution: group.active no longer includes it
            group.rounds[key] = Round(group, exchange, number, group.active + gone)
        return group.rounds[key]

    def skip(self, group: Group, worker: Worker, payload: Payload) -> int:
        """Move a late worker past the newest closed round, and return its next clock."""
        number, clock = group.newest[payload]
        mine = payload, worker.rank
        # Rounds that it skips must not wait for it.
        for missed in range(group.met[mine], number + 1):
            if (payload, missed) in group.rounds:
                group.rounds[payload, missed].excuse(worker.rank)
        group.met[mine] = max(group.met[mine], number + 1)
        return clock + 1

    def leave(self, rank: int) -> list[Round]:
        """Remove a worker that has finished; return the rounds that it may have delayed, or took part in."""
        self._active.discard(rank)
        groups = self._with.pop(rank, [])
        touched = []
        for group in groups:
            group.active -= 1
            for one in list(group.rounds.values()):
                one.excuse(rank)
                touched.append(one)
        return touched
