"""With which settings each way is played, and what follows: all are tuned alike, on what is not reported.

::

    every way × every setting of one grid, with seeds of their own ──▶ log loss on the first half of what is held out
        ──▶ each way's own best setting ──▶ played with the seeds that are reported, judged by the second half

The same is said of all ways at equal settings: at Adagrad's sums from 0, and at what the asynchronous way has chosen.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

TUNING_SEEDS = (1000, 1001)
"""Not among the seeds that are reported. With one alone chance chooses: two seeds at a high rate differ by 2 %."""


class LearningSettings(NamedTuple):
    """How a way learns.

    Attributes:
        first_sum: ``initial_accumulator_value`` of the tables' Adagrad.
        table_lr: of the tables; ``dense_lr``: of the dense part.
    """

    first_sum: float = 0.0
    table_lr: float = 0.05
    dense_lr: float = 0.01

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.first_sum:g}, {self.table_lr:g}, {self.dense_lr:g}"


BESIDE = ("synchronous", "sequential")
"""Ways that the asynchronous one is compared with, besides its twins."""

PLAIN = LearningSettings()
GRID = tuple(LearningSettings(*one) for one in product((0.0, 1e-6, 1e-5, 1e-4), (0.1, 0.2), (0.01, 0.02)))
QUICK_GRID = (PLAIN, LearningSettings(1e-5, 0.1, 0.02))


class Pass(NamedTuple):
    """One way through the log."""

    way: str
    settings: LearningSettings
    seed: int


@dataclass(frozen=True, slots=True)
class Learned:
    """What came of a pass.

    Attributes:
        log_loss: on the part of what was held out that is reported; ``auc``: the area under the curve there.
        validation: log loss on the part that settings are chosen by.
        per_unit: examples a unit of time.
    """

    log_loss: float
    auc: float
    validation: float
    per_unit: float


def to_tune(ways: Iterable[str], grid: Sequence[LearningSettings], seeds: int) -> list[Pass]:
    """What has to be played before settings are chosen, where so many seeds are reported."""
    ways = tuple(ways)
    return [Pass(way, settings, seed) for settings in grid for way in ways for seed in TUNING_SEEDS[:seeds]]


def chosen(tuned: Mapping[Pass, Learned]) -> dict[str, LearningSettings]:
    """Each way's own best settings, by the mean over seeds on the validation part; of equals the first."""
    return {way: min(each, key=each.__getitem__) for way, each in _validated(tuned).items()}


def _validated(tuned: Mapping[Pass, Learned]) -> dict[str, dict[LearningSettings, float]]:
    found: dict[str, dict[LearningSettings, list[float]]] = {}
    for one, learned in tuned.items():
        found.setdefault(one.way, {}).setdefault(one.settings, []).append(learned.validation)
    return {way: {one: statistics.fmean(many) for one, many in each.items()} for way, each in found.items()}


def equals(own: Mapping[str, LearningSettings]) -> tuple[LearningSettings, ...]:
    """The settings at which all ways are compared as well."""
    return tuple(dict.fromkeys((PLAIN, own["asynchronous"])))


def to_report(own: Mapping[str, LearningSettings], seeds: int) -> list[Pass]:
    """What has to be played after settings were chosen, each once."""
    wanted = (
        Pass(way, settings, seed)
        for seed in range(seeds)
        for way in own
        for settings in (own[way], *equals(own))
    )  # fmt: skip
    return list(dict.fromkeys(wanted))


def judged(
    tuned: Mapping[Pass, Learned], found: Mapping[Pass, Learned], seeds: int, twins: Iterable[str]
) -> dict[str, Any]:
    """The result of the bench.

    Returns:
        Each way at its own best settings: ``logloss_vs_synchronous`` and ``logloss_vs_sequential`` (asynchronous over
        it, less 1), ``foreground_twins`` (policy → examples a unit of time of the shadow over the twin's, and its log
        loss less the twin's), medians over the seeds; ``by_seed`` (way → the same, relative or, of twins, a
        difference, of each seed), and ``quality`` (way → settings, log loss and AUC of each seed).
        ``quality_at_equal_settings``: the same of all ways at one setting, for each that :func:`equals` names.
        ``quality_tuned``: way → all settings of the grid, with the log loss on the validation part, the best first.
    """
    own, twins = chosen(tuned), tuple(twins)
    return {
        **_compared(own, found, seeds, twins),
        "quality_at_equal_settings": [
            {"settings": one._asdict(), **_compared(dict.fromkeys(own, one), found, seeds, twins)}
            for one in equals(own)
        ],
        "quality_tuned": {
            way: [one._asdict() | {"validation": each[one]} for one in sorted(each, key=each.__getitem__)]
            for way, each in _validated(tuned).items()
        },
    }


def _compared(
    at: Mapping[str, LearningSettings], found: Mapping[Pass, Learned], seeds: int, twins: tuple[str, ...]
) -> dict[str, Any]:
    each = {way: [found[Pass(way, settings, seed)] for seed in range(seeds)] for way, settings in at.items()}

    def beside(way: str) -> list[tuple[Learned, Learned]]:
        return list(zip(each["asynchronous"], each[way], strict=True))

    worse = {way: [mine.log_loss / other.log_loss - 1 for mine, other in beside(way)] for way in BESIDE}
    less = {way: [mine.log_loss - other.log_loss for mine, other in beside(way)] for way in twins}
    eps = {way: [mine.per_unit / other.per_unit for mine, other in beside(way)] for way in twins}
    return {
        **{f"logloss_vs_{way}": statistics.median(worse[way]) for way in BESIDE},
        "foreground_twins": {
            way: {"eps_ratio": statistics.median(eps[way]), "logloss_difference": statistics.median(less[way])}
            for way in twins
        },
        "by_seed": {**worse, **less},
        "quality": {
            way: {
                "settings": at[way]._asdict(),
                "log_loss": [one.log_loss for one in many],
                "auc": [one.auc for one in many],
            }
            for way, many in each.items()
        },
    }
