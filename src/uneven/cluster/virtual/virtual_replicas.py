"""Immutable replicas: equal ones are one object, computed only once."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from uneven.cluster.virtual.task import Gradient, LearningTask
from uneven.policy.merge import Kept, Merge
from uneven.policy.samples.order import epoch_order

_EPOCHS_KEPT = 8
_STEPS_KEPT = 256
_AT_ONCE = 16_384  # samples of one pass through the model; more take several


Piece = tuple[int, int] | None  # as in ``Exchange.piece``


@dataclass(frozen=True, slots=True, eq=False)
class ModelState:
    """A model with its optimizer; all vectors have shape (size,)."""

    parameters: Tensor
    velocity: Tensor | None  # of momentum; None before the first step, or without momentum
    moved: Tensor  # sum of its steps


@dataclass(slots=True, eq=False)
class LazyGradient:
    """A gradient that is computed when it is needed: under BSP, once for all workers."""

    parameters: Tensor  # at which it is computed, (size,)
    samples: range  # positions in the order of the data
    value: Tensor | None = None  # the gradient or its merged outcome, (size,); None before


@dataclass(slots=True, eq=False)
class VirtualReplica:
    """One worker's replica."""

    state: ModelState
    start: Tensor  # its initial parameters, from which merges start
    centre: Tensor  # the outcome of the last mean, of parameters or selected movements; at first the initial parameters
    carried: Tensor  # part of its movement that exchanges have sent, or that is not its own to send
    # state of each kind of merge, per piece of the vector
    kept: dict[tuple[type[Merge], Piece], Kept] = field(default_factory=dict)
    gradient: LazyGradient | None = None  # of its current step
    fresh: int = 0  # samples since its last exchange of parameters or movements
    divided: tuple[float, float] = (1.0, 1.0)  # factors of learning rate and gradient in its current step
    coming: Tensor | None = None  # a change that enters …
    left: int = 0  # … after this many further steps


class SampleOrder:
    """The endless order of the data: a new permutation for each epoch."""

    def __init__(self, length: int, seed: int) -> None:
        self._length = length
        self._seed = seed
        self._epochs: OrderedDict[int, Tensor] = OrderedDict()

    def drawn(self, rank: int, positions: range) -> range:
        """Return the positions that a worker computes on for its part of the order: here the same."""
        return positions

    def samples(self, positions: range) -> Tensor:
        """Return the sample numbers at consecutive positions: int64, shape (positions,)."""
        found, at = [], positions.start
        while at < positions.stop:
            epoch, first = divmod(at, self._length)
            end = min(self._length, first + positions.stop - at)
            found.append(self._epoch(epoch)[first:end])
            at += end - first
        return torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)

    def _epoch(self, epoch: int) -> Tensor:
        if epoch not in self._epochs:
            self._epochs[epoch] = torch.from_numpy(epoch_order(length=self._length, seed=self._seed, epoch=epoch))
            if len(self._epochs) > _EPOCHS_KEPT:
                self._epochs.popitem(last=False)
        return self._epochs[epoch]


@dataclass(slots=True)
class Losses:
    """The mean loss over the samples since the last call of :meth:`take`."""

    _total: float = 0.0
    _samples: int = 0

    def add(self, loss: float, samples: int) -> None:
        self._total += loss * samples
        self._samples += samples

    def take(self) -> float | None:
        """Return the mean and reset it; None without samples."""
        found = self._total / self._samples if self._samples else None
        self._total, self._samples = 0.0, 0
        return found


@dataclass(slots=True)
class Sgd:
    """Computes gradients and takes steps; the same step of the same state is taken once."""

    task: LearningTask
    order: SampleOrder
    losses: Losses = field(default_factory=Losses)
    _taken: OrderedDict[tuple[int, int, float, float], tuple[ModelState, Tensor, ModelState]] = field(
        default_factory=OrderedDict
    )

    def step(self, state: ModelState, gradient: Tensor, rate: float = 1.0, weight: float = 1.0) -> ModelState:
        """Return the state after one step of the task's optimizer, x −= η d, all (size,).

        ``rate`` and ``weight`` multiply η and g.
        """
        key = id(state), id(gradient), rate, weight
        known = self._taken.get(key)
        if known is not None:  # it holds both objects, so no other one can have their ids
            return known[2]
        direction, velocity = self.task.direction(state.velocity, gradient if weight == 1.0 else weight * gradient)
        move = -self.task.learning_rate * rate * direction
        after = ModelState(state.parameters + move, velocity, state.moved + move)
        self._taken[key] = state, gradient, after
        if len(self._taken) > _STEPS_KEPT:
            self._taken.popitem(last=False)
        return after

    def value(self, one: LazyGradient) -> Tensor:
        if one.value is None:
            one.value = self._compute(one.parameters, [one.samples])
        return one.value

    def mean(self, many: Sequence[LazyGradient], weights: Sequence[float], *, by_samples: bool) -> Tensor:
        """Return the mean of gradients, shape (size,)."""
        if not by_samples:
            return mean([self.value(one) for one in many], weights)
        # Gradients at the same parameters, weighted by samples, equal one gradient over all their samples, up to
        # rounding: one pass instead of many.
        groups: dict[int, list[int]] = {}
        for place, (one, weight) in enumerate(zip(many, weights, strict=True)):
            whole = self.task.by_sample and one.value is None and weight == len(one.samples)
            groups.setdefault(id(one.parameters) if whole else -1 - place, []).append(place)
        values = [self._union([many[place] for place in places]) for places in groups.values()]
        return mean(values, [sum(weights[place] for place in places) for places in groups.values()])

    def _union(self, ones: Sequence[LazyGradient]) -> Tensor:
        if len(ones) == 1:
            return self.value(ones[0])
        return self._compute(ones[0].parameters, [one.samples for one in ones])

    def _compute(self, parameters: Tensor, positions: Sequence[range]) -> Tensor:
        samples = torch.cat([self.order.samples(some) for some in _joined(positions)])
        if not len(samples):
            return torch.zeros_like(parameters)
        pieces = samples.split(_AT_ONCE)
        found: list[Gradient] = [self.task.gradient(parameters, piece) for piece in pieces]
        for piece, one in zip(pieces, found, strict=True):
            self.losses.add(one.loss, len(piece))
        return mean([one.value for one in found], [len(piece) for piece in pieces])


def _joined(positions: Sequence[range]) -> list[range]:
    # Ascending, in as few ranges as possible, so that the result does not depend on the order of the workers.
    joined: list[range] = []
    for some in sorted(positions, key=lambda one: one.start):
        if joined and joined[-1].stop == some.start:
            joined[-1] = range(joined[-1].start, some.stop)
        else:
            joined.append(some)
    return joined


def mean(vectors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return Σ_i w_i v_i / Σ_i w_i for vectors of one shape; without any weight, all weigh the same."""
    # Bit-identical to its only vector, without the rounding of the product below.
    if len(vectors) == 1:
        return vectors[0]
    total = float(sum(weights))
    parts = [weight / total for weight in weights] if total > 0 else [1 / len(vectors)] * len(vectors)
    return torch.tensor(parts, dtype=vectors[0].dtype, device=vectors[0].device) @ torch.stack(list(vectors))


def flat_mean(states: Sequence[ModelState]) -> Tensor:
    """Return the plain mean (size,) of some replicas; equal ones are added once."""
    counts: dict[int, tuple[Tensor, int]] = {}
    for state in states:
        found = counts.get(id(state.parameters))
        counts[id(state.parameters)] = state.parameters, (found[1] if found else 0) + 1
    vectors, weights = zip(*counts.values(), strict=True)
    return mean(vectors, weights)
