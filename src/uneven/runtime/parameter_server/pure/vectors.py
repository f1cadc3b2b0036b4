"""Arithmetic on vectors in pieces; no vector is changed in place."""

import math
from dataclasses import dataclass, field

import numpy as np

from uneven.policy.merge.elastic_pull import pull
from uneven.runtime.parameter_server.pure.wire import Array, Message, Refusal, Refused, Vector


@dataclass(slots=True)
class MovementMerges:
    """The open merge of movements, and the velocity that the earlier ones have left.

    An outer step takes the mean of the movements of a quorum, plus a grace period. A movement counts in the merge that
    is open on arrival, so none is lost or late. A merge closes when its quorum has arrived and the grace has passed, a
    part of the time from the first to the last arrival of the quorum::

        V ← μ V + G,  x̃ ← x̃ + G + μ V      G the mean of the movements, by weight
    """

    # rank → its movement, with weight, quorum, momentum and grace
    open: dict[int, Message] = field(default_factory=dict)
    merged: int = 0  # number of closed merges
    _velocity: Vector = ()
    _opened_s: float = 0.0
    _due_s: float = math.nan

    def add(self, m: Message, now_s: float) -> None:
        """Add a movement; a second one of the same rank is ignored. Raises Refused for a NaN or an infinity."""
        if add(m.vector, 0.0, m.vector) is None:
            raise Refused(Refusal.VALUE)
        if not self.open:
            self._opened_s, self._due_s = now_s, math.nan
        self.open.setdefault(m.rank, m)

    def kept(self, copy: Vector, wanted: Vector = ()) -> Vector:
        """Return V, shaped like the copy; before the first merge, ``wanted`` (finite, or Refused is raised) sets it."""
        if wanted and not self.merged and not self._velocity:
            taken = add(zeros(copy), 1.0, wanted)
            if taken is None:
                raise Refused(Refusal.VALUE)
            self._velocity = taken
        return self._velocity or zeros(copy)

    def ready(self, now_s: float, *, all_here: bool) -> bool:
        """Return whether the merge must be closed now; ``all_here`` if no other member can contribute."""
        if not self.open or all_here:
            return bool(self.open)
        if len(self.open) < min(one.extra for one in self.open.values()):
            return False
        if math.isnan(self._due_s):
            grace = max(one.grace for one in self.open.values())
            self._due_s = now_s + grace * (now_s - self._opened_s)
        return now_s >= self._due_s

    def close(self, copy: Vector) -> tuple[list[Message], Vector | None]:
        """Return the movements of the merge, and the copy after it; None if that has a number that is not finite."""
        given, self.open = [self.open[rank] for rank in sorted(self.open)], {}
        momentum = given[0].momentum
        weight = sum(one.value for one in given)
        mean: Vector | None = zeros(copy)
        for one in given:
            mean = None if mean is None else add(mean, one.value / weight, one.vector)
        velocity = None if mean is None else add(mean, momentum, self._velocity or zeros(copy))
        if mean is None or velocity is None:
            return given, None
        ahead = add(mean, momentum, velocity)
        after = None if ahead is None else add(copy, 1.0, ahead)
        if after is not None:
            self._velocity = velocity
            self.merged += 1
        return given, after


_BLOCK = 1 << 15  # the elements of a block, small enough that intermediate results stay in the processor's cache


def add(vector: Vector, scale: float, other: Vector) -> Vector | None:
    """Return vector + scale · other, piece by piece (same shapes); None if an entry of it is NaN or infinite."""
    found = []
    with np.errstate(over="ignore", invalid="ignore"):
        for one, more in zip(vector, other, strict=True):
            piece = _sum(one, scale, more)
            if piece is None:
                return None
            found.append(piece)
    return tuple(found)


def _sum(one: Array, scale: float, more: Array) -> Array | None:
    new = np.empty_like(one)
    for start in range(0, len(one), _BLOCK):
        block = slice(start, start + _BLOCK)
        part = new[block]
        np.multiply(more[block], scale, out=part)
        np.add(part, one[block], out=part)
        if not np.isfinite(part).all():
            return None
    return new


def difference(replica: Vector, centre: Vector, alpha: float) -> Vector:
    """Return EASGD's d = α (x − x̃), with shapes and dtype of the vectors."""
    with np.errstate(over="ignore", invalid="ignore"):
        return tuple(pull(x, c, alpha) for x, c in zip(replica, centre, strict=True))


def zeros(like: Vector) -> Vector:
    return tuple(np.zeros_like(piece) for piece in like)
