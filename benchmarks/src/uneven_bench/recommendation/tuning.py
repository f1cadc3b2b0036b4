"""The settings of each way, and the judgement: all are tuned in the same way, on data that is not reported.

::

    every way × every setting of one grid, with separate seeds ──▶ log loss on the first half of the held-out data
        ──▶ each way's own best setting ──▶ played with the reported seeds, judged by the second half

All ways are also compared at equal settings: at Adagrad's sums from 0, and at the choice of the asynchronous way.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

TUNING_SEEDS = (1000, 1001)
"""Seeds that are not reported. One would leave the choice to chance: two seeds at a high rate differ by 2 %."""


class LearningSettings(NamedTuple):
    """The settings of a way."""

    first_sum: float = 0.0  # ``initial_accumulator_value`` of the tables' Adagrad
    table_lr: float = 0.05  # of the tables
    dense_lr: float = 0.01  # of the dense part

    @property
    def text(self) -> str:
        return f"{self.first_sum:g}, {self.table_lr:g}, {self.dense_lr:g}"


COMPARED = ("synchronous", "sequential")  # ways to compare the asynchronous one with, in addition to its twins
PLAIN = LearningSettings()
GRID = tuple(LearningSettings(*one) for one in product((0.0, 1e-6, 1e-5, 1e-4), (0.1, 0.2), (0.01, 0.02)))
QUICK_GRID = (PLAIN,)


class Pass(NamedTuple):
    """One way through the log."""

    way: str
    settings: LearningSettings
    seed: int


@dataclass(frozen=True, slots=True)
class Learned:
    """The result of a pass."""

    log_loss: float  # on the reported part of the held-out data
    auc: float  # the area under the curve there
    validation: float  # log loss on the part for the choice of settings
    per_unit: float  # examples a unit of time
    gap: float | None = None  # iterations of a thread between two exchanges of its numbers; None without exchanges


Passes = Mapping[Pass, Learned]


def to_tune(ways: Iterable[str], grid: Sequence[LearningSettings], seeds: int) -> list[Pass]:
    """Return the passes before the choice of settings, for this number of reported seeds."""
    ways = tuple(ways)
    return [Pass(way, settings, seed) for settings in grid for way in ways for seed in TUNING_SEEDS[:seeds]]


def chosen(tuned: Passes) -> dict[str, LearningSettings]:
    """Return each way's own best settings, by the mean over seeds on the validation part; of equals the first."""
    return {way: min(each, key=each.__getitem__) for way, each in _validated(tuned).items()}


def _validated(tuned: Passes) -> dict[str, dict[LearningSettings, float]]:
    found: dict[str, dict[LearningSettings, list[float]]] = {}
    for one, learned in tuned.items():
        found.setdefault(one.way, {}).setdefault(one.settings, []).append(learned.validation)
    return {way: {one: statistics.fmean(many) for one, many in each.items()} for way, each in found.items()}


def equals(own: Mapping[str, LearningSettings]) -> tuple[LearningSettings, ...]:
    """Return the settings at which all ways are compared as well."""
    return tuple(dict.fromkeys((PLAIN, own["asynchronous"])))


def to_report(own: Mapping[str, LearningSettings], seeds: int) -> list[Pass]:
    """Return the passes after the choice of settings, each once."""
    wanted = (Pass(way, one, seed) for seed in range(seeds) for way in own for one in (own[way], *equals(own)))
    return list(dict.fromkeys(wanted))


def judged(tuned: Passes, found: Passes, seeds: int, twins: Iterable[str]) -> dict[str, Any]:
    """Return the result of the bench. Returns each way at its own best settings: ``logloss_vs_synchronous`` and
    ``logloss_vs_sequential`` (asynchronous over it, less 1), ``auc_vs_synchronous`` and ``auc_vs_sequential``
    (asynchronous less it), ``foreground_twins`` (policy → examples a unit of time of
    the shadow over the twin's, and its log loss less the twin's), medians over the seeds; ``by_seed`` (way → the same,
    relative or, of twins, a difference, of each seed), and ``quality`` (way → settings, log loss and AUC of each seed).
    ``quality_at_equal_settings``: the same of all ways at one setting, for each of :func:`equals`. ``quality_tuned``:
    way → all settings of the grid, with the log loss on the validation part, the best first."""
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


def _compared(at: Mapping[str, LearningSettings], found: Passes, seeds: int, twins: tuple[str, ...]) -> dict[str, Any]:
    each = {way: [found[Pass(way, settings, seed)] for seed in range(seeds)] for way, settings in at.items()}

    def pairs(way: str) -> list[tuple[Learned, Learned]]:
        return list(zip(each["asynchronous"], each[way], strict=True))

    worse = {way: [mine.log_loss / other.log_loss - 1 for mine, other in pairs(way)] for way in COMPARED}
    less = {way: [mine.log_loss - other.log_loss for mine, other in pairs(way)] for way in twins}
    eps = {way: [mine.per_unit / other.per_unit for mine, other in pairs(way)] for way in twins}
    return {
        **{f"logloss_vs_{way}": statistics.median(worse[way]) for way in COMPARED},
        **{f"auc_vs_{way}": statistics.median(mine.auc - other.auc for mine, other in pairs(way)) for way in COMPARED},
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
