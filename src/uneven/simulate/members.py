"""Who takes part at which clock, and how far everybody is. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Members(tuple[int, ...]):
    """Ranks, ascending; a tuple that reckons its hash once, for policies remember plans by it and it may be long."""

    _hash: int

    def __new__(cls, ranks: Iterable[int]) -> Members:
        """The ranks in ascending order."""
        made = super().__new__(cls, sorted(ranks))
        made._hash = tuple.__hash__(made)
        return made

    def __hash__(self) -> int:
        return self._hash


class ByMembers(Generic[T]):
    """One thing for each tuple of members, found without looking at the tuple's entries if it is the first's own."""

    def __init__(self, make: Callable[[tuple[int, ...]], T]) -> None:
        self._make = make
        self._by_value: dict[tuple[int, ...], T] = {}
        self._by_identity: dict[int, tuple[tuple[int, ...], T]] = {}

    def __getitem__(self, members: tuple[int, ...]) -> T:
        known = self._by_identity.get(id(members))
        if known is not None and known[0] is members:
            return known[1]
        found = self._by_value.get(members)
        if found is None:
            found = self._by_value[members] = self._make(members)
            self._by_identity[id(members)] = members, found  # holding it keeps its identity from being given away
        return found


class MembersSince(NamedTuple):
    """Who takes part from a clock on.

    Attributes:
        first: the first clock, in finished steps, that it holds for.
        places: position of each member among the members.
    """

    first: int
    members: Members
    generation: int
    places: dict[int, int]


class MemberHistory:
    """The members over the clocks.

    Changes hold from a clock that nobody has started yet, so that all who are asked for a plan at one clock see the
    same members.
    """

    def __init__(self, members: Iterable[int]) -> None:
        self._history = [_since(0, Members(members), 0)]

    @property
    def newest(self) -> MembersSince:
        """The last of them."""
        return self._history[-1]

    def at(self, clock: int) -> MembersSince:
        """Who takes part in the step that is taken at this clock."""
        newest = self._history[-1]
        if newest.first <= clock:
            return newest
        return next(present for present in reversed(self._history) if present.first <= clock)

    def change(self, first: int, members: Iterable[int]) -> MembersSince:
        """Other members, from a clock on that is not before that of the last change."""
        old = self._history[-1]
        if old.first == first:
            self._history.pop()
        self._history.append(_since(first, Members(members), old.generation + 1))
        return self._history[-1]


def _since(first: int, members: Members, generation: int) -> MembersSince:
    return MembersSince(first, members, generation, {rank: place for place, rank in enumerate(members)})


class _Watch:
    """The least clock among some members, and who waits for it."""

    def __init__(self, clocks: Iterable[int]) -> None:
        self.counts: dict[int, int] = {}
        for clock in clocks:
            self.counts[clock] = self.counts.get(clock, 0) + 1
        self.least = min(self.counts, default=0)
        self.waiting: dict[int, list[Callable[[], None]]] = {}

    def move(self, old: int, new: int | None) -> list[Callable[[], None]]:
        """One of them goes on, or away if ``new`` is None; whoever need not wait any more."""
        self.counts[old] -= 1
        if not self.counts[old]:
            del self.counts[old]
        if new is not None:
            self.counts[new] = self.counts.get(new, 0) + 1
        if old != self.least or old in self.counts:
            return []
        self.least = min(self.counts, default=self.least)
        over = [clock for clock in sorted(self.waiting) if clock <= self.least or not self.counts]
        return [waiter for clock in over for waiter in self.waiting.pop(clock)]


class Clocks:
    """How many steps of each worker are finished for the others."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}  # by rank, of those that take part
        self._watches: ByMembers[_Watch] = ByMembers(self._watch)
        self._seen_by: dict[int, list[_Watch]] = {}

    def _watch(self, members: tuple[int, ...]) -> _Watch:
        here = [rank for rank in members if rank in self._of]
        watch = _Watch(self._of[rank] for rank in here)
        for rank in members:
            self._seen_by.setdefault(rank, []).append(watch)
        return watch

    def holds(self, members: tuple[int, ...], clock: int) -> bool:
        """Whether all of them that are still there have finished so many steps."""
        if clock <= 0:
            return True
        watch = self._watches[members]
        return watch.least >= clock or not watch.counts

    def when(self, members: tuple[int, ...], clock: int, then: Callable[[], None]) -> None:
        """Call ``then`` once as soon as they have."""
        self._watches[members].waiting.setdefault(clock, []).append(then)

    def enter(self, rank: int, clock: int) -> None:
        """A worker takes part from this clock on."""
        self._of[rank] = clock
        for watch in self._seen_by.get(rank, ()):
            watch.counts[clock] = watch.counts.get(clock, 0) + 1
            watch.least = min(watch.least, clock) if len(watch.counts) > 1 else clock

    def advance(self, rank: int, clock: int) -> None:
        """A worker has finished so many steps; a smaller number than before changes nothing."""
        old = self._of.get(rank)
        if old is None or clock <= old:
            return
        self._of[rank] = clock
        watches = self._seen_by.get(rank)
        if watches:
            for go_on in [waiter for watch in watches for waiter in watch.move(old, clock)]:
                go_on()

    def leave(self, rank: int) -> None:
        """A worker is gone and waited for no more."""
        old = self._of.pop(rank, None)
        if old is not None:
            for go_on in [waiter for watch in self._seen_by.get(rank, ()) for waiter in watch.move(old, None)]:
                go_on()
