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

from typing import TYPE_CHECKING

from uneven.policy.core import registry
from uneven.runtime import plugins
from uneven.runtime.installed import VERSION, lazy

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
    from uneven.policy.balance import Balancer, WrappingBalancer, balancers, standing
    from uneven.policy.core.actions import Exchange, Moment, Payload, Quorum, Significant, Split, StepPlan, Via, Wait
    from uneven.policy.core.apportion import proportional
    from uneven.policy.core.pace import Pace
    from uneven.policy.core.views import BalanceView, Limits, Observation, SyncView
    from uneven.policy.merge import Add, Combined, Elastic, Mean, Merge, merges
    from uneven.policy.predict import Predictor, predictors
    from uneven.policy.sync import Evaluated, Facts, SyncPolicy, WrappingPolicy, policies
    from uneven.precondition.kfac.kfac import KFAC
    from uneven.precondition.soap.soap import SOAP
    from uneven.run.lines import ThreadLines
    from uneven.run.loops.visits import Visits
    from uneven.run.session import Session
    from uneven.run.step.part import Part, Run, Step

__version__ = VERSION

__all__ = [
    "KFAC",
    "SOAP",
    "Add",
    "BalanceView",
    "Balancer",
    "CheckpointError",
    "Combined",
    "ConfigError",
    "DataError",
    "Elastic",
    "Evaluated",
    "Exchange",
    "Facts",
    "Limits",
    "Mean",
    "Merge",
    "Moment",
    "NonFiniteError",
    "Observation",
    "Pace",
    "Part",
    "Payload",
    "PeerError",
    "Predictor",
    "Quorum",
    "Run",
    "Session",
    "Significant",
    "Split",
    "Step",
    "StepPlan",
    "SyncPolicy",
    "SyncView",
    "ThreadLines",
    "TrainingError",
    "UnevenError",
    "Via",
    "Visits",
    "Wait",
    "WrappingBalancer",
    "WrappingPolicy",
    "balancers",
    "merges",
    "policies",
    "predictors",
    "proportional",
    "standing",
]

_HOMES = {
    "uneven.errors": (
        *("CheckpointError", "ConfigError", "DataError", "NonFiniteError", "PeerError", "TrainingError"),
        "UnevenError",
    ),
    "uneven.policy.balance": ("Balancer", "WrappingBalancer", "balancers", "standing"),
    "uneven.policy.core.actions": (
        *("Exchange", "Moment", "Payload", "Quorum", "Significant", "Split", "StepPlan", "Via", "Wait"),
    ),
    "uneven.policy.core.apportion": ("proportional",),
    "uneven.policy.core.pace": ("Pace",),
    "uneven.policy.core.views": ("BalanceView", "Limits", "Observation", "SyncView"),
    "uneven.policy.merge": ("Add", "Combined", "Elastic", "Mean", "Merge", "merges"),
    "uneven.policy.predict": ("Predictor", "predictors"),
    "uneven.policy.sync": ("Evaluated", "Facts", "SyncPolicy", "WrappingPolicy", "policies"),
    "uneven.precondition.kfac.kfac": ("KFAC",),
    "uneven.precondition.soap.soap": ("SOAP",),
    "uneven.run.lines": ("ThreadLines",),
    "uneven.run.loops.visits": ("Visits",),
    "uneven.run.session": ("Session",),
    "uneven.run.step.part": ("Part", "Run", "Step"),
}

registry.find_outside = plugins.find


__getattr__ = lazy(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
