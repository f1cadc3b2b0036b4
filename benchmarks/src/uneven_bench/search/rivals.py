"""The same trials in Ray Tune, in Optuna with a pool of processes, and in Syne Tune."""

import contextlib
import importlib.util
import logging
import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uneven.fleet.pure.sections import Stream
from uneven.fleet.stream.preprocess import Source
from uneven.search.data import DataHandle, DataReader
from uneven.search.trial_worker import seed_of
from uneven_bench.harness.ray_rival import ray_fit
from uneven_bench.search import trainings

SLOTS = 2


@dataclass(frozen=True, slots=True)
class PlayedSearch:
    """A search of real trainings."""

    reports: list[tuple[float, float]]  # of all trials: seconds since the search began, and the accuracy
    end_s: float
    prepared_s: float  # processor time for preparing samples

    @property
    def best(self) -> float:
        return max(accuracy for _, accuracy in self.reports)

    def figures(self, target: float) -> dict[str, float]:
        """Return the figures for JSON, with the time until a trial reported the target."""
        return {
            "target_s": min(at_s for at_s, accuracy in self.reports if accuracy >= target),
            "end_s": self.end_s,
            "best": self.best,
            "prepared_s": self.prepared_s,
            "epochs": len(self.reports),
        }


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def ray_trivial(trials: int) -> float:
    """Return seconds of a search of trivial trials in Ray Tune, on a running cluster."""
    from ray import tune

    began_s = time.perf_counter()
    ray_fit(_report_once, {"x": tune.uniform(0, 1)}, num_samples=trials, metric="score", mode="max")
    return time.perf_counter() - began_s


def _report_once(config: dict[str, Any]) -> None:
    from ray import tune

    tune.report({"score": config["x"]})


def ray_pictures(settings: list[dict[str, Any]], source: Source, stream: Stream, max_t: int) -> PlayedSearch:
    """Run the search with Ray's scheduler. ``settings``: of the trials."""
    from ray import tune
    from ray.tune.schedulers import AsyncHyperBandScheduler

    began_s = time.time()
    scheduler = AsyncHyperBandScheduler(max_t=max_t, reduction_factor=3)
    handle = DataHandle(source, stream, None)
    trainable = tune.with_parameters(_pictures, handle=handle, settings=settings, max_t=max_t)
    space = {"trial": tune.grid_search(list(range(len(settings))))}
    found = ray_fit(trainable, space, scheduler=scheduler, metric="score", mode="max")
    frames = [result.metrics_dataframe for result in found]
    end_s = time.time() - began_s
    reports = [(row["at_s"] - began_s, row["score"]) for frame in frames for _, row in frame.iterrows()]
    return PlayedSearch(reports, end_s, sum(float(frame["prepared_s"].max()) for frame in frames))


def _pictures(config: dict[str, Any], handle: DataHandle, settings: list[dict[str, Any]], max_t: int) -> None:
    import torch
    from ray import tune

    torch.set_num_threads(1)
    reader, number = DataReader(handle), config["trial"]
    torch.manual_seed(seed_of(handle.stream.seed, number))
    model, optimizer = trainings.made(settings[number], settings[number]["side"])
    for epoch in range(max_t):
        trainings.learn(model, optimizer, reader.train(number, epoch, trainings.BATCH))
        accuracy = trainings.accuracy(model, reader.validation(number, 256))
        tune.report({"score": accuracy, "at_s": time.time(), "prepared_s": reader.prepared_s})


def optuna_trivial(trials: int) -> float:
    """Return seconds of a search of trivial trials: Optuna asks and tells, a pool of processes trains."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(0))
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(SLOTS, mp_context=context) as pool:
        list(pool.map(float, range(SLOTS)))  # start the processes before the clock
        began_s = time.perf_counter()
        open_: dict[Future[float], Any] = {}
        begun = 0
        while begun < trials or open_:
            while begun < trials and len(open_) < SLOTS:
                trial = study.ask()
                open_[pool.submit(float, trial.suggest_float("x", 0, 1))] = trial
                begun += 1
            done, _ = wait(open_, return_when=FIRST_COMPLETED)
            for one in done:
                study.tell(open_.pop(one), one.result())
        return time.perf_counter() - began_s


def syne_trivial(trials: int) -> float:
    """Return seconds of a search of trivial trials in Syne Tune, on its local backend, which polls every 0.1 s."""
    from syne_tune import StoppingCriterion, Tuner
    from syne_tune.backend import LocalBackend
    from syne_tune.config_space import uniform
    from syne_tune.optimizer.baselines import RandomSearch

    logging.getLogger("syne_tune").setLevel(logging.ERROR)
    script = Path(__file__).resolve().with_name("syne_trial.py")
    with (
        tempfile.TemporaryDirectory(prefix="uneven-search-") as folder,
        contextlib.chdir(folder),  # it writes a file into the working directory
        contextlib.redirect_stdout(sys.stderr),
    ):
        os.environ["SYNETUNE_FOLDER"] = folder  # else it writes into the home directory
        tuner = Tuner(
            trial_backend=LocalBackend(str(script)),
            scheduler=RandomSearch({"x": uniform(0, 1)}, metrics=["score"], do_minimize=False, random_seed=0),
            stop_criterion=StoppingCriterion(max_num_trials_completed=trials),
            n_workers=SLOTS,
            sleep_time=0.1,
            save_tuner=False,
            tuner_name="trivial",
            callbacks=[],
        )
        began_s = time.perf_counter()
        tuner.run()
        return time.perf_counter() - began_s
