"""The state of a session in a checkpoint: JSON texts and tensors, so that nothing has to be unpickled.

The keys are the same on every rank and with every balancer, because ``torch.distributed.checkpoint`` loads into the
state of a new session.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from uneven.errors import CheckpointError
from uneven.policy.core.plain import Misfit, loading, read

SCHEMA = 2
_KEYS = {"schema", "loader", "control"}
_LATER = {"agreement": "{}", "vectors": {}, "parts": "{}", "tensors": {}}  # keys that older states of this schema lack
_TEXTS = ("loader", "control", "agreement", "parts")


@dataclass(frozen=True, slots=True)
class State:
    """The state of a session, by the component that keeps it."""

    loader: dict[str, Any] = field(default_factory=dict)
    control: dict[str, Any] = field(default_factory=dict)  # of the slow loop
    agreement: dict[str, Any] = field(default_factory=dict)  # of the policy and its merges
    vectors: dict[str, Tensor] = field(default_factory=dict)  # of the policy: centre or momentum, flat, of model size
    parts: dict[str, Any] = field(default_factory=dict)  # of the parts given to the session
    tensors: dict[str, Tensor] = field(default_factory=dict)  # of the parts


def pack(state: State) -> dict[str, Any]:
    """Return the state as plain data and tensors."""
    return {
        "schema": SCHEMA,
        "loader": json.dumps(state.loader),
        "control": json.dumps(state.control),
        "agreement": json.dumps(state.agreement),
        "vectors": dict(state.vectors),
        "parts": json.dumps(state.parts),
        "tensors": dict(state.tensors),
    }


def unpack(state: dict[str, Any]) -> State:
    """Invert :func:`pack`.

    Raises:
        CheckpointError: ``state`` is not a session's state, has another schema, or is damaged.
    """
    if not isinstance(state, dict) or not _KEYS <= set(state) <= _KEYS | set(_LATER):
        keys = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
        raise CheckpointError(f"not the state of a session (found {keys}): pass what session.state_dict() returned")
    if state["schema"] != SCHEMA:
        raise CheckpointError(
            f"session state of schema {state['schema']}, this version reads {SCHEMA}: "
            f"resume with the version of uneven that wrote it"
        )
    state = {**_LATER, **state}
    try:
        loader, control, agreement, parts = (json.loads(state[key]) for key in _TEXTS)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"session state cannot be read ({error}): the checkpoint is damaged") from error
    with loading("the session"):
        vectors: dict[str, Tensor] = read(dict[str, Any], state["vectors"])
        read(dict[str, dict[str, Any]], dict(zip(_TEXTS, (loader, control, agreement, parts), strict=True)))
        tensors: dict[str, Tensor] = read(dict[str, Any], state["tensors"])
        for name, tensor in tensors.items():
            if not isinstance(tensor, Tensor):
                raise Misfit(tensor, "a tensor", f"tensors.{name}")
        for name, vector in vectors.items():
            if not (isinstance(vector, Tensor) and vector.ndim == 1 and vector.is_floating_point()):
                raise Misfit(vector, "a vector of floating-point numbers", f"vectors.{name}")
    return State(loader, control, agreement, dict(vectors), parts, dict(tensors))
