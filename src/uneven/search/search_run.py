"""``uneven.search.run``."""

import math
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from multiprocessing import current_process
from typing import Any, Unpack

from rich.box import SIMPLE_HEAD
from rich.console import Group, JustifyMethod
from rich.live import Live
from rich.table import Table
from rich.text import Text

from uneven.errors import ConfigError
from uneven.journal.report.console import Console
from uneven.runtime.jobs import Stop
from uneven.runtime.jobs.begun import LockedRun, folder_for
from uneven.runtime.jobs.call import IMPORTED
from uneven.runtime.jobs.code import code_of, named
from uneven.runtime.jobs.engines import place_for
from uneven.search.data import TrialData
from uneven.search.engine import Pool, SearchSnapshot
from uneven.search.pure.core import SearchCore
from uneven.search.pure.placing import Placing
from uneven.search.pure.schedulers import schedulers
from uneven.search.pure.searchers import searchers
from uneven.search.pure.space import Domain, Plain, Space
from uneven.search.pure.trial_records import SearchTerms, TrialRecord, TrialStatus
from uneven.search.search_events import kept
from uneven.search.search_result import SearchResult
from uneven.search.search_spec import SearchOptions, SearchPlan, check_names, part_of
from uneven.search.trial import Trainable, Trial
from uneven.search.warm_start import results_of

_ROWS = 16
_COLUMNS = {
    "trial": 5,
    "metric": 8,
    "curve": 8,
    "at": 3,
    "device": 6,
    "s/unit": 6,
    "left": 5,
    "state": 0,
    "settings": 0,
}
"""Characters of each; columns with 0 share the remaining width, and longer content is cut off."""

_NUMBERS = ("trial", "metric", "at", "s/unit", "left")
_BARS = "▁▂▃▄▅▆▇█"
_HELD = "held"
"""It was started, and waits for a faster device or for a state."""
_STATES = (*(status.value for status in TrialStatus), _HELD)
_ORDER = {TrialStatus.RUNNING: 0, TrialStatus.PAUSED: 1, TrialStatus.PENDING: 2}


@contextmanager
def live(metric: str, console: Console | None = None) -> Iterator[Callable[[SearchSnapshot], None]]:
    """Show a table on the terminal, or log a line for each trial that ends if the output is not a terminal."""
    console = console or Console(stderr=True)  # standard output stays free for results in a pipe
    if not console.is_terminal:
        yield _lines(metric, console)
        return
    with Live(console=console, auto_refresh=False, transient=True) as screen:
        yield lambda moment: screen.update(view(moment), refresh=True)


def _lines(metric: str, console: Console) -> Callable[[SearchSnapshot], None]:
    told: set[int] | None = None

    def show(moment: SearchSnapshot) -> None:
        nonlocal told
        over = {one.number for one in moment.core.trials if one.over}
        for number in sorted(over - told) if told is not None else ():
            one = moment.core.trials[number]
            best = f"{metric} {moment.core.terms.sign * one.best:.6g}" if one.best == one.best else f"no {metric}"
            console.print(Text(f"trial {number}: {best} at {one.best_t:g}; {one.why.splitlines()[-1]}"), soft_wrap=True)
        told = over

    return show


def view(moment: SearchSnapshot) -> Group:
    core = moment.core
    counts = Counter(_state(one, moment) for one in core.trials)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True, expand=True)
    for column, width in _COLUMNS.items():
        name = core.terms.metric if column == "metric" else column
        numbers: JustifyMethod = "right" if column in _NUMBERS else "left"
        if width:
            table.add_column(name, no_wrap=True, justify=numbers, min_width=width)
        else:
            table.add_column(name, no_wrap=True, ratio=1)
    shown = sorted(core.trials, key=lambda one: (_ORDER.get(one.status, 3), _worst(one), one.number))
    for one in shown[:_ROWS]:
        devices = moment.running.get(one.number, ())
        unit_s = moment.unit_s.get(one.number, math.nan)
        left_s = core.left(one.number, one.t) * unit_s
        table.add_row(
            str(one.number),
            f"{core.terms.sign * one.best:.5g}" if one.best == one.best else "–",
            sparkline([metric for _, metric in moment.curves.get(one.number, [])][-8:]),
            f"{one.t:g}",
            f"{', '.join(map(str, devices))} {moment.devices[devices[0]]}" if devices else "",
            f"{unit_s:.3g}" if unit_s == unit_s else "",
            f"{left_s:.0f} s" if math.isfinite(left_s) else "",
            Text(_state(one, moment) + (f": {one.why.splitlines()[-1][:40]}" if one.why else "")),
            Text(
                " ".join(
                    f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}"
                    for name, value in one.params.items()
                )
            ),
        )
    said = ", ".join(f"{counts[state]} {state}" for state in _STATES if counts[state])
    moved = f"; {moment.moves} moves to faster devices" if moment.moves else ""
    learnt = f"; {core.learnt} earlier results known" if core.learnt else ""
    return Group(Text(f"{said} of {core.terms.trials} trials, {moment.took_s:.0f} s{moved}{learnt}"), table)


def _state(one: TrialRecord, moment: SearchSnapshot) -> str:
    held = one.status is TrialStatus.RUNNING and one.number not in moment.running
    return _HELD if held else one.status.value


def sparkline(values: Sequence[float]) -> str:
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return ""
    low, high = min(known), max(known)
    return "".join(_BARS[round((value - low) / (high - low or 1.0) * (len(_BARS) - 1))] for value in known)


def _worst(one: TrialRecord) -> float:
    return -one.best if one.best == one.best else math.inf


_IMPORTED = (*IMPORTED, "uneven.search.trial_worker", "uneven.fleet.stream.preprocess")

Train = Callable[[Trial], Any] | type[Trainable]


def run(
    train: Train, space: Mapping[str, Domain | Plain] | None = None, *, metric: str, **asked: Unpack[SearchOptions]
) -> SearchResult:
    """Search for the settings with the best metric.

    It may be stopped at any moment, by Ctrl-C or by ``kill -9``. The same call continues it, with the scheduler's
    state, on the devices available then. A trial that was running resumes from its last state. The same call for a
    finished search returns its result. A search never continues with changed code.

    Args:
        train: a function of a :class:`~uneven.search.trial.Trial` that reports, or a
            :class:`~uneven.search.trial.Trainable` that is stepped. It is called in other processes, so it must be at
            the top level of a module.
        space: name → ``search.uniform``, ``loguniform``, ``integer``, ``choice`` or ``grid``, or a plain constant; None
            if the function asks for all settings itself (``trial.suggest_float``).
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
        raise ConfigError('placing="flotillas" divides batches over the devices of a trial: give data=…')
    if plan.engine != "local":
        raise ConfigError(
            f'placing="flotillas" with engine="{plan.engine}": its trials have one device each; leave placing out'
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
