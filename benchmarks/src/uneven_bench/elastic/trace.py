"""The presence of machines over time, after recorded spot availability."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from uneven.errors import DataError

Series = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Change:
    """The arrival or departure of a machine."""

    at_s: float  # from the beginning
    machine: int  # its place among those that are not always present
    comes: bool
    notice: bool = True  # it gets SIGTERM, not SIGKILL


@dataclass(frozen=True, slots=True)
class SpotTrace:
    """Availability over some time."""

    seconds: float
    stay: int  # machines that are always present
    first: tuple[int, ...]  # the others that are present at the beginning
    changes: tuple[Change, ...]

    @property
    def present(self) -> list[tuple[float, int]]:
        """The number of machines from each moment on."""
        count = self.stay + len(self.first)
        found = [(0.0, count)]
        for change in self.changes:
            count += 1 if change.comes else -1
            found.append((change.at_s, count))
        return found

    @property
    def most(self) -> int:
        """The largest number of machines at a time."""
        return max(count for _, count in self.present)


def window(series: Series, length: int, changes: int) -> int:
    """Return the first stretch of the series with the best match in comings and goings. ``series``: one for each
    machine, all of the same length; a machine is present if its value is not 0; ``length``: of the stretch, in values;
    ``changes``: the wanted number of comings and goings in it. Raises DataError: the series are shorter than the
    stretch."""
    values = min(map(len, series))
    if values < length:
        raise DataError(f"the series have {values} values, and a stretch of {length} is wanted: take a longer record")
    moves = [sum((one[place] > 0) != (one[place - 1] > 0) for one in series) for place in range(1, values)]
    count = sum(moves[: length - 1])
    best, begin = abs(count - changes), 0
    for place in range(1, values - length + 1):
        count += moves[place + length - 2] - moves[place - 1]
        if abs(count - changes) < best:
            best, begin = abs(count - changes), place
    return begin


def play(series: Series, begin: int, length: int, *, seconds: float, stay: int, seed: int) -> SpotTrace:
    """Scale a stretch of the series to ``seconds``. Chance decides between notice and kill."""
    dice = Random(f"{seed}/spot")
    step_s = seconds / length
    changes = []
    for place in range(begin + 1, begin + length):
        for machine, one in enumerate(series):
            if (one[place] > 0) != (one[place - 1] > 0):
                comes = one[place] > 0
                changes.append(Change((place - begin) * step_s, machine, comes, comes or dice.random() < 0.5))
    first = tuple(machine for machine, one in enumerate(series) if one[begin] > 0)
    return SpotTrace(seconds, stay, first, tuple(changes))


def sampled(first: Sequence[bool], moves: Series, step_s: float, length: int) -> list[tuple[float, ...]]:
    """Return series of machines from the moments at which they come and go by turns. ``first``: whether each is present
    at the beginning; ``moves``: when it comes or goes, seconds, in order of time; ``step_s``: between two values; each
    is the state in the middle of its step."""
    return [
        tuple(float(there ^ (sum(at_s <= (place + 0.5) * step_s for at_s in own) % 2 == 1)) for place in range(length))
        for there, own in zip(first, moves, strict=True)
    ]
