"""The members of an ensemble as trials of Ray Tune: a core and a pipeline each, one per slot at a time.

Every trial runs to its end, so Tune's choice of trials is not used. The next trial reuses its processes, and Ray starts
before the clock.
"""

import time
from typing import Any

from uneven.errors import TrainingError
from uneven.fleet import Ensemble
from uneven_bench.fleet.baseline import alone, train_member
from uneven_bench.harness.ray_rival import ray_cluster, ray_fit


def trial(config: dict[str, Any], ensemble: Ensemble) -> dict[str, float]:
    """Train the member of this name in a process of Ray, and return the figures for Tune."""
    return train_member(ensemble, config["member"])


def ray_tune(ensemble: Ensemble, slots: int) -> dict[str, Any]:
    """Train every member as a trial, and return the figures of ``uneven bench fleet`` and ``started_s``, the start of
    Ray. Raises TrainingError: a trial failed."""
    from ray import tune

    began_s = time.perf_counter()
    with ray_cluster(slots):
        started_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        trainable = tune.with_parameters(trial, ensemble=ensemble)
        found = ray_fit(trainable, {"member": tune.grid_search(list(ensemble.members))})
        wall_s = time.perf_counter() - began_s
        if found.errors:
            raise TrainingError(f"Ray Tune: {found.errors[0]}")
        told = [found[place].metrics or {} for place in range(len(found))]
    return alone(wall_s, {one["config"]["member"]: one for one in told}, started_s=started_s)
