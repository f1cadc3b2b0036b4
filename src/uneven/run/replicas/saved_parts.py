"""Helpers to save and load exchanges."""

from __future__ import annotations

import copy
from typing import Any

from uneven.policy.core.plain import loading, read
from uneven.policy.samples.order import Portions
from uneven.policy.sync import SyncPolicy


def taken(parts: Portions, unused: Portions) -> tuple[Portions, Portions]:
    """Split in-flight portions: those an optimizer step has used, and those that count as used although none has."""
    return tuple(one for one in parts if one not in unused), tuple(one for one in unused if one not in parts)


def same_policy(policy: SyncPolicy, numbers: dict[str, Any]) -> bool:
    """Return whether the numbers are of this policy; then try to load its own state into a copy of it.
    Raises :class:`CheckpointError` if the numbers name no policy, or if it cannot load its own."""
    with loading("the agreement"):
        if read(dict[str, Any], numbers).get("policy") != repr(policy):
            read(str, numbers.get("policy"))
            return False
        copy.deepcopy(policy).load_state_dict(read(dict[str, Any], numbers.get("own")))
    return True
