"""Exchanges through a parameter server in each site; the servers exchange significant updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from uneven.errors import CheckpointError
from uneven.policy.control.step_plans import due_of
from uneven.policy.core.actions import StepPlan
from uneven.policy.core.membership import Members
from uneven.policy.samples.order import Portion
from uneven.run.lines.communicator import RoundPlace, VectorLine
from uneven.run.replicas.server.server_aggregator import ServerAggregator
from uneven.run.samples.async_sampling.evaluation_barrier import EvaluationBarrier


class SiteAggregator(ServerAggregator):
    """One worker's part; its own steps go only through the server of its site.

    The model to evaluate is the mean of the sites' copies, weighted by their numbers of workers.
    """

    def __init__(self, *rest: Any, parties: Sequence[Members], mean_by: VectorLine, **named: Any) -> None:
        super().__init__(*rest, **named)
        self._parties = tuple(parties)
        self._mean_by = mean_by

    def follow(self, part: Portion, plan: StepPlan, new_epoch: bool) -> None:
        # At the end of an epoch and before an evaluation, no worker waits for those that have stopped; from here on
        # all must wait for each other again.
        if (new_epoch or self._shown is not None) and self.copy.base is not None:
            self.copy.client.through(part.epoch)
            self.copy.client.pull(due_of(plan)).result()
        super().follow(part, plan, new_epoch)

    def arrive(self, barrier: EvaluationBarrier) -> None:
        super().arrive(barrier)
        assert self._shown is not None
        party = next(party for party in self._parties if self._own_pace.rank in party)
        workers = sum(map(len, self._parties))
        part = torch.from_numpy(self._shown * self._shown.dtype.type(len(party) / workers))
        self._mean_by.total(part, RoundPlace("session.evaluated()", parties=self._parties))
        self._shown = part.numpy()

    def state(
        self, numbers: dict[str, Any], rates: dict[str, float], *, shown: bool
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return numbers, and vectors of shape (size,): each site will start with the evaluated model, and without
        unsent updates. Raises :class:`CheckpointError` while updates may be under way."""
        if self.copy.begun and not shown:
            raise CheckpointError(
                "what other sites have to send is under way, and would be in no checkpoint: save inside "
                "session.evaluated(), where everything has arrived"
            )
        saved, vectors = super().state(numbers, rates, shown=shown)
        return {**saved, "rates": rates}, vectors
