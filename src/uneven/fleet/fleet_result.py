"""Give access to a finished training: the table of members, their best weights, and the ensemble's predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from uneven.errors import TrainingError, UnknownNameError, access
from uneven.fleet.engine.fleet_run import best_checkpoint
from uneven.fleet.engine.fleet_state import RunState
from uneven.fleet.ensemble import Ensemble
from uneven.fleet.member import member_checkpoint
from uneven.fleet.result_page import page
from uneven.fleet.result_table import MemberRow, ranked
from uneven.journal.report.track import LoggedValue, Tracker


class Result:
    """The result of :func:`uneven.fleet.train`.

    Attributes:
        table: a row for each member, the best first, failed ones last.
        state: the state of the run, with histories and plans.
        directory: the directory of the run.
    """

    def __init__(self, ensemble: Ensemble, state: RunState, directory: Path) -> None:
        self.state = state
        self.directory = directory
        self._ensemble = ensemble
        self._models: dict[str, nn.Module] = {}
        self.table: tuple[MemberRow, ...] = ranked(ensemble, state, directory)

    @property
    def metric(self) -> str:
        """The name of the metric that members are judged by."""
        return self._ensemble.metric.name

    def report(self, path: str | Path) -> None:
        """Write one HTML file with the plan over time and every member's curves; it needs no network.

        Raises:
            ConfigError: it cannot be written there.
        """
        with access(f"write the report {path}"):
            Path(path).write_text(page(self.table, self.state, self.metric, self.directory), encoding="utf-8")

    def track(self, tool: Tracker) -> None:
        """Log each member as a run of a tracking tool, by epoch. Times count from the start of the training.

        Args:
            tool: see :class:`~uneven.journal.report.track.Tracker`.

        Raises:
            ConfigError: the tool cannot write.
        """
        for row in self.table:
            epochs = self.state.members[row.name].epochs
            run = tool.begin(row.name, {"member": row.name}, group=self.directory.resolve().name)
            points: list[LoggedValue] = []
            for number, one in enumerate(epochs, 1):
                values = {self.metric: one.metric, "training loss": one.train_loss, "devices": float(one.devices)}
                values |= {"train_s": one.train_s, "waited_s": one.waited_s}
                points += [LoggedValue(name, value, number, one.ended_s) for name, value in values.items()]
            run.add(points)
            run.end({f"best/{self.metric}": row.metric} if math.isfinite(row.metric) else {})

    @property
    def failed(self) -> tuple[MemberRow, ...]:
        """The members that failed, with the reason."""
        return tuple(row for row in self.table if row.status == "failed")

    @property
    def best(self) -> MemberRow:
        """The best trained member.

        Raises:
            TrainingError: no member was trained.
        """
        if self.table[0].status != "trained":
            raise TrainingError(f"no member was trained; {self.table[0].name!r}: {self.table[0].why}")
        return self.table[0]

    def model(self, name: str) -> nn.Module:
        """Return a member's model with the weights of its best epoch, in evaluation mode, on the CPU.

        Raises:
            UnknownNameError: the member is unknown.
            TrainingError: it finished no epoch.
        """
        if name not in self._ensemble.members:
            raise UnknownNameError("member", name, self._ensemble.members)
        if name not in self._models:
            path = best_checkpoint(self.directory, self._ensemble, self.state, name)
            if path is None:
                raise TrainingError(f"member {name!r} has finished no epoch: {self.state.members[name].why}")
            saved = member_checkpoint.FILES.read(path)
            # The factory draws first weights; the caller's random numbers must not depend on that.
            before = torch.get_rng_state()
            made = self._ensemble.members[name]().model
            torch.set_rng_state(before)
            made.load_state_dict(saved["model"])
            self._models[name] = made.eval()
        return self._models[name]

    @torch.no_grad()
    def predict(
        self,
        *inputs: torch.Tensor,
        members: Iterable[str] | None = None,
        through: Callable[[Any], torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Return the mean of the members' outputs, each with the weights of its best epoch.

        Args:
            inputs: a batch, as a model takes it: tensors of shape (n, …).
            members: names; by default all trained members.
            through: applied to each output before the mean; ``lambda z: z.softmax(-1)`` averages the probabilities of
                classifiers.

        Returns:
            The shape of one member's output.

        Raises:
            TrainingError: no member was trained.
            UnknownNameError: a member does not exist.
        """
        names = [row.name for row in self.table if row.status == "trained"] if members is None else list(members)
        if not names:
            raise TrainingError("nobody was trained, so nobody can answer")
        answers = [self.model(name)(*inputs) for name in names]
        return torch.stack([answer if through is None else through(answer) for answer in answers]).mean(0)

    def __str__(self) -> str:
        lines = [f"{'':>3} {'member':<24} {self._ensemble.metric.name:>10} {'epochs':>6} {'device·s':>9}  "]
        for row in self.table:
            metric = f"{row.metric:.4f}" if row.best_epoch else "–"
            ended = f"{row.device_s:>9.1f}  {row.status}: {row.reason}"
            lines.append(f"{row.rank:>3} {row.name:<24} {metric:>10} {row.epochs:>6} {ended}")
        return "\n".join(line.rstrip() for line in lines)
