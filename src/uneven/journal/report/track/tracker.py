"""The interface of experiment trackers."""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from uneven.errors import ConfigError, UnknownNameError, install_hint
from uneven.journal.report.pure.points import LoggedValue, Plain

# Each is a module of this package, and the extra that brings its library.
_CLASSES = {"tensorboard": "TensorBoard", "wandb": "WeightsAndBiases", "mlflow": "MLflow", "otel": "OpenTelemetry"}


class TrackedRun(ABC):
    """A run in a tracker: growing curves, and results at the end."""

    @abstractmethod
    def add(self, points: Sequence[LoggedValue]) -> None:
        """Add points; the steps of one curve ascend."""

    @abstractmethod
    def end(self, results: Mapping[str, float]) -> None:
        """End the run with finite results, shown with its settings."""


class Tracker(ABC):
    """An experiment tracker at ``where``: a folder, or an address if it has servers."""

    @abstractmethod
    def __init__(self, where: str) -> None: ...

    @abstractmethod
    def begin(self, name: str, settings: Mapping[str, Plain], *, group: str = "") -> TrackedRun:
        """Start a run, in the group of its search or ensemble; raise ConfigError if its folder cannot be written."""


def tracker(text: str) -> Tracker:
    """Return the tracker of ``"tensorboard:FOLDER"``, ``"wandb:FOLDER"``, ``"mlflow:FOLDER"`` or ``"otel:URL"``.

    Raises ConfigError for another form or a missing library (it names the extra), UnknownNameError for another tracker.
    """
    name, colon, where = text.partition(":")
    if name not in _CLASSES:
        raise UnknownNameError("tracker", name, _CLASSES)
    if not colon or not where:
        raise ConfigError(f"--log-to {text}: give a destination, for instance {name}:curves")
    try:
        module = importlib.import_module(f"uneven.journal.report.track.{name}")
    except ImportError as error:
        raise ConfigError(f"{name} is not installed ({error}): {install_hint(f'.[{name}]')}") from error
    found: Tracker = getattr(module, _CLASSES[name])(where)
    return found


def by_step(points: Iterable[LoggedValue]) -> list[tuple[int, list[LoggedValue]]]:
    """Group consecutive points of one step."""
    return [(step, list(same)) for step, same in groupby(points, lambda one: one.step)]
