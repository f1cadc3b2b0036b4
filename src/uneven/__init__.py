"""Train PyTorch models on machines that are unequal, shared with others, far apart and not always there.

::

    session = uneven.Session()
    model, optimizer = session.setup(model, optimizer)
    loader = session.loader(dataset, batch_size=512)  # the global batch; this worker's part follows its speed

A name is imported when it is first touched, so ``import uneven`` alone does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uneven.balance.base import Balancer, balancers
    from uneven.config import RunConfig
    from uneven.core.actions import Exchange, Split, StepPlan
    from uneven.core.views import BalanceView, Limits, Observation, SyncView
    from uneven.errors import (
        CheckpointError,
        ConfigError,
        DataError,
        JournalError,
        LaunchError,
        NonFiniteError,
        PeerError,
        TrainingError,
        UnevenError,
    )
    from uneven.predict.base import Predictor, predictors
    from uneven.sync import BSP, SyncPolicy, policies

__version__ = "0.1.0"

__all__ = [
    "BSP",
    "BalanceView",
    "Balancer",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "Exchange",
    "JournalError",
    "LaunchError",
    "Limits",
    "NonFiniteError",
    "Observation",
    "PeerError",
    "Predictor",
    "RunConfig",
    "Split",
    "StepPlan",
    "SyncPolicy",
    "SyncView",
    "TrainingError",
    "UnevenError",
    "balancers",
    "policies",
    "predictors",
]

_HOMES = {
    "uneven.balance.base": ("Balancer", "balancers"),
    "uneven.config": ("RunConfig",),
    "uneven.core.actions": ("Exchange", "Split", "StepPlan"),
    "uneven.core.views": ("BalanceView", "Limits", "Observation", "SyncView"),
    "uneven.errors": ("CheckpointError", "ConfigError", "DataError", "JournalError", "LaunchError",
                      "NonFiniteError", "PeerError", "TrainingError", "UnevenError"),
    "uneven.predict.base": ("Predictor", "predictors"),
    "uneven.sync": ("BSP", "SyncPolicy", "policies"),
}  # fmt: skip
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'uneven' has no attribute {name!r}", name=name)
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
