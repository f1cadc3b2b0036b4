"""The tracker for MLflow: a folder, or the address of a tracking server or database."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from uneven.errors import access
from uneven.journal.report.pure.points import LoggedValue, Plain
from uneven.journal.report.track.tracker import TrackedRun, Tracker

_AT_ONCE = 1000  # MLflow's limit of values in one call
_UNFIT = re.compile(r"[^\w./ -]")  # characters that MLflow rejects in names
_EXPERIMENT, _ALLOW = "uneven", "MLFLOW_ALLOW_FILE_STORE"


class MLflow(Tracker):
    """A store ``mlflow:FOLDER``, ``mlflow:http://…`` or ``mlflow:sqlite:///…``; the experiment is the group or
    ``uneven``."""

    def __init__(self, where: str) -> None:
        if "://" not in where:
            with access(f"write to {where} (another folder can be named with --log-to)"):
                Path(where).mkdir(parents=True, exist_ok=True)
                where = Path(where).resolve().as_uri()
        with _folders_allowed():
            self._client: Any = MlflowClient(tracking_uri=where)

    def begin(self, name: str, settings: Mapping[str, Plain], *, group: str = "") -> TrackedRun:
        experiment = group or _EXPERIMENT
        known = self._client.get_experiment_by_name(experiment)
        number = known.experiment_id if known else self._client.create_experiment(experiment)
        run: str = self._client.create_run(number, run_name=name).info.run_id
        self._client.log_batch(run, params=[Param(key, str(value)) for key, value in settings.items()])
        return _MlflowRun(self._client, run)


class _MlflowRun(TrackedRun):
    def __init__(self, client: Any, run: str) -> None:
        self._client = client
        self._run = run

    def add(self, points: Sequence[LoggedValue]) -> None:
        values = [Metric(_fit(one.name), one.value, int(one.at_s * 1000), one.step) for one in points]
        for start in range(0, len(values), _AT_ONCE):
            self._client.log_batch(self._run, metrics=values[start : start + _AT_ONCE])

    def end(self, results: Mapping[str, float]) -> None:
        for name, value in results.items():
            self._client.log_metric(self._run, _fit(name), value)
        self._client.set_terminated(self._run)


@contextmanager
def _folders_allowed() -> Iterator[None]:
    # Newer versions of MLflow raise an error for folders unless this variable is set. A user's own value is kept.
    if _ALLOW in os.environ:
        yield
        return
    os.environ[_ALLOW] = "true"
    try:
        yield
    finally:
        del os.environ[_ALLOW]


def _fit(name: str) -> str:
    return _UNFIT.sub("_", name)
