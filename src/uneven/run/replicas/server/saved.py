"""The checkpoint of one worker's part in the parameter server."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

import torch
from torch import Tensor

from uneven.errors import CheckpointError
from uneven.policy.core.plain import Amount, Count, Misfit, loading, read
from uneven.policy.sync import SyncPolicy
from uneven.run.replicas.peers.saved_parts import same_policy
from uneven.run.replicas.server.client_copy import ServerParameters, Values


class _ServedNumbers(TypedDict):
    own: dict[str, Any]
    clock: Count
    gap: Count
    samples: Count
    rates: NotRequired[dict[str, Amount]]


def numbers_of(policy: SyncPolicy, clock: int, gap: int, samples: int) -> dict[str, Any]:
    """Return the numbers to save in addition to the copy."""
    return {
        "policy": repr(policy),
        "own": policy.state_dict(),
        "clock": clock,
        "gap": max(0, gap),
        "samples": max(0, samples),
    }


def check_saved(
    policy: SyncPolicy,
    copy: ServerParameters,
    numbers: dict[str, Any],
    vectors: dict[str, Tensor],
    size: int,
    names: set[str],
) -> bool:
    """Return whether a state, vectors of shape (``size``,), is of this policy and not empty.

    Raises:
        CheckpointError: the copy does not fit the model, a number is damaged, or training has started.
    """
    if copy.begun:
        raise CheckpointError(
            "a state cannot be loaded once workers share a copy: load it before the first batch and the first "
            "session.evaluated()"
        )
    if not same_policy(policy, numbers) or not vectors:
        return False
    with loading("the agreement"):
        read(_ServedNumbers, numbers)
        if set(vectors) != names:
            raise Misfit(sorted(vectors), f"{', '.join(sorted(names))} or nothing", "vectors")
    if (found := next((len(one) for one in vectors.values() if len(one) != size), size)) != size:
        raise CheckpointError(
            f"the server in the checkpoint has {found} numbers, that of this model {size}: resume "
            f"with the model that the run began with"
        )
    return True


def centre_of(vectors: dict[str, Tensor], dtype: torch.dtype) -> Values:
    """Return the copy in a state, shape (size,)."""
    centre: Values = vectors["centre"].detach().to("cpu", dtype, copy=True).numpy()
    return centre
