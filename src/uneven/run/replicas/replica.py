"""This worker's model as one vector for exchanges, with the state of merges between them."""

import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from uneven.errors import CheckpointError, ConfigError
from uneven.policy.core.actions import Combined, Exchange, Merge, Moment, Payload, StepPlan
from uneven.policy.core.plain import Misfit
from uneven.policy.merge import Kept
from uneven.policy.sync import EvaluationModel, SyncPolicy, first_plans
from uneven.run.replicas.flat import EXTRA, Flat, apart, average, contribution, mean_square_root, resting_in, weight_in
from uneven.run.replicas.merge_state import MergeState

Total = Callable[[Tensor, Exchange], int]
"""Replaces a vector by its sum over the members of an exchange; returns the bytes that were sent for it."""

CHANGE, DUE = "late-change", "late-due"  # in a checkpoint: the delayed outcome, and the clock at which it enters


@dataclass(frozen=True, slots=True)
class ExchangeResult:
    """The result of an exchange, in which a replica s becomes m.

    Attributes:
        distance: root mean square of this replica's distance from the mean, over the parameters; with picked entries,
            of those not sent.
        finite: whether this replica held finite numbers only.
        resting: number of resting workers.
        picked: part of the entries that were sent.
        replica: m, shape (size,); None if ``away`` is enough.
        away: s − m, shape (size,), if it enters instead of m.
        late: updates of others since the last one, through a server; None counts the steps of this worker meanwhile.
        missed: 1 if a quorum was complete without this worker.
    """

    sent_bytes: int
    distance: float
    finite: bool
    resting: int
    picked: float = 1.0
    replica: Tensor | None = None
    away: Tensor | None = None
    late: int | None = None
    missed: int = 0


class Given(NamedTuple):
    """A worker's contribution to an exchange.

    Attributes:
        sent: s, the replica as it was, shape (size,); an exchange with a center overwrites it.
        values: the contribution; statistics that are averaged separately come last.
        vector: the summand, which the sum replaces.
        weight: of a worker that is alone in its group; otherwise None.
    """

    sent: Tensor
    values: Tensor
    vector: Tensor
    weight: float | None


class _Room(NamedTuple):
    """Memory in which one thread computes its exchanges."""

    # Reused, because new pages cost the processor more than the computation. An exchange of 4 MB took 20 ms with a new
    # vector for each result; it takes 9 ms now, 4 of them in gloo.
    own: Tensor
    more: Tensor
    total: Tensor


def running_statistics(model: nn.Module) -> list[Tensor]:
    """Return the means and variances of batch-norm layers that workers share, each of shape (channels,)."""
    left_out = getattr(model, "_ddp_params_and_buffers_to_ignore", ())
    return [
        one
        for path, layer in model.named_modules()
        if isinstance(layer, _BatchNorm)
        for key, one in (("running_mean", layer.running_mean), ("running_var", layer.running_var))
        if one is not None and f"{path}.{key}".lstrip(".") not in left_out
    ]


class Replica:
    """The exchanged part of ``model``: the trained parameters, and the running statistics of batch norm.

    An exchange has three parts: :meth:`give`, :meth:`combine`, :meth:`land`. Each may run in another thread.
    Statistics are linear in those of the batches, so they are averaged with the parameters' weights, or merged like
    them if the merge has ``whole``. Other buffers stay local. One kind of merge may keep state between exchanges.
    ``merged`` is the result of the last exchange, equal on all its members, shape (size,), if :meth:`keep_merged` was
    called. ``on_host`` is that of :class:`~uneven.run.replicas.flat.Flat`.
    """

    def __init__(self, model: nn.Module, *, on_host: bool = False) -> None:
        parameters = [one for one in model.parameters() if one.requires_grad]
        self._parameters = parameters
        self.flat = Flat(parameters, running_statistics(model), on_host=on_host)
        self._statistics = self.flat.size - self.flat.trained
        self._merge: Merge | None = None  # any merge of the kind that keeps state
        self._centred = False
        self._pieces = 0  # number of pieces; 0 if all parameters are exchanged together
        self._moving: Merge | None = None  # the merge of movements
        self._delays = False  # whether any outcome enters some steps later
        self._state: MergeState | None = None  # None before training starts
        self.due: int | None = None  # the clock at which a delayed outcome enters
        self._change: Tensor | None = None  # shape (size,): the delayed outcome to add
        self.merged: Tensor | None = None
        self._keeps_merged = False
        self._spoilt = False  # by a NaN or an infinity of another worker
        self._changing = threading.Lock()  # guards the merge's state, so that a checkpoint is of one exchange
        self._rooms: dict[tuple[Moment, bool], _Room] = {}  # one for each thread that exchanges

    def expect(
        self,
        merges: Iterable[Merge],
        *,
        centre: bool,
        cuts: Iterable[int] = (),
        moved: Iterable[Merge] = (),
        delays: bool = False,
    ) -> None:
        """Announce the merges to come, because their state starts with the training.

        Args:
            centre: whether the point that the replicas last started from is the model to evaluate.
            cuts: numbers of pieces into which parameters are cut.
            moved: merges of movements.
            delays: whether any outcome enters some steps later.

        Raises:
            ConfigError: more than one kind keeps state, movements have several merges, or cuts differ.
        """
        if len(kinds := set(moved)) > 1:
            raise ConfigError(f"movements are merged by {sorted(map(repr, kinds))}: use one merge per policy")
        self._moving = next(iter(kinds), None)
        if len(ways := sorted(set(cuts))) > 1:
            raise ConfigError(f"one policy cuts parameters into {ways} pieces: use one number")
        self._pieces = ways[0] if ways else 0
        keeping = {type(one): one for one in merges if one.keeps}
        if len(keeping) > 1:
            names = " and ".join(sorted(kind.__name__ for kind in keeping))
            raise ConfigError(f"{names} keep state between exchanges: let only one merge of a policy do so")
        self._merge, self._centred, self._delays = next(iter(keeping.values()), None), centre, delays

    def refused(self, plan: StepPlan) -> str | None:
        """Return why a plan does not match the announced merges; None if it does."""
        for one in plan.exchanges:
            if one.select is not None:
                continue
            if one.payload is Payload.DELTA:
                if one.merge != self._moving:
                    return f"movements are merged by {one.merge!r}, which none of the first steps announced"
            elif one.merge.keeps and type(one.merge) is not type(self._merge):
                kind = type(one.merge).__name__
                return f"{kind} keeps state from the beginning on, and none of the first steps announced it"
            elif one.payload is Payload.PARAMETERS and (one.piece or (0, 0))[1] != self._pieces:
                return f"it exchanges {one.piece or 'all parameters'}, but the first steps cut them differently"
        return None

    def begin(self) -> None:
        """Initialize the state of merges, unless a checkpoint was loaded."""
        self._begun()
        if self._keeps_merged and self.merged is None:
            self.merged = self.flat.read()

    def _first(self) -> MergeState:
        """Return the state before the first exchange, with the outcome as if there had been one."""
        state, values, merge = MergeState(self._pieces), self.flat.read(), self._merge
        parameters, statistics = values.tensor_split([self.flat.trained])
        if self._moving is not None:
            state.begin_moving(self._moving, parameters)
        if merge is not None and merge.combined is Combined.CENTRE:
            state.kept[0] = merge.begin(values)
            return state
        if merge is not None:
            state.begin(merge, values if merge.whole and not self._pieces else parameters)
        if self._centred:
            state.outcome = parameters.clone(), statistics.clone()
        return state

    def _begun(self) -> MergeState:  # also here, because a newcomer may meet the others before its first step
        self._state = self._state or self._first()
        return self._state

    @property
    def moves(self) -> bool:
        """True if movements are exchanged."""
        return self._moving is not None

    def begin_again(self, payload: Payload) -> None:
        """Begin at this replica what the merge of a payload keeps, on all workers that keep it together."""
        state, values = self._begun(), self.flat.read()
        if payload is Payload.DELTA and self._moving is not None:
            state.begin_moving(self._moving, values[: self.flat.trained])
        elif self._merge is not None:
            state.begin(self._merge, values if self._merge.whole else values[: self.flat.trained])

    def keep_merged(self) -> None:
        self._keeps_merged = True

    def for_newcomers(self) -> Tensor | None:
        """Return the vector that a newcomer begins with, shape (size,); None if it is any member's replica."""
        if self._merge is not None and self._merge.combined is Combined.CENTRE:
            return self.centre
        return self.merged

    def take_over(self, start: Tensor) -> None:
        """Begin as a newcomer with :meth:`for_newcomers` of another worker."""
        self.flat.write(start)
        if self._keeps_merged:
            self.merged = start
        self.begin()

    @property
    def centre(self) -> Tensor:
        """The point that the replicas last started from, shape (size,), if it was announced."""
        return self._begun().centre

    def gradients(self) -> dict[nn.Parameter, Tensor]:
        """Return copies of the current gradients, each of its parameter's shape."""
        return {one: one.grad.clone() for one in self._parameters if one.grad is not None}

    def meet(self, exchange: Exchange, samples: float, total: Total, **how: Any) -> ExchangeResult:
        """Take part in one exchange, from reading the replica to writing into it, and wait for it; the arguments are
        those of :meth:`give`."""
        given = self.give(exchange, samples, **how)
        outcome = self.combine(exchange, given, total(given.vector, exchange))
        self.land(exchange, given, outcome)
        return outcome

    def give(
        self,
        exchange: Exchange,
        samples: float,
        *,
        resting: bool = False,
        alone: bool | None = None,
        own: Tensor | None = None,
    ) -> Given:
        """Return this worker's contribution; it is valid until the next one of the same moment.

        Args:
            samples: of this replica, or of its party, since its last exchange.
            alone: whether no other worker takes part; by the exchange's members if None.
            own: an earlier copy of this replica, shape (size,), overwritten; None reads it now.
        """
        merge, room, trained = exchange.merge, self._room(exchange), self.flat.trained
        view = self._begun().view(exchange, self.flat)
        own = self.flat.read(room.own) if own is None else own
        alone = len(exchange.members) == 1 if alone is None else alone
        part, weight = own[view.cut], merge.weight(samples)
        moved = part if view.base is None else part - view.base
        values = merge.contribute(moved, view.kept, in_place=merge.combined is Combined.CENTRE)
        if view.separate:
            values = own if values is part and len(part) == trained else torch.cat((values, own[trained:]))
        into = room.total if len(values) == len(own) else None
        vector = contribution(values, 1.0 if alone else weight, resting=resting, into=into)
        return Given(own, values, vector, weight if alone else None)

    def combine(self, exchange: Exchange, given: Given, sent_bytes: int) -> ExchangeResult:
        """Merge the sum of all contributions, which ``given.vector`` now holds; the replica does not change."""
        merge, values, vector, back = exchange.merge, given.values, given.vector, exchange.background
        central, complete = merge.combined is Combined.CENTRE, len(values) == self.flat.size
        away = apart(values, vector, self._room(exchange).more if complete else None)
        distance = merge.distance(mean_square_root(away[: len(away) - self._statistics]))
        finite, replica, entering = math.isfinite(distance), None, None
        if not finite:  # perhaps only another worker's replica; a central merge has overwritten ``given.sent``
            own_finite = bool(torch.isfinite((self.flat.read() if central else given.sent).sum()))
            # From here on this replica holds another worker's NaN, which this worker must not report as its own.
            finite = self._spoilt = own_finite or self._spoilt
        if central:
            with self._changing:
                state = self._begun()
                kept = state.view(exchange, self.flat).kept
                state.kept[0], _ = merge.combine(kept, vector[:-EXTRA], weight_in(vector), in_place=True)
            entering = values
        elif complete and merge.plain and not self._centred and exchange.moment is Moment.BACKGROUND and not back.lerp:
            # The difference enters instead of the mean, because the training has changed the replica since.
            replica, entering = None if self.merged is None else average(vector), away
        else:
            replica = self._outcome(exchange, given)
        return ExchangeResult(sent_bytes, distance, finite, resting_in(vector), 1.0, replica, entering)

    def land(self, exchange: Exchange, given: Given, outcome: ExchangeResult) -> None:
        """Write an outcome into the replica, which may have changed since it was given; overwrites ``given.sent``."""
        replica, sent, back = outcome.replica, given.sent, exchange.background
        if self.merged is not None and replica is not None:
            self.merged.copy_(replica)
        if outcome.away is not None:
            self.flat.add(outcome.away, -1.0 if exchange.merge.combined is Combined.CENTRE else -back.alpha)
        elif replica is not None:
            if exchange.delay:
                self.hold(torch.sub(replica, sent, out=sent))
            elif exchange.moment is not Moment.BACKGROUND:
                self.flat.write(replica)
            elif back.lerp:
                self.flat.interpolate(replica, back.alpha)
            else:
                self.flat.add(torch.sub(replica, sent, out=sent), back.alpha)
        if self._moving is not None:  # changes by others do not count as moved
            after = replica if exchange.payload is Payload.DELTA and replica is not None else self.flat.read()
            self._begun().base = after[: self.flat.trained].clone()

    def _room(self, exchange: Exchange) -> _Room:
        thread = exchange.moment, exchange.delay > 0
        if thread not in self._rooms:
            self._rooms[thread] = _Room(self.flat.room(), self.flat.room(), self.flat.room(EXTRA))
        return self._rooms[thread]

    def _outcome(self, exchange: Exchange, given: Given) -> Tensor:
        """Return the replica that a mean comes to, with the statistics that are averaged separately."""
        merge, trained, state, vector = exchange.merge, self.flat.trained, self._begun(), given.vector
        middle, weight = average(vector), weight_in(vector) if given.weight is None else given.weight
        with self._changing:
            view = state.view(exchange, self.flat)
            mean, statistics = middle.tensor_split([len(middle) - view.separate])
            found, outcome = merge.combine(view.kept, mean, weight, in_place=True)
            state.store(view, found if merge.keeps else {}, outcome, statistics, vector)
        if exchange.piece is not None:
            replica = given.sent.clone() if exchange.beside else given.sent
            replica[view.cut], replica[trained:] = outcome, statistics
            return replica
        if view.base is not None:
            outcome = view.base + outcome
        if not view.separate:
            return outcome
        if len(mean) != trained:
            return torch.cat((outcome, statistics))
        mean.copy_(outcome)
        return middle

    def hold(self, change: Tensor) -> None:
        """Keep the change that :meth:`enter` adds: shape (size,), or (trained,) for the parameters only."""
        less = self.flat.size - len(change)
        self._change = torch.cat((change, change.new_zeros(less))) if less else change

    def enter(self) -> None:
        """Add the outcome to the replica, which has trained since."""
        change, self._change = self._change, None
        self.due = None
        if change is not None:
            self.flat.add(change, 1.0)

    def forget(self) -> None:
        """Drop the outcome, because the replica was replaced."""
        self._change = self.due = None

    def mean(self, total: Total, everybody: Exchange) -> Tensor:
        """Return the plain mean of all replicas, shape (size,), for evaluation; waits for all."""
        vector = contribution(self.flat.read(), 1.0)
        total(vector, everybody)
        return average(vector)

    def state_dict(self, *, shown: bool = False) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return the state of merges: vectors of shape (size,), and numbers; ``shown`` if the replica already includes
        every outcome."""
        with self._changing:
            # Also before training: torch.distributed.checkpoint reads into the tensors that it finds here.
            saved = (self._state or self._first()).saved()
            if self._delays:
                nothing = shown or self._change is None
                saved[CHANGE] = self.flat.room().zero_() if nothing else self._change
                saved[DUE] = 0.0 if nothing else float(self.due or 0)
            vectors = {key: one.clone() for key, one in saved.items() if isinstance(one, Tensor)}
            return vectors, {key: one for key, one in saved.items() if not isinstance(one, Tensor)}

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
                what = "the exchange in flight" if name == CHANGE else "the centre"
                raise CheckpointError(
                    f"{what} in the checkpoint has {len(vector)} numbers ({name!r}), but this model "
                    f"{len(known[name])}: resume with the former model"
                )

    def load_state_dict(self, vectors: dict[str, Tensor], numbers: dict[str, float]) -> None:
        if not vectors:
            return
        kept: Kept = {key: one.to(self.flat.device, self.flat.dtype, copy=True) for key, one in vectors.items()}
        kept |= numbers
        change, due = kept.pop(CHANGE, None), round(kept.pop(DUE, 0.0))
        if due:
            self._change, self.due = change, due
        mean = self._merge is None or self._merge.combined is Combined.MEAN
        self._state = MergeState(self._pieces)
        self._state.load(kept, centred=self.flat.trained if self._centred and mean else 0)


def refuse_synchronised_layers(model: nn.Module, policy: SyncPolicy) -> None:
    """Raise :class:`ConfigError` for a layer that would wait for all workers in every forward pass."""
    for name, layer in model.named_modules():
        if isinstance(layer, nn.SyncBatchNorm):
            raise ConfigError(
                f"{name} is a SyncBatchNorm, which needs all workers in every forward pass, but under {policy!r} "
                "workers step apart: use BatchNorm, whose running statistics are averaged with the parameters"
            )


def announce(replica: Replica, policy: SyncPolicy, members: tuple[int, ...], sites: dict[int, str]) -> None:
    """Announce the merges to come to the replica; raise :class:`ConfigError` if they cannot be combined."""
    everything = [one for plan in first_plans(policy, members, sites) for one in plan.exchanges]
    coming = [one for one in everything if one.select is None]
    moved = {one.merge for one in coming if one.payload is Payload.DELTA}
    if moved and any(one.select is not None or one.moment is Moment.BACKGROUND for one in everything):
        raise ConfigError(
            f"{policy!r} combines full movements with selected entries or a background exchange: use one of the two"
        )
    if len({one.select is None for one in everything if one.delay}) > 1:
        raise ConfigError(f"{policy!r} delays both pieces and selected entries: use one of the two")
    replica.expect(
        {one.merge for one in coming if one.payload is not Payload.DELTA},
        centre=policy.evaluation_model is EvaluationModel.CENTRE,
        cuts=[one.piece[1] for one in coming if one.piece is not None],
        moved=moved,
        delays=any(one.delay for one in everything),
    )
