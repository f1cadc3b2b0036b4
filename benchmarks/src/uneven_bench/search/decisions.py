"""Schedulers on a table of real accuracies, ours and others', on the same samples in the same order.

The table has only final accuracies, so the intermediate reports are ours: a cell reaches its accuracy as 1 − exp(−t/τ),
with τ between 2 and 12 epochs by its number, and noise from its number and t.
"""

import importlib.util
import logging
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, cast

import numpy as np

from uneven.search.pure.core import SearchCore
from uneven.search.pure.decisions import GO_ON, Move, Progress, Ruling
from uneven.search.pure.placing import Placer, Placing
from uneven.search.pure.schedulers import Scheduler, StoppingAsha, schedulers
from uneven.search.pure.searchers import RandomSearch
from uneven.search.pure.simulated_search import simulate
from uneven.search.pure.space import Params, Space, integer, uniform
from uneven.search.pure.trial_records import SearchTerms, TrialRecord
from uneven_bench.harness.data import arrays, needed_file
from uneven_bench.search.ray_controller import RayController, RayTrial

MAX_T = 27
TRIALS = 64
EVERY = 3  # epochs between two judgements of a population

OURS = {
    "fifo": "fifo",
    "asha": f"asha:max_t={MAX_T},reduction_factor=3",
    "asha-promote": f"asha-promote:max_t={MAX_T},reduction_factor=3",
    "hyperband": f"hyperband:max_t={MAX_T}",
    "median": "median",
    "pbt": f"pbt:perturbation_interval={EVERY},max_t={MAX_T}",
}
SLOTS = 4


def table() -> list[float]:
    """Return the accuracy of each cell on CIFAR-10, in percent. Raises DataError: it is not on this machine."""
    (accuracies,) = arrays(needed_file("hpo", "nasbench201_acc.npz"), ["acc"])
    found: list[float] = accuracies[:, 0].tolist()
    return found


class Cells:
    """The reports of cells, see the module; and the best report. ``best``: the best reported accuracy, and the final
    one of that cell."""

    def __init__(self, final: Sequence[float]) -> None:
        self.final = final
        self.best = -math.inf, math.nan

    def reported(self, params: Mapping[str, Any], t: float) -> float:
        """Return and note the accuracy after ``t`` epochs."""
        cell = min(int(params["cell"] or 0), len(self.final) - 1)
        draw = Random(cell)
        tau = draw.uniform(2, 12)
        noise = Random(cell * 1000 + int(t)).gauss(0, 0.5)
        accuracy = self.final[cell] * (1 - math.exp(-t / tau)) + noise
        self.best = max(self.best, (accuracy, self.final[cell]))
        return accuracy


class OfRay(Scheduler):
    """A scheduler of Ray Tune's that never pauses, called as its controller does."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._trials: dict[int, Any] = {}

    def added(self, trial: int, params: Params) -> None:
        self._trials[trial] = RayTrial(trial, {})
        self._inner.on_trial_add(self, self._trials[trial])

    def get_live_trials(self) -> list[Any]:
        """Return no trials: Ray's scheduler sees none waiting."""
        return []

    def on_result(self, progress: Progress) -> Ruling:
        result = {"training_iteration": progress.t, "score": progress.score}
        said = self._inner.on_trial_result(self, self._trials[progress.trial], result)
        return Ruling(Move.STOP, "Ray says so") if said == "STOP" else GO_ON


Played = tuple[float, float]  # final accuracy of the cell with the best report, and epochs of all trials together
Player = Callable[[Sequence[float], int], Played]  # final accuracies and a seed → the result of a search


def ours(make: Callable[[], Scheduler], final: Sequence[float], seed: int) -> Played:
    """Play a search in virtual time."""
    cells, scheduler = Cells(final), make()
    terms = SearchTerms(metric="accuracy", trials=TRIALS, seed=seed, max_t=None if scheduler.max_t else MAX_T)
    core = SearchCore(terms, _space(final), scheduler, RandomSearch())
    played = simulate(
        core, lambda trial, t: cells.reported(trial.params, t), speeds=(1.0,) * SLOTS, placer=Placer(Placing.FIRST_COME)
    )
    return cells.best[1], played.units


def rays(make: Callable[[], Any], final: Sequence[float], seed: int, *, stops: bool = True) -> Played:
    """Play the search with a scheduler of Ray Tune's, on the same cells in the same order. ``stops``: a trial ends
    after ``MAX_T`` epochs even without the scheduler's order."""
    cells, searcher = Cells(final), RandomSearch()
    searcher.begin(_space(final), seed)
    random.seed(seed)
    np.random.seed(seed)
    controller = RayController(make(), [cast("dict[str, Any]", searcher.suggest(number)) for number in range(TRIALS)])
    units = controller.play(cells.reported, SLOTS, MAX_T if stops else None)
    return cells.best[1], units


def _space(final: Sequence[float]) -> Space:
    return Space({"cell": integer(0, len(final) - 1)})


def rivals() -> dict[str, dict[str, Player]]:
    """Return ours → installed rivals with a rule of that name."""
    found: dict[str, dict[str, Player]] = {name: {} for name in OURS}
    if importlib.util.find_spec("ray") is not None:
        for name, (make, stops) in _of_ray().items():
            found[name]["ray"] = partial(rays, make, stops=stops)
    if importlib.util.find_spec("optuna") is not None:
        for name, prunes in _of_optuna().items():
            found[name]["optuna"] = partial(ours, prunes)
    return found


def _of_ray() -> dict[str, tuple[Callable[[], Any], bool]]:
    """Return name → Ray's scheduler, and whether a trial needs an explicit end."""
    from ray import tune
    from ray.tune import schedulers as of_ray

    logging.getLogger("ray.tune.schedulers").setLevel(logging.ERROR)  # population-based training logs every move
    told: dict[str, Any] = {"metric": "score", "mode": "max"}
    population = told | {"time_attr": "training_iteration", "perturbation_interval": EVERY, "log_config": False}
    cells = {"cell": tune.randint(0, len(table()))}
    return {
        "asha": (partial(of_ray.AsyncHyperBandScheduler, **told, max_t=MAX_T, reduction_factor=3), True),
        "hyperband": (partial(of_ray.HyperBandScheduler, **told, max_t=MAX_T, reduction_factor=3), False),
        "median": (partial(of_ray.MedianStoppingRule, **told, time_attr="training_iteration", grace_period=1), True),
        "pbt": (partial(of_ray.PopulationBasedTraining, **population, hyperparam_mutations=cells), True),
    }


def _of_optuna() -> dict[str, Callable[[], Scheduler]]:
    from optuna import pruners

    from uneven.search.with_optuna import OptunaPruner

    hyperband = {"min_resource": 1, "max_resource": MAX_T, "reduction_factor": 3}
    return {
        "asha": lambda: OptunaPruner(pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)),
        "hyperband": lambda: OptunaPruner(pruners.HyperbandPruner(**hyperband)),
        "median": lambda: OptunaPruner(pruners.MedianPruner(n_startup_trials=5)),
    }


def quality(seeds: int, told: Callable[[str], None]) -> dict[str, Any]:
    """Return scheduler → ours and rivals: median, lowest and highest accuracy over the seeds, and the median of the
    epochs."""
    final, others = table(), rivals()
    found: dict[str, Any] = {}
    for name, spec in OURS.items():
        told(name)
        players: dict[str, Player] = {"ours": partial(ours, partial(schedulers.resolve, spec)), **others[name]}
        rows = {who: [play(final, seed) for seed in range(seeds)] for who, play in players.items()}
        found[name] = {who: _summed(row, rows["ours"]) for who, row in rows.items()}
    return found


def _summed(row: list[Played], own: list[Played]) -> dict[str, float]:
    accuracies = [accuracy for accuracy, _ in row]
    return {
        "accuracy": statistics.median(accuracies),
        "lowest": min(accuracies),
        "highest": max(accuracies),
        "epochs": statistics.median(epochs for _, epochs in row),
        "ours_better": statistics.fmean(mine[0] - other[0] for mine, other in zip(own, row, strict=True)),
    }


def agreement(streams: int) -> dict[str, int] | None:
    """Count the random streams on which our stopping ASHA decides as Ray's does, event by event; None without Ray."""
    if importlib.util.find_spec("ray") is None:
        return None
    from ray.tune.schedulers import AsyncHyperBandScheduler

    agrees = 0
    for seed in range(streams):
        draw = Random(seed)
        options: dict[str, Any] = {"max_t": draw.choice([9, 27, 40, 100]), "grace_period": draw.choice([1, 2])}
        options["reduction_factor"] = draw.choice([2, 3, 4])
        pair = StoppingAsha(**options), OfRay(AsyncHyperBandScheduler(metric="score", mode="max", **options))
        at: dict[int, float] = {}
        same = True
        for _ in range(200):
            trial = draw.randrange(20)
            for one in pair:
                if trial not in at:
                    one.added(trial, {})
            at[trial] = at.get(trial, 0) + draw.choice([1, 1, 2, 5])
            progress = Progress(trial, at[trial], draw.gauss(trial, 4))
            same = same and len({one.on_result(progress).move for one in pair}) == 1
        agrees += same
    return {"agree": agrees, "of": streams}


def _rises(trial: TrialRecord, t: float) -> float:
    return float(trial.params["x"] or 0.0) * (1 - math.exp(-t / 10))


def core_s(trials: int = 10_000) -> float:
    """Return processor seconds of ``trials`` through the core; scheduler, searcher and simulated slots included."""
    terms = SearchTerms(metric="x", mode="max", trials=trials)
    core = SearchCore(terms, Space({"x": uniform(0, 1)}), schedulers.resolve(OURS["asha"]), RandomSearch())
    began_s = time.process_time()
    simulate(core, _rises, speeds=(1.0,) * SLOTS, placer=Placer(Placing.FIRST_COME))
    return time.process_time() - began_s
