"""The decisions of the slow loop: iterations → forecast → report → referee → balancer → split.

A :class:`~uneven.policy.control.controller.Controller` is the whole loop as a state machine: a
:class:`~uneven.policy.control.reporter.Reporter` per worker makes its reports, and a
:class:`~uneven.policy.control.decider.Decider` turns all reports into splits.

The exchanges of a worker are apart from it: a :class:`~uneven.policy.control.ledger.StepLedger` counts steps and orders
exchanges.
"""

from uneven.policy.control.controller import CallForReports, Controller, GiveReport, Instruction, Loopback
from uneven.policy.control.decider import Decider, Decision, PartialUpdate
from uneven.policy.control.forecast import Forecast, Forecaster
from uneven.policy.control.referee import Complaint, Referee
from uneven.policy.control.report_interval import Spacing
from uneven.policy.control.reporter import Load, Report, Reporter
from uneven.policy.control.table import ReportTable

__all__ = [
    "CallForReports", "Complaint", "Controller", "Decider", "Decision", "Forecast", "Forecaster", "GiveReport",
    "Instruction", "Load", "Loopback", "PartialUpdate", "Referee", "Report", "ReportTable", "Reporter", "Spacing",
]  # fmt: skip
