"""The deciding half of the slow loop: reports → referee → predictors → balancer → split. Pure.

The real run asks a :class:`~uneven.control.decider.Decider` on every rank, the simulator asks one for everybody.
"""

from uneven.control.decider import Decider, Decision
from uneven.control.referee import Complaint, Referee
from uneven.control.reports import Report, Spacing

__all__ = ["Complaint", "Decider", "Decision", "Referee", "Report", "Spacing"]
