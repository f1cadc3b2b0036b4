"""Population based training, as Ray has it. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from uneven.errors import ConfigError
from uneven.search.rulings import GO_ON, Clone, Move, Progress, Ruling
from uneven.search.schedulers.base import Scheduler
from uneven.search.space import Params, Space


@dataclass(slots=True)
class Individual:
    """A trial of the population.

    Attributes:
        score: of the last report that counted; None before it.
        t: how much it has been trained.
        perturbed_t: when it was last judged.
        kept_t: of the checkpoint that others may clone; None without one.
        best: it belongs to the upper quantile.
    """

    params: Params
    score: float | None = None
    t: float = 0.0
    perturbed_t: float = 0.0
    kept_t: float | None = None
    best: bool = False


class PopulationBased(Scheduler):
    """PBT: every so often, a trial at the bottom goes on from the checkpoint of one at the top, with settings near its.

    Settings that the space gives as a range are multiplied with one of the factors, those of a choice move one place;
    or, with a probability, a new value is drawn.

    Args:
        perturbation_interval: so much training lies between two judgements of a trial.
        burn_in_period: nobody is judged before.
        quantile_fraction: this share of the population is the top, and so large is the bottom.
        resample_probability: of a new value instead of a near one.
        factors: what numbers are multiplied with.
        synch: everybody waits for everybody at each judgement, so that nothing depends on who is faster.
        max_t: a trial is done after so much training; by default when its function returns.

    Raises:
        ConfigError: numbers that make no sense.
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
                f"perturbation_interval={perturbation_interval}, burn_in_period={burn_in_period}: give more than zero, "
                f"and zero or more"
            )
        if not 0 <= quantile_fraction <= 0.5:
            raise ConfigError(f"quantile_fraction={quantile_fraction}: top and bottom are at most half each, 0 … 0.5")
        if not 0 <= resample_probability <= 1:
            raise ConfigError(f"resample_probability={resample_probability}: a probability is 0 … 1")
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
        """Others may clone it now, if it is still at the top."""
        one = self.population.get(trial)
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
        """Whoever has been trained least; when all wait for all, whoever has not come to the judgement yet."""
        ready = [*pending, *paused]
        if self._synch:
            ready = [trial for trial in ready if self.population[trial].t < self._next_t]
        return min(ready, key=lambda trial: self.population[trial].t, default=None)

    def quantiles(self) -> tuple[list[int], list[int]]:
        """Bottom and top, the worst first: ⌈n q⌉ of those with a score, at most half of them."""
        known = [trial for trial, one in self.population.items() if one.score is not None and one.score == one.score]
        known.sort(key=lambda trial: self.population[trial].score or 0.0)
        if len(known) <= 1:
            return [], []
        size = min(math.ceil(len(known) * self._quantile), len(known) // 2)
        return (known[:size], known[-size:]) if size else ([], [])

    def explore(self, params: Params) -> Params:
        """Settings near these."""
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
        return Ruling(clone=Clone(source, other.kept_t, one.params), why=f"goes on from trial {source}")

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
        """If all have come: the top, the middle, then the bottom. Who is at the top is paused, so its state is kept."""
        waits = [trial for trial, one in self.population.items() if one.score is None or one.t < self._next_t]
        if waits or not self.population:
            return {}
        lower, upper = self.quantiles()
        middle = [trial for trial in self.population if trial not in upper and trial not in lower]
        furthest_t = max(one.t for one in self.population.values())
        rulings = {}
        for trial in (*upper, *middle, *lower):
            one = self.population[trial]
            one.perturbed_t = one.t
            ruling = self._judged(trial, lower, upper)
            if one.best:
                one.kept_t = one.t
            if ruling.clone is not None or ruling.save:
                rulings[trial] = ruling
        self._next_t = max(self._next_t + self._interval, furthest_t)
        return rulings
