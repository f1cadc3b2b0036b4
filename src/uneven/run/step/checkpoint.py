"""Collects the state of a run from its loop for a checkpoint, and loads it."""

from __future__ import annotations

from uneven.policy.samples.order import Portion
from uneven.run.samples.loader import BalancedLoader
from uneven.run.samples.user_batches import DrawnSteps
from uneven.run.start.run_state import State
from uneven.run.step.loop import StepLoop


def state_of(loop: StepLoop, loader: BalancedLoader | DrawnSteps | None, several: tuple[Portion, ...]) -> State:
    """Return the state of this run; ``several`` are the batches that several threads are training on."""
    hand = several if loop.part is None else (loop.part,)
    agreement, vectors = loop.model.agreement.state_dict(hand, loop.hands.unused())
    lacking = agreement.pop("lacking", None)
    place = {} if loader is None else loader.state_dict(lacking)
    return State(place, loop.reports.state_dict(), agreement, vectors, *loop.parts.state())


def take_up(loop: StepLoop, loader: BalancedLoader | DrawnSteps, saved: State) -> None:
    """Load the result of :func:`state_of`; raises CheckpointError if it does not fit or is damaged."""
    if saved.loader:
        agreement = loop.model.agreement
        # Check everything first: a damaged state must not change half of the run.
        loader.check_state(saved.loader)
        if saved.agreement:
            agreement.check(saved.agreement, saved.vectors)
        loop.reports.load_state_dict(saved.control)
        if saved.agreement:
            agreement.load_state_dict(saved.agreement, saved.vectors)
        loader.load_state_dict(saved.loader)
    loop.parts.load(saved.parts, saved.tensors)
