"""``uneven.search.run``."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from uneven.errors import ConfigError
from uneven.jobs import Stop
from uneven.jobs.call import IMPORTED
from uneven.jobs.devices import Devices
from uneven.jobs.engines import place_for
from uneven.registry import describe
from uneven.search.core import SearchCore
from uneven.search.data import TrialData
from uneven.search.earlier import results_of
from uneven.search.engine import Pool, SearchSnapshot
from uneven.search.events import kept
from uneven.search.placing import Placer, Placing, placing_named
from uneven.search.records import SearchTerms
from uneven.search.result import SearchResult
from uneven.search.schedulers import Scheduler, schedulers
from uneven.search.searchers import Searcher, searchers
from uneven.search.space import Domain, Plain, Space
from uneven.search.trial import Trainable, Trial
from uneven.search.view import live, silent

_IMPORTED = (*IMPORTED, "uneven.search.worker", "uneven.fleet.stream.preprocess")


def run(
    train: Callable[[Trial], Any] | type[Trainable],
    space: Mapping[str, Domain | Plain],
    *,
    metric: str,
    mode: str = "max",
    trials: int = 1,
    scheduler: str | Scheduler = "fifo",
    searcher: str | Searcher = "random",
    max_t: float | None = None,
    time_attr: str = "training_iteration",
    target: float | None = None,
    max_failures: int = 0,
    nonfinite: str = "stop",
    seed: int = 0,
    data: Any = None,
    transform: Callable[[Any], Any] | None = None,
    validate: Any = None,
    validate_transform: Callable[[Any], Any] | None = None,
    chunk: int = 128,
    data_bytes: int | None = None,
    share: bool = True,
    preprocessors: int | None = None,
    devices: Devices = "auto",
    placing: str = "planned",
    engine: str = "local",
    warm_start: str | Path | Sequence[str | Path] = (),
    directory: str | Path | None = None,
    timeout_s: float = math.inf,
    progress: bool = True,
) -> SearchResult:
    """Find out which settings are worth training.

    Stop it at any moment, by Ctrl-C or by ``kill -9``; the same call goes on where it was, with the scheduler's memory,
    on as many devices as there are then. A trial that was running goes on from its last state.

    Args:
        train: a function of a :class:`~uneven.search.trial.Trial` that reports, or a
            :class:`~uneven.search.trial.Trainable` that is stepped. It is called in other processes, so it lies at the
            top level of a module.
        space: name → ``search.uniform``, ``log``, ``integer``, ``choice`` or ``grid``, or a plain value that stays.
        metric: what trials report and the search optimizes.
        mode: "max" or "min".
        trials: how many are tried.
        scheduler: which of them go on: a name with options, such as "asha:max_t=27,reduction_factor=3".
        searcher: which settings are tried: "random", "grid", "optuna:tpe".
        max_t: a trial is done after so much training.
        time_attr: the reported number that says how much a trial has been trained; by default its reports are counted.
        target: the search is over when a trial reaches this metric.
        max_failures: a trial that crashes is tried so many times again, from its last state.
        nonfinite: "stop": a metric that is no finite number ends the trial; "keep" lets the scheduler decide.
        seed: decides all that is random in the search, and each trial's own seed.
        data: what trials read with ``trial.epochs``: anything with ``__len__`` and ``__getitem__``. Each sample is
            prepared once per epoch, for all trials; what a trial sees in its epoch e depends on e alone.
        transform: called with what ``data[i]`` gives.
        validate, validate_transform: the same for ``trial.validation``.
        chunk: samples that are prepared in one go.
        data_bytes: memory for prepared samples; by default 512 MiB, or a tenth of what is free.
        share: False lets each trial prepare its own, the same ones.
        preprocessors: processes that prepare; by default as many as there are cores, at most.
        devices: "auto" for every GPU, or a CPU slot for each core; a number of CPU slots; or names.
        placing: "planned", see :mod:`uneven.search.placing`, or "first-come"; or "flotillas", where devices that no
            trial waits for help those who train.
        engine: "local", or "ray" for the devices of a Ray cluster.
        warm_start: directories of earlier searches for the same metric; a searcher that learns, such as "optuna:tpe",
            is told the results of their trials that lie in this space.
        directory: where events and states lie; by default ``runs/`` and the function's name.
        timeout_s: a trial that reports nothing for so long hangs, and has failed.
        progress: show on the terminal what goes on.

    Raises:
        ConfigError: something that cannot be used, before anything is trained.
        TrainingError: no process comes to train, or the metric is never reported.
        CheckpointError: the directory holds a search that was asked for something else.
        DataError: a sample that cannot be read or transformed, by its number.
        KeyboardInterrupt: it was asked to stop.
    """
    where = (Path("runs") / train.__name__ if directory is None else Path(directory)).absolute()
    pickled = _pickled(train)
    terms = SearchTerms(
        metric=metric, mode=mode, trials=trials, time_attr=time_attr, max_t=max_t, target=target,
        max_failures=max_failures, nonfinite=nonfinite, seed=seed,
    )  # fmt: skip
    read = TrialData(data, transform, validate, validate_transform, chunk, data_bytes, share, preprocessors)
    placer = Placer(placing_named(placing))
    if not timeout_s > 0:
        raise ConfigError(f"timeout_s={timeout_s:g}: give more than 0; float('inf') waits for ever")
    if placer.kind is Placing.FLOTILLAS and data is None:
        raise ConfigError('placing="flotillas" without data=…: the devices of a trial divide the batches of its epochs')
    earlier = [Path(one).absolute() for one in ([warm_start] if isinstance(warm_start, str | Path) else warm_start)]
    core = SearchCore(terms, Space(space), schedulers.resolve(scheduler), searchers.resolve(searcher))
    asked = terms.kept() | read.kept() | {
        "scheduler": _said(scheduler), "searcher": _said(searcher), "space": core.space.to_plain(),
        "train": f"{train.__module__}.{train.__qualname__}",
    }  # fmt: skip
    if earlier:
        asked["warm_start"] = [str(one) for one in earlier]
    with closing(place_for(engine, devices, _IMPORTED)) as place, kept(where, asked, core) as new:
        if new and earlier:
            core.learn(results_of(earlier, terms, core.space))
        place.enter(where)
        with (live if progress else silent)(metric) as show, Stop() as stop:
            pool = Pool(core, place, where, pickled, placer, timeout_s=timeout_s)
            pool.show = _watched(pool, stop, show)
            pool.data = read.shared(place, core, pool.tell)
            pool.run()
    if stop.requests:
        raise KeyboardInterrupt
    core.close()
    return SearchResult(core, where)


def _watched(pool: Pool, stop: Stop, show: Callable[[SearchSnapshot], None]) -> Callable[[SearchSnapshot], None]:
    def look(moment: SearchSnapshot) -> None:
        pool.stopped = stop.requests > 0
        show(moment)

    return look


def _said(plugin: object) -> str:
    return plugin if isinstance(plugin, str) else describe(plugin)


def _pickled(train: Callable[[Trial], Any] | type[Trainable]) -> bytes:
    if not callable(train):
        raise ConfigError(f"train is {train!r}: give a function of a trial, or a search.Trainable")
    if isinstance(train, type) and not issubclass(train, Trainable):
        raise ConfigError(f"train is the class {train.__name__}: derive it from search.Trainable, or give a function")
    try:
        return pickle.dumps(train)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"the training function cannot be sent to another process ({error}): make it a function or a class at the "
            f"top level of a module"
        ) from error
