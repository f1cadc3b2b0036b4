"""Outer steps on the mean of what the first so many have moved, and who comes soon after. Pure.

A movement counts in the merge that is open when it comes, so nothing is lost and nobody is too late. A merge is over
when its quorum is there and has waited a part of the time longer that its first had waited for its last::

    V ← μ V + G,  x̃ ← x̃ + G + μ V      G the mean of the movements, by weight
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from uneven.server import vectors
from uneven.server.wire import Message, Refusal, Refused, Vector


@dataclass(slots=True)
class MovementMerges:
    """The merge that is open, and what all before it have left.

    Attributes:
        open: rank → its movement, with its weight, the quorum, momentum and grace.
        merged: how many merges are over.
    """

    open: dict[int, Message] = field(default_factory=dict)
    merged: int = 0
    _velocity: Vector = ()
    _opened_s: float = 0.0
    _due_s: float = math.nan

    def add(self, m: Message, now_s: float) -> None:
        """Take one in; one that is here already stays as it is.

        Raises:
            Refused: it has a number that is not finite.
        """
        if vectors.add(m.vector, 0.0, m.vector) is None:
            raise Refused(Refusal.VALUE)
        if not self.open:
            self._opened_s, self._due_s = now_s, math.nan
        self.open.setdefault(m.rank, m)

    def kept(self, copy: Vector, wanted: Vector = ()) -> Vector:
        """V, of the copy's shape.

        Args:
            wanted: what it is to be, where no merge is over yet.

        Raises:
            Refused: that has a number that is not finite.
        """
        if wanted and not self.merged and not self._velocity:
            taken = vectors.add(vectors.zeros(copy), 1.0, wanted)
            if taken is None:
                raise Refused(Refusal.VALUE)
            self._velocity = taken
        return self._velocity or vectors.zeros(copy)

    def ready(self, now_s: float, *, all_here: bool) -> bool:
        """Whether the merge is to be closed now.

        Args:
            all_here: nobody else can come.
        """
        if not self.open or all_here:
            return bool(self.open)
        if len(self.open) < min(one.extra for one in self.open.values()):
            return False
        if math.isnan(self._due_s):
            grace = max(one.grace for one in self.open.values())
            self._due_s = now_s + grace * (now_s - self._opened_s)
        return now_s >= self._due_s

    def close(self, copy: Vector) -> tuple[list[Message], Vector | None]:
        """The movements of the merge, and the copy after it; None where that would hold a number that is not finite."""
        given, self.open = [self.open[rank] for rank in sorted(self.open)], {}
        momentum = given[0].momentum
        weight = sum(one.value for one in given)
        mean: Vector | None = vectors.zeros(copy)
        for one in given:
            mean = None if mean is None else vectors.add(mean, one.value / weight, one.vector)
        velocity = None if mean is None else vectors.add(mean, momentum, self._velocity or vectors.zeros(copy))
        if mean is None or velocity is None:
            return given, None
        ahead = vectors.add(mean, momentum, velocity)
        after = None if ahead is None else vectors.add(copy, 1.0, ahead)
        if after is not None:
            self._velocity = velocity
            self.merged += 1
        return given, after
