"""Runs a scenario with a model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from uneven.cluster.pure.simulate import Outcome, Scenario, simulate, streamed
from uneven.cluster.virtual.homes import HomeOrder
from uneven.cluster.virtual.server_copies_board import Board, Goal, Point
from uneven.cluster.virtual.task import LearningTask
from uneven.cluster.virtual.virtual_replicas import SampleOrder, Sgd
from uneven.cluster.virtual.virtual_traffic import ModelTraffic
from uneven.cluster.virtual.virtual_training import Training
from uneven.cluster.virtual.virtual_visits import VirtualVisits
from uneven.errors import ConfigError
from uneven.policy.core.records import Record
from uneven.policy.sync import check_momentum


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """The result of a training in virtual time."""

    outcome: Outcome  # of the simulation until its end
    points: tuple[Point, ...]  # all evaluations
    reached: Point | None  # the first that met the goal, if any
    diverged: bool  # whether it ended because parameters became NaN or infinite

    @property
    def accuracy(self) -> float:
        return self.points[-1].accuracy if self.points else float("nan")


def prepared(scenario: Scenario, task: LearningTask) -> Scenario:
    """Return the scenario with the epochs of a task and an equal number of samples under every policy."""
    workload = replace(scenario.spec.workload, epoch_samples=task.samples)
    return streamed(replace(scenario, spec=replace(scenario.spec, workload=workload)))


def train(
    scenario: Scenario,
    task: LearningTask,
    sink: Callable[[Record], None] | None = None,
    *,
    goal: Goal | None = None,
    every: int = 1,
    homes: HomeOrder | None = None,
    traffic: ModelTraffic | None = None,
    progress: Callable[[int], None] | None = None,
) -> Learnt:
    """Run a scenario; each step's gradient is real and applied in the order of virtual time.

    Times come from the description, learning from the task: the trained model need not be the one whose costs are
    described. Equal scenarios and tasks give equal records.

    Args:
        sink: receives every record, including scalars of loss and accuracy.
        goal: ends the training; otherwise the iterations do.
        every: global batches between evaluations.
        homes: the samples of each site; by default all workers draw from all samples.
        traffic: counts the messages between sites.
        progress: as in :func:`uneven.cluster.pure.simulate.simulate`.

    Raises:
        ConfigError: description, balancer, policy and task do not fit together.
        TrainingError: workers wait for each other forever.
    """
    if scenario.spec.preconditioner is not None:
        raise ConfigError(
            f"cluster {scenario.spec.name!r} has a preconditioner, but training in virtual time does not support "
            "one; leave out either the preconditioner or the training"
        )
    scenario = prepared(scenario, task)
    sink = sink or (lambda record: None)
    board = Board(task, sink, every * scenario.spec.workload.global_batch, goal)
    sgd = Sgd(task, homes or SampleOrder(task.samples, scenario.seed), board.losses)
    check_momentum(scenario.policy, task.momentum, len({node.site for node in scenario.spec.nodes}))
    visits = None
    if (tuned := scenario.policy.tuned) is not None:
        if homes is None:
            raise ConfigError(
                f"{scenario.policy!r} evaluates models at other sites: give train() homes=, the site of each sample"
            )
        traffic = traffic or ModelTraffic(homes.sites)
        visits = VirtualVisits(tuned, task, homes, traffic, scenario.seed)
    training = Training(
        sgd, evaluation_model=scenario.policy.evaluation_model, board=board, visits=visits, traffic=traffic
    )
    with _one_thread():
        outcome = simulate(scenario, sink, arithmetic=training, progress=progress)
    return Learnt(outcome=outcome, points=tuple(board.points), reached=board.reached, diverged=board.diverged)


@contextmanager
def _one_thread() -> Iterator[None]:
    # More threads do not speed up small tensors, and their sums would depend on the number of cores.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
