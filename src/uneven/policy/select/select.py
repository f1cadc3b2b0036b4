"""The selection of entries to send."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from uneven.errors import ConfigError
from uneven.policy.select.pack import shortest
from uneven.policy.select.picked import HALF, QUARTER, WHOLE, Array, ChunkRows, Picked, rounded

STEP, ABOVE, BELOW = 0.005, 1.1, 0.9
SOFTER = 0.9  # factor of the threshold if there is room


class BandwidthControl:
    """The adaptation of a threshold to a line's bandwidth limit, after each exchange.

    Upwards this is the rule of Gaia's released code: above 1.1 of the limit, add 0.005 to the threshold; below 0.9,
    subtract it, never below the configured threshold and by at most ``most``. Downwards it is Gaia's soft threshold,
    whose rule is unknown except for its purpose [recalled]: send more than the significant entries if there is room.
    Our rule: below 0.9 of the limit multiply by 0.9, above 1.1 divide. Entries above the configured threshold are then
    always sent.

    ``most`` is the maximum addition to it, ``soft`` its minimum factor (1 to never lower it).
    """

    def __init__(self, limit_bytes_per_s: float, most: float, soft: float = 1.0) -> None:
        self.added = 0.0  # to the threshold, at least 0
        self.part = 1.0  # factor of the threshold while nothing is added, at most 1
        self._limit = limit_bytes_per_s
        self._most = most
        self._soft = soft

    def measured(self, sent_bytes: float, passed_s: float) -> None:
        """Adapt to the bytes sent and the seconds passed since the start of the previous exchange."""
        usage = sent_bytes / passed_s if passed_s > 0 else 0.0
        if usage > ABOVE * self._limit:
            # Undo the opposite change first.
            if self.part < 1.0:
                self.part = min(1.0, self.part / SOFTER)
            else:
                self.added = min(self._most, self.added + STEP)
        elif usage < BELOW * self._limit:
            if self.added > 0.0:
                self.added = max(0.0, self.added - STEP)
            else:
                self.part = max(self._soft, self.part * SOFTER)

    def applied(self, threshold: float) -> float:
        """Return the threshold to use instead of the configured one."""
        return threshold * self.part + self.added


_BLOCK = 1 << 15
"""Entries compared together, so that temporaries stay in a processor's cache."""

_LARGEST_CHUNK = 4096  # places in a chunk take 12 bits


class Selection(ABC):
    """A rule that selects entries of the accumulated movement; a frozen dataclass, compared by its options."""

    __slots__ = ()

    bits: int  # of a value in a message: 32 (unchanged), 16 (bfloat16) or 2. Rounding errors accumulate, too
    # whether unsent movement is outside of the replica, which then is equal on all workers (as in SparseLoCo and DGC),
    # or part of it (as in Gaia)
    beside: bool

    @property
    def whole(self) -> bool:
        """True if all workers send everything unchanged, so that exchanges may add up on the way."""
        return False

    @abstractmethod
    def pick(self, held: Array, values: Array, rate: float = 1.0) -> Picked:
        """Return the entries to send of the accumulated movement ``held`` (n,), as the receiver gets them.

        ``values`` (n,) is the current replica; ``rate`` is the learning rate over the initial one.
        """


@dataclass(frozen=True, slots=True)
class Significant(Selection):
    """Gaia's filter: send an entry if ``|held| > threshold · |value|``, with the value after the step.

    As in the released code, the test is strict and per entry: if the value is 0, any entry except 0 is sent. NaN is
    sent, so that the receiver notices it.

    Args:
        threshold: 0 sends everything except 0; below 0 nothing.
        by_rate: scale the threshold with the learning rate over the initial one, as the released code does.
        absolute: compare with the threshold itself instead of a part of the value.
        bits: of a value, 32 or 16.
        beside: see :class:`Selection`.
        mbit_per_s: limit of a worker's traffic to other sites; 0 for none. See
            :class:`~uneven.policy.select.BandwidthControl`.
        most: maximum threshold under that limit.
        soft: minimum factor of the threshold if there is room; 1 to never lower it.

    Raises:
        ConfigError: ``bits`` is invalid, or a limit comes without a way to change the threshold, or vice versa.
    """

    threshold: float
    by_rate: bool = False
    absolute: bool = False
    bits: int = WHOLE
    beside: bool = False
    mbit_per_s: float = 0.0
    most: float = 0.0
    soft: float = 1.0

    def __post_init__(self) -> None:
        if (self.mbit_per_s > 0) != (self.most > 0 or self.soft < 1):
            raise ConfigError(
                f"significant entries with a bandwidth of {self.mbit_per_s:g} Mbit/s, most = {self.most:g} and soft = "
                f"{self.soft:g}: give a bandwidth and a largest threshold, or a soft part below 1, or both"
            )
        if self.bits not in (WHOLE, HALF):
            raise ConfigError(f"significant entries of {self.bits} bits: use {WHOLE} or {HALF}")

    @property
    def whole(self) -> bool:
        return self.threshold == 0 and self.bits == WHOLE and not self.absolute and not self.mbit_per_s

    def control(self) -> BandwidthControl | None:
        """Return the bandwidth control, or None without a limit."""
        if not self.mbit_per_s:
            return None
        return BandwidthControl(self.mbit_per_s * 1e6 / 8, max(0.0, self.most - self.threshold), self.soft)

    def limit(self, rate: float = 1.0) -> float:
        """Return the threshold at this learning rate over the initial one."""
        return self.threshold * rate if self.by_rate else self.threshold

    def pick(self, held: Array, values: Array, rate: float = 1.0) -> Picked:
        places = self._places(held, values, self.limit(rate))
        return Picked(len(held), places, rounded(held[places], self.bits), self.bits)

    def _places(self, held: Array, values: Array, limit: float) -> Array:
        if limit < 0 or math.isinf(limit):
            return np.zeros(0, dtype=np.int64)
        if limit == 0:
            return np.flatnonzero(held)
        size = np.empty(min(_BLOCK, len(held)), dtype=held.dtype)
        least = np.full_like(size, limit)
        small = np.empty(len(size), dtype=np.bool_)
        found = []
        for start in range(0, len(held), _BLOCK):
            piece = held[start : start + _BLOCK]
            a, b, no = size[: len(piece)], least[: len(piece)], small[: len(piece)]
            np.abs(piece, out=a)
            if not self.absolute:
                np.abs(values[start : start + _BLOCK], out=b)
                np.multiply(b, held.dtype.type(limit), out=b)
            # Not `a > b`: a comparison with NaN is false, and NaN must be sent.
            np.less_equal(a, b, out=no)
            np.logical_not(no, out=no)
            found.append(np.flatnonzero(no) + start)
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class TopK(Selection):
    """The largest entries of each chunk of the vector by magnitude, at least one.

    All chunks have the same number, so a place takes 12 bits.

    Args:
        density: share of the entries, above 0 and at most 1.
        chunk: entries of a chunk, at most 4,096.
        bits: of a value, 32, 16 or 2: its sign, and the nearer of two magnitudes of its chunk.
        beside: see :class:`Selection`.

    Raises:
        ConfigError: an argument is out of range.
    """

    density: float
    chunk: int = _LARGEST_CHUNK
    bits: int = WHOLE
    beside: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise ConfigError(f"the largest {self.density:g} of the entries: give a density above 0 and at most 1")
        if not 1 <= self.chunk <= _LARGEST_CHUNK:
            raise ConfigError(f"chunks of {self.chunk} entries: use 1 to {_LARGEST_CHUNK}")
        if self.bits not in (WHOLE, HALF, QUARTER):
            raise ConfigError(f"values of {self.bits} bits: use {WHOLE}, {HALF} or {QUARTER}")

    def rows(self, size: int) -> ChunkRows:
        """Return the layout of a vector of this length in chunks."""
        whole, rest = divmod(size, self.chunk)
        return ChunkRows(self.chunk, self._of(self.chunk), self._of(rest) if rest else 0, whole)

    def _of(self, entries: int) -> int:
        return max(1, math.ceil(self.density * entries - 1e-9))  # tolerates the rounding error of the product

    def pick(self, held: Array, values: Array, rate: float = 1.0) -> Picked:
        rows = self.rows(len(held))
        middle = rows.whole * rows.chunk
        tables = ((held[:middle].reshape(rows.whole, rows.chunk), rows.each), (held[middle:].reshape(1, -1), rows.last))
        found, before = [np.zeros(0, dtype=np.int64)], 0
        for table, count in tables:
            if table.size:
                starts = before + table.shape[1] * np.arange(len(table))[:, None]
                found.append((_largest(np.abs(table), count) + starts).reshape(-1))
            before += table.size
        places = np.concatenate(found)
        return Picked(len(held), places, rounded(held[places], self.bits, rows), self.bits, rows)


def _largest(size: Array, count: int) -> Array:
    """Return the places of the largest entries of each row, ascending; shape (rows, count)."""
    if count >= size.shape[1]:
        return np.broadcast_to(np.arange(size.shape[1]), size.shape)
    return np.sort(np.argpartition(size, -count, axis=1)[:, -count:], axis=1)  # linear time; places must ascend


def estimated_bytes(select: Selection, size: float, part: float, width: int = 4) -> float:
    """Estimate the bytes of a message about a vector of ``size`` numbers of ``width`` bytes, in the shortest encoding.

    ``part`` is the share of entries that pass a filter; :class:`TopK` ignores it.
    """
    if isinstance(select, TopK):
        places, part = 1.5, select.rows(int(size)).count / max(1.0, size)
    else:
        places = min(4.0, 2.0 * (1.0 + 1.0 / (65_535 * part))) if part > 0 else 0.0
    value = {WHOLE: float(width), HALF: 2.0, QUARTER: 0.25}[select.bits]
    levels = 8.0 / select.chunk * size if isinstance(select, TopK) and select.bits == QUARTER else 0.0
    sparse = min(part * size * places, size / 8) + part * size * value + levels
    return min(sparse, size * width)


class Accumulator:
    """Error feedback, as in Gaia's accumulated update: unsent movement adds up until it is sent, so nothing is lost.

    Add only movements of this worker's own steps: received ones would be sent back.
    """

    def __init__(self, held: Array) -> None:
        self.held = held  # (n,)

    def add(self, movement: Array) -> None:
        """Add the movement of the worker's own steps; shape (n,)."""
        self.held += movement

    def take(self, select: Selection, values: Array, rate: float = 1.0) -> Picked:
        """Return the entries of ``held`` (n,) to send now, given the replica (n,); keep the rest and rounding
        errors."""
        picked = self.pick(select, values, rate)
        self.sent(picked)
        return picked

    def pick(self, select: Selection, values: Array, rate: float = 1.0) -> Picked:
        """Return what :meth:`take` does, and keep all of it until :meth:`sent`."""
        # If entries with their places would take as many bytes as the whole vector, send the vector without rounding.
        return shortest(select.pick(self.held, values, rate), self.held)

    def sent(self, picked: Picked) -> None:
        if picked.places is None:
            self.held[:] = 0
        elif picked.bits == 32:
            self.held[picked.places] = 0
        else:
            self.held[picked.places] -= picked.values  # the rounding error stays
