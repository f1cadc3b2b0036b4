"""The deciding half of the slow loop: iterations → forecast → report → referee → balancer → split. Pure.

Each worker has a :class:`~uneven.control.forecast.Forecaster` of its own and sends what it says. The real run asks a
:class:`~uneven.control.decider.Decider` on every rank, the simulator asks one for everybody.
"""

from uneven.control.decider import Amendment, Decider, Decision
from uneven.control.forecast import Forecast, Forecaster
from uneven.control.referee import Complaint, Referee
from uneven.control.reports import Report
from uneven.control.spacing import Spacing
from uneven.control.table import Table

__all__ = [
    "Amendment", "Complaint", "Decider", "Decision", "Forecast", "Forecaster", "Referee", "Report", "Spacing", "Table",
]  # fmt: skip
