"""What is heard of sites that may be some steps behind: the mirror clock of a real run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from uneven.entries.pack import Unpacked
from uneven.errors import TrainingError


class MirrorClock:
    """Steps of which each of the others has been heard. Each sends one message a step, in order.

    Args:
        others: places of the other parties.
        receive: the next message of one. Waits.
        arrived: whether one lies here.

    Attributes:
        heard: place → step.
        taken: place → messages taken from it since the beginning.
    """

    def __init__(
        self, others: Iterable[int], receive: Callable[[int], Unpacked], arrived: Callable[[int], bool]
    ) -> None:
        self._receive, self._arrived = receive, arrived
        self.heard: dict[int, int] = dict.fromkeys(others, -1)
        self.taken: dict[int, int] = dict.fromkeys(self.heard, 0)

    def begin(self, clock: int) -> None:
        """All are at this step, and nothing is under way."""
        self.heard = dict.fromkeys(self.heard, clock)

    def take(self, due: int, barred: Mapping[int, int] | None = None) -> list[Unpacked]:
        """What lies here, and what is still to come of the steps up to ``due``. Waits for the latter.

        Args:
            barred: place → how many of its messages have to be here in any case.

        Raises:
            TrainingError: another one is at another step.
        """
        found = []
        for place in self.heard:
            least = (barred or {}).get(place, 0)
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
        """Whether anything of the steps up to this one may be under way."""
        return any(heard < clock for heard in self.heard.values())
