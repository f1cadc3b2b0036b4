"""The training loop's reactions to changed members, and the state that it sends to a newcomer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, cast

from torch import nn

from uneven.errors import ConfigError, DataError
from uneven.policy.core.membership import Generation
from uneven.policy.samples.order import Changing, Cursor, Portion
from uneven.run.samples.loader import LoaderCalls
from uneven.run.samples.stream import is_stream
from uneven.run.step.loop import StepLoop


class MembershipHooks:
    """Implements :class:`uneven.run.membership.elastic_run.ChangingRun` for a loop. Raises ConfigError if a preemption
    notice may come to one of several workers, and the run is not elastic."""

    def __init__(self, loop: StepLoop, notice: Callable[[], float | None] | None) -> None:
        self._loop = loop
        elastic = loop.context.elastic
        if elastic is not None:
            elastic.bind(self)
            if notice is not None:
                elastic.heed(notice)
        elif notice is not None and loop.context.world.size > 1:
            raise ConfigError("Session(notice=…): no worker can leave; start with `uneven run --elastic MIN:MAX`")

    def leave(self) -> None:
        elastic = self._loop.context.elastic
        if elastic is None:
            raise ConfigError("session.leave: start the run with `uneven run --elastic MIN:MAX`")
        elastic.leaving = True

    def attach(self, model: nn.Module, others: Sequence[Any]) -> None:
        """Remember the objects whose state a newcomer receives. Raises ConfigError if one has no state."""
        for one in others:
            if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
                raise ConfigError(
                    f"session.setup: {type(one).__name__} has no state_dict and load_state_dict; give it the model, "
                    f"its optimizers, and what else a worker that joins needs"
                )
        if self._loop.context.elastic is not None:
            self._loop.context.elastic.attach(model, others)

    def changing(self, dataset: Any) -> Changing | None:
        """Return the object that a loader asks about members, or None. Raises DataError if the data set is a stream."""
        elastic = self._loop.context.elastic
        if elastic is None:
            return None
        if is_stream(dataset):
            raise DataError(
                "an elastic run needs a data set with __len__ and __getitem__: of a stream, the samples of a worker "
                "that is lost cannot be read again"
            )
        # The asynchronous kind has only the methods that are called in such a run.
        return cast("Changing", elastic.changing)

    def calls(self, begin: Callable[[Portion], None]) -> LoaderCalls:
        loop, elastic = self._loop, self._loop.context.elastic
        calls = LoaderCalls(begin=begin, end=loop.end, over=loop.over)
        return calls if elastic is None else replace(calls, enter=elastic.enter, settle=self._settle)

    def _settle(self) -> None:
        """Learn, at the end of a pass over an epoch, which samples are requeued in that epoch."""
        elastic = self._loop.context.elastic
        assert elastic is not None
        self._loop.model.agreement.settle()
        elastic.flush()

    @property
    def apart(self) -> bool:
        return self._loop.model.agreement.apart

    def members_changed(self, generation: Generation) -> None:
        self._loop.context.sites.update({int(one): said["site"] for one, said in generation.came.items()})
        self._loop.members_changed(generation.members, generation.number)
        self._loop.reports.members_changed(generation)

    def introduction(self) -> dict[str, Any]:
        return {**self._loop.reports.introduction(), "site": self._loop.context.world.site}

    def for_newcomers(self) -> dict[str, Any]:
        assert self._loop.loader is not None
        cursor, drawn = self._loop.loader.place()
        return {
            "cursor": tuple(cursor),
            "drawn": [asdict(part) for part in drawn],
            "clock": self._loop.model.agreement.clock,
            "sites": self._loop.context.sites,
            "agreement": self._loop.model.agreement.state_dict(()),
            "begins_as": self._loop.model.agreement.begins_as(),
            "reports": self._loop.reports.for_newcomers(),
            "parts": self._loop.parts.state(),
            "pace": None if self._loop.own_pace is None else self._loop.own_pace.state(),
        }

    def take_over(self, state: dict[str, Any]) -> None:
        elastic, loader = self._loop.context.elastic, self._loop.loader
        assert elastic is not None
        assert loader is not None
        self._loop.context.sites.clear()
        self._loop.context.sites.update(state["sites"])
        loader.adopt(Cursor(*state["cursor"]), tuple(Portion(**part) for part in state["drawn"]))
        self._loop.model.agreement.clock = state["clock"]
        # Parts and agreement load their state for these members, so these must be known first.
        self._loop.members_changed(elastic.members, elastic.membership.generation.number)
        self._loop.model.agreement.load_state_dict(*state["agreement"])
        self._loop.reports.take_over(state["reports"])
        self._loop.parts.load(*state["parts"])
        if self._loop.own_pace is not None:
            self._loop.own_pace.adopt(state["pace"], elastic.members)
        # Last: it uses the clock, the members and the state that are set above.
        self._loop.model.agreement.joined(state["begins_as"])
