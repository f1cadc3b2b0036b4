"""A controller's driver where all workers are in one place, so that reports and calls arrive at once. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from uneven.control.controller import Controller, GiveReport, Instruction
from uneven.control.referee import Complaint
from uneven.control.reporter import Load
from uneven.core.records import ForecastRecord, SplitRecord
from uneven.core.views import Observation

_UNKNOWN = Load()

Told = ForecastRecord | SplitRecord | Complaint


class Loopback:
    """Drives one controller for all workers: in the simulator and in benches. A real run has a network in its place."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller

    def measured(self, rank: int, seen: Observation, late: bool = False) -> None:
        """What a worker has seen of its own iteration; its predictor learns from it where it stands."""
        if self.controller.adapts:
            self.controller.measured(rank, seen, late=late)
            self.controller.reporter(rank).forecaster.study()

    def ended(self, rank: int, iteration: int, cost_s: float, newest: int = -1) -> list[Told]:
        """A worker has ended an iteration.

        Args:
            cost_s: what giving a report and deciding cost it.
            newest: the furthest iteration that anybody has begun, where workers do not keep step.

        Returns:
            What it led to, in order.
        """
        controller = self.controller
        found = self._carry_out(controller.ended(rank, iteration, _UNKNOWN, cost_s, cost_s, newest=newest), newest)
        call = controller.begins(rank, iteration + 1, _UNKNOWN, cost_s, cost_s)
        if call is not None:  # and is heard with that iteration's exchange
            controller.called(call.iteration, {} if call.report is None else {rank: call.report})
            if call.report is not None:
                found.append(call.report.forecast(rank, call.iteration))
        return found

    def _carry_out(self, instructions: Iterable[Instruction], newest: int) -> list[Told]:
        found: list[Told] = []
        for one in instructions:
            if isinstance(one, GiveReport):
                found.append(one.report.forecast(one.rank, one.iteration + 1))
                found += self._carry_out(self.controller.reported(one.rank, one.report, newest), newest)
            else:
                found.append(one)
        return found
