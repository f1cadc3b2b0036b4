"""Sums over an epoch of each worker, for rules that decide once an epoch."""

from dataclasses import dataclass
from typing import Any, TypedDict

from uneven.errors import ConfigError
from uneven.policy.core.plain import Amount, Count, Misfit, Several, read, whole_key
from uneven.policy.core.views import BalanceView


@dataclass(frozen=True, slots=True)
class Passed:
    """One worker's epoch: its samples, its compute time in seconds, its iterations."""

    samples: int
    local_s: float
    iterations: int

    @property
    def iteration_s(self) -> float:
        """The mean seconds of an iteration, without the exchange."""
        return self.local_s / self.iterations

    @property
    def speed_per_s(self) -> float:
        return self.samples / self.local_s


class _EpochsState(TypedDict):
    end: Several
    sums: dict[str, tuple[int, Count, Amount, Count]]


class Epochs:
    """An accumulator of reports until an epoch is over. ``rule``: name of the rule, for messages; ``iterations``: of an
    epoch. Raises ConfigError: an epoch without iterations."""

    def __init__(self, rule: str, iterations: int) -> None:
        if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1:
            raise ConfigError(f"{rule}: epoch = {iterations!r} must be a whole number of iterations, at least 1")
        self.iterations = iterations
        self._end = iterations
        self._sums: dict[int, tuple[int, int, float, int]] = {}  # rank: newest iteration, samples, seconds, iterations

    def take(self, view: BalanceView) -> tuple[Passed, ...] | None:
        """Return every worker's epoch, in the order of the members, once all have reported its end; else None."""
        for rank, seen in zip(view.members, view.observed, strict=True):
            newest, samples, local_s, iterations = self._sums.get(rank, (-1, 0, 0.0, 0))
            if seen is not None and seen.iteration > newest and seen.samples > 0 and seen.local_s > 0:
                sums = samples + seen.samples, local_s + seen.local_s, iterations + seen.iterations
                self._sums[rank] = (seen.iteration, *sums)
        rows = [self._sums.get(rank, (-1, 0, 0.0, 0)) for rank in view.members]
        ended = min(newest for newest, *_ in rows) + 1
        if ended < self._end or not all(iterations for *_, iterations in rows):
            return None
        self._end = (ended // self.iterations + 1) * self.iterations
        self._sums = {rank: (row[0], 0, 0.0, 0) for rank, row in self._sums.items()}
        return tuple(Passed(samples, local_s, iterations) for _, samples, local_s, iterations in rows)

    def state_dict(self) -> dict[str, Any]:
        return {"end": self._end, "sums": {str(rank): list(row) for rank, row in self._sums.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = read(_EpochsState, state)
        for rank, row in saved["sums"].items():
            if len({number > 0 for number in row[1:]}) > 1:
                raise Misfit(row, "samples, seconds and iterations that are all above 0, or none", f"sums.{rank}")
        self._end = saved["end"]
        self._sums = {whole_key(rank, "sums"): row for rank, row in saved["sums"].items()}
