"""Who meets whom: the k-th exchange of one member meets the k-th of the others. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from uneven.core.actions import Exchange, Payload
from uneven.simulate.events import Handle
from uneven.simulate.links import Flow, Route
from uneven.simulate.members import ByMembers
from uneven.simulate.worker import Worker


@dataclass(slots=True, eq=False)
class Group:
    """Members that exchange with each other in one generation.

    Attributes:
        active: how many of them still take steps.
        met: (payload, rank) → exchanges that the rank has begun with this group.
        rounds: those that somebody is still awaited in.
        newest: payload → number and clock of the newest round that is closed.
        routes: ways that were looked up, for they are long.
    """

    members: tuple[int, ...]
    active: int
    met: dict[tuple[Payload, int], int] = field(default_factory=dict)
    rounds: dict[tuple[Payload, int], Round] = field(default_factory=dict)
    newest: dict[Payload, tuple[int, int]] = field(default_factory=dict)
    routes: dict[object, Route] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Round:
    """One exchange of a group.

    Attributes:
        arrived: those whose contribution counts.
        missing: how many of the active members have not contributed yet.
        excused: members that are not waited for though they have not contributed.
        clock: the furthest step that a contribution belongs to.
        closed: whether the outcome is made already, so that who comes now is late.
        launched: whether it is on its way.
        opened_s, due_s: when the first contribution came, and until when a quorum waits for more; NaN where not known.
        errands: of those who wait for the parameter server's answer.
        parts, bucket: up to which part of the payload each bucket goes, and which is on its way.
        free_s: when the bucket before was through.
        own_end_s: when the members are done with their own sides of it.
        ends_s: rank → when that one is, where they go on one by one.
        counted: samples of everybody whose gradients went into it; None if nobody asks, or it is not of all members.
    """

    group: Group
    exchange: Exchange
    number: int
    missing: int
    overlapped: bool = False
    arrived: dict[int, Worker] = field(default_factory=dict)
    excused: set[int] = field(default_factory=set)
    clock: int = 0
    closed: bool = False
    launched: bool = False
    errands: list[Errand] = field(default_factory=list)
    parts: tuple[float, ...] = (1.0,)
    bucket: int = 0
    free_s: float = 0.0
    own_end_s: float = 0.0
    ends_s: dict[int, float] = field(default_factory=dict)
    counted: int | None = None
    opened_s: float = math.nan
    due_s: float = math.nan
    flow: Flow | None = None
    event: Handle | None = None

    @property
    def key(self) -> tuple[Payload, int]:
        """Its place among the group's rounds."""
        return self.exchange.payload, self.number

    @property
    def complete(self) -> bool:
        """Whether nobody more need be waited for."""
        quorum = self.exchange.quorum
        return bool(self.arrived) and (not self.missing or (quorum is not None and len(self.arrived) >= quorum))

    def arrive(self, worker: Worker, clock: int) -> None:
        """A contribution, of the step at this clock; too late, it changes nothing."""
        if not self.closed:
            self.arrived[worker.rank] = worker
            self.clock = max(self.clock, clock)
        self.excuse(worker.rank)

    def excuse(self, rank: int) -> None:
        """Nobody waits for this member any more."""
        if rank not in self.excused:
            self.excused.add(rank)
            self.missing -= 1
            if not self.missing and self.closed:
                self.forget()

    def forget(self) -> None:
        """Nobody will ask for it again."""
        self.group.rounds.pop(self.key, None)


@dataclass(slots=True, eq=False)
class Errand:
    """One worker's conversation with the parameter server.

    Attributes:
        clock: of the step that it belongs to.
        meeting: where others are waited for; None if nobody is.
        parts, bucket: up to which part of the payload each bucket goes, and which is next.
        own_end_s: when the worker's own side of it is done.
    """

    worker: Worker
    exchange: Exchange
    clock: int
    group: Group
    meeting: Round | None = None
    parts: tuple[float, ...] = (1.0,)
    bucket: int = 0
    own_end_s: float = 0.0


class Groups:
    """All groups, by generation and members."""

    def __init__(self) -> None:
        self._active: set[int] = set()
        self._generation = -1
        self._by_generation: dict[int, ByMembers[Group]] = {}
        self._with: dict[int, list[Group]] = {}

    def _make(self, members: tuple[int, ...]) -> Group:
        here = [rank for rank in members if rank in self._active]
        group = Group(members, len(here))
        for rank in here:
            self._with.setdefault(rank, []).append(group)
        return group

    def enter(self, rank: int) -> None:
        """A worker takes steps."""
        self._active.add(rank)

    def of(self, generation: int, members: tuple[int, ...]) -> Group:
        """The group of these members."""
        if generation not in self._by_generation:
            self._by_generation[generation] = ByMembers(self._make)
        return self._by_generation[generation][members]

    def meet(self, group: Group, worker: Worker, exchange: Exchange) -> Round:
        """The round that this worker's next exchange of this payload belongs to."""
        mine = exchange.payload, worker.rank
        number = group.met.get(mine, 0)
        group.met[mine] = number + 1
        key = exchange.payload, number
        found = group.rounds.get(key)
        if found is None:
            found = group.rounds[key] = Round(group, exchange, number, group.active)
        return found

    def join(self, group: Group, worker: Worker, exchange: Exchange) -> Round:
        """The round of this payload that is open when a worker's contribution comes, whichever it missed."""
        number = group.newest.get(exchange.payload, (-1, 0))[0] + 1
        key = exchange.payload, number
        if key not in group.rounds:
            gone = worker.rank not in self._active  # it takes no more steps, and this is its last contribution
            group.rounds[key] = Round(group, exchange, number, group.active + gone)
        return group.rounds[key]

    def skip(self, group: Group, worker: Worker, payload: Payload) -> int:
        """Let a worker that was left behind meet the others next after the newest closed round; its next clock."""
        number, clock = group.newest[payload]
        mine = payload, worker.rank
        for missed in range(group.met[mine], number + 1):
            if (payload, missed) in group.rounds:
                group.rounds[payload, missed].excuse(worker.rank)
        group.met[mine] = max(group.met[mine], number + 1)
        return clock + 1

    def leave(self, rank: int) -> list[Round]:
        """A worker takes no more steps; the rounds that it may have held up, or was part of."""
        self._active.discard(rank)
        groups = self._with.pop(rank, [])
        touched = []
        for group in groups:
            group.active -= 1
            for one in list(group.rounds.values()):
                one.excuse(rank)
                touched.append(one)
        return touched
