"""A group's exchange among its members: they meet, then an all-reduce carries it.

During the backward pass the payload travels in buckets. Bucket j starts when every member has it ready and bucket j − 1
has arrived; the bytes become ready evenly over the backward pass.
"""

from collections.abc import Callable

from uneven.cluster.pure.simulate.collectives import all_reduce
from uneven.cluster.pure.simulate.links import Route
from uneven.cluster.pure.simulate.rounds import Round
from uneven.cluster.pure.simulate.routes import FREE, RingPieces
from uneven.cluster.pure.simulate.stage import Stage
from uneven.cluster.pure.simulate.virtual_worker import Worker
from uneven.policy.core.actions import Exchange, Moment

_LEGS = (1 / 3, 2 / 3, 1.0)  # of an exchange through hubs, as parts of it


class Rings:
    """Runs the rounds of groups; ``goes_on`` is called when a member has the outcome."""

    def __init__(
        self, stage: Stage, through: Callable[[Round], None], goes_on: Callable[[Round, Worker], None]
    ) -> None:
        self._stage = stage
        self._through = through
        self._goes_on = goes_on
        self._computing: dict[Worker, Round] = {}  # worker whose gradient is not ready → the round that waits for it

    def arrive(self, worker: Worker, one: Exchange, *, computing: bool) -> None:
        """Add a member; while it computes, the time at which its gradient becomes ready is known."""
        stage = self._stage
        group = stage.group(worker, one)
        meeting = stage.groups.meet(group, worker, one)
        if computing:
            meeting.overlapped = True
            self._computing[worker] = meeting
        else:
            stage.sends(worker.rank, one)
        begun = meeting.launched
        meeting.arrive(worker, worker.clock)
        if begun:  # it left and came back, and the others did not wait for it
            self.hasten(meeting)
        else:
            self.recheck(meeting)

    def lose(self, meeting: Round, rank: int) -> None:
        """Remove a dead member; the others continue and send the bucket in transit again."""
        was_in = meeting.arrived.pop(rank, None) is not None
        if not meeting.arrived:
            self._stage.queue.cancel(meeting.event)
            self._cancel(meeting)
            if meeting.launched:
                meeting.forget()
        elif not meeting.launched:
            self.recheck(meeting)
        elif was_in:
            self._cancel(meeting)
            self.hasten(meeting)

    def speed_changed(self, worker: Worker) -> None:
        if worker in self._computing:
            self.hasten(self._computing[worker])

    def recheck(self, meeting: Round) -> None:
        if meeting.complete and not meeting.launched:
            self._launch(meeting)

    def hasten(self, meeting: Round) -> None:
        """Recompute when the next bucket is ready, if the round waits for it."""
        if meeting.launched and meeting.flow is None and meeting.bucket < len(meeting.parts):
            self._stage.queue.cancel(meeting.event)
            self._await(meeting)

    def _cancel(self, meeting: Round) -> None:
        if meeting.flow is not None:
            self._stage.network.cancel(meeting.flow)
            meeting.flow = None

    def _launch(self, meeting: Round) -> None:
        meeting.launched = True
        if meeting.exchange.far.hubs:
            meeting.parts = _LEGS
        if meeting.exchange.moment is Moment.BACKWARD and meeting.exchange.select is None:
            meeting.parts = self._stage.buckets
        self._await(meeting)

    def _await(self, meeting: Round) -> None:
        stage, ready_s = self._stage, 0.0
        if meeting.overlapped:
            part = stage.ready_part(meeting.parts[meeting.bucket])
            if part >= 1.0:
                ready_s = max([worker.computed_s for worker in meeting.arrived.values()])
            else:
                ready_s = max([worker.ready_s(part) for worker in meeting.arrived.values()])
        meeting.event = stage.queue.at(ready_s, self._send, meeting)

    def _send(self, meeting: Round) -> None:
        stage, here = self._stage, self._speakers(meeting)
        select = meeting.exchange.select
        if select is not None and not select.whole:
            self._leg(meeting, here)
            return
        sent = meeting.parts[meeting.bucket - 1] if meeting.bucket else 0.0
        size_bytes = stage.size_bytes(here[0], meeting.exchange) * (meeting.parts[meeting.bucket] - sent)
        if meeting.bucket == len(meeting.parts) - 1:
            # A member's own work is counted after the last bucket is ready: earlier it would delay the backward pass by
            # the same time, and the end would not change.
            self._own_sides(meeting, lambda: stage.topology.ring_pieces(here, size_bytes))
        meeting.event = None
        many = stage.many(meeting.parts[meeting.bucket])
        route = self._route(meeting, here, size_bytes / many).times(many)
        beside_s = self._beside_s(meeting)
        if beside_s:
            route = Route(route.load, route.latency_s + beside_s)
        meeting.flow = stage.network.start(route, size_bytes, self._sent, meeting)

    def _beside_s(self, meeting: Round) -> float:
        """Return the time of an all-reduce in addition to that of its bytes."""
        load = self._stage.workload
        if meeting.bucket < len(meeting.parts) - 1:
            return 0.0
        return load.exchange_s + (load.setup_s if meeting.number == 0 else 0.0)

    def _leg(self, meeting: Round, here: tuple[int, ...]) -> None:
        # Each sends its entries to all others; with hubs first inside the groups, then from hub to hub, then into the
        # groups.
        stage, one = self._stage, meeting.exchange
        divided = one.far.hubs or (here,)
        groups = [group for group in ([rank for rank in group if rank in here] for group in divided) if group]
        own = {rank: stage.size_bytes(rank, one) for rank in here}
        told = {group[0]: stage.together_bytes(group, one) for group in groups}
        if meeting.bucket == 0:
            sends = [(a, b, own[a]) for group in groups for a in group for b in group if a != b]
        elif meeting.bucket == 1:
            sends = [(a, b, told[a]) for a in told for b in told if a != b]
        else:
            rest = {
                hub: stage.together_bytes([rank for group in groups if group[0] != hub for rank in group], one)
                for hub in told
            }
            sends = [(group[0], rank, rest[group[0]]) for group in groups for rank in group[1:]]
        for rank, _, size_bytes in sends if one.far.hubs else ():
            stage.bandwidths.more(rank, size_bytes)
        if meeting.bucket == len(meeting.parts) - 1:
            self._own_sides(meeting, lambda: RingPieces.at_once(len(here)))
        meeting.event = None
        route = FREE if stage.topology.free else stage.topology.mesh(sends)
        meeting.flow = stage.network.start(route, 1.0, self._sent, meeting)

    def _own_sides(self, meeting: Round, pieces: Callable[[], RingPieces]) -> None:
        now_s = meeting.own_end_s = self._stage.queue.now_s
        for worker in meeting.arrived.values():
            self._computing.pop(worker, None)
            if meeting.overlapped:
                self._stage.sends(worker.rank, meeting.exchange)
        busy = [worker for worker in meeting.arrived.values() if worker.machine.exchange_work_s]
        if any(worker.machine.processor.dealt_out for worker in busy):
            self._pass_on(meeting, pieces())
        for worker in busy:
            if worker.rank in meeting.ends_s:
                continue
            busy_s, end_s = worker.own_side(now_s)
            meeting.own_end_s = max(meeting.own_end_s, end_s)
            if not meeting.exchange.beside:
                worker.transfer_s += busy_s

    def _pass_on(self, meeting: Round, pieces: RingPieces) -> None:
        # Piece by piece round the ring, two at a time, each as soon as it has arrived and its worker's quota allows.
        ring = [meeting.arrived[rank] for rank in self._speakers(meeting)]
        now_s = self._stage.queue.now_s
        ends_s = [max(worker.computed_s, meeting.free_s) if meeting.overlapped else now_s for worker in ring]
        begun_s = ends_s
        for number in range(pieces.many):
            come_s = map(max, pieces.come_s(begun_s), ends_s)
            begun_s = ends_s
            waited = number % 2 == 0  # for the next two pieces, between the notice of free space and their arrival
            ends_s = [
                worker.answer_s(at_s, 1 / pieces.many, waited=waited) for worker, at_s in zip(ring, come_s, strict=True)
            ]
        for worker, end_s in zip(ring, ends_s, strict=True):
            meeting.ends_s[worker.rank] = end_s
            meeting.own_end_s = max(meeting.own_end_s, end_s)
            if not meeting.exchange.beside:
                worker.transfer_s += worker.machine.processor.evenly_s(now_s, worker.machine.exchange_work_s)

    def _sent(self, meeting: Round) -> None:
        meeting.flow = None
        meeting.bucket += 1
        now_s = meeting.free_s = self._stage.queue.now_s
        if meeting.bucket < len(meeting.parts):
            self._await(meeting)
        elif meeting.ends_s and not meeting.exchange.parties:
            for rank, worker in meeting.arrived.items():
                end_s = meeting.ends_s.get(rank, meeting.own_end_s)  # a member that came back was not waited for
                self._stage.queue.at(max(end_s, now_s), self._reached, meeting, worker)
        elif meeting.own_end_s > now_s:
            meeting.event = self._stage.queue.at(meeting.own_end_s, self._reduced, meeting)
        else:
            self._reduced(meeting)

    def _reached(self, meeting: Round, worker: Worker) -> None:
        if meeting.arrived.get(worker.rank) is not worker:
            return
        if not meeting.closed:
            self._close(meeting)
        self._goes_on(meeting, worker)

    def _reduced(self, meeting: Round) -> None:
        stage, one = self._stage, meeting.exchange
        # The senders have the outcome; they forward it inside their parties.
        parties = [[rank for rank in party if rank in meeting.arrived] for party in one.parties]
        if any(len(party) > 1 for party in parties):
            size_bytes = stage.size_bytes(min(meeting.arrived), one)
            if one.select is not None and not one.select.whole:
                size_bytes *= len(parties) - 1
            stage.network.start(stage.topology.hand_on(parties), size_bytes, self._over, meeting)
        else:
            self._over(meeting)

    def _over(self, meeting: Round) -> None:
        self._close(meeting)
        for worker in list(meeting.arrived.values()):
            self._goes_on(meeting, worker)

    def _close(self, meeting: Round) -> None:
        meeting.closed = True
        meeting.forget()
        self._through(meeting)

    def _speakers(self, meeting: Round) -> tuple[int, ...]:
        here, members = meeting.arrived, meeting.group.members
        if not meeting.exchange.parties:
            return members if len(here) == len(members) else tuple(sorted(here))
        first = (next((rank for rank in party if rank in here), None) for party in meeting.exchange.parties)
        return tuple(rank for rank in first if rank is not None)

    def _route(self, meeting: Round, here: tuple[int, ...], size_bytes: float) -> Route:
        topology, routes = self._stage.topology, meeting.group.routes
        if topology.free:
            return FREE
        key = size_bytes, bool(meeting.ends_s)
        if here is meeting.group.members and key in routes:
            return routes[key]
        found = all_reduce(topology, self._stage.workload, here, size_bytes)
        if meeting.ends_s:  # the pieces' latency is already in ends_s
            found = Route(found.load, 0.0)
        if here is meeting.group.members:
            routes[key] = found
        return found
