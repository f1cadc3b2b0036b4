"""Collects the state of a run from its loop for a checkpoint, and loads it."""

from __future__ import annotations

from typing import Any

from uneven.policy.samples.order import Portion
from uneven.run.samples.loader import BalancedLoader
from uneven.run.samples.user_batches import DrawnSteps
from uneven.run.start.run_state import State, pack, unpack
from uneven.run.step.loop import StepLoop


class Checkpoint:
    """The state of a run, as plain data. A loaded one waits for the loader."""

    def __init__(self, loop: StepLoop) -> None:
        self._loop = loop
        self._loaded: dict[str, Any] | None = None

    def state_dict(self, several: tuple[Portion, ...]) -> dict[str, Any]:
        """Return the state of this run; ``several`` are the batches that several threads are training on."""
        loop, loader = self._loop, self._loop.loader
        if loader is None and self._loaded is not None:
            return self._loaded
        hand = several if loop.part is None else (loop.part,)
        agreement, vectors = loop.model.agreement.state_dict(hand, loop.hands.unused())
        lacking = agreement.pop("lacking", None)
        place = {} if loader is None else loader.state_dict(lacking)
        return pack(State(place, loop.reports.state_dict(), agreement, vectors, *loop.parts.state()))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of :meth:`state_dict`; raises CheckpointError if it does not fit or is damaged."""
        unpack(state)  # fail here on an invalid state, not when the loader is made
        if self._loop.context.participants.joins_later:
            return  # it receives the current state from a member instead
        self._loaded = state
        self._take_up()

    def begin_with(self, loader: BalancedLoader | DrawnSteps) -> None:
        """Make this the loader of the run, with the state that waits for it."""
        self._loop.loader = loader
        self._take_up()

    def _take_up(self) -> None:
        loop, loader = self._loop, self._loop.loader
        if self._loaded is None or loader is None:
            return
        saved, self._loaded = unpack(self._loaded), None
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
