"""The interface of experiment trackers."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from uneven.errors import ConfigError, UnknownNameError
from uneven.journal.report.pure.points import LoggedValue, Plain

_WHERE = {
    "tensorboard": "uneven.journal.report.track.tensorboard:TensorBoard",
    "wandb": "uneven.journal.report.track.wandb:WeightsAndBiases",
    "mlflow": "uneven.journal.report.track.mlflow:MLflow",
}


class TrackedRun(ABC):
    """A run in a tracker: growing curves, and results at the end."""

    @abstractmethod
    def add(self, points: Sequence[LoggedValue]) -> None:
        """Add points; the steps of one curve ascend."""

    @abstractmethod
    def end(self, results: Mapping[str, float]) -> None:
        """End the run with finite results, shown with its settings."""


class Tracker(ABC):
    """An experiment tracker at ``where``: a folder, or an address if it has servers.

    Raises:
        ConfigError: it is not installed; the message names the extra.
    """

    @abstractmethod
    def __init__(self, where: str) -> None: ...

    @abstractmethod
    def begin(self, name: str, settings: Mapping[str, Plain], *, group: str = "") -> TrackedRun:
        """Start a run, in the group of its search or ensemble; raise ConfigError if its folder cannot be written."""


def tracker(text: str) -> Tracker:
    """Return the tracker of ``"tensorboard:FOLDER"``, ``"wandb:FOLDER"`` or ``"mlflow:FOLDER"``.

    Raises ConfigError for another form or a missing library, UnknownNameError for another tracker.
    """
    name, colon, where = text.partition(":")
    if name not in _WHERE:
        raise UnknownNameError("tool for curves", name, _WHERE)
    if not colon or not where:
        raise ConfigError(f"--log-to {text}: say where, for instance {name}:curves")
    module, _, kind = _WHERE[name].partition(":")
    found: Tracker = getattr(importlib.import_module(module), kind)(where)
    return found


def by_step(points: Iterable[LoggedValue]) -> list[tuple[int, list[LoggedValue]]]:
    """Group consecutive points of one step."""
    return [(step, list(same)) for step, same in groupby(points, lambda one: one.step)]
