"""Real gradients in virtual time: the learning of a simulated cluster.

``train(scenario, tasks.resolve("digits"), sink)`` runs a scenario of :mod:`uneven.simulate` with a model.
"""

from uneven.virtual.board import Goal, Point
from uneven.virtual.run import Learnt, train
from uneven.virtual.task import LearningTask
from uneven.virtual.tasks import tasks
from uneven.virtual.training import Training

__all__ = ["Goal", "LearningTask", "Learnt", "Point", "Training", "tasks", "train"]
