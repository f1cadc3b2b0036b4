"""The exchanges of a plan in virtual time: their kind, whom they delay, and when others can rely on them."""

from collections.abc import Callable
from enum import Enum

from uneven.cluster.pure.simulate.preconditioning import VirtualPreconditioner
from uneven.cluster.pure.simulate.ring_all_reduce import Rings
from uneven.cluster.pure.simulate.rounds import Errand, Group, Round
from uneven.cluster.pure.simulate.site_messages import Party, SiteMessages
from uneven.cluster.pure.simulate.stage import Stage
from uneven.cluster.pure.simulate.virtual_server import Servers
from uneven.cluster.pure.simulate.virtual_worker import Worker
from uneven.policy.core.actions import Combined, Exchange, Moment, Payload, Via


class SiteClocks:
    """The clock of each site, the least of its workers', as its parameter server sees it."""

    def __init__(self, stage: Stage, letters: SiteMessages) -> None:
        self._stage = stage
        self._letters = letters
        self._pushed: dict[int, tuple[int, Exchange]] = {}  # rank → its steps in the copy, and its last exchange
        self._told: dict[int, int] = {}  # rank → its site's clock at the last message

    def pushed(self, worker: Worker, one: Exchange) -> None:
        self._pushed[worker.rank] = worker.clock + 1, one
        self._advance(worker.rank, one)

    def leave(self, worker: Worker) -> None:
        if worker.rank in self._pushed:
            self._advance(worker.rank, self._pushed.pop(worker.rank)[1])

    def _advance(self, rank: int, one: Exchange) -> None:
        party, workers = next(party for party in one.parties if rank in party), self._stage.workers
        clocks = [self._clock(rank) for rank in party if not workers[rank].gone]
        if clocks and min(clocks) > max(self._told.get(rank, 0) for rank in party):
            self._told.update(dict.fromkeys(party, min(clocks)))
            others = [self._here(other) for other in one.parties if other is not party]
            writer = workers[self._here(party)[0]]
            self._letters.write(writer, one, [other for other in others if other], min(clocks))

    def _clock(self, rank: int) -> int:
        return self._pushed[rank][0] if rank in self._pushed else self._stage.workers[rank].clock

    def _here(self, party: Party) -> list[int]:
        return [rank for rank in party if not self._stage.workers[rank].dead]


class ExchangeShape(Enum):
    """The protocol of an exchange."""

    RING = "ring"  # members meet, then an all-reduce among them
    TELL = "tell"  # each sender sends its contribution to the others and does not wait
    APART = "apart"  # each member separately with the parameter server
    TOGETHER = "together"  # the parameter server answers when enough have contributed
    BETWEEN = "between"  # parameter servers of sites send each other their copies' movements


def kind_of(one: Exchange) -> ExchangeShape:
    # An all-reduce cannot leave a member out, so an exchange with a quorum needs the server.
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
    """Starts exchanges, with the preconditioner's after them, and lets their workers continue."""

    def __init__(self, stage: Stage, preconditioner: VirtualPreconditioner | None = None) -> None:
        self._stage = stage
        self._preconditioner = preconditioner
        self.letters = SiteMessages(stage)  # in transit between sites with a lead
        self._copies = SiteClocks(stage, self.letters)
        self._rings = Rings(stage, self._through, self._reached)
        self._servers = Servers(stage, self._served)

    def overlap(self, worker: Worker, one: Exchange) -> None:
        kind = kind_of(one)
        if kind is ExchangeShape.RING:
            self._rings.arrive(worker, one, computing=True)
        else:
            self._servers.together(worker, one, computing=True)

    def begin(self, worker: Worker, one: Exchange) -> bool:
        """Start an exchange after the computing; return whether the worker may continue immediately."""
        kind = kind_of(one)
        if kind is ExchangeShape.BETWEEN:
            self._copies.pushed(worker, one)
            return True
        if kind is ExchangeShape.TELL and not self._speaks(worker, one):
            return True
        if kind is ExchangeShape.TELL and one.far.lead:
            self.letters.write(worker, one, self._others(worker, one), worker.clock + 1)
            return True
        if one.beside and not self._takes_off(worker, one):
            return True
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
        """Read the outcome of an exchange with the parameter server, then call ``then``."""
        self._servers.read(worker, one, then)

    def hasten(self, worker: Worker) -> None:
        if worker.event is not None and worker.awaited is not None:
            self._stage.queue.cancel(worker.event)
            part, action, arguments = worker.awaited
            self._stage.when_done(worker, part, action, *arguments)
        self._rings.speed_changed(worker)

    def leave(self, worker: Worker) -> None:
        """Remove a worker that has finished, so that no other waits for it."""
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
        if worker.dead or not worker.flying:  # a dead worker has none that could arrive
            self._finish(worker)

    def tell_clock(self, worker: Worker) -> None:
        """Publish the number of this worker's finished steps."""
        known = worker.clock
        # For others a step is finished only when its contribution in the background has arrived.
        if worker.flying:
            known = min(known, *worker.flying.values())
        if worker.owed is not None:
            known = min(known, worker.owed)
        self._stage.clocks.advance(worker.rank, known)

    def _takes_off(self, worker: Worker, one: Exchange) -> bool:
        # At most one exchange of a kind in transit, and only as often as its load allows.
        flight = id(self._stage.group(worker, one)), one.payload
        now_s = self._stage.queue.now_s
        first = worker.clock if worker.owed is None else worker.owed
        if flight in worker.flying or (one.background.load < 1.0 and now_s < worker.paid_s):
            # The next one that starts carries this step too, also to other members: the rule of ``StepLedger``.
            worker.owed = first
            return False
        worker.paid_s = now_s + worker.machine.exchange_work_s / one.background.load
        worker.flying[flight], worker.owed = first, None
        return True

    def _speaks(self, worker: Worker, one: Exchange) -> bool:
        # The first of its party that lives sends for all of it.
        workers = self._stage.workers
        party = next((party for party in one.parties if worker.rank in party), (worker.rank,))
        return worker.rank == next((rank for rank in party if not workers[rank].dead), party[0])

    def _others(self, worker: Worker, one: Exchange) -> list[list[int]]:
        parties = one.parties or tuple((rank,) for rank in one.members)
        here = ([rank for rank in party if not self._stage.workers[rank].dead] for party in parties)
        return [party for party in here if party and worker.rank not in party]

    def _tell(self, worker: Worker, one: Exchange) -> None:
        stage, others = self._stage, self._others(worker, one)
        stage.sends(worker.rank, one)
        route, size_bytes = stage.topology.tell(worker.rank, others), stage.size_bytes(worker.rank, one)
        stage.network.start(route, size_bytes, self._told, worker, one, stage.group(worker, one))

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
        # Samples of all whose gradients entered a step; None unless it was a step of all members.
        everybody = self._stage.history.at(meeting.clock).members
        if len(meeting.group.members) < len(everybody):
            return None
        return sum(worker.batch for worker in meeting.arrived.values())

    def _landed(self, worker: Worker, one: Exchange, group: Group) -> None:
        if worker.machine.one_processor:
            # A background thread on the only processor delays the computing by its own work.
            worker.owed_s += worker.machine.exchange_work_s
        worker.flying.pop((id(group), one.payload), None)
        if self._stage.workers[worker.rank] is not worker:
            return  # it has left, and another worker has its rank now
        if not worker.gone:
            self.tell_clock(worker)
        elif not worker.flying:
            self._finish(worker)

    def _finish(self, worker: Worker) -> None:
        if worker.dead or worker.stop_at is not None:
            self._stage.clocks.leave(worker.rank)
        else:
            self._stage.clocks.advance(worker.rank, worker.clock)
