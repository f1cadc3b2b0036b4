"""Population based training, as in Ray."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from uneven.errors import ConfigError
from uneven.search.pure.decisions import GO_ON, Clone, Move, Progress, Ruling
from uneven.search.pure.schedulers.scheduler import Scheduler
from uneven.search.pure.space import Params, Space


@dataclass(slots=True)
class Individual:
    """A trial of the population."""

    params: Params
    score: float | None = None  # of the last report that counted; None before it
    t: float = 0.0  # its training
    perturbed_t: float = 0.0  # its training when it was last judged
    kept_t: float | None = None  # of the checkpoint that others may clone; None without one
    best: bool = False  # it belongs to the upper quantile


class PopulationBased(Scheduler):
    """PBT: at intervals, a trial at the bottom continues from the checkpoint of one at the top, with similar settings.

    Settings of a range are multiplied by one of the factors; those of a choice move one place. With a probability, a
    new value is drawn instead.

    Args:
        perturbation_interval: training between two judgements of a trial.
        burn_in_period: training before the first judgement.
        quantile_fraction: share of the population that is the top, and share that is the bottom.
        resample_probability: probability of a new value instead of a similar one.
        factors: multipliers of numbers.
        synch: all trials wait for each other at each judgement, so that the result does not depend on speeds.
        max_t: training after which a trial is done; by default when its function returns.

    Raises:
        ConfigError: a number is invalid.
    """

    ahead = math.inf
    own_params = True

    def __init__(
        self,
        perturbation_interval: float = 1,
        burn_in_period: float = 0,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        factors: Sequence[float] = (1.2, 0.8),
        synch: bool = False,
        max_t: float | None = None,
    ) -> None:
        if not perturbation_interval > 0 or not burn_in_period >= 0:
            raise ConfigError(
                f"perturbation_interval={perturbation_interval}, burn_in_period={burn_in_period}: give > 0 and >= 0"
            )
        if not 0 <= quantile_fraction <= 0.5:
            raise ConfigError(f"quantile_fraction={quantile_fraction}: give 0 to 0.5")
        if not 0 <= resample_probability <= 1:
            raise ConfigError(f"resample_probability={resample_probability}: give 0 to 1")
        if max_t is not None and not max_t > 0:
            raise ConfigError(f"max_t={max_t}: give more than 0")
        self.max_t = max_t
        self._interval = perturbation_interval
        self._burn_in = burn_in_period
        self._quantile = quantile_fraction
        self._resample = resample_probability
        self._factors = tuple(factors)
        self._synch = synch
        self._next_t = max(perturbation_interval, burn_in_period)
        self.population: dict[int, Individual] = {}
        self._space = Space({})
        self._random = Random(0)

    def begin(self, space: Space, seed: int) -> None:
        self._space, self._random = space, Random(f"pbt {seed}")

    def added(self, trial: int, params: Params) -> None:
        self.population.setdefault(trial, Individual(params))

    def saved(self, trial: int, t: float) -> None:
        one = self.population.get(trial)
        # While the state was being saved, the trial may have lost its place at the top.
        if one is not None and one.best:
            one.kept_t = t

    def on_result(self, progress: Progress) -> Ruling:
        one, t = self.population[progress.trial], progress.t
        if self.max_t is not None and t >= self.max_t:
            others = self._without(progress.trial)
            return Ruling(Move.STOP, f"trained to max_t={self.max_t:g}", others=others)
        if self._synch:
            return self._meet(progress)
        if t < self._burn_in or t - one.perturbed_t < self._interval:
            return GO_ON
        one.score, one.t, one.perturbed_t = progress.score, t, t
        lower, upper = self.quantiles()
        ruling = self._judged(progress.trial, lower, upper)
        return replace(ruling, move=Move.PAUSE if progress.waiting else Move.CONTINUE)

    def gone(self, trial: int) -> Mapping[int, Ruling]:
        return self._without(trial)

    def choose(self, pending: Collection[int], paused: Collection[int]) -> int | None:
        """Return the least trained trial; with ``synch``, among those that have not reached the judgement."""
        ready = [*pending, *paused]
        if self._synch:
            ready = [trial for trial in ready if self.population[trial].t < self._next_t]
        return min(ready, key=lambda trial: self.population[trial].t, default=None)

    def quantiles(self) -> tuple[list[int], list[int]]:
        """Return bottom and top, the worst first: ⌈n q⌉ of the trials with a score, at most half of them."""
        known = [trial for trial, one in self.population.items() if one.score is not None and one.score == one.score]
        known.sort(key=lambda trial: self.population[trial].score or 0.0)
        if len(known) <= 1:
            return [], []
        size = min(math.ceil(len(known) * self._quantile), len(known) // 2)
        return (known[:size], known[-size:]) if size else ([], [])

    def explore(self, params: Params) -> Params:
        near = dict(params)
        for name, domain in self._space.items():
            near[name] = domain.explore(params.get(name), self._random, self._resample, self._factors)
        return near

    def _judged(self, trial: int, lower: list[int], upper: list[int]) -> Ruling:
        one = self.population[trial]
        one.best = trial in upper
        if one.best:
            return Ruling(save=True)
        one.kept_t = None
        if trial not in lower:
            return GO_ON
        source = self._random.choice(upper)
        other = self.population[source]
        if other.kept_t is None:
            return GO_ON
        one.params, one.t, one.perturbed_t = self.explore(other.params), other.kept_t, other.perturbed_t
        return Ruling(clone=Clone(source, other.kept_t, one.params), why=f"continues from trial {source}")

    def _meet(self, progress: Progress) -> Ruling:
        one = self.population[progress.trial]
        if progress.t < self._next_t:
            return GO_ON
        one.score, one.t = progress.score, progress.t
        others = self._all_judged()
        own = others.pop(progress.trial, GO_ON)
        return replace(own, move=Move.PAUSE, why=own.why or "waits for the others", others=others)

    def _without(self, trial: int) -> dict[int, Ruling]:
        self.population.pop(trial, None)
        return self._all_judged() if self._synch else {}

    def _all_judged(self) -> dict[int, Ruling]:
        """Judge all trials once they have arrived: the top, the middle, then the bottom."""
        waits = [trial for trial, one in self.population.items() if one.score is None or one.t < self._next_t]
        if waits or not self.population:
            return {}
        lower, upper = self.quantiles()
        middle = [trial for trial in self.population if trial not in upper and trial not in lower]
        furthest_t = max(one.t for one in self.population.values())
        rulings = {}
        # The top comes first, so that its checkpoints exist when the bottom clones them.
        for trial in (*upper, *middle, *lower):
            one = self.population[trial]
            one.perturbed_t = one.t
            ruling = self._judged(trial, lower, upper)
            if one.best:
                # Top trials are paused, so their states are saved.
                one.kept_t = one.t
            if ruling.clone is not None or ruling.save:
                rulings[trial] = ruling
        self._next_t = max(self._next_t + self._interval, furthest_t)
        return rulings
