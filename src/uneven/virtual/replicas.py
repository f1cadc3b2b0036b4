"""Replicas that are never changed in place, so that those that are equal are one object and computed with once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor

from uneven.data.order import epoch_order
from uneven.merge import Kept, Merge
from uneven.virtual.task import Gradient, LearningTask

_EPOCHS_KEPT = 8
_STEPS_KEPT = 256
_AT_ONCE = 16_384
"""Samples that go through the model together; more of them go one piece after the other."""


Piece = tuple[int, int] | None
"""As in ``Exchange.piece``."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelState:
    """A model with its optimizer.

    Attributes:
        velocity: of momentum; None before the first step, or without momentum.
        moved: what its own steps have moved, all together.
    """

    parameters: Tensor
    velocity: Tensor | None
    moved: Tensor


@dataclass(slots=True, eq=False)
class LazyGradient:
    """A gradient that is computed when somebody needs it: under BSP, once for everybody.

    Attributes:
        parameters: where it is to be computed.
        samples: positions in the order of the data.
        value: the gradient, or what it was merged to; None while it is to be computed.
    """

    parameters: Tensor
    samples: range
    value: Tensor | None = None


@dataclass(slots=True, eq=False)
class VirtualReplica:
    """One worker's.

    Attributes:
        start: where it began, and so what merges keep of it.
        centre: the outcome of a mean that came last, of parameters or of what was picked of movements; where it began,
            before.
        divided: what learning rate and gradient are multiplied by in the step that it takes.
        kept: by each kind of merge, for each piece of the vector.
        carried: how much of what it has moved was carried by exchanges of movements, or is not its own to send.
        gradient: of the step that it is in.
        fresh: samples since its last exchange of parameters or movements.
        coming, left: what enters before its next step once it has taken so many more.
    """

    state: ModelState
    start: Tensor
    centre: Tensor
    carried: Tensor
    kept: dict[tuple[type[Merge], Piece], Kept] = field(default_factory=dict)
    gradient: LazyGradient | None = None
    fresh: int = 0
    divided: tuple[float, float] = (1.0, 1.0)
    coming: Tensor | None = None
    left: int = 0


class SampleOrder:
    """Which sample stands where in the endless order of the data: a new permutation for each epoch."""

    def __init__(self, length: int, seed: int) -> None:
        self._length, self._seed = length, seed
        self._epochs: OrderedDict[int, Tensor] = OrderedDict()

    def drawn(self, rank: int, positions: range) -> range:
        """Positions of what a worker computes with where these are its part of the order: the same ones."""
        return positions

    def samples(self, positions: range) -> Tensor:
        """Numbers of the samples at some consecutive positions: int64, shape (positions,)."""
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
    """Mean loss over the samples that were computed with since it was asked last."""

    _total: float = 0.0
    _samples: int = 0

    def add(self, loss: float, samples: int) -> None:
        """Samples with this mean loss."""
        self._total += loss * samples
        self._samples += samples

    def take(self) -> float | None:
        """The mean, and begin anew; None if there were no samples."""
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
        """One step of SGD: v = μ v + g, x −= η v, all flat; without momentum v is g.

        Args:
            rate, weight: what η and g are multiplied by.
        """
        key = id(state), id(gradient), rate, weight
        known = self._taken.get(key)
        if known is not None:  # which holds the two, so that nothing else can have their identities
            return known[2]
        velocity = gradient if weight == 1.0 else weight * gradient
        if self.task.momentum and state.velocity is not None:
            velocity = self.task.momentum * state.velocity + velocity
        move = -self.task.learning_rate * rate * velocity
        kept = velocity if self.task.momentum else None
        after = ModelState(state.parameters + move, kept, state.moved + move)
        self._taken[key] = state, gradient, after
        if len(self._taken) > _STEPS_KEPT:
            self._taken.popitem(last=False)
        return after

    def value(self, one: LazyGradient) -> Tensor:
        """A flat gradient, computed now if it has not been before."""
        if one.value is None:
            one.value = self._compute(one.parameters, [one.samples])
        return one.value

    def mean(self, many: Sequence[LazyGradient], weights: Sequence[float], *, by_samples: bool) -> Tensor:
        """The mean of some gradients, each of shape (size,).

        Weighted by samples, those at the same parameters are one gradient over all of their samples, which takes one
        pass instead of many and is the same but for rounding.
        """
        if not by_samples:
            return mean([self.value(one) for one in many], weights)
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
    """The same positions, ascending, in as few ranges as hold them: the order of the workers does not matter."""
    joined: list[range] = []
    for some in sorted(positions, key=lambda one: one.start):
        if joined and joined[-1].stop == some.start:
            joined[-1] = range(joined[-1].start, some.stop)
        else:
            joined.append(some)
    return joined


def mean(vectors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Σ_i w_i v_i / Σ_i w_i, of vectors of one shape; where nobody has any weight, all have the same.

    One vector is its own mean, bit by bit.
    """
    if len(vectors) == 1:
        return vectors[0]
    total = float(sum(weights))
    parts = [weight / total for weight in weights] if total > 0 else [1 / len(vectors)] * len(vectors)
    return torch.tensor(parts, dtype=vectors[0].dtype, device=vectors[0].device) @ torch.stack(list(vectors))


def flat_mean(states: Sequence[ModelState]) -> Tensor:
    """The plain mean of some replicas, flat; equal ones are added up once."""
    counts: dict[int, tuple[Tensor, int]] = {}
    for state in states:
        found = counts.get(id(state.parameters))
        counts[id(state.parameters)] = state.parameters, (found[1] if found else 0) + 1
    vectors, weights = zip(*counts.values(), strict=True)
    return mean(list(chain(vectors)), list(weights))
