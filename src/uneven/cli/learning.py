"""The ``--train`` option of the command line, and the display of its result."""

from typing import TYPE_CHECKING, NamedTuple

from uneven.errors import ConfigError
from uneven.journal.report.pure.text import count, percent, seconds, span

if TYPE_CHECKING:
    from uneven.cluster.virtual import Goal, LearningTask, Learnt, Point

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 40


class LearningGoal(NamedTuple):
    """The task and the accuracy to reach; both None without ``--train``."""

    task: "LearningTask | None"
    goal: "Goal | None"


def lesson(train: str | None, accuracy: float | None, key: str) -> LearningGoal:
    """Return the task and the goal from the typed options; ``key`` is the name of the accuracy's option.

    Raises:
        ConfigError: an accuracy without a task, or an impossible one.
        UnknownNameError: no such task, or no such option of it.
        DataError: the task's data is not on this machine.
    """
    if train is None:
        if accuracy is not None:
            raise ConfigError(f"{key} {accuracy:g} needs a training: add --train digits")
        return LearningGoal(None, None)
    from uneven.cluster.virtual import Goal, tasks

    goal = None if accuracy is None else Goal(accuracy)
    return LearningGoal(tasks.resolve(train), goal)


def curve(points: "tuple[Point, ...]", width: int = _WIDTH) -> str:
    """Return accuracy over virtual time as a row of bars, from 0 to 1, evenly spaced in time."""
    if not points:
        return ""
    end_s, bars, place = points[-1].at_s, "", 0
    for column in range(1, width + 1):
        while place + 1 < len(points) and points[place + 1].at_s <= end_s * column / width:
            place += 1
        shown = points[place].at_s <= end_s * column / width
        bars += _BARS[min(7, int(points[place].accuracy * 8))] if shown else " "
    return bars


def lines(learnt: "Learnt", goal: "Goal | None", global_batch: int) -> list[str]:
    if not learnt.points:
        return ["the model was never evaluated: give more --iterations"]
    last, best = learnt.points[-1], max(learnt.points, key=lambda point: point.accuracy)
    parts = [f"accuracy {curve(learnt.points)} {percent(last.accuracy)} at {span(last.at_s)}, loss {last.loss:.3g}"]
    if learnt.diverged:
        parts.append("the training diverged: a parameter is not finite; lower the task's learning_rate")
    elif goal is not None and learnt.reached is not None:
        one = learnt.reached
        parts.append(
            f"{percent(goal.accuracy)} is reached after {seconds(one.at_s)}, with {count(one.samples)} samples "
            f"({count(one.samples / global_batch)} global batches)"
        )
    elif goal is not None:
        parts.append(
            f"{percent(goal.accuracy)} is not reached: the best is {percent(best.accuracy)}, at {span(best.at_s)}; "
            f"give more --iterations"
        )
    return parts
