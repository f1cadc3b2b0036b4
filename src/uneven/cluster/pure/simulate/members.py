"""The members at each clock, and the progress of all workers."""

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Members(tuple[int, ...]):
    """Ranks, ascending, as a tuple that caches its hash."""

    _hash: int

    def __new__(cls, ranks: Iterable[int]) -> "Members":
        made = super().__new__(cls, sorted(ranks))
        # Policies use the members as keys of their plans, and there may be ten thousand.
        made._hash = tuple.__hash__(made)
        return made

    def __hash__(self) -> int:
        return self._hash


class ByMembers(Generic[T]):
    """A cache with one value per tuple of members, found by identity first, without a look at the entries."""

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
            self._by_identity[id(members)] = members, found  # the reference keeps the id from being reused
        return found


class MembersSince(NamedTuple):
    """The members from a clock on."""

    first: int  # the first clock, in finished steps
    members: Members
    generation: int
    places: dict[int, int]  # position of each member among the members


class MemberHistory:
    """The members over the clocks."""

    def __init__(self, members: Iterable[int]) -> None:
        self._history = [_since(0, Members(members), 0)]

    @property
    def newest(self) -> MembersSince:
        return self._history[-1]

    def at(self, clock: int) -> MembersSince:
        newest = self._history[-1]
        if newest.first <= clock:
            return newest
        return next(present for present in reversed(self._history) if present.first <= clock)

    def change(self, first: int, members: Iterable[int]) -> MembersSince:
        """Change the members from a clock on, not before that of the last change."""
        # No worker has started this clock yet, so all plans of one clock see the same members.
        old = self._history[-1]
        if old.first == first:
            # Several changes before the same step are one.
            self._history.pop()
        self._history.append(_since(first, Members(members), old.generation + 1))
        return self._history[-1]


def _since(first: int, members: Members, generation: int) -> MembersSince:
    return MembersSince(first, members, generation, {rank: place for place, rank in enumerate(members)})


class _Watch:
    """The least clock among some members, and the callbacks that wait for it."""

    def __init__(self, clocks: Iterable[int]) -> None:
        self.counts: dict[int, int] = {}
        for clock in clocks:
            self.counts[clock] = self.counts.get(clock, 0) + 1
        self.least = min(self.counts, default=0)
        self.waiting: dict[int, list[Callable[[], None]]] = {}

    def move(self, old: int, new: int | None) -> list[Callable[[], None]]:
        # Counts per clock: a member's step costs constant time, however many members there are.
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
    """The number of finished steps of each worker, as the others see it."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}  # by rank, of current members
        self._watches: ByMembers[_Watch] = ByMembers(self._watch)
        self._seen_by: dict[int, list[_Watch]] = {}

    def _watch(self, members: tuple[int, ...]) -> _Watch:
        here = [rank for rank in members if rank in self._of]
        watch = _Watch(self._of[rank] for rank in here)
        for rank in members:
            self._seen_by.setdefault(rank, []).append(watch)
        return watch

    def holds(self, members: tuple[int, ...], clock: int) -> bool:
        """Return whether all of these members that are still present have finished ``clock`` steps."""
        if clock <= 0:
            return True
        watch = self._watches[members]
        return watch.least >= clock or not watch.counts

    def when(self, members: tuple[int, ...], clock: int, then: Callable[[], None]) -> None:
        """Call ``then`` once, as soon as :meth:`holds` is true."""
        self._watches[members].waiting.setdefault(clock, []).append(then)

    def enter(self, rank: int, clock: int) -> None:
        self._of[rank] = clock
        for watch in self._seen_by.get(rank, ()):
            watch.counts[clock] = watch.counts.get(clock, 0) + 1
            watch.least = min(watch.least, clock) if len(watch.counts) > 1 else clock

    def advance(self, rank: int, clock: int) -> None:
        """Record a worker's finished steps; a smaller number than before is ignored."""
        old = self._of.get(rank)
        if old is None or clock <= old:
            return
        self._of[rank] = clock
        watches = self._seen_by.get(rank)
        if watches:
            for go_on in [waiter for watch in watches for waiter in watch.move(old, clock)]:
                go_on()

    def leave(self, rank: int) -> None:
        """Remove a worker, so that no other waits for it."""
        old = self._of.pop(rank, None)
        if old is not None:
            for go_on in [waiter for watch in self._seen_by.get(rank, ()) for waiter in watch.move(old, None)]:
                go_on()
