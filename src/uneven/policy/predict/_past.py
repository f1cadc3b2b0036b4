"""A predictor's memory of its worker."""

import math
from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from uneven.policy.core.plain import Amount, Count, Misfit, Positive, read

Floats = npt.NDArray[np.float64]

# Columns of the rows: the speed in an iteration and its moving average; the use of processor and memory right after it,
# which applies to the next iteration; the moving averages of the uses that applied to the iterations in LEVEL.
SPEED, LEVEL, CPU, MEMORY, CPU_LEVEL, MEMORY_LEVEL = range(6)
LEVEL_WEIGHT = 0.2  # of the newest speed in the level, as in :class:`~uneven.policy.predict.predictor.EMA`
_DIGITS = 7  # per number, so that a checkpoint stays small; timers are less exact


_Use = list[Amount | None]


class PastState(TypedDict):
    """The checkpoint of a :class:`Past`."""

    seen: Count
    first: _Use
    rows: tuple[list[Positive], _Use, _Use]


class Past:
    """The newest ``size`` rows of one worker: speed, use of processor and memory, and their moving averages."""

    def __init__(self, size: int) -> None:
        self._size = size
        # Twice the size, so that the rows are one contiguous view and move only once in ``size`` iterations.
        self._buffer = np.zeros((2 * size, 6))
        self._end = 0
        self.seen = 0

    @property
    def rows(self) -> Floats:
        """A view of shape (n, 6), oldest first; NaN for a reading that was never known."""
        return self._buffer[max(0, self._end - self._size) : self._end]

    def append(self, speed_per_s: float, cpu: float, memory: float) -> None:
        """Append an iteration; a missing reading repeats the last one."""
        if self._end == len(self._buffer):
            self._buffer[: self._size] = self._buffer[-self._size :]
            self._end = self._size
        speed, cpu, memory = _short(speed_per_s), _short(cpu), _short(memory)
        row: tuple[float, ...] = (speed, speed, cpu, memory, cpu, memory)
        if self._end:
            # At least 1/n, so that the first iterations form a plain mean and a slow first one is soon forgotten.
            weight = max(LEVEL_WEIGHT, 1.0 / (self.seen + 1))
            row = next_row(self._buffer[self._end - 1].tolist(), speed, cpu, memory, weight)
        self._buffer[self._end] = row
        self._end += 1
        self.seen += 1

    def correct(self, speed_per_s: float) -> None:
        _, _, cpu, memory, *_ = self._buffer[self._end - 1].tolist()
        self._end -= 1
        self.seen -= 1
        self.append(speed_per_s, cpu, memory)

    def median(self, newest: int) -> float:
        """Return the median of the newest speeds, in samples per second."""
        recent = sorted(self.rows[-newest:, SPEED].tolist())
        return float(recent[len(recent) // 2])

    def state_dict(self) -> dict[str, Any]:
        # The first row, and the measurements of the others; their averages follow from these.
        rows = self.rows
        measured = [_jsonable(rows[1:, column]) for column in (SPEED, CPU, MEMORY)]
        return {"seen": self.seen, "first": _jsonable(rows[:1].ravel()), "rows": measured}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; of surplus rows only the newest are kept."""
        saved = read(PastState, state)
        first, measured = _numbers(saved["first"]), [_numbers(list(column)) for column in saved["rows"]]
        if len({len(column) for column in measured}) > 1:
            raise Misfit(saved["rows"], "columns of one length", "rows")
        kept = len(measured[0]) + bool(first)
        if len(first) not in (0, 6) or not kept <= saved["seen"] or (saved["seen"] > 0 and not first):
            raise Misfit(saved["first"], f"the six numbers of the first of {saved['seen']} rows", "first")
        if first and not (first[SPEED] > 0.0 and first[LEVEL] > 0.0):
            raise Misfit(saved["first"], "speeds above 0", "first")
        self._end, self.seen = 0, saved["seen"] - len(measured[0])
        if first:
            self._buffer[0], self._end = first, 1
        for speed, cpu, memory in zip(*measured, strict=True):
            self.append(speed, cpu, memory)


def next_row(
    before: Sequence[float], speed: float, cpu: float, memory: float, weight: float = LEVEL_WEIGHT
) -> tuple[float, ...]:
    """Return the row of an iteration, (6,), from the row before and its measurements.

    Args:
        weight: of the newest values in the moving averages.
    """
    _, level, cpu_before, memory_before, cpu_level, memory_level = before
    return (
        speed,
        _short(level + weight * (speed - level)),
        cpu_before if math.isnan(cpu) else cpu,
        memory_before if math.isnan(memory) else memory,
        _averaged(cpu_level, cpu_before, weight),
        _averaged(memory_level, memory_before, weight),
    )


def _averaged(level: float, newest: float, weight: float) -> float:
    return newest if math.isnan(level) else _short(level + weight * (newest - level))


def _jsonable(values: Floats) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def _numbers(values: list[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
