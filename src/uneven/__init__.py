"""Train PyTorch models on machines that differ in speed, are shared, far apart, or may disappear.

::

    session = uneven.Session()
    model, optimizer = session.setup(model, optimizer)
    loader = session.loader(dataset, batch_size=512)  # the global batch; this worker's part follows its speed

The package exports the session, the errors, and the base classes, views, actions and registries for plug-ins. Included
balancers, predictors and policies are chosen by name, as in ``Session(balance="lb-bsp")``; their classes are in
``uneven.policy.balance``, ``uneven.policy.predict`` and ``uneven.policy.sync``. They are imported on first use, so
``import uneven`` does
not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from uneven.policy.core import registry
from uneven.runtime import plugins
from uneven.runtime.installed import VERSION

if TYPE_CHECKING:
    from uneven.errors import (
        CheckpointError,
        ConfigError,
        DataError,
        NonFiniteError,
        PeerError,
        TrainingError,
        UnevenError,
    )
    from uneven.policy.balance import Balancer, WrappingBalancer, balancers
    from uneven.policy.core.actions import Split, StepPlan
    from uneven.policy.core.views import BalanceView, Observation, SyncView
    from uneven.policy.merge import Merge, merges
    from uneven.policy.predict import Predictor, predictors
    from uneven.policy.sync import SyncPolicy, WrappingPolicy, policies
    from uneven.precondition.kfac.kfac import KFAC
    from uneven.precondition.soap.soap import SOAP
    from uneven.run.loops.visits import Visits
    from uneven.run.session import Session
    from uneven.run.step.part import Part, Run, Step

__version__ = VERSION

__all__ = [
    "KFAC",
    "SOAP",
    "BalanceView",
    "Balancer",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "Merge",
    "NonFiniteError",
    "Observation",
    "Part",
    "PeerError",
    "Predictor",
    "Run",
    "Session",
    "Split",
    "Step",
    "StepPlan",
    "SyncPolicy",
    "SyncView",
    "TrainingError",
    "UnevenError",
    "Visits",
    "WrappingBalancer",
    "WrappingPolicy",
    "balancers",
    "merges",
    "policies",
    "predictors",
]

_HOMES = {
    "uneven.policy.balance": ("Balancer", "WrappingBalancer", "balancers"),
    "uneven.policy.core.actions": ("Split", "StepPlan"),
    "uneven.policy.core.views": ("BalanceView", "Observation", "SyncView"),
    "uneven.errors": (
        "CheckpointError",
        "ConfigError",
        "DataError",
        "NonFiniteError",
        "PeerError",
        "TrainingError",
        "UnevenError",
    ),
    "uneven.policy.merge": ("Merge", "merges"),
    "uneven.precondition.kfac.kfac": ("KFAC",),
    "uneven.precondition.soap.soap": ("SOAP",),
    "uneven.policy.predict": ("Predictor", "predictors"),
    "uneven.run.step.part": ("Part", "Run", "Step"),
    "uneven.run.loops.visits": ("Visits",),
    "uneven.run.session": ("Session",),
    "uneven.policy.sync": ("SyncPolicy", "WrappingPolicy", "policies"),
}
_BEFORE_THE_RULE = {
    "uneven.policy.balance": ("Even", "Hysteresis", "LbBsp", "Proportional", "Static"),
    "uneven.policy.predict": ("EMA", "Last"),
    "uneven.policy.sync": ("BSP",),
}
"""Plug-ins of earlier versions' exports. They stay available; do not add new ones."""

_HOME = {name: module for homes in (_BEFORE_THE_RULE, _HOMES) for module, names in homes.items() for name in names}

registry.find_outside = plugins.find


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'uneven' has no attribute {name!r}", name=name)
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
