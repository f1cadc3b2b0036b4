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
    from uneven.balance import Balancer, Even, Hysteresis, LbBsp, Proportional, Static, balancers
    from uneven.core.actions import Split, StepPlan
    from uneven.core.views import BalanceView, Observation, SyncView
    from uneven.errors import (
        CheckpointError,
        ConfigError,
        DataError,
        NonFiniteError,
        PeerError,
        TrainingError,
        UnevenError,
    )
    from uneven.predict import EMA, Last, Predictor, predictors
    from uneven.run.part import Part, Run, Step
    from uneven.session import Session
    from uneven.sync import BSP, SyncPolicy, policies

__version__ = "0.1.0"

__all__ = [
    "BSP",
    "EMA",
    "BalanceView",
    "Balancer",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "Even",
    "Hysteresis",
    "Last",
    "LbBsp",
    "NonFiniteError",
    "Observation",
    "Part",
    "PeerError",
    "Predictor",
    "Proportional",
    "Run",
    "Session",
    "Split",
    "Static",
    "Step",
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
    "uneven.balance": ("Balancer", "Even", "Hysteresis", "LbBsp", "Proportional", "Static", "balancers"),
    "uneven.core.actions": ("Split", "StepPlan"),
    "uneven.core.views": ("BalanceView", "Observation", "SyncView"),
    "uneven.errors": (
        "CheckpointError",
        "ConfigError",
        "DataError",
        "NonFiniteError",
        "PeerError",
        "TrainingError",
        "UnevenError",
    ),
    "uneven.predict": ("EMA", "Last", "Predictor", "predictors"),
    "uneven.run.part": ("Part", "Run", "Step"),
    "uneven.session": ("Session",),
    "uneven.sync": ("BSP", "SyncPolicy", "policies"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'uneven' has no attribute {name!r}", name=name)
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
