"""This worker's model as one vector for exchanges, with the state of merges between them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from uneven.errors import CheckpointError, ConfigError
from uneven.policy.core.actions import Combined, Exchange, Merge, Moment, Payload, StepPlan, span
from uneven.policy.core.plain import Misfit
from uneven.policy.merge import Kept
from uneven.policy.sync import SyncPolicy
from uneven.run.lines.group_lines import take_from_first
from uneven.run.replicas.flat import Flat
from old_peers import outer_step, partial_merges
from uneven.run.replicas.weighted_sums import (
    EXTRA,
    apart,
    average,
    contribution,
    mean_square_root,
    resting_in,
    weight_in,
)

Total = Callable[[Tensor, Exchange], int]
"""Replaces a vector by its sum over the members of an exchange; returns the bytes that were sent for it."""


@dataclass(frozen=True, slots=True)
class ExchangeResult:
    """The result of an exchange.

    Attributes:
        distance: root mean square of this replica's distance from the mean, over the parameters; with picked entries,
            of those not sent.
        finite: whether this replica held finite numbers only.
        picked: part of the entries that were sent.
    """

    sent_bytes: int
    distance: float
    finite: bool
    resting: int
    picked: float = 1.0


@dataclass(frozen=True, slots=True)
class Given:
    """A worker's contribution to the mean of a piece, and of the statistics.

    Attributes:
        own: the replica, shape (size,).
        values: the contribution; the statistics come last.
        vector: the summand, which the sum replaces.
        weight: samples of a worker in a group of one; otherwise None.
        kept: a copy of the merge's state of the piece.
    """

    own: Tensor
    values: Tensor
    length: int
    vector: Tensor
    weight: float | None
    kept: Kept


class _Room:
    """Memory in which one thread computes its exchanges."""

    # Reused, because new pages cost the processor more than the computation: an exchange of 4 MB took 20 ms with a new
    # vector for each result, and takes 9 ms now, 4 of them in gloo.
    def __init__(self, flat: Flat) -> None:
        self.own = flat.room()
        self.more = flat.room()
        self.total = flat.room(EXTRA)


def running_statistics(model: nn.Module) -> list[Tensor]:
    """Return the means and variances of batch-norm layers, each of shape (channels,)."""
    layers = (one for one in model.modules() if isinstance(one, _BatchNorm))
    return [one for layer in layers for one in (layer.running_mean, layer.running_var) if one is not None]


class Replica:
    """The exchanged part of ``model``: the trained parameters, and the running statistics of batch norm.

    Statistics are linear in those of the batches, so they are averaged with the parameters' weights, or merged like
    them if the merge has ``whole``. Other buffers stay local. One kind of merge may keep state between exchanges.
    ``merged`` is the result of the last exchange, equal on all its members, shape (size,), if :meth:`keep_merged` was
    called.
    """

    def __init__(self, model: nn.Module) -> None:
        parameters = [one for one in model.parameters() if one.requires_grad]
        self._parameters = parameters
        self.flat = Flat(parameters, running_statistics(model))
        self._statistics = self.flat.size - self.flat.trained
        self._merge: Merge | None = None  # any merge of the kind that keeps state
        self._centred = False
        self._pieces = 0  # number of pieces; 0 if all parameters are exchanged together
        self._moving: Merge | None = None  # the merge of movements
        self._movements: outer_step.Movements | None = None  # None before training starts
        self._kept: Kept | None = None  # the merge's state; None before training starts
        self.merged: Tensor | None = None
        self._keeps_merged = False
        self._outcome: tuple[Tensor, Tensor] | None = None  # of the last mean: parameters, statistics
        self._spoilt = False  # by a NaN or an infinity of another worker
        self._changing = threading.Lock()  # guards the merge's state, so that a checkpoint is of one exchange
        self._rooms: dict[Moment, _Room] = {}  # one for each thread that exchanges

    def expect(
        self, merges: Iterable[Merge], *, centre: bool, cuts: Iterable[int] = (), moved: Iterable[Merge] = ()
    ) -> None:
        """Announce the merges to come, because their state starts with the training.

        Args:
            centre: whether the point that the replicas last started from is the model to evaluate.
            cuts: numbers of pieces into which parameters are cut.
            moved: merges of movements.

        Raises:
            ConfigError: more than one kind keeps state, movements have several merges, or cuts differ.
        """
        if len(kinds := set(moved)) > 1:
            raise ConfigError(f"movements are merged by {sorted(map(repr, kinds))}: a policy merges them in one way")
        self._moving = next(iter(kinds), None)
        if len(ways := sorted(set(cuts))) > 1:
            raise ConfigError(f"parameters are cut into {ways} pieces by one policy: cut them in one way")
        self._pieces = ways[0] if ways else 0
        keeping = {type(one): one for one in merges if one.keeps}
        if len(keeping) > 1:
            names = " and ".join(sorted(kind.__name__ for kind in keeping))
            raise ConfigError(f"{names} keep something from one exchange to the next: only one merge of a policy can")
        self._merge, self._centred = next(iter(keeping.values()), None), centre

    def refused(self, plan: StepPlan) -> str | None:
        """Return why a plan does not match the announced merges; None if it does."""
        for one in plan.exchanges:
            if one.select is None and one.payload is Payload.DELTA:
                if one.merge != self._moving:
                    return f"movements are merged by {one.merge!r}, which none of the first steps announced"
                continue
            if one.select is None and one.merge.keeps and type(one.merge) is not type(self._merge):
                kind = type(one.merge).__name__
                return f"{kind} keeps something from the beginning on, and none of the first steps announced it"
            if one.select is None and one.payload is not Payload.GRADIENT and (one.piece or (0, 0))[1] != self._pieces:
                return f"it exchanges {one.piece or 'all parameters'}, where the first steps cut them otherwise"
        return None

    def begin(self) -> None:
        """Initialize the state of merges, unless a checkpoint was loaded."""
        if self._kept is None:
            self._kept, self._outcome = self._first()
        if self._movements is None:
            self._movements = self._unmoved()
        if self._keeps_merged and self.merged is None:
            self.merged = self.flat.read()

    def _unmoved(self) -> outer_step.Movements | None:
        return None if self._moving is None else outer_step.Movements(self.flat, self._moving, self.flat.read())

    def _first(self) -> tuple[Kept, tuple[Tensor, Tensor] | None]:
        """Return the state before the first exchange, and the outcome as if there had been one."""
        if self._merge is None and not self._centred:
            return {}, None
        values, merge, trained = self.flat.read(), self._merge, self.flat.trained
        if merge is not None and merge.combined is Combined.CENTRE:
            return merge.begin(values), None
        outcome = values[:trained].clone(), values[trained:].clone()
        if merge is None:
            return {}, outcome
        if self._pieces:
            kept = partial_merges.begin(merge, values[:trained], self._pieces)
        else:
            kept = merge.begin(values if merge.whole else values[:trained])
        if "centre" in kept:
            raise ConfigError(f"{merge!r} must not keep a 'centre': a mean's outcome is stored under that name")
        return kept, outcome if self._centred else None

    def keep_merged(self) -> None:
        self._keeps_merged = True

    @property
    def centre(self) -> Tensor:
        """The point that the replicas last started from, shape (size,), if it was announced."""
        assert self._kept is not None, "the replica has not begun"
        return self._centre(self._kept, self._outcome)

    @staticmethod
    def _centre(kept: Kept, outcome: tuple[Tensor, Tensor] | None) -> Tensor:
        centre: Tensor = kept["centre"] if outcome is None else torch.cat(outcome)
        return centre

    def gradients(self) -> dict[nn.Parameter, Tensor]:
        """Return copies of the current gradients, each of its parameter's shape."""
        return {one: one.grad.clone() for one in self._parameters if one.grad is not None}

    def meet(
        self,
        exchange: Exchange,
        samples: float,
        total: Total,
        *,
        resting: bool = False,
        alone: bool | None = None,
        own: Tensor | None = None,
    ) -> ExchangeResult:
        """Take part in one exchange of parameters, from reading the replica to writing into it, and wait for it.

        Args:
            samples: of this replica, or of its party, since its last exchange.
            alone: whether no other worker takes part; by the exchange's members if None.
            own: an earlier copy of this replica, shape (size,), overwritten; None reads it now.
        """
        if exchange.payload is Payload.DELTA:
            return self._meet_moved(exchange, samples, total)
        if exchange.piece is not None:
            piece = self.gives(exchange, samples, self._room(exchange.moment).own)
            met = self.takes(exchange, piece, total(piece.vector, exchange))
            self.flat.write(piece.own)
            return met
        merge, room = exchange.merge, self._room(exchange.moment)
        own = self.flat.read(room.own) if own is None else own
        given = self._given(merge, own)
        alone, fits = len(exchange.members) == 1 if alone is None else alone, len(given) == len(own)
        weight = 1.0 if alone else merge.weight(samples)
        vector = contribution(given, weight, resting=resting, into=room.total if fits else None)
        sent_bytes = total(vector, exchange)
        away = apart(given, vector, room.more if fits else None)
        distance = merge.distance(mean_square_root(away[: len(away) - self._statistics]))
        finite, central = math.isfinite(distance), merge.combined is Combined.CENTRE
        if not finite:  # perhaps only another worker's replica; a central merge has overwritten `own`
            own_finite = bool(torch.isfinite((self.flat.read() if central else own).sum()))
            # From here on this replica holds another worker's NaN, which this worker must not report as its own.
            finite = self._spoilt = own_finite or self._spoilt
        back = exchange.background
        if central:
            with self._changing:
                self._kept, _ = merge.combine(self._of(merge), vector[:-EXTRA], weight_in(vector), in_place=True)
            self.flat.add(given, -1.0)
        elif not merge.plain or self._centred:
            weight = merge.weight(samples) if alone else weight_in(vector)
            self._write(exchange, own, self._merged(merge, vector, weight))
        elif exchange.moment is Moment.BACKGROUND and not back.lerp:
            # Add the difference instead of writing the mean, because the training has changed the replica since.
            self.flat.add(away, -back.alpha)
            if self.merged is not None:
                self.merged.copy_(average(vector))
        else:
            self._write(exchange, own, average(vector))
        if self._movements is not None:
            self._movements.goes_on_from(self.flat.read())
        return ExchangeResult(sent_bytes, distance, finite, resting_in(vector))

    def _meet_moved(self, exchange: Exchange, samples: float, total: Total) -> ExchangeResult:
        """Average the movements of some replicas' steps, in the foreground."""
        assert self._movements is not None, "the replica has not begun"
        merge, alone = exchange.merge, len(exchange.members) == 1
        own = self.flat.read()
        given, vector = self._movements.contribution(own, 1.0 if alone else merge.weight(samples))
        sent_bytes = total(vector, exchange)
        with self._changing:
            after, distance = self._movements.taken(exchange, given, vector, merge.weight(samples) if alone else None)
            self._movements.goes_on_from(after)
        finite = math.isfinite(distance)
        if not finite:
            finite = self._spoilt = bool(torch.isfinite(own.sum())) or self._spoilt
        self.flat.write(after)
        return ExchangeResult(sent_bytes, distance, finite, 0)

    def gives(self, exchange: Exchange, samples: float, into: Tensor | None = None) -> Given:
        """Return this worker's contribution to the mean of a piece, and of all statistics; ``into`` is memory
        (size,)."""
        assert self._kept is not None, "the replica has not begun"
        merge, trained, own = exchange.merge, self.flat.trained, self.flat.read(into)
        alone = len(exchange.members) == 1
        kept = partial_merges.of_piece(self._kept, exchange.piece or (0, 1), trained)
        contributed = merge.contribute(own[span(exchange.piece, trained)], kept)
        values = torch.cat((contributed, own[trained:]))
        vector = contribution(values, 1.0 if alone else merge.weight(samples))
        return Given(own, values, len(contributed), vector, merge.weight(samples) if alone else None, kept)

    def takes(self, exchange: Exchange, given: Given, sent_bytes: int) -> ExchangeResult:
        """Merge the sum of all contributions; afterwards ``given.own`` is the replica with the outcome."""
        assert self._kept is not None, "the replica has not begun"
        merge, trained, own, piece = exchange.merge, self.flat.trained, given.own, exchange.piece or (0, 1)
        cut, length, vector = span(piece, trained), given.length, given.vector
        distance = merge.distance(mean_square_root(apart(given.values, vector)[:length]))
        finite = math.isfinite(distance)
        if not finite:
            finite = self._spoilt = bool(torch.isfinite(own.sum())) or self._spoilt
        weight = weight_in(vector) if given.weight is None else given.weight
        middle = average(vector)
        with self._changing:
            found, outcome = merge.combine(given.kept, middle[:length], weight, in_place=True)
            partial_merges.put(self._kept, piece, trained, found)
            own[cut], own[trained:] = outcome, middle[length:]
            if self._outcome is not None:
                self._outcome[0][cut].copy_(outcome)
                self._outcome[1].copy_(middle[length:])
        return ExchangeResult(sent_bytes, distance, finite, 0)

    def _of(self, merge: Merge) -> Kept:
        assert self._kept is not None, "the replica has not begun"
        return self._kept if merge.keeps else {}

    def _given(self, merge: Merge, own: Tensor) -> Tensor:
        """Return the summand; statistics that are averaged separately come last."""
        if merge.plain:
            return own
        kept, central = self._of(merge), merge.combined is Combined.CENTRE
        if merge.whole or central:
            return merge.contribute(own, kept, in_place=central)
        parameters = own[: self.flat.trained]
        given = merge.contribute(parameters, kept)
        return own if given is parameters else torch.cat((given, own[self.flat.trained :]))

    def _room(self, moment: Moment) -> _Room:
        if moment not in self._rooms:
            self._rooms[moment] = _Room(self.flat)
        return self._rooms[moment]

    def _merged(self, merge: Merge, total: Tensor, weight: float) -> Tensor:
        """Return the outcome of a mean, followed by the statistics that are averaged separately."""
        middle, trained = average(total), self.flat.trained
        length = len(middle) if merge.whole else len(middle) - self._statistics
        with self._changing:
            kept, outcome = merge.combine(self._of(merge), middle[:length], weight, in_place=True)
            if merge.keeps:
                self._kept = kept
            if self._centred:
                # An outcome in the memory of the sum is overwritten by the next exchange, so it is copied.
                passing = outcome.untyped_storage().data_ptr() == total.untyped_storage().data_ptr()
                parameters = outcome.clone() if passing else outcome
                self._outcome = parameters[:trained], torch.cat((parameters[trained:], middle[length:]))
        if length == len(middle):
            return outcome
        if length != trained:
            return torch.cat((outcome, middle[length:]))
        middle[:length].copy_(outcome)
        return middle

    def _write(self, exchange: Exchange, sent: Tensor, outcome: Tensor) -> None:
        """Write into the replica, which has changed since a background exchange read it; overwrites ``sent``."""
        if self.merged is not None:
            self.merged.copy_(outcome)
        back = exchange.background
        if exchange.moment is not Moment.BACKGROUND:
            self.flat.write(outcome)
        elif back.lerp:
            self.flat.interpolate(outcome, back.alpha)
        else:
            self.flat.add(torch.sub(outcome, sent, out=sent), back.alpha)

    def mean(self, total: Total, everybody: Exchange) -> Tensor:
        """Return the plain mean of all replicas, shape (size,), for evaluation; waits for all."""
        vector = contribution(self.flat.read(), 1.0)
        total(vector, everybody)
        return average(vector)

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return the state of merges: vectors of shape (size,), and numbers."""
        with self._changing:
            # Also before training: torch.distributed.checkpoint reads into the tensors that it finds here.
            kept, outcome = self._first() if self._kept is None else (self._kept, self._outcome)
            vectors = {key: one.clone() for key, one in kept.items() if isinstance(one, Tensor)}
            if outcome is not None:
                vectors["centre"] = self._centre(kept, outcome)
            numbers = {key: one for key, one in kept.items() if not isinstance(one, Tensor)}
            if (moving := self._movements or self._unmoved()) is not None:
                more, counted = moving.state()
                vectors, numbers = vectors | more, numbers | counted
            return vectors, numbers

    def check(self, vectors: dict[str, Tensor], numbers: dict[str, float]) -> None:
        """Raise :class:`Misfit` if an entry is missing or unexpected, :class:`CheckpointError` for vectors of
        another model."""
        if not vectors:
            return
        known, counted = self.state_dict()
        for names, found, what in ((known, vectors, "vectors"), (counted, numbers, "kept")):
            if set(found) != set(names):
                raise Misfit(sorted(found), f"{', '.join(names)} or nothing", what)
        for name, vector in vectors.items():
            if len(vector) != len(known[name]):
                raise CheckpointError(
                    f"the centre in the checkpoint has {len(vector)} numbers ({name!r}), that of this model "
                    f"{len(known[name])}: resume with the model that the run began with"
                )

    def load_state_dict(self, vectors: dict[str, Tensor], numbers: dict[str, float]) -> None:
        if not vectors:
            return
        kept: Kept = {key: one.to(self.flat.device, self.flat.dtype, copy=True) for key, one in vectors.items()}
        if self._centred and (self._merge is None or self._merge.combined is Combined.MEAN):
            centre = kept.pop("centre")
            self._outcome = centre[: self.flat.trained], centre[self.flat.trained :]
        moved, self._kept = outer_step.own(kept | numbers)
        if moved:
            self._movements = self._movements or self._unmoved()
            assert self._movements is not None
            self._movements.load(moved)


def broadcast_from_first(model: nn.Module) -> None:
    """Copy rank 0's parameters and buffers to every rank."""
    take_from_first(one.data for one in chain(model.parameters(), model.buffers()))


def refuse_synchronised_layers(model: nn.Module, policy: SyncPolicy) -> None:
    """Raise :class:`ConfigError` for a layer that would wait for all workers in every forward pass."""
    for name, layer in model.named_modules():
        if isinstance(layer, nn.SyncBatchNorm):
            raise ConfigError(
                f"{name} is a SyncBatchNorm, which waits for everybody in every forward pass; under {policy!r} workers "
                f"take steps apart: use BatchNorm, whose running statistics are averaged with the parameters"
            )
