"""A graph whose workers may leave and join: the parts are dealt out anew, and a step in which one is lost is left out.

What an exchange brought is the same on all members, and so is who took part in it (see ``Handle.wait``). So all know
from the same exchange on that somebody is missing; from there to the end of the step nothing more is exchanged, and
before the optimizer all ask each other once whether anybody has heard of a change. If so, nobody's weights change.
"""

from __future__ import annotations

import torch

from uneven.errors import ConfigError, TrainingError
from uneven.graph.graph import PartedGraph
from uneven.graph.source import GraphSource
from uneven.run.part import Run, Step


class ElasticGraph(PartedGraph):
    """See the module. Call :meth:`rebalance` before every step."""

    def attach(self, run: Run) -> None:
        """Open the line; parts are dealt out with the first :meth:`rebalance`.

        Raises:
            ConfigError: an exchange from worker to worker, which cannot be made again among others.
        """
        if not self.how.exact:
            raise ConfigError(
                f"exchange={self.how.name!r} in an elastic run: its messages pass between two workers, and cannot be "
                f"made again among others; use exchange='exact', or leave --elastic out"
            )
        self._line = run.lines.open("graph")
        self._begin(run)
        self._changed, self._asked = True, False

    def members_changed(self, members: tuple[int, ...]) -> None:
        """Their parts are dealt out before the next step."""
        self._changed = True

    def rebalance(self, least: float = 0.05) -> bool:
        """Deal out the parts among those that are there, where these have changed; else as without ``--elastic``.

        Raises:
            ConfigError: more workers than parts.
        """
        if self._run is None or self._line is None:
            return False
        self._asked, moved = True, False
        while self._heard():
            self._changed, moved = False, True
            members = self._line.members
            self.rank, self.size = members.index(self._run.rank), len(members)
            self.source = GraphSource(self.source.store)  # of the others' speeds nothing is known
            self._renew()
            self._compare()
        return moved or super().rebalance(least)

    def before_step(self, step: Step) -> None:
        """See that the parts are those of this step's workers.

        Raises:
            TrainingError: :meth:`rebalance` was not called, or other samples were given than the graph's.
        """
        if not self._asked:
            raise TrainingError(
                "workers may leave and join, and g.rebalance() was not called before this step: write `if "
                "g.rebalance():` before each one, and ask for x, y and masks again there"
            )
        self._asked = False
        assert self._run is not None
        self._before = [(one, one.clone()) for one in self._run.model.buffers()]
        if step.members == self.exchange.carrier.ranks:
            super().before_step(step)

    def gradients_ready(self, step: Step, optimizer: torch.optim.Optimizer) -> None:
        """Leave the step out where a worker was lost in it: an optimizer skips what has no gradient."""
        assert self._run is not None
        self._changed |= not self.exchange.carrier.whole
        if self._heard():
            self._changed = True
            for one in self._run.model.parameters():
                one.grad = None
            for buffer, was in self._before:
                buffer.copy_(was)

    def _heard(self) -> bool:
        """Whether anybody knows of other members than those that have the parts; the same on all."""
        assert self._line is not None
        told = torch.tensor([float(self._changed)], dtype=torch.float64)
        there = self._line.sum(told).wait()
        return bool(told.item()) or set(there) != set(self.exchange.carrier.ranks)
