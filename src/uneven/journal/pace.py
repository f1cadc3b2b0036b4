"""Whom the workers of a recorded run waited for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uneven.core.pace import PACE, Pace
from uneven.errors import ConfigError


def recorded_pace(settings: Mapping[str, Any]) -> Pace | None:
    """What the settings of a run record say about it; None where they say nothing that is known here.

    Journals that were written before runs said so have the policy's name, and its facts say the same.
    """
    said, sync = settings.get(PACE), settings.get("sync")
    if said is not None:
        return next((pace for pace in Pace if pace.value == said), None)
    if not isinstance(sync, str):
        return None
    from uneven.sync import policies  # only where it must be: it takes as long to import as all that reads a journal

    try:
        facts = policies.resolve(sync).facts
    except ConfigError:  # an object that was given in place of a name, or a plug-in that is not installed here
        return None
    return None if facts is None else facts.pace
