"""The mirror clock of a real run: the progress of other sites, which may be some steps behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from uneven.errors import TrainingError
from uneven.policy.select.pack import Unpacked


class MirrorClock:
    """The step up to which each other party's messages were received (``heard``). Each sends one message a step, in
    order."""

    def __init__(
        self, others: Iterable[int], receive: Callable[[int], Unpacked], arrived: Callable[[int], bool]
    ) -> None:
        self._receive = receive
        self._arrived = arrived
        self.heard: dict[int, int] = dict.fromkeys(others, -1)
        self.taken: dict[int, int] = dict.fromkeys(self.heard, 0)

    def begin(self, clock: int) -> None:
        """Start with all parties at this step, and nothing under way."""
        self.heard = dict.fromkeys(self.heard, clock)

    def take(self, due: int, barred: Mapping[int, int] | None = None) -> list[Unpacked]:
        """Return the messages that are here, and wait for those of steps up to ``due``, and for ``barred`` of each
        place.
        Raises :class:`TrainingError` if another party is at another step."""
        found = []
        for place in self.heard:
            least = (barred or {}).get(place, 0)  # the selective barrier may need messages before they are due
            while self.heard[place] < due or self.taken[place] < least or self._arrived(place):
                one = self._receive(place)
                if one.clock != self.heard[place] + 1:
                    raise TrainingError(
                        f"entries of step {one.clock} came where those of step {self.heard[place] + 1} were due: all "
                        f"ranks must run the same loop. Look for a break, continue or return that only some reach"
                    )
                self.heard[place] = one.clock
                self.taken[place] += 1
                found.append(one)
        return found

    def lacks(self, clock: int) -> bool:
        """Return whether messages of the steps up to this one may be under way."""
        return any(heard < clock for heard in self.heard.values())
