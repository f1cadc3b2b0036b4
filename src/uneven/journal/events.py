"""The events that readers act upon; every other event is only shown. Pure."""

from __future__ import annotations

import re

from uneven.core.records import EventRecord

PLAN = "plan"
"""Says how long the run will be. The message is ``iterations=N``, N counted over the whole run from its very
first iteration, also after a resume. May be said again when the plan changes; the newest holds."""

END = "end"
"""This rank has finished all its work. The run has ended when rank 0 says so."""

CLUSTER = ("slow", "cut_link", "stop", "kill", "leave", "join")
"""Something happened to a node as its cluster's description says; the names are those of the description."""

_PLAN = re.compile(r"iterations=(\d{1,15})(?!\d)", re.ASCII)  # more of them are no plan


def plan_message(iterations: int) -> str:
    """Message of a :data:`PLAN` event."""
    return f"iterations={iterations}"


def planned_iterations(record: EventRecord) -> int | None:
    """Iterations of the whole run if this is a plan that says so, else None."""
    found = _PLAN.search(record.message) if record.event == PLAN else None
    return int(found[1]) if found else None
