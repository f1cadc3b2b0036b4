"""Search for good settings: trials on unequal devices that are stopped, paused, resumed and cloned as they learn.

::

    from uneven import search

    def train(trial):
        model, optimizer = build(trial.params)
        for step in trial.steps(model=model, optimizer=optimizer):  # continues where the trial was paused
            ...
            trial.report(accuracy=evaluate(model))                  # may not return: stopped or paused here

    result = search.run(train, space={"lr": search.loguniform(1e-4, 1e-1)}, metric="accuracy", trials=64,
                        scheduler="asha:max_t=27,reduction_factor=3")
"""

import importlib
from typing import TYPE_CHECKING, Any

from uneven.runtime.installed import lazy, need
from uneven.search.pure.schedulers import schedulers as _schedulers
from uneven.search.pure.searchers import searchers as _searchers

if TYPE_CHECKING:
    from uneven.search.pure.schedulers import Scheduler
    from uneven.search.pure.searchers import Searcher
    from uneven.search.pure.space import Space, choice, grid, integer, loguniform, uniform
    from uneven.search.search_result import SearchResult
    from uneven.search.search_run import run
    from uneven.search.trial import Trainable, Trial
    from uneven.search.with_optuna import OptunaPruner, OptunaSearch

__all__ = [
    "Scheduler",
    "SearchResult",
    "Searcher",
    "Space",
    "Trainable",
    "Trial",
    "choice",
    "grid",
    "integer",
    "loguniform",
    "run",
    "uniform",
]

_HOMES = {
    "uneven.search.search_result": ("SearchResult",),
    "uneven.search.search_run": ("run",),
    "uneven.search.pure.schedulers": ("Scheduler",),
    "uneven.search.pure.searchers": ("Searcher",),
    "uneven.search.pure.space": ("Space", "choice", "grid", "integer", "loguniform", "uniform"),
    "uneven.search.trial": ("Trainable", "Trial"),
}
# Names are imported on first use, so that decisions do not import torch.
__getattr__ = lazy(__name__, _HOMES)


def needed_optuna() -> Any:
    """Return the module that uses Optuna. Raises `ConfigError` if Optuna is not installed."""
    need("search", "optuna")
    return importlib.import_module("uneven.search.with_optuna")


def _optuna_search(inner: str = "tpe") -> "OptunaSearch":
    """The samplers of Optuna: `optuna:tpe`; also `cmaes`, `gp`, `qmc`, `nsgaii`, `random`."""
    made: OptunaSearch = needed_optuna().OptunaSearch(inner)
    return made


def _optuna_pruner(inner: str = "median") -> "OptunaPruner":
    """The pruners of Optuna: `optuna:median`; also `percentile`, `halving`, `hyperband`. They stop but never pause."""
    made: OptunaPruner = needed_optuna().OptunaPruner(inner)
    return made


_searchers.register("optuna", _optuna_search)
_schedulers.register("optuna", _optuna_pruner)
