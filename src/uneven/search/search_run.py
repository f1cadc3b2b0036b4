"""``uneven.search.run``."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from multiprocessing import current_process
from typing import Any, Unpack

from uneven.errors import ConfigError
from uneven.runtime.jobs import Stop
from uneven.runtime.jobs.begun import LockedRun, folder_for
from uneven.runtime.jobs.call import IMPORTED
from uneven.runtime.jobs.code import code_of, named
from uneven.runtime.jobs.engines import place_for
from uneven.search.data import TrialData
from uneven.search.engine import Pool
from uneven.search.pure.core import SearchCore
from uneven.search.pure.placing import Placing
from uneven.search.pure.schedulers import schedulers
from uneven.search.pure.searchers import searchers
from uneven.search.pure.space import Domain, Plain, Space
from uneven.search.pure.trial_records import SearchTerms
from uneven.search.search_events import kept
from uneven.search.search_result import SearchResult
from uneven.search.search_spec import SearchOptions, SearchPlan, check_names, part_of
from uneven.search.search_view import live
from uneven.search.trial import Trainable, Trial
from uneven.search.warm_start import results_of

_IMPORTED = (*IMPORTED, "uneven.search.trial_worker", "uneven.fleet.stream.preprocess")

Train = Callable[[Trial], Any] | type[Trainable]


def run(
    train: Train, space: Mapping[str, Domain | Plain] | None = None, *, metric: str, **asked: Unpack[SearchOptions]
) -> SearchResult:
    """Search for the settings with the best metric.

    It may be stopped at any moment, by Ctrl-C or by ``kill -9``; the same call continues it, with the scheduler's
    memory, on the devices available then. A trial that was running resumes from its last state. The same call for a
    finished search returns its result. A search never continues with changed code.

    Args:
        train: a function of a :class:`~uneven.search.trial.Trial` that reports, or a
            :class:`~uneven.search.trial.Trainable` that is stepped. It is called in other processes, so it must be at
            the top level of a module.
        space: name → ``search.uniform``, ``log``, ``integer``, ``choice`` or ``grid``, or a plain constant; None if the
            function asks for all settings itself (``trial.suggest_float``).
        metric: name of the metric that trials report and the search optimizes.
        asked: see :class:`~uneven.search.search_spec.SearchOptions`.

    Raises:
        ConfigError: an argument cannot be used; raised before training starts.
        TrainingError: processes end before they train, or the metric is never reported.
        CheckpointError: the directory holds a search that was started with something else, or with other code.
        DataError: the named sample cannot be read or transformed.
        KeyboardInterrupt: the search was stopped.
    """
    # A spawned process imports the script. Without a `__main__` guard it would start another search here.
    if getattr(current_process(), "_inheriting", False):
        raise SystemExit(1)
    pickled = _pickled(train)
    check_names(asked)
    terms = part_of(SearchTerms, {**asked, "metric": metric})
    read, plan = part_of(TrialData, asked), part_of(SearchPlan, asked)
    if plan.placing == Placing.FLOTILLAS.value:
        _check_several(plan, read)
    core = SearchCore(terms, Space(space or {}), schedulers.resolve(plan.scheduler), searchers.resolve(plan.searcher))
    function = named(train)
    same = {"space": core.space.to_plain(), "train": f"{function.__module__}.{function.__qualname__}"}
    code, limits = code_of({"train": train, **read.code()}, train), {"trials": terms.trials, "target": terms.target}
    if plan.time_budget_s < math.inf:
        limits["time_budget_s"] = plan.time_budget_s
    where = folder_for(plan.folder(function.__name__), "search", code).absolute()
    with (
        closing(place_for(plan.engine, plan.devices, _IMPORTED)) as place,
        kept(where, terms.kept() | read.kept() | plan.kept() | same, core) as new,
        live(metric) if plan.progress else nullcontext(lambda moment: None) as show,
    ):
        begun = LockedRun(where, "search", code, () if new else code)
        # A search that continues has these results in its log.
        if new and plan.earlier:
            core.learn(results_of(plan.earlier, terms, core.space))
        if not begun.report_finished(**limits):
            place.enter(where)
            with Stop() as stop:
                pool = Pool(core, place, where, pickled, plan.placer, stop, show, plan.timeout_s, plan.time_budget_s)
                pool.data = read.shared(place, core, pool.tell)
                pool.run()
            if stop.requests:
                raise KeyboardInterrupt
            begun.finish(**limits)
    core.close()
    return SearchResult(core, where)


def _check_several(plan: SearchPlan, read: TrialData) -> None:
    if read.data is None:
        raise ConfigError('placing="flotillas" without data=…: the devices of a trial divide the batches of its epochs')
    if plan.engine != "local":
        raise ConfigError(
            f'placing="flotillas" with engine="{plan.engine}": a trial has one device there; leave placing out'
        )


def _pickled(train: Train) -> bytes:
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
