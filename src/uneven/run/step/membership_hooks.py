"""The training loop's reactions to changed members, and the state that a newcomer takes over."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from uneven.policy.core.membership import Generation
from uneven.policy.samples.order import Cursor, Portion
from uneven.run.context.participants import Transferable
from uneven.run.step.loop import StepLoop


class MembershipHooks:
    """The methods of a training loop that are called when members change."""

    def __init__(self, loop: StepLoop) -> None:
        self._loop = loop

    @property
    def apart(self) -> bool:
        """True if steps are not merged yet, or gradients wait for a step: a newcomer would lack both."""
        return self._loop.model.agreement.apart or self._loop.hands.unstepped

    def settle(self) -> None:
        """Merge the steps that are not merged yet."""
        self._loop.model.agreement.settle()

    def members_changed(self, generation: Generation) -> None:
        self._loop.context.sites.update({int(one): said["site"] for one, said in generation.came.items()})
        self._loop.members_changed(generation.members, generation.number)
        self._loop.reports.members_changed(generation)

    def introduction(self) -> dict[str, Any]:
        """Return the facts that the others need before this worker joins, as plain data."""
        return {**self._loop.reports.introduction(), "site": self._loop.context.world.site}

    def transferred(self) -> Sequence[tuple[str, Transferable]]:
        """Return the objects whose state a newcomer takes over, with names, in the order of taking over."""
        loop = self._loop
        # Parts and agreement load their state for the new members, so the loop must know these first.
        objects: list[tuple[str, Transferable]] = [("loop", self), ("reports", loop.reports), ("parts", loop.callbacks)]
        objects += [] if loop.own_pace is None else [("pace", loop.own_pace)]
        return [*objects, ("agreement", loop.model.agreement)]  # last, because its merges may begin with it

    def for_newcomers(self) -> dict[str, Any]:
        loop = self._loop
        assert loop.loader is not None
        cursor, drawn = loop.loader.place()
        place = {"cursor": tuple(cursor), "drawn": [asdict(part) for part in drawn]}
        return {**place, "clock": loop.model.agreement.clock, "sites": loop.context.sites}

    def take_over(self, state: dict[str, Any]) -> None:
        loop, there = self._loop, self._loop.context.participants
        assert loop.loader is not None
        loop.context.sites.clear()
        loop.context.sites.update(state["sites"])
        loop.loader.adopt(Cursor(*state["cursor"]), tuple(Portion(**part) for part in state["drawn"]))
        loop.model.agreement.clock = state["clock"]
        loop.members_changed(there.members, there.generation)
