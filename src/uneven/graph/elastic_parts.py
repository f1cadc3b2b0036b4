"""A graph with elastic membership: parts are reassigned, and a step in which a worker is lost is skipped.

All members learn from the same exchange that a worker is missing (see ``Handle.wait``), and exchange nothing more in
that step. Before the optimizer step all exchange whether any of them has detected a change. If so, all skip the step.
"""

import torch

from uneven.errors import ConfigError, TrainingError
from uneven.graph.graph import PartedGraph
from uneven.graph.graph_source import GraphSource
from uneven.run.step.callback import CallbackContext, Step


class ElasticGraph(PartedGraph):
    """A graph with elastic membership. Call :meth:`rebalance` before every step."""

    def attach(self, run: CallbackContext) -> None:
        """Open the line; raise :class:`ConfigError` for an exchange that cannot be repeated with other workers."""
        if not self.how.exact:
            raise ConfigError(
                f"exchange={self.how.name!r} in an elastic run: its messages between pairs of workers cannot be "
                "repeated after a loss; use exchange='exact', or leave --elastic out"
            )
        self._line = run.lines.open("graph")
        self._begin(run)
        self._changed = True
        self._asked = False

    def members_changed(self, members: tuple[int, ...]) -> None:
        """Make the next :meth:`rebalance` reassign the parts."""
        self._changed = True

    def rebalance(self, least: float = 0.05) -> bool:
        """Reassign the parts if the membership has changed; raise :class:`ConfigError` if there are too few parts."""
        if self._run is None or self._line is None:
            return False
        self._asked, moved = True, False
        while self._heard():  # the membership may change during the reassignment
            self._changed, moved = False, True
            members = self._line.members
            self.rank, self.size = members.index(self._run.rank), len(members)
            self.source = GraphSource(self.source.store)  # forgets step times: newcomers' are unknown
            self._renew()
            self._compare()
        return moved or super().rebalance(least)

    def before_step(self, step: Step) -> None:
        """Check that parts belong to this step's workers; raise :class:`TrainingError` without :meth:`rebalance`."""
        if not self._asked:
            raise TrainingError(
                "workers may leave and join, and g.rebalance() was not called before this step: write `if "
                "g.rebalance():` before each step, and read x, y and the masks again in it"
            )
        self._asked = False
        assert self._run is not None
        self._before = [(one, one.clone()) for one in self._run.model.buffers()]  # in case the step is skipped
        if step.members == self.exchange.carrier.ranks:
            super().before_step(step)

    def gradients_ready(self, step: Step, optimizer: torch.optim.Optimizer) -> None:
        """Skip the step if a worker was lost in it: an optimizer ignores parameters without gradient."""
        assert self._run is not None
        self._changed |= not self.exchange.carrier.whole
        if self._heard():
            self._changed = True
            for one in self._run.model.parameters():
                one.grad = None
            for buffer, was in self._before:
                buffer.copy_(was)  # batch norm has already counted the skipped step

    def _heard(self) -> bool:
        """Return whether any worker has detected a changed membership; the same on all."""
        assert self._line is not None
        told = torch.tensor([float(self._changed)], dtype=torch.float64)
        there = self._line.sum(told).wait()
        return bool(told.item()) or set(there) != set(self.exchange.carrier.ranks)
