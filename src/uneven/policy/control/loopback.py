"""A controller's driver for all workers in one process: reports and calls arrive immediately."""

from __future__ import annotations

from collections.abc import Iterable

from uneven.policy.control.controller import Controller, GiveReport, Instruction
from uneven.policy.control.referee import Complaint
from uneven.policy.control.reporter import Load
from uneven.policy.core.records import ForecastRecord, SplitRecord
from uneven.policy.core.views import Observation

_UNKNOWN = Load()

Told = ForecastRecord | SplitRecord | Complaint


class Loopback:
    """The driver of one controller for all workers, in the simulator and in benches."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller

    def measured(self, rank: int, seen: Observation, late: bool = False) -> None:
        if self.controller.adapts:
            self.controller.measured(rank, seen, late=late)
            self.controller.reporter(rank).forecaster.study()

    def ended(self, rank: int, iteration: int, cost_s: float, newest: int = -1) -> list[Told]:
        """Record that a worker has ended an iteration, and return the consequences in order; see
        :meth:`Controller.ended`.
        """
        controller = self.controller
        found = self._carry_out(controller.ended(rank, iteration, _UNKNOWN, cost_s, cost_s, newest=newest), newest)
        call = controller.begins(rank, iteration + 1, _UNKNOWN, cost_s, cost_s)
        if call is not None:  # arrives with that iteration's exchange
            controller.called(call.iteration, {} if call.report is None else {rank: call.report})
            if call.report is not None:
                found.append(call.report.forecast(rank, call.iteration))
        return found

    def _carry_out(self, instructions: Iterable[Instruction], newest: int) -> list[Told]:
        found: list[Told] = []
        for one in instructions:
            if isinstance(one, GiveReport):
                found.append(one.report.forecast(one.rank, one.iteration + 1))
                # The last report of a round decides, and its instructions are carried out here too.
                found += self._carry_out(self.controller.reported(one.rank, one.report, newest), newest)
            else:
                found.append(one)
        return found
