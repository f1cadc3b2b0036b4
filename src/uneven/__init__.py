"""Train PyTorch models on machines that differ in speed, are shared, far apart, or may disappear.

::

    session = uneven.Session()
    model, optimizer = session.setup(model, optimizer)
    loader = session.loader(dataset, global_batch_size=512)  # the global batch; this worker's part follows its speed

The package exports the session, errors and warnings, and the base classes, views, actions and registries for plug-ins.
Balancers are in ``uneven.balance``, synchronization policies in ``uneven.sync``. Choose them as objects,
``Session(sync=uneven.sync.Shadow(uneven.sync.MA()))``, or as names, ``Session(sync="shadow:ma")``. All names are
imported on first use, so ``import uneven`` does not wait for torch.
"""

from typing import TYPE_CHECKING

from uneven.policy.core import registry
from uneven.runtime import plugins
from uneven.runtime.installed import VERSION, lazy
from uneven.runtime.log import show_messages

if TYPE_CHECKING:
    from uneven import balance, sync
    from uneven.errors import (
        CheckpointError,
        ConfigError,
        DataError,
        NonFiniteError,
        PeerError,
        TrainingError,
        UnevenDeprecationWarning,
        UnevenError,
        UnevenWarning,
    )
    from uneven.integrations.notebook import notebook_launch
    from uneven.policy.balance import Balancer, WrappingBalancer, balancers, standing
    from uneven.policy.core.actions import Exchange, Moment, Payload, Quorum, Significant, Split, StepPlan, Via, Wait
    from uneven.policy.core.apportion import proportional
    from uneven.policy.core.pace import Pace
    from uneven.policy.core.views import BalanceView, Limits, Observation, SyncView
    from uneven.policy.merge import Add, Combined, Elastic, Mean, Merge, merges
    from uneven.policy.predict import Predictor, predictors
    from uneven.policy.sync import EvaluationModel, Facts, SyncPolicy, WrappingPolicy, policies
    from uneven.precondition.kfac.kfac import KFAC
    from uneven.precondition.muon.muon import Muon
    from uneven.precondition.soap.soap import SOAP
    from uneven.run.lines import ThreadLines
    from uneven.run.loops.site_evaluation import SiteEvaluation
    from uneven.run.session import Session
    from uneven.run.step.callback import Callback, CallbackContext, Step

__version__ = VERSION

__all__ = [
    "KFAC",
    "SOAP",
    "Add",
    "BalanceView",
    "Balancer",
    "Callback",
    "CallbackContext",
    "CheckpointError",
    "Combined",
    "ConfigError",
    "DataError",
    "Elastic",
    "EvaluationModel",
    "Exchange",
    "Facts",
    "Limits",
    "Mean",
    "Merge",
    "Moment",
    "Muon",
    "NonFiniteError",
    "Observation",
    "Pace",
    "Payload",
    "PeerError",
    "Predictor",
    "Quorum",
    "Session",
    "Significant",
    "SiteEvaluation",
    "Split",
    "Step",
    "StepPlan",
    "SyncPolicy",
    "SyncView",
    "ThreadLines",
    "TrainingError",
    "UnevenDeprecationWarning",
    "UnevenError",
    "UnevenWarning",
    "Via",
    "Wait",
    "WrappingBalancer",
    "WrappingPolicy",
    "balance",
    "balancers",
    "merges",
    "notebook_launch",
    "policies",
    "predictors",
    "proportional",
    "standing",
    "sync",
]

_HOMES = {
    "uneven.errors": (
        *("CheckpointError", "ConfigError", "DataError", "NonFiniteError", "PeerError", "TrainingError"),
        *("UnevenDeprecationWarning", "UnevenError", "UnevenWarning"),
    ),
    "uneven.integrations.notebook": ("notebook_launch",),
    "uneven.policy.balance": ("Balancer", "WrappingBalancer", "balancers", "standing"),
    "uneven.policy.core.actions": (
        *("Exchange", "Moment", "Payload", "Quorum", "Significant", "Split", "StepPlan", "Via", "Wait"),
    ),
    "uneven.policy.core.apportion": ("proportional",),
    "uneven.policy.core.pace": ("Pace",),
    "uneven.policy.core.views": ("BalanceView", "Limits", "Observation", "SyncView"),
    "uneven.policy.merge": ("Add", "Combined", "Elastic", "Mean", "Merge", "merges"),
    "uneven.policy.predict": ("Predictor", "predictors"),
    "uneven.policy.sync": ("EvaluationModel", "Facts", "SyncPolicy", "WrappingPolicy", "policies"),
    "uneven.precondition.kfac.kfac": ("KFAC",),
    "uneven.precondition.muon.muon": ("Muon",),
    "uneven.precondition.soap.soap": ("SOAP",),
    "uneven.run.lines": ("ThreadLines",),
    "uneven.run.loops.site_evaluation": ("SiteEvaluation",),
    "uneven.run.session": ("Session",),
    "uneven.run.step.callback": ("Callback", "CallbackContext", "Step"),
}

registry.find_outside = plugins.find
show_messages()

__getattr__ = lazy(__name__, _HOMES, modules=("balance", "sync"))
