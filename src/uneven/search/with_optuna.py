"""Use Optuna's samplers as searchers and its pruners as schedulers; needs the extra ``search``."""

import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from sqlalchemy.exc import SQLAlchemyError

from uneven.errors import ConfigError, UnknownNameError
from uneven.search.pure.core import Happened, SearchCore
from uneven.search.pure.decisions import GO_ON, Move, Progress, Ruling
from uneven.search.pure.schedulers import Scheduler
from uneven.search.pure.searchers import NoneNow, Searcher
from uneven.search.pure.space import Choices, Domain, FloatRange, IntRange, Params, Plain, Space, domain_of
from uneven.search.pure.trial_records import SearchTerms, TrialStatus
from uneven.search.warm_start import source_name

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


_UNREADABLE = (
    optuna.exceptions.OptunaError,
    SQLAlchemyError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Errors that Optuna raises for a storage that was not written by it or is damaged."""


class OptunaSearch(Searcher):
    """The samplers of Optuna: ``"optuna:tpe"``; also cmaes, gp, qmc, nsgaii, random.

    Args:
        inner: the sampler's name, or an Optuna sampler, which has its own seed.

    Raises:
        UnknownNameError: there is no such sampler.
    """

    def __init__(self, inner: str | optuna.samplers.BaseSampler = "tpe") -> None:
        if isinstance(inner, str) and inner not in SAMPLERS:
            raise UnknownNameError("sampler of Optuna", inner, SAMPLERS)
        if inner == "cmaes" and importlib.util.find_spec("cmaes") is None:  # Optuna would fail only at the first trial
            raise ConfigError("optuna:cmaes needs the package cmaes: pip install cmaes, or take optuna:tpe")
        self._sampler = inner
        self._space = Space({})
        self._open: dict[int, optuna.Trial] = {}
        self._asked_before: dict[str, optuna.distributions.BaseDistribution] = {}

    def begin(self, space: Space, seed: int) -> None:
        # Seeds of NumPy, which samplers use, have 32 bits.
        sampler = SAMPLERS[self._sampler](seed=seed % 2**32) if isinstance(self._sampler, str) else self._sampler
        self._space = space
        self._study = _study(sampler=sampler)

    def suggest(self, trial: int) -> Params | NoneNow:
        self._open[trial] = self._study.ask()
        return {name: self.define(trial, name, domain) for name, domain in self._space.items()}

    def tell(self, trial: int, score: float | None) -> None:
        asked = self._open.pop(trial, None)
        if asked is not None and score is not None:
            self._study.tell(asked, score)
        elif asked is not None:
            self._study.tell(asked, state=optuna.trial.TrialState.FAIL)

    def enqueue(self, params: Params) -> None:
        self._study.enqueue_trial(dict(params))

    def learn(self, params: Params, score: float) -> None:
        known = {name: params[name] for name in self._space}
        distributions = {name: _distribution(domain) for name, domain in self._space.items()}
        self._study.add_trial(optuna.trial.create_trial(params=known, distributions=distributions, value=score))

    def define(self, trial: int, name: str, domain: Domain) -> Plain:
        """Suggest a float, an integer or a choice through Optuna.

        Raises `ConfigError` if kind or choices of a setting differ between trials, which Optuna's samplers do not
        support.
        """
        asked, now = self._open.get(trial), _distribution(domain)
        if asked is None:
            raise ConfigError(
                f"trial.suggest of {name!r} in trial {trial}, a clone that Optuna does not know: name it in space"
            )
        try:
            before = self._asked_before.setdefault(name, now)
            optuna.distributions.check_distribution_compatibility(before, now)
        except ValueError as error:
            raise ConfigError(
                f"trial.suggest of {name!r} as {domain}: an earlier trial asked for {before} ({error}); use the same "
                f'choices and kind in all trials, another name for others, or searcher="random"'
            ) from error
        match domain:
            case FloatRange():
                return asked.suggest_float(name, domain.low, domain.high, step=domain.step, log=domain.log)
            case IntRange():
                return asked.suggest_int(name, domain.low, domain.high, step=domain.step, log=domain.log)
            case Choices():
                value: Plain = asked.suggest_categorical(name, domain.values)
                return value
        raise ConfigError(f"{name}: Optuna does not support {type(domain).__name__}")


class OptunaPruner(Scheduler):
    """The pruners of Optuna: ``"optuna:median"``; also percentile, halving, hyperband. They stop but never pause.

    Args:
        inner: the pruner's name, or an Optuna pruner.

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
        self._study = _study(pruner=self._pruner, sampler=optuna.samplers.RandomSampler(seed))

    def started(self, trial: int) -> None:
        # Optuna numbers trials in the order in which it is asked, so it is asked at the start and not at the
        # suggestion.
        if trial not in self._open:
            self._open[trial] = self._study.ask()

    def on_result(self, progress: Progress) -> Ruling:
        trial = progress.trial
        self._open[trial].report(progress.score, max(0, int(progress.t) - 1))  # Optuna's steps start at 0
        self._last[trial] = progress.score
        if not self._open[trial].should_prune():
            return GO_ON
        self._study.tell(self._open.pop(trial), state=optuna.trial.TrialState.PRUNED)
        return Ruling(Move.STOP, f"pruned by {type(self._pruner).__name__} at {progress.t:g}")

    def gone(self, trial: int) -> Mapping[int, Ruling]:
        asked, last = self._open.pop(trial, None), self._last.pop(trial, float("nan"))
        if asked is not None and last == last:
            self._study.tell(asked, last)
        elif asked is not None:
            self._study.tell(asked, state=optuna.trial.TrialState.FAIL)
        return {}


def results_of(source: Any, terms: SearchTerms) -> Iterator[tuple[int, Params, float]]:
    """Yield number, settings and score (higher is better) of a study's completed or pruned trials.

    `source` is a study, or the URL of a storage with one. Raises `ConfigError` if it cannot be read, or it optimizes in
    another direction.
    """
    name = f"warm_start: {source_name(source)}"
    path = Path(source.partition("///")[2]) if isinstance(source, str) and source.startswith("sqlite:") else None
    if path is not None and not path.is_file():  # Optuna would create it
        raise ConfigError(f"{name}: no file {path}: give the path of a database of Optuna")
    try:
        study = optuna.load_study(study_name=None, storage=source) if isinstance(source, str) else source
        directions, trials = study.directions, study.get_trials(deepcopy=False)
    except _UNREADABLE as error:
        why = str(error).partition("\n")[0]
        raise ConfigError(
            f"{name} cannot be read ({why}): give the directory of a search, the URL of a storage with one study, or "
            f"optuna.load_study(…)"
        ) from error
    if directions != [_direction(terms)]:
        theirs = ", ".join(one.name.lower() for one in directions)
        raise ConfigError(f'{name} optimizes with {theirs}, but this search with mode="{terms.mode}": give the same')
    ended = optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED
    for one in trials:
        if one.state in ended and one.value is not None and math.isfinite(one.value):
            yield one.number, one.params, terms.sign * one.value


def _direction(terms: SearchTerms) -> optuna.study.StudyDirection:
    return optuna.study.StudyDirection.MAXIMIZE if terms.mode == "max" else optuna.study.StudyDirection.MINIMIZE


def to_study(core: SearchCore, events: Sequence[Happened], storage: Any, name: str) -> optuna.Study:
    """Return the trials of a search as a new study; see :meth:`uneven.search.SearchResult.optuna`."""
    states, direction = optuna.trial.TrialState, _direction(core.terms)
    reports: dict[int, dict[int, float]] = {one.number: {} for one in core.trials}
    domains = {one.number: dict(core.space) for one in core.trials}
    returned = {event["trial"] for event in events if event["event"] == "end"}
    for event in events:
        if event["event"] == "report":
            reports[event["trial"]][max(0, int(event["t"]) - 1)] = float(event["metric"])
        elif event["event"] == "define":
            domains[event["trial"]][event["name"]] = domain_of(event["domain"])
    try:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(storage=storage, study_name=name, direction=direction)
    except _UNREADABLE as error:
        raise ConfigError(f"cannot make the study {name!r} in {source_name(storage)}: {error}") from error
    for one in core.trials:
        value = core.terms.sign * one.best if one.best == one.best else None
        done = one.number in returned or core.left(one.number, one.t) == 0 or one.number == core.target_by
        state = states.FAIL if one.status is TrialStatus.ERROR else states.COMPLETE if done else states.PRUNED
        # Optuna requires a value for a COMPLETE trial.
        state = states.PRUNED if state is states.COMPLETE and value is None else state
        # Optuna rejects values outside their distributions, so these become attributes below.
        known = {key: domain for key, domain in domains[one.number].items() if domain.holds(one.params.get(key))}
        study.add_trial(
            optuna.trial.create_trial(
                state=state,
                value=None if state is states.FAIL else value,
                params={key: one.params[key] for key in known},
                distributions={key: _distribution(domain) for key, domain in known.items()},
                intermediate_values=reports[one.number],
                user_attrs={"why": one.why, **{key: val for key, val in one.params.items() if key not in known}},
            )
        )
    return study


def _study(**given: Any) -> optuna.Study:
    # Optuna would log a line for each trial.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(direction="maximize", **given)


def _distribution(domain: Domain) -> optuna.distributions.BaseDistribution:
    match domain:
        case FloatRange():
            return optuna.distributions.FloatDistribution(domain.low, domain.high, domain.log, domain.step)
        case IntRange():
            return optuna.distributions.IntDistribution(domain.low, domain.high, domain.log, domain.step)
        case Choices():
            return optuna.distributions.CategoricalDistribution(domain.values)
    raise ConfigError(f"Optuna knows no {type(domain).__name__}")
