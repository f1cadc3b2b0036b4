"""Train many different models at the same time, on shared data, each on the number of devices that equalizes their
speeds.

::

    import uneven.fleet as fleet

    ensemble = fleet.Ensemble(members={"small": make_small, "wide": make_wide}, dataset=train_set, transform=augment,
                              validate=val_set, converged=fleet.plateau(patience=3), max_epochs=60)
    result = fleet.train(ensemble, devices="auto")
"""

from typing import TYPE_CHECKING

from uneven.runtime.installed import lazy

if TYPE_CHECKING:
    from uneven.fleet.engine.entry import train
    from uneven.fleet.engine.fleet_options import Options
    from uneven.fleet.ensemble import Ensemble, Member, Metric, accuracy, own_loss
    from uneven.fleet.fleet_result import Result
    from uneven.fleet.pure.batch_rule import BatchRule
    from uneven.fleet.pure.converge import Epoch, History, never, plateau, target
    from uneven.fleet.pure.planning.allocate import Closeness
    from uneven.fleet.pure.planning.flotillas import Paradigm

__all__ = [
    "BatchRule",
    "Closeness",
    "Ensemble",
    "Epoch",
    "History",
    "Member",
    "Metric",
    "Options",
    "Paradigm",
    "Result",
    "accuracy",
    "never",
    "own_loss",
    "plateau",
    "target",
    "train",
]

_HOMES = {
    "uneven.fleet.pure.planning.allocate": ("Closeness",),
    "uneven.fleet.pure.batch_rule": ("BatchRule",),
    "uneven.fleet.pure.converge": ("Epoch", "History", "never", "plateau", "target"),
    "uneven.fleet.engine.fleet_options": ("Options",),
    "uneven.fleet.engine.entry": ("train",),
    "uneven.fleet.ensemble": ("Ensemble", "Member", "Metric", "accuracy", "own_loss"),
    "uneven.fleet.fleet_result": ("Result",),
    "uneven.fleet.pure.planning.flotillas": ("Paradigm",),
}
# Names are imported on first use, so that planning does not import torch.
__getattr__ = lazy(__name__, _HOMES)
