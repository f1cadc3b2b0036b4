"""Define the options of a search and divide them among its parts."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

from uneven.errors import ConfigError, UnknownNameError
from uneven.policy.core.registry import describe
from uneven.runtime.jobs.begun import DefaultFolder
from uneven.runtime.jobs.devices import Devices
from uneven.search.pure.placing import Placer, placing_named
from uneven.search.pure.schedulers import Scheduler
from uneven.search.pure.searchers import Searcher
from uneven.search.warm_start import is_storage, source_name

_OF_PEERS = {
    "n_trials": "trials=…", "num_samples": "trials=…", "timeout": "time_budget_s=…", "n_jobs": "devices=…",
    "direction": 'mode="min" or mode="max"', "directions": "one metric=… and mode=…", "config": "space={…}",
    "sampler": 'searcher="optuna:tpe"', "pruner": 'scheduler="optuna:median"', "search_alg": "searcher=…",
    "evaluated_rewards": "warm_start=…", "storage": "warm_start=…, and result.optuna(…) afterwards",
    "resources_per_trial": "devices=…", "low_cost_partial_config": "points_to_evaluate=[…]", "callbacks": "progress=…",
}  # fmt: skip
"""Arguments of Ray Tune, Optuna, FLAML and Syne Tune → their counterparts here."""


class SearchOptions(TypedDict, total=False):
    """The optional keywords of :func:`uneven.search.run`.

    Attributes:
        mode: "max" or "min"; needed unless the metric's name says it: a loss, error or perplexity is minimized, an
            accuracy, AUC or "score" is maximized.
        trials: number of trials; one by default.
        scheduler: decides which trials continue: a name with options, such as "asha:max_t=27,reduction_factor=3"; by
            default all do.
        searcher: decides which settings are tried: "random", the default, "grid", "optuna:tpe".
        max_t: the training after which a trial is done.
        time_attr: the reported number that measures a trial's training; by default its reports are counted.
        target: the search ends when a trial reaches this metric.
        max_failures: how often a crashed trial is tried again, from its last state; by default never.
        nonfinite: "stop", the default: a metric that is not finite ends the trial; "keep" lets the scheduler decide.
        seed: determines all random numbers of the search, and each trial's own seed.
        data: the data set of ``trial.epochs``: anything with ``__len__`` and ``__getitem__``. Each sample is prepared
            once per epoch, for all trials; the samples of a trial's epoch e depend on e only.
        transform: called with ``data[i]``.
        validate, validate_transform: the same for ``trial.validation``.
        chunk: samples that are prepared at a time, 128 by default.
        data_bytes: memory for prepared samples; by default 512 MiB, or a tenth of the free memory.
        share: False lets each trial prepare its own samples, which are the same.
        preprocessors: the largest number of processes that prepare samples; by default the number of cores.
        devices: "auto", the default, for every GPU, or one CPU slot per core; a number of CPU slots; or names.
        placing: "planned", the default, see :mod:`uneven.search.pure.placing`; "first-come"; or "flotillas", in which
            free devices help running trials.
        engine: "local", the default, or "ray" for the devices of a Ray cluster.
        warm_start: directories of earlier searches for the same metric, studies of Optuna, or URLs of its storages. A
            searcher that learns, such as "optuna:tpe", gets the results of their trials within this space.
        points_to_evaluate: settings that are tried first, such as ``[{"lr": 0.1}]``; they count among ``trials``.
        directory: for events and states; by default ``runs/`` and the function's name, with a number appended if other
            code has finished a search there.
        timeout_s: a trial that reports nothing for this time has failed; by default infinite. A sample of ``data`` that
            takes longer ends the search; by default after 300 s.
        time_budget_s: the search and its running trials end after this time; a later call with another one continues.
        progress: show the progress on the terminal, the default.
    """

    mode: Literal["max", "min"]
    trials: int
    scheduler: str | Scheduler
    searcher: str | Searcher
    max_t: float | None
    time_attr: str
    target: float | None
    max_failures: int
    nonfinite: str
    seed: int
    data: Any
    transform: Callable[[Any], Any] | None
    validate: Any
    validate_transform: Callable[[Any], Any] | None
    chunk: int
    data_bytes: int | None
    share: bool
    preprocessors: int | None
    devices: Devices
    placing: str
    engine: str
    warm_start: Any
    points_to_evaluate: Sequence[Mapping[str, Any]]
    directory: str | Path | None
    timeout_s: float
    time_budget_s: float
    progress: bool


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """The execution of a search; see :class:`SearchOptions`. Raises `ConfigError` for an invalid value."""

    scheduler: str | Scheduler = "fifo"
    searcher: str | Searcher = "random"
    devices: Devices = "auto"
    placing: str = "planned"
    engine: str = "local"
    warm_start: Any = ()
    directory: str | Path | None = None
    timeout_s: float = math.inf
    time_budget_s: float = math.inf
    progress: bool = True

    def __post_init__(self) -> None:
        placing_named(self.placing)
        for name, value in (("timeout_s", self.timeout_s), ("time_budget_s", self.time_budget_s)):
            if not isinstance(value, int | float) or not value > 0:
                raise ConfigError(f"{name}={value!r}: give a number of seconds above 0, or float('inf')")

    @property
    def placer(self) -> Placer:
        return Placer(placing_named(self.placing))

    @property
    def earlier(self) -> list[Any]:
        """The directories, studies of Optuna and URLs of its storages for the warm start."""
        given = self.warm_start if isinstance(self.warm_start, list | tuple) else [self.warm_start]
        return [Path(one).absolute() if isinstance(one, str | Path) and not is_storage(one) else one for one in given]

    def folder(self, name: str) -> str | Path:
        return DefaultFolder(f"runs/{name}") if self.directory is None else self.directory

    def kept(self) -> dict[str, Any]:
        """Return the options that must be the same when the search continues."""
        found: dict[str, Any] = {"scheduler": _said(self.scheduler), "searcher": _said(self.searcher)}
        return found | ({"warm_start": [source_name(one) for one in self.earlier]} if self.earlier else {})


Part = TypeVar("Part")


def part_of(kind: Callable[..., Part], asked: Mapping[str, Any]) -> Part:
    """Create the part ``kind`` from those options in ``asked`` that it takes."""
    return kind(**{name: asked[name] for name in signature(kind).parameters if name in asked})


def check_names(asked: Mapping[str, Any]) -> None:
    """Raise `UnknownNameError` for an unknown keyword and `ConfigError` for one of another library."""
    for name in asked:
        if name in _OF_PEERS:
            raise ConfigError(f"search.run has no {name}: write {_OF_PEERS[name]}")
        if name not in SearchOptions.__annotations__:
            raise UnknownNameError("argument of search.run", name, SearchOptions.__annotations__)


def _said(plugin: object) -> str:
    return plugin if isinstance(plugin, str) else describe(plugin)
