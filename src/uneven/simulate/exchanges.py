"""Plays the exchanges of a plan: which kind each is, who is held up by it, and when others may count on it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from uneven.core.actions import Combined, Exchange, Moment, Payload, Via
from uneven.simulate.letters import Letters
from uneven.simulate.preconditioning import VirtualPreconditioner
from uneven.simulate.ring import Rings
from uneven.simulate.rounds import Errand, Group, Round
from uneven.simulate.served import Servers
from uneven.simulate.site_clocks import SiteClocks
from uneven.simulate.stage import Stage
from uneven.simulate.worker import Worker


class ExchangeShape(Enum):
    """The shape that an exchange takes."""

    RING = "ring"  # members meet, then an all-reduce among them
    TELL = "tell"  # each speaker sends the others what it has to add, and waits for nobody
    APART = "apart"  # each member with the parameter server on its own
    TOGETHER = "together"  # the parameter server answers when enough have contributed
    BETWEEN = "between"  # parameter servers of sites tell each other what their copies have moved


def kind_of(one: Exchange) -> ExchangeShape:
    """An all-reduce cannot leave anybody out, so whatever has a quorum goes over the parameter server."""
    if one.quorum is not None:
        return ExchangeShape.TOGETHER
    if one.via is Via.SERVER and one.parties:
        return ExchangeShape.BETWEEN
    if one.via is Via.SERVER:
        return ExchangeShape.TOGETHER if one.merge.combined is Combined.MEAN else ExchangeShape.APART
    if one.beside and one.merge.combined is Combined.SUM:
        return ExchangeShape.TELL
    return ExchangeShape.RING


class VirtualExchanges:
    """Begins exchanges and lets their workers go on.

    Args:
        preconditioner: whose exchanges come behind, if there is one.

    Attributes:
        letters: what is under way between sites with a lead.
    """

    def __init__(self, stage: Stage, preconditioner: VirtualPreconditioner | None = None) -> None:
        self._stage = stage
        self._preconditioner = preconditioner
        self.letters = Letters(stage)
        self._copies = SiteClocks(stage, self.letters)
        self._rings = Rings(stage, self._through, self._reached)
        self._servers = Servers(stage, self._served)

    def overlap(self, worker: Worker, one: Exchange) -> None:
        """Begin an exchange of the gradient while the worker computes."""
        kind = kind_of(one)
        if kind is ExchangeShape.RING:
            self._rings.arrive(worker, one, computing=True)
        else:
            self._servers.together(worker, one, computing=True)

    def begin(self, worker: Worker, one: Exchange) -> bool:
        """Begin an exchange after the computing; whether the worker may go on at once."""
        if kind_of(one) is ExchangeShape.BETWEEN:
            self._copies.pushed(worker, one)
            return True
        if one.lead and kind_of(one) is ExchangeShape.TELL:
            self._write(worker, one)
            return True
        if one.beside and not self._takes_off(worker, one):
            return True
        kind = kind_of(one)
        if kind is ExchangeShape.RING:
            self._rings.arrive(worker, one, computing=False)
        elif kind is ExchangeShape.TELL:
            self._tell(worker, one)
        elif kind is ExchangeShape.APART:
            self._servers.apart(worker, one)
        else:
            self._servers.together(worker, one, computing=False)
        return one.beside

    def read(self, worker: Worker, one: Exchange, then: Callable[[], None]) -> None:
        """Read back what an exchange with the parameter server brought about, then go on."""
        self._servers.read(worker, one, then)

    def hasten(self, worker: Worker) -> None:
        """A worker that computes has got another speed."""
        if worker.event is not None and worker.awaited is not None:
            self._stage.queue.cancel(worker.event)
            part, action, arguments = worker.awaited
            self._stage.when_done(worker, part, action, *arguments)
        self._rings.speed_changed(worker)

    def leave(self, worker: Worker) -> None:
        """A worker takes no more steps; nobody waits for what it would have sent."""
        self._stage.queue.cancel(worker.event)
        if self._preconditioner is not None:
            self._preconditioner.leave(worker)
        for meeting in self._stage.groups.leave(worker.rank):
            carrier = self._rings if kind_of(meeting.exchange) is ExchangeShape.RING else self._servers
            if worker.dead:
                carrier.lose(meeting, worker.rank)
            else:
                carrier.recheck(meeting)
        if worker.dead:
            self.letters.lose(worker.rank)
        self._copies.leave(worker)
        if not worker.flying:
            self._finish(worker)

    def tell_clock(self, worker: Worker) -> None:
        """Let the others know how many steps this worker has finished.

        A step is finished for them when what it sent in the background has arrived.
        """
        known = worker.clock
        if worker.flying or worker.owing:
            known = min(known, *worker.flying.values(), *worker.owing.values())
        self._stage.clocks.advance(worker.rank, known)

    def _takes_off(self, worker: Worker, one: Exchange) -> bool:
        """Whether an exchange in the background can start: no predecessor is in flight, and its load allows it."""
        group = self._stage.group(worker, one.members)
        party = next((party for party in one.parties if worker.rank in party), ())
        if kind_of(one) is ExchangeShape.TELL and party and worker.rank != self._speaker(party):
            return False
        flight = id(group), one.payload
        now_s = self._stage.queue.now_s
        if flight in worker.flying or (one.load < 1.0 and now_s < worker.paid_s):
            worker.owing.setdefault(flight, worker.clock)
            return False
        worker.paid_s = now_s + worker.machine.exchange_work_s / one.load
        worker.flying[flight] = worker.owing.pop(flight, worker.clock)
        return True

    def _speaker(self, party: tuple[int, ...]) -> int:
        workers = self._stage.workers
        return next((rank for rank in party if not workers[rank].dead), party[0])

    def _write(self, worker: Worker, one: Exchange) -> None:
        party = next((party for party in one.parties if worker.rank in party), (worker.rank,))
        if worker.rank == self._speaker(party):
            self.letters.write(worker, one, self._others(worker, one), worker.clock + 1)

    def _others(self, worker: Worker, one: Exchange) -> list[list[int]]:
        parties = one.parties or tuple((rank,) for rank in one.members)
        here = ([rank for rank in party if not self._stage.workers[rank].dead] for party in parties)
        return [party for party in here if party and worker.rank not in party]

    def _tell(self, worker: Worker, one: Exchange) -> None:
        stage, others = self._stage, self._others(worker, one)
        stage.sends(worker.rank, one)
        route, size_bytes = stage.topology.tell(worker.rank, others), stage.size_bytes(worker.rank, one)
        stage.network.start(route, size_bytes, self._told, worker, one, stage.group(worker, one.members))

    def _told(self, worker: Worker, one: Exchange, group: Group) -> None:
        if not worker.dead:
            self._stage.arithmetic.merges(one, (worker.rank,))
            self._landed(worker, one, group)

    def _served(self, errand: Errand) -> None:
        one, worker = errand.exchange, errand.worker
        if one.moment is Moment.BACKGROUND:
            self._landed(worker, one, errand.group)
            return
        if one.payload is Payload.GRADIENT and errand.meeting is not None:
            worker.counted = self._counted(errand.meeting)
        self._stage.go_on(worker)

    def _through(self, meeting: Round) -> None:
        self._stage.arithmetic.merges(meeting.exchange, tuple(meeting.arrived))
        if meeting.exchange.payload is Payload.GRADIENT:
            meeting.counted = self._counted(meeting)

    def _reached(self, meeting: Round, worker: Worker) -> None:
        if meeting.exchange.beside:
            self._landed(worker, meeting.exchange, meeting.group)
        elif not worker.gone:
            worker.counted = meeting.counted
            self._stage.go_on(worker)

    def _counted(self, meeting: Round) -> int | None:
        """Samples of everybody whose gradients went into a step; None if that was not a step of all members."""
        everybody = self._stage.history.at(meeting.clock).members
        if len(meeting.group.members) < len(everybody):
            return None
        return sum(worker.batch for worker in meeting.arrived.values())

    def _landed(self, worker: Worker, one: Exchange, group: Group) -> None:
        if worker.machine.one_processor:
            worker.owed_s += worker.machine.exchange_work_s
        worker.flying.pop((id(group), one.payload), None)
        if self._stage.workers[worker.rank] is not worker:
            return  # it left, and another one is there now
        if not worker.gone:
            self.tell_clock(worker)
        elif not worker.flying:
            self._finish(worker)

    def _finish(self, worker: Worker) -> None:
        if worker.dead or worker.stop_at is not None:
            self._stage.clocks.leave(worker.rank)
        else:
            self._stage.clocks.advance(worker.rank, worker.clock)
