"""The state of a session as it goes into a checkpoint.

Two JSON texts under fixed keys: the same keys on every rank and in every run, whatever the balancer, so that
``torch.distributed.checkpoint`` can load into the state of a fresh session, and nothing that would have to be
unpickled to be read.
"""

from __future__ import annotations

import json
from typing import Any

from uneven.errors import CheckpointError

SCHEMA = 2


def pack(loader: dict[str, Any], control: dict[str, Any]) -> dict[str, Any]:
    """State of the loader and of the slow loop, as plain data."""
    return {"schema": SCHEMA, "loader": json.dumps(loader), "control": json.dumps(control)}


def unpack(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inverse of :func:`pack`.

    Raises:
        CheckpointError: it is not a session's state, or has another schema.
    """
    if not isinstance(state, dict) or set(state) != {"schema", "loader", "control"}:
        keys = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
        raise CheckpointError(f"not the state of a session (found {keys}): pass what session.state_dict() returned")
    if state["schema"] != SCHEMA:
        raise CheckpointError(
            f"session state of schema {state['schema']}, this version reads {SCHEMA}: "
            f"resume with the version of uneven that wrote it"
        )
    try:
        loader, control = json.loads(state["loader"]), json.loads(state["control"])
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"session state cannot be read ({error}): the checkpoint is damaged") from error
    return loader, control
