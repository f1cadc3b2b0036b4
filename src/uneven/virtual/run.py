"""Plays a scenario with a model in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from uneven.core.records import Record
from uneven.errors import ConfigError
from uneven.simulate import Outcome, Scenario, simulate, streamed
from uneven.sync import Scout, check_momentum
from uneven.virtual.board import Board, Goal, Point
from uneven.virtual.homes import HomeOrder
from uneven.virtual.replicas import SampleOrder, Sgd
from uneven.virtual.task import LearningTask
from uneven.virtual.traffic import ModelTraffic
from uneven.virtual.training import Training
from uneven.virtual.visits import VirtualVisits


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """What a training in virtual time came to.

    Attributes:
        outcome: of the simulation, up to where it ended.
        points: all evaluations.
        reached: the first that met the goal; None if none did, or there was none.
        diverged: training ended because the parameters were no finite numbers any more.
    """

    outcome: Outcome
    points: tuple[Point, ...]
    reached: Point | None
    diverged: bool

    @property
    def accuracy(self) -> float:
        """Accuracy at the last evaluation; NaN if there was none."""
        return self.points[-1].accuracy if self.points else float("nan")


def prepared(scenario: Scenario, task: LearningTask) -> Scenario:
    """The scenario with the epochs of a task, and with as many samples under every policy."""
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
    """Play a scenario; every step's gradient is real and applied in the order of virtual time.

    Time is the description's, learning is the task's: the model that is trained may be another one than that whose
    costs are described. The same scenario and task give the same records.

    Args:
        sink: is given every record; loss and accuracy are scalars among them.
        goal: ends the training when it is reached; otherwise the iterations do.
        every: evaluate after so many global batches.
        homes: where samples stay at their site; else all workers draw from all of them.
        traffic: counts what sites send each other.
        progress: as in :func:`uneven.simulate.simulate`.

    Raises:
        ConfigError: what the description, the balancer, the policy or the task cannot do together.
        TrainingError: workers wait for each other for ever.
    """
    if scenario.spec.preconditioner is not None:
        raise ConfigError(
            f"cluster {scenario.spec.name!r} has a preconditioner, which no training in virtual time has: its time "
            f"would be that of one, its learning that of another; leave either out"
        )
    scenario = prepared(scenario, task)
    sink = sink or _nowhere
    board = Board(task, sink, every * scenario.spec.workload.global_batch, goal)
    sgd = Sgd(task, homes or SampleOrder(task.samples, scenario.seed), board.losses)
    check_momentum(scenario.policy, task.momentum, len({node.site for node in scenario.spec.nodes}))
    visits = None
    if isinstance(scenario.policy, Scout):
        if homes is None:
            raise ConfigError(f"{scenario.policy!r} compares models at home and away: give train() the samples' homes")
        traffic = traffic or ModelTraffic(homes.sites)
        visits = VirtualVisits(scenario.policy, task, homes, traffic, scenario.seed)
    training = Training(sgd, evaluated=scenario.policy.evaluated, board=board, visits=visits, traffic=traffic)
    with _one_thread():
        outcome = simulate(scenario, sink, arithmetic=training, progress=progress)
    return Learnt(outcome=outcome, points=tuple(board.points), reached=board.reached, diverged=board.diverged)


def _nowhere(record: Record) -> None:
    del record


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small tensors gain nothing by more, and sums come out the same on machines with other numbers of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
