"""Optuna's samplers as searchers, and its pruners as schedulers; needs the extra ``search``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import optuna

from uneven.errors import ConfigError, UnknownNameError
from uneven.search.rulings import GO_ON, Move, Progress, Ruling
from uneven.search.schedulers import Scheduler
from uneven.search.searchers import NoneNow, Searcher
from uneven.search.space import Choices, Domain, FloatRange, IntRange, Params, Plain, Space

SAMPLERS: dict[str, Callable[..., optuna.samplers.BaseSampler]] = {
    "tpe": optuna.samplers.TPESampler,
    "random": optuna.samplers.RandomSampler,
    "cmaes": optuna.samplers.CmaEsSampler,
    "gp": optuna.samplers.GPSampler,
    "qmc": optuna.samplers.QMCSampler,
    "nsgaii": optuna.samplers.NSGAIISampler,
}
PRUNERS: dict[str, Callable[[], optuna.pruners.BasePruner]] = {
    "median": optuna.pruners.MedianPruner,
    "percentile": lambda: optuna.pruners.PercentilePruner(25.0),
    "halving": optuna.pruners.SuccessiveHalvingPruner,
    "hyperband": optuna.pruners.HyperbandPruner,
}


class OptunaSearch(Searcher):
    """Optuna's samplers, asked and told: ``"optuna:tpe"``; also cmaes, gp, qmc, nsgaii, random.

    Args:
        inner: the sampler's name, or a sampler of Optuna's; of one that you have made yourself, the seed is yours.

    Raises:
        UnknownNameError: there is no such sampler.
    """

    def __init__(self, inner: str | optuna.samplers.BaseSampler = "tpe") -> None:
        if isinstance(inner, str) and inner not in SAMPLERS:
            raise UnknownNameError("sampler of Optuna", inner, SAMPLERS)
        self._sampler = inner
        self._space = Space({})
        self._open: dict[int, optuna.Trial] = {}

    def begin(self, space: Space, seed: int) -> None:
        """See the base."""
        sampler = SAMPLERS[self._sampler](seed=seed) if isinstance(self._sampler, str) else self._sampler
        self._space = space
        self._study = _study(sampler=sampler)

    def suggest(self, trial: int) -> Params | NoneNow:
        """What the sampler says."""
        self._open[trial] = self._study.ask()
        return {name: self.define(trial, name, domain) for name, domain in self._space.items()}

    def tell(self, trial: int, score: float | None) -> None:
        """The score at the end; a trial that failed counts as none."""
        asked = self._open.pop(trial, None)
        if asked is not None and score is not None:
            self._study.tell(asked, score)
        elif asked is not None:
            self._study.tell(asked, state=optuna.trial.TrialState.FAIL)

    def learn(self, params: Params, score: float) -> None:
        """See the base."""
        known = {name: params[name] for name in self._space}
        distributions = {name: _distribution(domain) for name, domain in self._space.items()}
        self._study.add_trial(optuna.trial.create_trial(params=known, distributions=distributions, value=score))

    def define(self, trial: int, name: str, domain: Domain) -> Plain:
        """Optuna's ``suggest`` of a float, a whole number or a choice."""
        asked = self._open[trial]
        match domain:
            case FloatRange():
                return asked.suggest_float(name, domain.low, domain.high, log=domain.log)
            case IntRange():
                return asked.suggest_int(name, domain.low, domain.high, log=domain.log)
            case Choices():
                value: Plain = asked.suggest_categorical(name, domain.values)
                return value
        raise ConfigError(f"{name}: Optuna knows no {type(domain).__name__}")


class OptunaPruner(Scheduler):
    """Optuna's pruners: ``"optuna:median"``; also percentile, halving, hyperband. They stop, and never pause.

    Args:
        inner: the pruner's name, or a pruner of Optuna's.

    Raises:
        UnknownNameError: there is no such pruner.
    """

    def __init__(self, inner: str | optuna.pruners.BasePruner = "median") -> None:
        if isinstance(inner, str) and inner not in PRUNERS:
            raise UnknownNameError("pruner of Optuna", inner, PRUNERS)
        self._pruner = PRUNERS[inner]() if isinstance(inner, str) else inner
        self._open: dict[int, optuna.Trial] = {}
        self._last: dict[int, float] = {}

    def begin(self, space: Space, seed: int) -> None:
        """See the base."""
        self._study = _study(pruner=self._pruner, sampler=optuna.samplers.RandomSampler(seed))

    def started(self, trial: int) -> None:
        """Optuna counts trials in the order in which they begin."""
        if trial not in self._open:
            self._open[trial] = self._study.ask()

    def on_result(self, progress: Progress) -> Ruling:
        """What the pruner says."""
        trial = progress.trial
        self._open[trial].report(progress.score, int(progress.t))
        self._last[trial] = progress.score
        if not self._open[trial].should_prune():
            return GO_ON
        self._study.tell(self._open.pop(trial), state=optuna.trial.TrialState.PRUNED)
        return Ruling(Move.STOP, f"pruned by {type(self._pruner).__name__} at {progress.t:g}")

    def gone(self, trial: int) -> Mapping[int, Ruling]:
        """It counts as complete if it has a score."""
        asked, last = self._open.pop(trial, None), self._last.pop(trial, float("nan"))
        if asked is not None and last == last:
            self._study.tell(asked, last)
        elif asked is not None:
            self._study.tell(asked, state=optuna.trial.TrialState.FAIL)
        return {}


def _study(**given: Any) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(direction="maximize", **given)


def _distribution(domain: Domain) -> optuna.distributions.BaseDistribution:
    match domain:
        case FloatRange():
            return optuna.distributions.FloatDistribution(domain.low, domain.high, log=domain.log)
        case IntRange():
            return optuna.distributions.IntDistribution(domain.low, domain.high, log=domain.log)
        case Choices():
            return optuna.distributions.CategoricalDistribution(domain.values)
    raise ConfigError(f"Optuna knows no {type(domain).__name__}")
