"""Ray Tune as a rival: a cluster on this machine, and trials of one core each."""

import contextlib
import logging
import sys
import tempfile
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def ray_cluster(slots: int) -> Iterator[None]:
    """Start a separate Ray cluster on this machine, even if another one of this user runs here."""
    import ray

    ray.init("local", num_cpus=slots, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def ray_fit(trainable: Any, space: dict[str, Any], **settings: Any) -> Any:
    """Return the results of Tune's trials on a running cluster. ``settings``: of Tune."""
    from ray import tune

    # Standard output is for our result only.
    with tempfile.TemporaryDirectory(prefix="uneven-tune-") as folder, contextlib.redirect_stdout(sys.stderr):
        tuner = tune.Tuner(
            tune.with_resources(trainable, {"cpu": 1}),
            param_space=space,
            tune_config=tune.TuneConfig(reuse_actors=True, **settings),
            run_config=tune.RunConfig(storage_path=folder, name="trials", verbose=0),
        )
        return tuner.fit()
