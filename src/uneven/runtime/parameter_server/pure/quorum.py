"""Means of gradients, step by step, each complete with a quorum (backup workers)."""

from collections import OrderedDict
from dataclasses import dataclass, field

from uneven.runtime.parameter_server.pure import vectors
from uneven.runtime.parameter_server.pure.wire import Entry, Refusal, Refused, Vector

KEPT = 4  # the number of steps whose means are kept for late workers


@dataclass(frozen=True, slots=True)
class Done:
    """The mean of a step, its contributors, and the members' state at its completion."""

    step: int
    mean: Vector
    entries: tuple[Entry, ...]
    ranks: frozenset[int] = frozenset()


@dataclass(slots=True)
class Rounds:
    """One open step and the last few complete ones."""

    newest: int = -1  # the last complete step; −1 before the first. The open one follows it.
    given: set[int] = field(default_factory=set)  # ranks that have contributed to the open one
    _sum: Vector | None = None
    _weight: float = 0.0
    _done: OrderedDict[int, Done] = field(default_factory=OrderedDict)

    def add(self, rank: int, weight: float, gradient: Vector, quorum: int) -> bool:
        """Contribute to the open step; return whether it is complete. ``gradient`` has shape (numbers of this shard,).
        Raises Refused if the sum would hold a NaN or an infinity, before any change."""
        whole = vectors.zeros(gradient) if self._sum is None else self._sum
        total = vectors.add(whole, weight, gradient)
        if total is None:
            raise Refused(Refusal.VALUE)
        self._sum = total
        self._weight += weight
        self.given.add(rank)
        return len(self.given) >= quorum

    def close(self, entries: tuple[Entry, ...]) -> Vector:
        """Return the open step's mean, Σ w_i g_i / Σ w_i (zero without any weight), in their shapes. Open the next."""
        assert self._sum is not None  # add has reported that it is complete
        mean = tuple(piece / self._weight if self._weight else piece for piece in self._sum)
        self._keep(Done(self.newest + 1, mean, entries, frozenset(self.given)))
        return mean

    def restore(self, done: Done) -> None:
        self._keep(done)

    def find(self, step: int) -> Done | None:
        return self._done.get(step)

    def _keep(self, done: Done) -> None:
        self.newest, self._sum, self._weight, self.given = done.step, None, 0.0, set()
        self._done[done.step] = done
        if len(self._done) > KEPT:
            self._done.popitem(last=False)
