"""Where a run is, gathered from its loop for a checkpoint, and taken up again."""

from __future__ import annotations

from uneven.policy.samples.order import Portion
from uneven.run.samples.loader import BalancedLoader
from uneven.run.samples.user_batches import DrawnSteps
from uneven.run.start.run_state import State
from uneven.run.step.loop import StepLoop


def state_of(loop: StepLoop, loader: BalancedLoader | DrawnSteps | None, several: tuple[Portion, ...]) -> State:
    """Where this run is.

    Args:
        several: batches in the hands of several threads.
    """
    hand = several if loop.part is None else (loop.part,)
    agreement, vectors = loop.model.agreement.state_dict(hand, loop.hands.unused())
    lacking = agreement.pop("lacking", None)
    place = {} if loader is None else loader.state_dict(lacking)
    return State(place, loop.reports.state_dict(), agreement, vectors, *loop.parts.state())


def take_up(loop: StepLoop, loader: BalancedLoader | DrawnSteps, saved: State) -> None:
    """Inverse of :func:`state_of`. What is damaged is refused before any change.

    Raises:
        CheckpointError: it does not fit, or is damaged.
    """
    if saved.loader:
        agreement = loop.model.agreement
        loader.check_state(saved.loader)
        if saved.agreement:
            agreement.check(saved.agreement, saved.vectors)
        loop.reports.load_state_dict(saved.control)
        if saved.agreement:
            agreement.load_state_dict(saved.agreement, saved.vectors)
        loader.load_state_dict(saved.loader)
    loop.parts.load(saved.parts, saved.tensors)
