"""What the parts in exchanges share where they are saved and loaded."""

from __future__ import annotations

import copy
from typing import Any

from uneven.core.plain import loading, read
from uneven.data.order import Portions
from uneven.sync import SyncPolicy


def taken(parts: Portions, unused: Portions) -> tuple[Portions, Portions]:
    """Split portions in hand: those an optimizer step has used, and those that count as used although none has."""
    return tuple(one for one in parts if one not in unused), tuple(one for one in unused if one not in parts)


def same_policy(policy: SyncPolicy, numbers: dict[str, Any]) -> bool:
    """Whether these are the numbers of such a policy. What it keeps itself is then tried on a copy of it.

    Raises:
        CheckpointError: they do not say, or it cannot take its own up.
    """
    with loading("the agreement"):
        if read(dict[str, Any], numbers).get("policy") != repr(policy):
            read(str, numbers.get("policy"))
            return False
        copy.deepcopy(policy).load_state_dict(read(dict[str, Any], numbers.get("own")))
    return True
