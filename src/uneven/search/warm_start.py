"""Read earlier searches from their directories: what they were started with, and their results."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uneven.errors import CheckpointError, ConfigError
from uneven.policy.core.plain import Misfit, read
from uneven.search import needed_optuna
from uneven.search.pure.core import Happened, SearchCore
from uneven.search.pure.schedulers import schedulers
from uneven.search.pure.searchers import searchers
from uneven.search.pure.space import Params, Space, domain_of
from uneven.search.pure.trial_records import SearchTerms, TrialStatus
from uneven.search.search_events import ASKED, asked_in, read_events, replay


@dataclass(frozen=True, slots=True)
class EarlierSearch:
    """A search that was started, and may be finished."""

    directory: Path
    asked: dict[str, Any]  # its options, as plain data
    core: SearchCore  # its state after the last event
    events: list[Happened]  # all events

    def new_core(self, trials: int) -> SearchCore:
        return _core(self.asked, trials)


def reopened(directory: Path) -> EarlierSearch:
    """Return the search of a directory, finished or not.

    Raises `ConfigError` if there is no search, or its scheduler or searcher was given as an object. Raises
    `CheckpointError` if its files cannot be read or this version decides differently.
    """
    asked = asked_in(directory)
    events = read_events(directory)
    try:
        core = _core(asked, sum(event["event"] == "suggest" for event in events) or 1)
    except KeyError as error:
        raise CheckpointError(
            f"{directory / ASKED} has no {error}, so another version wrote it: name another directory"
        ) from error
    except (Misfit, TypeError, AttributeError) as error:
        raise CheckpointError(f"{directory / ASKED} is damaged ({error}): name another directory") from error
    replay(core, events, directory)
    return EarlierSearch(directory, asked, core, events)


def _core(asked: dict[str, Any], trials: int) -> SearchCore:
    names = {*SearchTerms(metric="any", mode="max").kept(), *({"points_to_evaluate"} & asked.keys())}
    trials = max(trials, len(asked.get("points_to_evaluate", ())))
    terms = read(SearchTerms, {"trials": trials, **{name: asked[name] for name in names}})
    domains = {name: domain_of(said) for name, said in asked["space"]["domains"].items()}
    space = Space({**domains, **asked["space"]["constants"]})
    return SearchCore(terms, space, schedulers.resolve(asked["scheduler"]), searchers.resolve(asked["searcher"]))


def is_storage(source: object) -> bool:
    """Return whether this is the URL of an Optuna storage, such as ``sqlite:///study.db``."""
    return isinstance(source, str) and "://" in source


def source_name(source: Any) -> str:
    """Return the name of a warm start for logs, without the password of a URL."""
    if isinstance(source, str | Path):
        return re.sub(r"//[^@/]*@", "//", source) if isinstance(source, str) else str(source)
    return f"study {getattr(source, 'study_name', source)}"


def results_of(sources: Sequence[Any], terms: SearchTerms, space: Space) -> list[tuple[Params, float]]:
    """Return settings and last scores of trials of earlier searches that have not failed and are in the space.

    `sources` are directories, Optuna studies, or URLs of its storages. Raises `ConfigError` if one optimized something
    else or no trial is in the space, and `CheckpointError` as :func:`reopened`.
    """
    if not space:
        raise ConfigError(
            "warm_start with an empty space: name the settings in the space instead of asking with trial.suggest_…"
        )
    found: list[tuple[Params, float]] = []
    misfits: list[str] = []
    names = ", ".join(map(source_name, sources))
    for source in sources:
        for number, params, score in _results(source, terms):
            outside = [name for name, domain in space.items() if not domain.holds(params.get(name))]
            if outside:
                misfits.append(f"trial {number} of {source_name(source)} has {outside[0]}={params.get(outside[0])!r}")
            else:
                found.append(({name: params[name] for name in space}, score))
    if not found:
        why = f"; {misfits[0]}" if misfits else "; none has reported"
        raise ConfigError(f"warm_start: no trial of {names} is in the space{why}: give a search over the same settings")
    return found


def _results(source: Any, terms: SearchTerms) -> Iterator[tuple[int, Params, float]]:
    """Yield number, settings and last score of each trial that has one and has not failed."""
    if not isinstance(source, Path):
        yield from needed_optuna().results_of(source, terms)
        return
    earlier = reopened(source)
    theirs = earlier.core.terms
    if (theirs.metric, theirs.mode) != (terms.metric, terms.mode):
        raise ConfigError(
            f"warm_start: {source} optimized {theirs.metric!r}, mode {theirs.mode!r}, but this search optimizes "
            f"{terms.metric!r}, mode {terms.mode!r}: give a search with the same"
        )
    for one in earlier.core.trials:
        if one.status is not TrialStatus.ERROR and math.isfinite(one.score):
            yield one.number, one.params, one.score
