"""The decisions of the slow loop: iterations → forecast → report → referee → balancer → split. Pure.

A :class:`~uneven.control.controller.Controller` is the whole loop as a state machine: a
:class:`~uneven.control.reporter.Reporter` per worker makes its reports, and a
:class:`~uneven.control.decider.Decider` turns all reports into splits.
"""

from uneven.control.controller import CallForReports, Controller, GiveReport, Instruction
from uneven.control.decider import Decider, Decision, PartialUpdate
from uneven.control.forecast import Forecast, Forecaster
from uneven.control.loopback import Loopback
from uneven.control.referee import Complaint, Referee
from uneven.control.reporter import Load, Reporter
from uneven.control.reports import Report
from uneven.control.spacing import Spacing
from uneven.control.table import ReportTable

__all__ = [
    "CallForReports", "Complaint", "Controller", "Decider", "Decision", "Forecast", "Forecaster", "GiveReport",
    "Instruction", "Load", "Loopback", "PartialUpdate", "Referee", "Report", "ReportTable", "Reporter", "Spacing",
]  # fmt: skip
