"""The pace of a recorded run: synchronous or asynchronous workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uneven.errors import ConfigError
from uneven.policy.core.pace import PACE, Pace


def recorded_pace(settings: Mapping[str, Any]) -> Pace | None:
    """Return the pace in a run record's settings; None if unknown."""
    said, sync = settings.get(PACE), settings.get("sync")
    if said is not None:
        return next((pace for pace in Pace if pace.value == said), None)
    if not isinstance(sync, str):
        return None
    # Older journals only hold the policy's name, whose facts determine the pace.
    from uneven.policy.sync import policies  # here, because it doubles the import time of a journal's reader

    try:
        facts = policies.resolve(sync).facts
    except ConfigError:  # an object instead of a name, or a plug-in that is not installed here
        return None
    return None if facts is None else facts.pace
