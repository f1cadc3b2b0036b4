"""The models of a simulation: applies the events of virtual time to them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from uneven.cluster.pure.simulate import Arithmetic
from uneven.cluster.pure.simulate.virtual_exchanges import ExchangeShape, kind_of
from uneven.cluster.virtual.copies import Key, Sent, VirtualCopies, check, key_of, parties_of, weights_of
from uneven.cluster.virtual.server_copies_board import Board
from uneven.cluster.virtual.virtual_replicas import (
    LazyGradient,
    ModelState,
    Piece,
    Sgd,
    VirtualReplica,
    flat_mean,
    mean,
)
from uneven.cluster.virtual.virtual_traffic import ModelTraffic
from uneven.cluster.virtual.virtual_visits import VirtualVisits
from uneven.policy.core.actions import Background, Combined, Exchange, Merge, Payload, span
from uneven.policy.merge import Kept
from uneven.policy.select import HEADER_BYTES, Picked, packed_bytes
from uneven.policy.select.pack import shortest
from uneven.policy.select.picked import WHOLE
from uneven.policy.sync import EvaluationModel


@dataclass(eq=False)
class Training(Arithmetic):
    """The models of all workers and of the parameter server, with one vector for all that are equal."""

    sgd: Sgd
    evaluation_model: EvaluationModel
    board: Board
    visits: VirtualVisits | None = None
    traffic: ModelTraffic | None = None

    def __post_init__(self) -> None:
        first = self.sgd.task.initial()
        self._copies = VirtualCopies(first)
        self._last = ModelState(first, None, torch.zeros_like(first))  # of the worker that took the last step
        self._rounds: dict[tuple[int, ...], ModelState] = {}  # members → state after their newest round of gradients
        self._replicas: dict[int, VirtualReplica] = {}
        self._live: set[int] = set()
        self._coming: dict[int, int | None] = {}
        self._sent: dict[Key, Sent] = {}
        self._answers: dict[Key, Tensor] = {}
        self._parts: dict[int, float] = {}  # rank → bytes of its last message, relative to the whole vector's

    def enters(self, rank: int, source: int | None) -> None:
        # Its replica is created in its first step, when it must equal its source.
        self._coming[rank] = source

    def leaves(self, rank: int) -> None:
        # Its replica is no longer evaluated, but contributions in transit still count.
        self._live.discard(rank)
        self._coming.pop(rank, None)

    def _arrive(self, rank: int) -> None:
        source = self._coming.pop(rank)
        if source is not None and source not in self._live:
            source = min(self._live, default=None)
        known = None if source is None else self._replicas[source]
        state = self._last if known is None else known.state
        if self._rounds:
            state = next(reversed(self._rounds.values()))
        elif known is None and self._copies.begun:
            state = replace(state, parameters=self._centre)
        here = state.parameters
        start, centre, kept = (here, here, {}) if known is None else (known.start, known.centre, known.kept)
        # The source sends its own unsent movement, so the copy must not send it again.
        replica = VirtualReplica(state, start, centre, carried=state.moved, kept=dict(kept))
        if known is not None:
            replica.coming, replica.left = known.coming, known.left
        self._replicas[rank] = replica
        self._live.add(rank)

    def parameters(self, rank: int) -> Tensor:
        """Return the current or last parameters of a worker's replica, (size,)."""
        return self._replicas[rank].state.parameters

    def computes(self, rank: int, iteration: int, samples: range, at_s: float) -> None:
        if rank in self._coming:
            self._arrive(rank)
        replica = self._replicas[rank]
        if replica.coming is not None and not replica.left:
            replica.state, replica.coming = _moved(replica.state, replica.coming), None
        if self.visits is not None:
            self.visits.begins(iteration, self.parameters)
        # Computed later, so that equal replicas share one computation.
        replica.gradient = LazyGradient(replica.state.parameters, self.sgd.order.drawn(rank, samples))

    def divides(self, rank: int, rate: float, weight: float) -> None:
        self._replicas[rank].divided = rate, weight

    def steps(self, rank: int, iteration: int, at_s: float) -> None:
        replica = self._replicas[rank]
        assert replica.gradient is not None
        batch = len(replica.gradient.samples)
        gradient = self.sgd.value(replica.gradient)
        replica.state = self._last = self.sgd.step(replica.state, gradient, *replica.divided)
        replica.gradient = None
        replica.fresh += batch
        replica.left = max(0, replica.left - 1)
        if self.board.due(batch):
            self.enough = self.board.look(self._model(rank), min(self._live), iteration, at_s)

    def _model(self, rank: int) -> Tensor:
        if self.evaluation_model is EvaluationModel.REPLICA:
            return self._replicas[rank].state.parameters
        if self.evaluation_model is EvaluationModel.MEAN:
            return flat_mean([self._replicas[one].state for one in sorted(self._live)])
        return self._centre if self._copies.begun else self._replicas[min(self._live)].centre

    @property
    def _centre(self) -> Tensor:
        return self._copies.parameters

    def sends(self, rank: int, exchange: Exchange) -> None:
        check(exchange)
        # Gradients are read from the replicas when they are merged.
        if exchange.payload is Payload.GRADIENT:
            self._count(rank, exchange)
            return
        replica = self._replicas[rank]
        value = replica.state.parameters
        if exchange.piece is not None:
            value = value[span(exchange.piece, len(value))]
        if exchange.payload is Payload.DELTA:
            value = self._movement(rank, exchange)
        self._sent[key_of(rank, exchange)] = Sent(value, replica.state.parameters, replica.fresh)
        replica.fresh, replica.left = 0, exchange.delay
        self._count(rank, exchange)

    def writes(self, rank: int, exchange: Exchange) -> object:
        check(exchange)
        if kind_of(exchange) is ExchangeShape.BETWEEN:
            copy = self._copies.of((rank,))
            held = copy.parameters - copy.shared
            value, copy.shared = self._picked(rank, exchange, held, copy.parameters, (copy.shared, copy.parameters))
        else:
            value, self._replicas[rank].fresh = self._movement(rank, exchange), 0
        self._count(rank, exchange)
        return exchange.merge.contribute(value, {})

    def hears(self, exchange: Exchange, content: object, ranks: Sequence[int]) -> None:
        assert isinstance(content, Tensor)
        if kind_of(exchange) is ExchangeShape.BETWEEN:
            self._copies.of(ranks).hear(content)
            return
        self._tell_all([rank for rank in ranks if rank in self._live], exchange.merge, content)

    def _count(self, rank: int, exchange: Exchange) -> None:
        if self.traffic is not None:
            self.traffic.sends(rank, exchange, self._parts.get(rank, 1.0))

    def _movement(self, rank: int, exchange: Exchange) -> Tensor:
        # The first live member of a party sends for all. The others may not have taken the step yet that the sender
        # has, so the sent part is stored, not the rest.
        party = next((party for party in exchange.parties if rank in party), (rank,))
        speaker = self._replicas[rank]
        moved, carried = speaker.state.moved, speaker.carried
        if rank != next((one for one in party if one in self._live), rank):
            return torch.zeros_like(moved)
        value, after = moved - carried, moved
        if exchange.select is not None:
            value, after = self._picked(rank, exchange, value, speaker.state.parameters, (carried, moved))
        for one in party:
            if one in self._replicas:
                self._replicas[one].carried = after
        return value

    def _picked(
        self, rank: int, exchange: Exchange, held: Tensor, parameters: Tensor, ends: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the selected entries of ``held``, and the point between the two ``ends`` (carried, moved) that they
        reach."""
        (carried, moved), whole = ends, held.numpy()
        picked = shortest(exchange.select_of(rank).pick(whole, parameters.numpy()), whole)
        self._parts[rank] = (packed_bytes(picked) - HEADER_BYTES) / whole.nbytes
        value = torch.from_numpy(picked.dense())
        if picked.places is None:
            return value, moved
        if picked.bits != WHOLE:
            return value, carried + value
        through = torch.zeros(len(moved), dtype=torch.bool)  # bit-identical to ``moved``, so that no remainder is left
        through[torch.from_numpy(picked.places)] = True
        return value, torch.where(through, moved, carried)

    def sent_part(self, rank: int, exchange: Exchange) -> float | None:
        return self._parts.get(rank)

    def together_part(self, ranks: Sequence[int], exchange: Exchange) -> float | None:
        values = [sent.value for rank in ranks if (sent := self._sent.get(key_of(rank, exchange))) is not None]
        if not values:
            return 0.0
        # Entries of several workers overlap, so the size is that of their sum.
        total = torch.stack(values).sum(0).numpy()
        places = np.flatnonzero(total)
        picked = shortest(Picked(len(total), places, total[places]), total)
        return (packed_bytes(picked) - HEADER_BYTES) / float(total.nbytes)

    def merges(self, exchange: Exchange, ranks: tuple[int, ...]) -> None:
        kind = kind_of(exchange)
        if exchange.payload is Payload.GRADIENT:
            self._merge_gradients(exchange, ranks, served=kind is ExchangeShape.TOGETHER)
        elif kind is ExchangeShape.RING:
            self._ring(exchange, ranks)
        elif kind is ExchangeShape.TELL:
            self._tell(exchange, ranks[0])
        elif kind is ExchangeShape.APART:
            self._apart(exchange, ranks[0])
        else:
            self._together(exchange, ranks)

    def _merge_gradients(self, exchange: Exchange, ranks: tuple[int, ...], *, served: bool) -> None:
        parties = parties_of(exchange, ranks)
        found = {rank: self._replicas[rank].gradient for rank in ranks}
        ones = {rank: one for rank, one in found.items() if one is not None}
        speakers = [party for party in parties if party[0] in ones]
        merge = exchange.merge
        if merge.combined is Combined.MEAN:
            weights = [sum(len(ones[rank].samples) for rank in party if rank in ones) for party in speakers]
            pending = [ones[party[0]] for party in speakers]
            merged = self.sgd.mean(pending, [merge.weight(one) for one in weights], by_samples=merge.by_samples)
            outcome = dict.fromkeys(ones, merged)
        else:
            own = {rank: self.sgd.value(ones[party[0]]) for party in speakers for rank in party if rank in ones}
            total = torch.stack([own[party[0]] for party in speakers]).sum(0)
            outcome = {rank: _told(merge, one, total - one) for rank, one in own.items()}
        if served:
            first = ranks[0]
            self._rounds.pop(exchange.members, None)  # moves the newest to the end
            self._rounds[exchange.members] = self.sgd.step(self._replicas[first].state, outcome[first])
            self._answers.update({key_of(rank, exchange): value for rank, value in outcome.items()})
            return
        for rank, value in outcome.items():
            ones[rank].value = value

    def _ring(self, exchange: Exchange, ranks: tuple[int, ...]) -> None:
        parties, merge = parties_of(exchange, ranks), exchange.merge
        sent = {rank: self._sent.pop(key_of(rank, exchange)) for rank in ranks}
        if merge.combined is Combined.SUM:
            given = {party: merge.contribute(sent[party[0]].value, {}) for party in parties}
            total = torch.stack(list(given.values())).sum(0)
            for party in parties:
                self._tell_all(party, merge, total - given[party])
            return
        if merge.combined is Combined.CENTRE:
            copy = self._copies.of(exchange.members)
            before = copy.kept_by(merge)
            for rank in ranks:
                moves = merge.contribute(sent[rank].value, before)
                copy.take_in(merge, moves)
                self._replicas[rank].state = _moved(self._replicas[rank].state, -moves)
            return
        piece = exchange.piece
        kept, outcome = self._mean(exchange, parties, sent, [self._kept_by(rank, merge, piece) for rank in ranks])
        for rank in ranks:
            self._replicas[rank].kept[type(merge), piece] = kept
        if exchange.select is not None and exchange.select.beside:
            after = self._replicas[ranks[0]].centre + outcome
            for rank in ranks:
                self._replicas[rank].centre = after
                if exchange.delay:
                    self._replicas[rank].coming = after - sent[rank].parameters
            if not exchange.delay:
                self._each(ranks, lambda state: replace(state, parameters=after))
            return
        if exchange.payload is Payload.DELTA:
            for party in parties:
                change = outcome - sent[party[0]].value
                self._each(party, lambda state, change=change: _moved(state, change))  # type: ignore[misc]
            return
        for rank in ranks:
            replica = self._replicas[rank]
            if piece is None:
                replica.centre = after = outcome
            else:  # the rest of the vector stays as it was sent
                cut = span(piece, len(replica.centre))
                replica.centre = _with(replica.centre, cut, outcome)
                after = _with(sent[rank].parameters, cut, outcome)
                if exchange.delay:
                    replica.coming = after - sent[rank].parameters
                    continue
            self._take_over(rank, after, sent[rank], exchange.background)

    def _mean(
        self, exchange: Exchange, parties: list[tuple[int, ...]], sent: dict[int, Sent], kept: Sequence[Kept]
    ) -> tuple[Kept, Tensor]:
        # Each party contributes by its sender's kept state; the first one's is updated for all.
        merge, weights = exchange.merge, weights_of(sent, parties, exchange)
        of = dict(zip(sent, kept, strict=True))
        given = [merge.contribute(sent[party[0]].value, of[party[0]]) for party in parties]
        return merge.combine(kept[0], mean(given, weights), sum(weights))

    def _kept_by(self, rank: int, merge: Merge, piece: Piece) -> Kept:
        replica = self._replicas[rank]
        if (type(merge), piece) not in replica.kept:
            start = replica.start if piece is None else replica.start[span(piece, len(replica.start))]
            replica.kept[type(merge), piece] = merge.begin(start)
        return replica.kept[type(merge), piece]

    def _tell(self, exchange: Exchange, speaker: int) -> None:
        value = self._sent.pop(key_of(speaker, exchange)).value
        party = next((party for party in exchange.parties if speaker in party), (speaker,))
        others = [rank for rank in exchange.members if rank in self._live and rank not in party]
        self._tell_all(others, exchange.merge, exchange.merge.contribute(value, {}))

    def _tell_all(self, ranks: Iterable[int], merge: Merge, given: Tensor) -> None:
        self._each(ranks, lambda state: replace(state, parameters=_told(merge, state.parameters, given)))

    def _apart(self, exchange: Exchange, rank: int) -> None:
        sent, merge, copy = self._sent[key_of(rank, exchange)], exchange.merge, self._copies.of(exchange.members)
        central = merge.combined is Combined.CENTRE
        given = merge.contribute(sent.value, copy.kept_by(merge) if central else {})
        copy.take_in(merge, given)
        if central:
            self._answers[key_of(rank, exchange)] = -given

    def _together(self, exchange: Exchange, ranks: tuple[int, ...]) -> None:
        parties, merge, copy = parties_of(exchange, ranks), exchange.merge, self._copies.of(exchange.members)
        sent = {rank: self._sent[key_of(rank, exchange)] for rank in ranks}
        if merge.combined is Combined.SUM:
            copy.take_in(merge, torch.stack([merge.contribute(sent[party[0]].value, {}) for party in parties]).sum(0))
        else:
            kept = [copy.kept_by(merge)] * len(ranks)
            copy.kept[type(merge)], outcome = self._mean(exchange, parties, sent, kept)
            copy.parameters = copy.parameters + outcome if exchange.payload is Payload.DELTA else outcome
        self._answers.update({key_of(rank, exchange): copy.parameters for rank in ranks})

    def answers(self, rank: int, exchange: Exchange) -> None:
        # Other answers were made at their merge.
        if kind_of(exchange) is ExchangeShape.APART and exchange.merge.combined is Combined.SUM:
            self._answers[key_of(rank, exchange)] = self._copies.of(exchange.members).parameters

    def reads(self, rank: int, exchange: Exchange) -> None:
        key = key_of(rank, exchange)
        answer, replica = self._answers.pop(key), self._replicas[rank]
        if exchange.payload is Payload.GRADIENT:
            assert replica.gradient is not None
            replica.gradient.value = answer
            return
        sent = self._sent.pop(key)
        if exchange.merge.combined is Combined.CENTRE:
            replica.state = _moved(replica.state, answer)
        else:
            self._take_over(rank, answer, sent, exchange.background)

    def catches_up(self, rank: int, exchange: Exchange, source: int | None) -> None:
        replica = self._replicas[rank]
        self._sent.pop(key_of(rank, exchange), None)
        self._answers.pop(key_of(rank, exchange), None)
        if exchange.payload is Payload.GRADIENT:
            replica.state, replica.gradient = self._rounds[exchange.members], None
        else:
            replica.state = replace(replica.state, parameters=self._copies.of(exchange.members).parameters)
        # What it had not sent was dropped with its late step.
        replica.carried = replica.state.moved

    def _take_over(self, rank: int, outcome: Tensor, sent: Sent, back: Background) -> None:
        replica = self._replicas[rank]
        here = replica.state.parameters
        # Keeps what was learned since the contribution was sent, except with lerp.
        if back.lerp:
            after = torch.lerp(here, outcome, back.alpha)
        elif back.alpha == 1 and here is sent.parameters:
            # The replica has not changed since, so the outcome is exact, without the rounding of the sum below.
            after = outcome
        else:
            after = here + back.alpha * (outcome - sent.parameters)
        replica.state = replace(replica.state, parameters=after)

    def _each(self, ranks: Iterable[int], change: Callable[[ModelState], ModelState]) -> None:
        # States that are one object stay one object, so that they are computed once.
        changed: dict[int, tuple[ModelState, ModelState]] = {}
        for rank in ranks:
            replica = self._replicas.get(rank)
            if replica is None:
                continue
            before = replica.state
            if id(before) not in changed:
                changed[id(before)] = before, change(before)
            replica.state = changed[id(before)][1]


def _told(merge: Merge, own: Tensor, given: Tensor) -> Tensor:
    # As if the worker were the parameter server and received the others' contributions.
    return merge.combine(merge.begin(own), given, 1.0)[1]


def _with(vector: Tensor, cut: slice, piece: Tensor) -> Tensor:
    changed = vector.clone()
    changed[cut] = piece
    return changed


def _moved(state: ModelState, change: Tensor) -> ModelState:
    return replace(state, parameters=state.parameters + change)
