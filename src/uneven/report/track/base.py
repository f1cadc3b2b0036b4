"""What a tool that keeps curves is asked to do."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from uneven.errors import ConfigError, UnknownNameError
from uneven.report.track.points import LoggedValue, Plain

_WHERE = {
    "tensorboard": "uneven.report.track.tensorboard:TensorBoard",
    "wandb": "uneven.report.track.wandb:WeightsAndBiases",
    "mlflow": "uneven.report.track.mlflow:MLflow",
}


class TrackedRun(ABC):
    """One run in such a tool: curves that grow, and results at the end."""

    @abstractmethod
    def add(self, points: Sequence[LoggedValue]) -> None:
        """More points; steps of one curve ascend."""

    @abstractmethod
    def end(self, results: Mapping[str, float]) -> None:
        """It is over; finite numbers that stand beside its settings."""


class Tracker(ABC):
    """A tool that keeps curves.

    Args:
        where: a folder, or an address if the tool has servers.

    Raises:
        ConfigError: it is not installed, naming the extra.
    """

    @abstractmethod
    def __init__(self, where: str) -> None: ...

    @abstractmethod
    def begin(self, name: str, settings: Mapping[str, Plain], *, group: str = "") -> TrackedRun:
        """A new run.

        Args:
            name: what it is called there.
            settings: what it was started with.
            group: what it belongs to, a search or an ensemble.

        Raises:
            ConfigError: its folder cannot be written.
        """


def tracker(text: str) -> Tracker:
    """The tool that ``"tensorboard:FOLDER"``, ``"wandb:FOLDER"`` or ``"mlflow:FOLDER"`` names.

    Raises:
        ConfigError: the text has another form, or the tool is not installed.
        UnknownNameError: there is no such tool here.
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
    """Points that follow each other and are of one step, together."""
    return [(step, list(same)) for step, same in groupby(points, lambda one: one.step)]
