"""The events that readers interpret; all others are only shown."""

from __future__ import annotations

import re

from uneven.policy.core.records import EventRecord

# The planned length of the run. The message is ``iterations=N``, counted from the run's first iteration, also after a
# resume. The newest plan holds.
PLAN = "plan"

END = "end"  # this rank has finished all its work; the run has ended when rank 0 has

CLUSTER = ("slow", "cut_link", "stop", "kill", "leave", "join")  # the names of events in a cluster description

_PLAN = re.compile(r"iterations=(\d{1,15})(?!\d)", re.ASCII)  # a longer number is not a plan


def plan_message(iterations: int) -> str:
    """Return the message of a :data:`PLAN` event."""
    return f"iterations={iterations}"


def planned_iterations(record: EventRecord) -> int | None:
    """Return the iterations of the whole run if this is a valid plan, None otherwise."""
    found = _PLAN.search(record.message) if record.event == PLAN else None
    return int(found[1]) if found else None
