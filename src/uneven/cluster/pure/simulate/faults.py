"""The events of a description: slow-downs, stops, cuts, and changes of the members."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from uneven.cluster.pure.describe.spec import ClusterSpec, Do, Event
from uneven.cluster.pure.simulate.routes import cut_of
from uneven.cluster.pure.simulate.shares import Shares
from uneven.cluster.pure.simulate.stage import Stage
from uneven.cluster.pure.simulate.virtual_exchanges import VirtualExchanges
from uneven.cluster.pure.simulate.virtual_worker import Worker
from uneven.policy.core.membership import Generation, Statement, successor


@dataclass(eq=False)
class Faults:
    """The events of a description, applied at their times.

    A change of the members holds from the first step that none has started. A worker that leaves finishes its step; one
    that dies loses its step and is noticed immediately, without a time-out. A newcomer gets the parameters from the
    lowest rank and takes part once the others reach its first step.
    """

    spec: ClusterSpec
    stage: Stage
    exchanges: VirtualExchanges
    shares: Shares
    hire: Callable[[int, int], Worker]
    begin: Callable[[Worker], None]
    tell: Callable[[int, int, str, str], None]
    changed: Callable[[Generation], None]

    def __post_init__(self) -> None:
        self._starting: int | None = None  # the iteration that is being started
        self._ranks = {node.name: rank for rank, node in enumerate(self.spec.nodes)}
        members = tuple(self.stage.history.newest.members)
        self._generation = Generation(number=0, members=members, came={}, why={})
        self._active = len(members)
        self._ended = False  # all remaining workers have taken all steps
        self._coming: dict[int, Worker] = {}
        self._back: set[int] = set()  # nodes that join again before the step after which they leave has ended
        self._by_iteration: list[Event] = sorted(
            (event for event in self.spec.events if event.at_iteration is not None),
            key=lambda event: event.at_iteration or 0,
            reverse=True,
        )
        for event in self.spec.events:
            if event.at_s is not None:
                self.stage.queue.at(event.at_s, self._happen, event)

    def started(self, iteration: int) -> None:
        self._starting = iteration
        while self._by_iteration and (self._by_iteration[-1].at_iteration or 0) <= iteration:
            self._happen(self._by_iteration.pop())
        self._starting = None
        self.stage.newest = max(self.stage.newest, iteration)
        for rank in [rank for rank, worker in self._coming.items() if worker.clock <= iteration]:
            self._admit(rank)

    def over(self, worker: Worker) -> None:
        worker.gone = True
        self._active -= 1
        self._ended = not self._active and not self._coming and worker.stop_at is None
        self.exchanges.leave(worker)
        if worker.stop_at is not None:
            self.stage.arithmetic.leaves(worker.rank)
        if worker.rank in self._back:
            self._back.discard(worker.rank)
            self._join(worker.rank)
        # If no worker is left, newcomers would wait forever for the others' step.
        self._fill_up()

    def _happen(self, event: Event) -> None:
        if self._ended:
            return
        if event.do is Do.CUT_LINK:
            self._cut(event)
            return
        rank = self._ranks[event.node]
        if event.do is Do.SLOW:
            self._slow(event, rank)
        elif event.do is Do.STOP:
            self._stop(event, rank)
        elif event.do is Do.JOIN:
            before = self.stage.workers.get(rank)
            self._join(rank) if before is None or before.gone else self._back.add(rank)
        elif rank in self._back:
            self._back.discard(rank)
        elif rank in self._coming:
            self._turn_away(rank)
        elif not self.stage.workers[rank].gone:
            self._go(rank, dies=event.do is Do.KILL)

    def _turn_away(self, rank: int) -> None:
        self._tell(rank, "leave", f"{self.spec.nodes[rank].name} leaves before it took part")
        worker = self._coming.pop(rank)
        worker.dead = worker.gone = True
        self._change(self.stage.newest + 1, dies=rank)
        self.exchanges.leave(worker)

    def _slow(self, event: Event, rank: int) -> None:
        factor = event.left
        self._tell(rank, "slow", f"{event.node} continues at {factor:.3g} of its speed")
        self._speed(rank, lambda: self.stage.machines[rank].processor.slow(factor))
        if math.isfinite(event.for_s):
            self.stage.queue.at(self.stage.queue.now_s + event.for_s, self._recover, event, rank, factor)

    def _recover(self, event: Event, rank: int, factor: float) -> None:
        self._tell(rank, "slow", f"{event.node} is no longer slowed down to {factor:.3g}")
        self._speed(rank, lambda: self.stage.machines[rank].processor.recover(factor))

    def _stop(self, event: Event, rank: int) -> None:
        until_s = self.stage.queue.now_s + event.for_s
        self._tell(rank, "stop", f"{event.node} pauses for {event.for_s:g} s")
        self._speed(rank, lambda: self.stage.machines[rank].processor.stop(until_s))
        self.stage.queue.at(until_s, self._tell, rank, "stop", f"{event.node} continues")

    def _speed(self, rank: int, change: Callable[[], None]) -> None:
        worker = self.stage.workers.get(rank)
        computing = worker is not None and not worker.gone and worker.keep(self.stage.queue.now_s)
        change()
        if worker is not None and computing:
            worker.go_on()
            self.exchanges.hasten(worker)

    def _cut(self, event: Event) -> None:
        rank, topology = self._ranks.get(event.node, 0), self.stage.topology
        links = topology.links_of(rank) if event.between is None else topology.links_between(*event.between)
        self._tell(rank, "cut_link", f"{_whose(event)} has {_left(event)} left")
        for link in links:
            self.stage.network.cut(link, *cut_of(event))
        if math.isfinite(event.for_s):
            self.stage.queue.at(self.stage.queue.now_s + event.for_s, self._mend, event, rank, links)

    def _mend(self, event: Event, rank: int, links: tuple[int, ...]) -> None:
        self._tell(rank, "cut_link", f"the cut of {_whose(event)} to {_left(event)} has ended")
        for link in links:
            self.stage.network.mend(link, *cut_of(event))

    def _go(self, rank: int, *, dies: bool) -> None:
        stage, worker = self.stage, self.stage.workers[rank]
        name, first = self.spec.nodes[rank].name, stage.newest + 1
        self._tell(rank, "kill" if dies else "leave", f"{name} {'dies' if dies else 'leaves'}")
        self._change(first, dies=rank) if dies else self._change(first, leaves=rank)
        if dies:
            worker.dead = worker.gone = True
            self._active -= 1
            stage.arithmetic.leaves(rank)
            self.exchanges.leave(worker)
        else:
            worker.stop_at = min(first, worker.clock + 1)
        self._fill_up()

    def _join(self, rank: int) -> None:
        stage, first = self.stage, self.stage.newest + 1
        self._tell(rank, "join", f"{self.spec.nodes[rank].name} joins at iteration {first}")
        source = min((other.rank for other in stage.workers.values() if not other.gone), default=None)
        worker = self.hire(rank, first)
        self._change(first, joins=rank)
        self._coming[rank] = worker
        if source is None:
            stage.arithmetic.enters(rank, None)
            self._admit(rank)
        else:
            worker.fetching = True
            route = stage.topology.point(source, rank)
            stage.network.start(route, stage.whole_bytes, self._fetched, worker, source)

    def _fetched(self, worker: Worker, source: int) -> None:
        worker.fetching = False
        self.stage.arithmetic.enters(worker.rank, source)
        if worker.rank in self._coming and (worker.clock <= self.stage.newest or not self._active):
            self._admit(worker.rank)

    def _admit(self, rank: int) -> None:
        if not self._coming[rank].fetching:
            worker = self._coming.pop(rank)
            self._active += 1
            self.stage.queue.at(self.stage.queue.now_s, self.begin, worker)

    def _fill_up(self) -> None:
        if not self._active:
            for rank in list(self._coming):
                self._admit(rank)

    def _tell(self, rank: int, kind: str, message: str) -> None:
        iteration = self.stage.newest if self._starting is None else self._starting
        self.tell(rank, max(iteration, 0), kind, message)

    def _change(
        self, first: int, *, dies: int | None = None, leaves: int | None = None, joins: int | None = None
    ) -> None:
        old = self._generation
        # The rule of a real run (``successor``), with statements that all members would make at this moment.
        said = {
            rank: Statement(exchanges=first, drawn=first - 1, between=True, leaving=rank == leaves)
            for rank in old.members
            if rank != dies
        }
        gone = {} if dies is None else {dies: "it was killed"}
        asking: dict[int, dict[str, Any]] = {} if joins is None else {joins: {}}
        # The border is also known if no member was left to state its position.
        self._generation = new = replace(successor(old, said, gone, asking, len(self.spec.nodes)), border=first)
        if new.members:
            self.shares.change(self.stage.history.change(new.border, new.members))
            self.changed(new)


def _whose(event: Event) -> str:
    return event.node or event.where


def _left(event: Event) -> str:
    if event.bit_per_s is not None:
        return f"{event.bit_per_s / 1e6:.4g} Mbit/s"
    return f"{event.left:.3g} of its bandwidth" if event.left else "nothing"
