"""Curves and settings for experiment trackers: TensorBoard, Weights & Biases, MLflow.

::

    a session's journal ── points.py ──┐                       ┌── tensorboard.py   event files
    a search's trials ─────────────────┼──► a Tracker's runs ──┼── wandb.py         offline, or a server
    a fleet's members ─────────────────┘    (tracker.py)       ├── mlflow.py        a folder, or a server
                                                               └── otel.py          spans of steps, to a collector

A tracker's library is only imported by its module.
"""

from uneven.journal.report.pure.points import LoggedValue, Plain
from uneven.journal.report.track.tracker import TrackedRun, Tracker, tracker

__all__ = ["LoggedValue", "Plain", "TrackedRun", "Tracker", "tracker"]
