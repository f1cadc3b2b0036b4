"""Define the interface of a training function to its search: settings, data, states and reports."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from typing import Any, Protocol

import torch

from uneven.errors import ConfigError
from uneven.fleet.member.team import Seat
from uneven.policy.core.tables import shown
from uneven.runtime.states import random_state, set_random_state
from uneven.search import checkpoints
from uneven.search.data import DataReader
from uneven.search.pure.space import Choices, Domain, FloatRange, IntRange, Params, Plain
from uneven.search.search_messages import TrialPost
from uneven.search.trial_team import TrialTeam

_UNDIVIDED = (
    "a trial on several devices divides the batches of trial.epochs(model, optimizer) among them, and this one reads "
    "others: it is trained on one"
)

SAVE_SHARE = 0.05  # share of a trial's time for saving states; an improvement is saved in any case


_OF_PEERS = {  # attributes of trials of Optuna and configs of Ray Tune → their counterparts here
    "set_user_attr": "report one more metric, trial.report(…, name=number)", "study": "see result.optuna() afterwards",
    **{f"suggest_{one}uniform": "write suggest_float(…), with log=True or step=" for one in ("", "log", "discrete_")},
    **dict.fromkeys(("get", "items", "keys", "values"), "trial.params is the dictionary of settings"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TrialJob:
    """The description of a trial that is sent to its processes."""

    number: int
    params: Params
    seed: int
    t: float  # its training so far; its checkpoint may be older
    life: int
    folder: Path  # of its states
    load: Path | None  # the state to continue from; None starts from nothing
    metric: str
    time_attr: str
    sign: float  # factor of the metric that makes higher scores better
    best: float  # its best score so far
    device: str  # torch's name
    slot: int = 0  # index among the search's devices
    seat: Seat = field(default_factory=Seat)  # of this process among those of the trial


class Stateful(Protocol):
    """The interface of a model, an optimizer, or any object with a state."""

    def state_dict(self) -> Any:
        """Return tensors and plain data."""

    def load_state_dict(self, state: Any) -> Any:
        """Restore this state."""


class LeaveTrial(BaseException):
    """The end or pause of a trial, which unwinds the user's function. ``except Exception`` does not catch it."""


class Trial:
    """One set of settings in training; the search makes it from ``post``, ``job`` and ``data``.

    Attributes:
        number: of the trial in its search.
        params: the settings.
        device: torch's name of its device.
        slot: index of the device among the search's devices.
        seed: of this trial; determined by the search's seed and its number.
        rank: of this process within the trial; 0 if it has one device.
        size: number of processes that train the trial.
    """

    def __init__(self, post: TrialPost, job: TrialJob, data: DataReader | None = None) -> None:
        self.number = job.number
        self.params = dict(job.params)
        self.device = job.device
        self.slot = job.slot
        self.seed = job.seed
        self.rank = job.seat.rank
        self.size = job.seat.size
        self._post = post
        self._job = job
        self._data = data
        self._prepared_s = data.prepared_s if data is not None else 0.0
        self._team: TrialTeam | None = None
        self._parts: dict[str, Stateful] = {}
        self._loaded: dict[str, Any] = checkpoints.FILES.read(job.load) if job.load is not None else {}
        self._iteration: int = self._loaded.get("iteration", 0)
        self._epoch: int = self._loaded.get("epoch", 0)
        self._reported: bool | None = None  # in this step; None outside of steps
        self._best = job.best
        self._t = float(self._loaded.get("t", 0.0))
        self._since_s = time.perf_counter()
        self._saved_s = -math.inf
        self._save_took_s = 0.0

    def __getitem__(self, name: str) -> Plain:
        return self.params[name]

    @property
    def resumed(self) -> bool:
        """True if it continues from a state."""
        return bool(self._loaded)

    def keep(self, **parts: Stateful) -> None:
        """Add parts to the trial's state: models, optimizers and other objects with a ``state_dict``.

        If the trial continues from a state, each part is restored now.

        Raises:
            ConfigError: a part has no ``state_dict``, or the state has no such part.
        """
        for name, part in parts.items():
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise ConfigError(
                    f"trial.keep({name}=…): a {type(part).__name__} has no state_dict and load_state_dict"
                )
            self._parts[name] = part
            if self._loaded:
                if name not in self._loaded["parts"]:
                    raise ConfigError(
                        f"trial {self.number}: its state has no part {name!r}, but {list(self._loaded['parts'])}: "
                        "keep the parts of the first run, or name another directory"
                    )
                part.load_state_dict(self._loaded["parts"][name])
        if self._loaded:
            set_random_state(self._loaded["random"])

    def steps(self, **parts: Stateful) -> Iterator[int]:
        """Yield step numbers without end, from the step at which the trial was paused; ``report`` ends the loop.

        Each step reports once, at its end. To end itself, a trial returns before it trains a step, not after its
        report. The report may pause it, and it resumes with the next step.

        Args:
            parts: see :meth:`keep`.

        Raises:
            ConfigError: the trial has several devices, which only divide the batches of :meth:`epochs`.
        """
        if self.size > 1:
            raise ConfigError(_UNDIVIDED)
        return self._steps(parts)

    def _steps(self, parts: Mapping[str, Stateful]) -> Iterator[int]:
        self.keep(**parts)
        while True:
            self._reported = False
            yield self._epoch
            # `report` advances the epoch, so only a step without a report is counted here.
            if not self._reported:
                self._epoch += 1

    def epochs(
        self, *parts: Stateful, batch_size: int | None = None, **named: Stateful
    ) -> Iterator[tuple[int, Iterator[list[torch.Tensor]]]]:
        """Yield epochs without end, from the one at which the trial was paused, each with batches of the search's data.

        A batch is a list of fields, tensors of shape (samples, …), valid until the next one. It is in memory that other
        trials read, so a model that writes into its input must clone it first. If a trial has several devices, each of
        its processes gets a part of each batch. The gradient is that of the whole batch if the loss is a mean over the
        samples.

        Args:
            parts, named: see :meth:`keep`. A trial on several devices has one model and its optimizers among them.
            batch_size: by default the setting of that name, or 64.

        Raises:
            ConfigError: the search has no data.
        """
        data = self._needed_data()
        size = int(self.params.get("batch_size") or 64) if batch_size is None else batch_size
        kept = {f"part{place}": part for place, part in enumerate(parts)} | named
        for epoch in self._steps(kept):
            batches = data.train(self.number, epoch, size)
            if self.size > 1:
                batches = self._joined(kept, data.stream.train, size).parts(batches)
            yield epoch, batches

    def _joined(self, kept: Mapping[str, Stateful], samples: int, batch: int) -> TrialTeam:
        """Return the connection to the trial's other processes."""
        if self._team is None:
            if self.rank:  # each process has its own random numbers; rank 0 has those of a single-process trial
                torch.manual_seed(self.seed + self.rank)
            self._team = TrialTeam(self._job.seat, list(kept.values()), samples, batch)
            # Waiting for the other processes to start is not training, so it must not lower the measured speed.
            self._since_s = time.perf_counter()
        return self._team

    def leave(self) -> None:
        """Leave the trial's other processes, if there are any."""
        if self._team is not None:
            self._team.close()

    def validation(self, batch_size: int = 256) -> Iterator[list[torch.Tensor]]:
        """Yield batches of ``batch_size`` of the search's validation set, a tensor of shape (samples, …) per field.

        Raises:
            ConfigError: the search has none.
        """
        return self._needed_data().validation(self.number, batch_size)

    def _needed_data(self) -> DataReader:
        if self._data is None:
            raise ConfigError("the search has no data=…: give it, or use trial.steps(…) and read your own")
        return self._data

    def report(
        self, value: float | Mapping[str, float] | None = None, step: int | None = None, /, **metrics: float
    ) -> None:
        """Report the trial's metrics to the search. It may not return: the trial is stopped or paused here.

        Args:
            value: the search's metric, as in Optuna; or a mapping of metrics, as in Ray Tune.
            step: number of the finished step, from 0, as in Optuna; by default the one after the last.
            metrics: name → number.

        Raises:
            ConfigError: a value is not a number, or this is a second report in one step or a step before the last one.
        """
        if value is None and "value" in metrics and self._job.metric not in metrics:
            # Optuna's name of the argument, unless the script uses it as the metric's name.
            value = metrics.pop("value")
        if value is not None and not isinstance(value, Mapping) and self._job.time_attr != "step":
            step = metrics.pop("step", step)  # type: ignore[assignment]
        if value is not None or step is not None:
            metrics = self._metrics(value) | metrics
        checked_metrics("trial.report", metrics)
        if step is not None:
            if not hasattr(step, "__index__") or index(step) < max(0, self._iteration - 1):
                raise ConfigError(
                    f"trial.report(…, step={step!r}) after {self._iteration} steps: give whole numbers from 0 on, in "
                    f"ascending order"
                )
            self._iteration = index(step)
        if self._reported:
            raise ConfigError(
                f"trial.report was called twice in step {self._epoch - 1}: report once, at the end of the step"
            )
        self._iteration += 1
        self._epoch += 1
        if self._reported is not None:
            self._reported = True
        self._t = float(self._needed_t(metrics))
        score = self._job.sign * float(metrics.get(self._job.metric, math.nan))
        # `not >=` is True while best is NaN; `==` excludes a NaN score.
        better = not self._best >= score and score == score
        self._best = score if better else self._best
        now_s = time.perf_counter()
        saved = self.rank == 0 and self._worth_saving(now_s, better) and self._save()
        told = {"seconds": time.perf_counter() - self._since_s, "saved": saved}
        if self._data is not None:
            told["prepared_s"] = self._data.prepared_s - self._prepared_s
            self._prepared_s = self._data.prepared_s
        # Without the batches of `epochs`, each process would train a separate model.
        if self.size > 1 and self._team is None:
            raise ConfigError(_UNDIVIDED)
        if self.rank == 0:
            self._post.send(("report", self.number, self._t, dict(metrics), told))
        _, move, save = self._post.take("ruling")
        if move == "stop":
            raise LeaveTrial
        # Only rank 0 writes, because all processes of the trial have the same state.
        if self.rank == 0 and (save or move == "pause") and not saved:
            self._save()
        if self.rank == 0 and save:
            self._post.send(("saved", self.number, self._t))
        if move != "continue":
            raise LeaveTrial
        self._since_s = time.perf_counter()

    def __getattr__(self, name: str) -> Any:
        if name in _OF_PEERS:
            raise ConfigError(f"trial.{name} belongs to another tool: {_OF_PEERS[name]}")
        raise AttributeError(f"a trial of uneven.search has no {name!r}", name=name, obj=self)

    def should_prune(self) -> bool:
        """Return False, as Optuna's method: :meth:`report` itself ends a trial that is to be stopped."""
        return False

    def returned(self, value: object) -> tuple[dict[str, float] | None, float]:
        """Return the training function's result ``value`` as metrics, and the seconds since the last report.

        Raises:
            ConfigError: the result is not a number, a mapping with the search's metric, or None.
        """
        metrics = None if value is None else checked_metrics("the training function's return of", self._metrics(value))
        if metrics is not None and self._job.metric not in metrics:
            raise ConfigError(
                f"the training function returned {', '.join(metrics)}, but not {self._job.metric!r}: return or "
                "report it"
            )
        return metrics, time.perf_counter() - self._since_s

    def _metrics(self, value: object) -> dict[str, Any]:
        return dict(value) if isinstance(value, Mapping) else {self._job.metric: value}

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return a setting ``name`` from ``low`` to ``high`` that the space does not have, as in Optuna.

        ``step`` and ``log`` are as in Optuna.
        """
        return float(self._suggest(name, FloatRange(low, high, log, step)))  # type: ignore[arg-type]

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Return an integer setting ``name`` from ``low`` to ``high`` that the space does not have, as in Optuna.

        ``step`` and ``log`` are as in Optuna.
        """
        return int(self._suggest(name, IntRange(low, high, log, step)))  # type: ignore[arg-type]

    def suggest_categorical(self, name: str, choices: Sequence[Plain]) -> Plain:
        """Return a setting ``name`` among ``choices`` that the space does not have, as in Optuna."""
        return self._suggest(name, Choices(tuple(choices)))

    def _suggest(self, name: str, domain: Domain) -> Plain:
        if name not in self.params or not domain.holds(self.params[name]):
            self._post.send(("define", self.number, name, domain.to_plain()))
            what, value = self._post.take("value", "refused")
            if what == "refused":
                raise ConfigError(value)
            self.params[name] = value
        return self.params[name]

    def _needed_t(self, metrics: Mapping[str, float]) -> float:
        if self._job.time_attr == "training_iteration":
            return self._iteration
        if self._job.time_attr not in metrics:
            raise ConfigError(
                f"trial.report without {self._job.time_attr!r}, the time_attr of the search: report it, or leave "
                "time_attr out to count reports"
            )
        return metrics[self._job.time_attr]

    def _worth_saving(self, now_s: float, better: bool) -> bool:
        if not self._parts:
            return False
        # The interval grows with the time of a save, so that large states do not slow the trial down.
        return better or now_s - self._saved_s >= self._save_took_s / SAVE_SHARE

    def _save(self) -> bool:
        if not self._parts:
            return False
        began_s = time.perf_counter()
        checkpoints.FILES.write(
            checkpoints.path_of(self._job.folder, self._job.life, self._t),
            {
                "trial": self.number,
                "t": self._t,
                "iteration": self._iteration,
                "epoch": self._epoch,
                "params": self.params,
                "parts": {name: part.state_dict() for name, part in self._parts.items()},
                "random": random_state(),
            },
        )
        self._saved_s = time.perf_counter()
        self._save_took_s = self._saved_s - began_s
        return True


def checked_metrics(what: str, metrics: dict[str, Any]) -> dict[str, float]:
    """Return the metrics. Raises `ConfigError` if one is not a number, or has no name."""
    for name, value in metrics.items():
        if isinstance(value, tuple | list):
            raise ConfigError(f"{what} {name}={shown(value)}: give one number")
        if not isinstance(value, int | float) or not isinstance(name, str):
            hint = f"float({name})" if hasattr(value, "__float__") else "a number"
            raise ConfigError(f"{what} {name}=…: it is a {type(value).__name__}: give {hint}")
    return metrics


class Trainable(ABC):
    """The base of training classes that are stepped; each step's result is reported."""

    @abstractmethod
    def setup(self, params: Params) -> None:
        """Make model, optimizer and data from ``params``; called once."""

    @abstractmethod
    def step(self) -> Mapping[str, float]:
        """Train for a while and return metrics."""

    @abstractmethod
    def save(self) -> dict[str, Any]:
        """Return the state, as tensors and plain data."""

    @abstractmethod
    def load(self, state: dict[str, Any]) -> None:
        """Restore a state; called after ``setup``."""


class _Kept:
    def __init__(self, one: Trainable) -> None:
        self.state_dict = one.save
        self.load_state_dict = one.load


def drive(kind: type[Trainable], trial: Trial) -> None:
    one = kind()
    one.setup(trial.params)
    for _ in trial.steps(trainable=_Kept(one)):
        trial.report(**one.step())
