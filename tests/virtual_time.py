"""Plays plans in virtual time: who waits how long. Transfers cost nothing; a step costs what it is told."""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from uneven.core.actions import Exchange, Moment, Via
from uneven.core.views import SyncView
from uneven.sync import SyncPolicy

Yielded = float | Callable[[], bool]
"""A worker sleeps so many seconds, or until something holds."""


@dataclass
class Played:
    """What came of it, by rank."""

    members: list[int]
    starts_s: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    waited_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    ends_s: dict[int, float] = field(default_factory=dict)
    clocks: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    widest_gap: int = 0
    now_s: float = 0.0
    arrived: dict[object, set[int]] = field(default_factory=lambda: defaultdict(set))


def play(
    policy: SyncPolicy,
    cost_s: Mapping[int, float],
    steps: int,
    *,
    sites: Mapping[int, str] | None = None,
    leaves_s: Mapping[int, float] | None = None,
) -> Played:
    """Let workers that need ``cost_s`` for a step take ``steps`` of them; some may leave at a given time."""
    run = Played(members=sorted(cost_s))
    workers = {rank: _worker(run, policy, rank, cost_s[rank], steps, dict(sites or {})) for rank in cost_s}
    timers = [(0.0, rank) for rank in cost_s]
    leaving = sorted((at_s, rank) for rank, at_s in (leaves_s or {}).items())
    blocked: dict[int, tuple[float, Callable[[], bool]]] = {}
    while timers:
        while leaving and leaving[0][0] <= timers[0][0]:
            run.now_s, gone = leaving.pop(0)
            run.members.remove(gone)
            blocked.pop(gone, None)
        run.now_s, rank = heapq.heappop(timers)
        ready = [rank] if rank in run.members else []
        while True:
            for rank in ready:
                what = next(workers[rank], None)
                if callable(what):
                    blocked[rank] = (run.now_s, what)
                elif what is not None:
                    heapq.heappush(timers, (run.now_s + what, rank))
            ready = [rank for rank, (_, holds) in blocked.items() if holds()]
            if not ready:
                break
            for rank in ready:
                run.waited_s[rank] += run.now_s - blocked.pop(rank)[0]
    assert not blocked, f"these wait for ever: {sorted(blocked)}"
    return run


def _worker(
    run: Played, policy: SyncPolicy, rank: int, cost_s: float, steps: int, sites: dict[int, str]
) -> Iterator[Yielded]:
    while run.clocks[rank] < steps:
        clock = run.clocks[rank]
        plan = policy.plan(SyncView(rank=rank, clock=clock, members=tuple(run.members), sites=sites))
        for wait in plan.waits:
            yield lambda w=wait: all(run.clocks[m] >= w.clock for m in w.members if m in run.members)
        run.starts_s[rank].append(run.now_s)
        yield cost_s
        newest = clock + 1
        for one in plan.exchanges:
            if one.moment is Moment.BACKGROUND or (one.via is Via.SERVER and one.quorum is None):
                continue  # delivered at once, and nobody waits for it
            here = run.arrived[one.payload, one.members, clock]
            if one.quorum and len(here) >= one.quorum:  # too late: dropped, and caught up with the newest
                newest = max(run.clocks[m] for m in run.members)
                continue
            here.add(rank)
            yield lambda here=here, one=one: _complete(run, here, one)
        run.clocks[rank] = max(newest, clock + 1)
        alive = [run.clocks[m] for m in run.members]
        run.widest_gap = max(run.widest_gap, max(alive) - min(alive))
    run.ends_s[rank] = run.now_s


def _complete(run: Played, here: set[int], one: Exchange) -> bool:
    awaited = {rank for rank in one.members if rank in run.members}
    return len(here) >= min(one.quorum or len(awaited), len(awaited))
