"""The referee: which of the workers' reports are believed. Pure.

A report that is missing or absurd never reaches a predictor or a balancer. The last good one serves in its
place, and a complaint says so, for the journal. Every rank judges the same reports, so all believe the same.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from uneven.core.views import Observation

ABSURD_FACTOR = 1e6
"""A speed so many times above or below the middle of the others' is not believed."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """Why a report was not believed."""

    rank: int
    iteration: int  # in which it was judged
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one round of reports; position i belongs to the i-th member.

    Attributes:
        observed: what is believed of each; None before its first good report.
        fresh: whether that is news; only then is it shown to the predictor.
        complaints: one for each report that was not believed.
    """

    observed: tuple[Observation | None, ...]
    fresh: tuple[bool, ...]
    complaints: tuple[Complaint, ...]


class Referee:
    """Believes or refuses reports, and remembers the last good one of each rank."""

    def __init__(self) -> None:
        self._last: dict[int, Observation] = {}

    def judge(self, members: Sequence[int], raw: Sequence[Observation | None], *, iteration: int) -> Verdict:
        """Judge the newest report of each member.

        Refused are: none at all; a time or a number of samples that is zero, negative or not finite; a speed
        more than a million times above or below the middle of the others'. A worker that took part without
        samples (0 samples in a positive time) says nothing about its speed: the last good report serves,
        without a complaint.

        The others are represented by their last good reports where they have one, so one absurd report spoils
        nobody else's. Only between two workers without a past is there no telling which one is absurd; then
        neither is believed.

        Args:
            members: ranks, ascending.
            raw: the newest report of each; None where there is none.
            iteration: goes into the complaints.
        """
        faults = [_fault(seen) for seen in raw]
        standing = [
            _speed(self._last.get(rank, seen if fault is None else None))
            for rank, seen, fault in zip(members, raw, faults, strict=True)
        ]
        ordered = sorted(speed for speed in standing if speed > 0.0)
        observed, fresh, complaints = [], [], []
        for rank, seen, fault, own in zip(members, raw, faults, standing, strict=True):
            fault = fault or _strangeness(_speed(seen), own, ordered)
            good = seen is not None and fault is None and seen.samples > 0
            fresh.append(good and seen != self._last.get(rank))
            observed.append(seen if good else self._last.get(rank))
            if fault is not None:
                complaints.append(Complaint(rank, iteration, f"{fault}; {_substitute(observed[-1])}"))
        self._last.update((rank, seen) for rank, seen in zip(members, observed, strict=True) if seen is not None)
        return Verdict(tuple(observed), tuple(fresh), tuple(complaints))

    def state_dict(self) -> dict[str, Any]:
        """The last good report of each rank, as plain JSON-able data."""
        return {"last": {str(rank): _to_plain(seen) for rank, seen in self._last.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        self._last = {int(rank): _from_plain(row) for rank, row in state["last"].items()}


def _fault(seen: Observation | None) -> str | None:
    """What is wrong with a report taken by itself."""
    if seen is None:
        return "no report"
    for name, value in (
        ("samples", seen.samples),
        ("local_s", seen.local_s),
        ("exchange_s", seen.exchange_s),
        ("transfer_s", seen.transfer_s),
    ):
        if not math.isfinite(value) or value < 0:
            return f"{name} = {value}"
    return f"{seen.samples} samples in 0 s" if seen.local_s == 0.0 else None


def _speed(seen: Observation | None) -> float:
    """Samples per second; 0 where nothing is known."""
    return seen.speed_per_s if seen is not None and seen.samples > 0 and seen.local_s > 0.0 else 0.0


def _strangeness(speed: float, own: float, ordered: list[float]) -> str | None:
    """What is wrong with a speed beside the others'; ``own`` is this rank's entry among ``ordered``."""
    others = len(ordered) - (own > 0.0)
    if speed == 0.0 or others == 0:
        return None
    low, high = _middle(ordered, others, bisect_left(ordered, own) if own > 0.0 else others)
    # Of two middle values the more lenient one counts.
    if low / ABSURD_FACTOR <= speed <= high * ABSURD_FACTOR:
        return None
    return f"{speed:.3g} samples/s where the others' median is {low:.3g}"


def _middle(ordered: list[float], others: int, left_out: int) -> tuple[float, float]:
    """The two middle values (equal if their number is odd) without the one at ``left_out``."""
    low, high = (others - 1) // 2, others // 2
    return ordered[low + (low >= left_out)], ordered[high + (high >= left_out)]


def _substitute(last: Observation | None) -> str:
    if last is None:
        return "nothing is known of this rank yet, so the shares stay"
    return f"its report of iteration {last.iteration} ({last.speed_per_s:.4g} samples/s) serves"


_FIELDS = ("iteration", "samples", "local_s", "iterations", "exchange_s", "transfer_s", "cpu", "memory")


def _to_plain(seen: Observation) -> list[float | None]:
    """JSON has no NaN, so an unknown becomes None."""
    values = (getattr(seen, name) for name in _FIELDS)
    return [value if math.isfinite(value) else None for value in values]


def _from_plain(row: list[Any]) -> Observation:
    values: list[Any] = [math.nan if value is None else value for value in row]
    return Observation(**dict(zip(_FIELDS, values, strict=True)))
