"""Exchanges with the parameter server, whose shards are on the members.

Apart: each member pushes and pulls separately (a sum, a center). Together: the copy collects the pushes of the members
and answers all when there are enough. Later ones are dropped, and their workers take over the newest state. In the
background none is late: a later push counts in the next outcome.
"""

import math
from collections.abc import Callable

from uneven.cluster.pure.simulate.links import Route
from uneven.cluster.pure.simulate.rounds import Errand, Round
from uneven.cluster.pure.simulate.routes import FREE
from uneven.cluster.pure.simulate.stage import Stage
from uneven.cluster.pure.simulate.virtual_worker import Worker
from uneven.policy.core.actions import Exchange, Moment


class Servers:
    """Runs pushes and pulls; ``done`` is called when an errand no longer delays its worker."""

    def __init__(self, stage: Stage, done: Callable[[Errand], None]) -> None:
        self._stage = stage
        self._done = done

    def apart(self, worker: Worker, one: Exchange) -> None:
        """Push one worker's contribution, which the copy adds on arrival."""
        self._push(Errand(worker, one, worker.clock, self._stage.group(worker, one)))

    def together(self, worker: Worker, one: Exchange, *, computing: bool) -> None:
        """Push a contribution, bucket by bucket while it becomes ready."""
        stage = self._stage
        group = stage.group(worker, one)
        meeting = None if one.beside else stage.groups.meet(group, worker, one)
        errand = Errand(worker, one, worker.clock, group, meeting)
        if computing:
            errand.parts = (1.0,) if one.select else stage.buckets
            self._await(errand)
        else:
            self._push(errand)

    def read(self, worker: Worker, one: Exchange, then: Callable[[], None]) -> None:
        errand = Errand(worker, one, worker.clock, self._stage.group(worker, one))
        self._pull(errand, lambda _: then())

    def _await(self, errand: Errand) -> None:
        part = self._stage.ready_part(errand.parts[errand.bucket])
        self._stage.when_done(errand.worker, part, self._push, errand)

    def _push(self, errand: Errand) -> None:
        stage, worker, parts, bucket = self._stage, errand.worker, errand.parts, errand.bucket
        worker.event = worker.awaited = None
        sent = parts[bucket - 1] if bucket else 0.0
        if bucket == len(parts) - 1:
            stage.sends(worker.rank, errand.exchange)
            self._own_side(errand)
        size_bytes = stage.size_bytes(worker.rank, errand.exchange) * (parts[bucket] - sent)
        route = self._way(errand, stage.topology.push).times(stage.many(parts[bucket]))
        stage.network.start(route, size_bytes, self._pushed, errand)

    def _own_side(self, errand: Errand) -> None:
        now_s = self._stage.queue.now_s
        busy_s, errand.own_end_s = errand.worker.own_side(now_s)
        if errand.exchange.moment is not Moment.BACKGROUND:
            errand.worker.transfer_s += busy_s

    def _pushed(self, errand: Errand) -> None:
        errand.bucket += 1
        if errand.worker.dead:
            return
        if errand.bucket < len(errand.parts):
            self._await(errand)
        elif errand.own_end_s > self._stage.queue.now_s:
            self._stage.queue.at(errand.own_end_s, self._arrived, errand)
        else:
            self._arrived(errand)

    def _arrived(self, errand: Errand) -> None:
        if errand.worker.dead:
            return
        if errand.exchange.quorum is not None and errand.meeting is None:
            errand.meeting = self._stage.groups.join(errand.group, errand.worker, errand.exchange)
        if errand.meeting is not None:
            self._contribute(errand, errand.meeting)
            return
        self._stage.arithmetic.merges(errand.exchange, (errand.worker.rank,))
        if errand.exchange.moment is Moment.BACKGROUND:
            self._pull(errand, self._done)
        else:
            # The worker reads the answer when its next step starts, as late as possible.
            errand.worker.unread.append(errand.exchange)
            self._done(errand)

    def _contribute(self, errand: Errand, meeting: Round) -> None:
        late = meeting.closed
        if math.isnan(meeting.opened_s):
            meeting.opened_s = self._stage.queue.now_s
        meeting.arrive(errand.worker, errand.clock)
        if late:
            errand.worker.late = True
            self._pull(errand, self._catch_up)
        else:
            meeting.errands.append(errand)
            self.recheck(meeting)

    def recheck(self, meeting: Round) -> None:
        if meeting.closed or not meeting.complete or self._graces(meeting):
            return
        meeting.closed = True
        payload = meeting.exchange.payload
        if payload not in meeting.group.newest or meeting.group.newest[payload][0] < meeting.number:
            meeting.group.newest[payload] = meeting.number, meeting.clock
        if not meeting.missing:
            meeting.forget()
        self._stage.arithmetic.merges(meeting.exchange, tuple(sorted(meeting.arrived)))
        for errand in meeting.errands:
            self._pull(errand, self._done)

    def _graces(self, meeting: Round) -> bool:
        # The grace window is proportional to the time that the quorum took; see :class:`uneven.policy.sync.Decoupled`.
        now_s = self._stage.queue.now_s
        quorum = meeting.exchange.quorum
        if not meeting.missing or quorum is None or not quorum.grace:
            return False
        if math.isnan(meeting.due_s):
            meeting.due_s = now_s + quorum.grace * (now_s - meeting.opened_s)
            self._stage.queue.at(meeting.due_s, self.recheck, meeting)
        return now_s < meeting.due_s

    def lose(self, meeting: Round, rank: int) -> None:
        """Remove a dead member. It gets no answer; its contribution stays, except the movement of a learner."""
        if meeting.exchange.beside:
            meeting.arrived.pop(rank, None)
        meeting.errands = [errand for errand in meeting.errands if errand.worker.rank != rank]
        self.recheck(meeting)

    def _catch_up(self, errand: Errand) -> None:
        worker, meeting = errand.worker, errand.meeting
        assert meeting is not None
        worker.skip_to = self._stage.groups.skip(errand.group, worker, errand.exchange.payload)
        source = min((rank for rank, other in meeting.arrived.items() if not other.gone), default=None)
        self._stage.arithmetic.catches_up(worker.rank, errand.exchange, source)
        self._done(errand)

    def _pull(self, errand: Errand, then: Callable[[Errand], None]) -> None:
        self._stage.arithmetic.answers(errand.worker.rank, errand.exchange)
        route = self._way(errand, self._stage.topology.pull)
        self._stage.network.start(route, self._stage.whole_bytes, self._pulled, errand, then)

    def _pulled(self, errand: Errand, then: Callable[[Errand], None]) -> None:
        if not errand.worker.dead:
            # A late worker has taken over the newest state already.
            if then != self._catch_up:
                self._stage.arithmetic.reads(errand.worker.rank, errand.exchange)
            then(errand)

    def _way(self, errand: Errand, look_up: Callable[[int, tuple[int, ...]], Route]) -> Route:
        if self._stage.topology.free:
            return FREE
        rank, members = errand.worker.rank, errand.exchange.members
        routes, key = errand.group.routes, (look_up.__name__, rank, members)
        if key not in routes:
            routes[key] = look_up(rank, members)
        return routes[key]
