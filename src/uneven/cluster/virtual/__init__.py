"""Real gradients in virtual time: the learning of a simulated cluster.

``train(scenario, tasks.resolve("digits"), sink)`` runs a scenario of :mod:`uneven.cluster.pure.simulate` with a model.
"""

from uneven.cluster.virtual.server_copies_board import Goal, Point
from uneven.cluster.virtual.task import LearningTask
from uneven.cluster.virtual.tasks import tasks
from uneven.cluster.virtual.virtual_run import Learnt, train
from uneven.cluster.virtual.virtual_training import Training

__all__ = ["Goal", "LearningTask", "Learnt", "Point", "Training", "tasks", "train"]
