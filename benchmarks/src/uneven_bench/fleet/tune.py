"""The members of an ensemble as trials of Ray Tune: a core and a pipeline each, one per slot at a time.

Every trial runs to its end, so Tune's choice of trials is not used. The next trial reuses its processes, and Ray starts
before the clock.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import resource
import sys
import tempfile
import time
from typing import Any

from uneven.errors import TrainingError
from uneven.fleet import Ensemble
from uneven_bench.fleet.baseline import train_member


def installed() -> bool:
    """Return whether Ray is installed; our extra ``ray`` brings Tune."""
    return importlib.util.find_spec("ray") is not None


def trial(config: dict[str, Any], ensemble: Ensemble) -> dict[str, float]:
    """Train the member of this name in a process of Ray, and return the figures for Tune; ``cpu_s`` is the processor
    time of the loader."""
    import torch

    torch.set_num_threads(1)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    accuracy, waited_s, took_s = train_member(ensemble, config["member"])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"accuracy": accuracy, "waited_s": waited_s, "took_s": took_s, "cpu_s": cpu_s}


def ray_tune(ensemble: Ensemble, slots: int) -> dict[str, Any]:
    """Train every member as a trial, and return the figures of ``uneven bench fleet`` and ``started_s``, the start of
    Ray. Raises TrainingError: a trial failed."""
    import ray
    from ray import tune

    began_s = time.perf_counter()
    # A new cluster, even if another one of this user runs on the machine.
    ray.init("local", num_cpus=slots, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    started_s = time.perf_counter() - began_s
    try:
        with tempfile.TemporaryDirectory(prefix="uneven-fleet-") as folder:
            trainable = tune.with_resources(tune.with_parameters(trial, ensemble=ensemble), {"cpu": 1})
            tuner = tune.Tuner(
                trainable,
                param_space={"member": tune.grid_search(list(ensemble.members))},
                tune_config=tune.TuneConfig(reuse_actors=True),
                run_config=tune.RunConfig(storage_path=folder, name="trials", verbose=0),
            )
            began_s = time.perf_counter()
            with contextlib.redirect_stdout(sys.stderr):  # standard output is for our result only
                found = tuner.fit()
            wall_s = time.perf_counter() - began_s
            if found.errors:
                raise TrainingError(f"Ray Tune: {found.errors[0]}")
            told = [found[place].metrics or {} for place in range(len(found))]
    finally:
        ray.shutdown()
    return {
        "wall_s": wall_s,
        "preprocess_cpu_s": sum(one["cpu_s"] for one in told),
        "wait_share": sum(one["waited_s"] for one in told) / sum(one["took_s"] for one in told),
        "rounds": len(told),
        "checkpoint_share": 0.0,
        "scheduling_share": 0.0,
        "sharing": 1.0,
        "accuracy": {one["config"]["member"]: one["accuracy"] for one in told},
        "started_s": started_s,
    }
