"""Exchanges through a parameter server in each site; the servers exchange significant updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from uneven.errors import CheckpointError
from uneven.policy.core.actions import StepPlan
from uneven.policy.samples.order import Portion, Portions
from uneven.run.lines.communicator import RoundPlace, VectorLine
from uneven.run.replicas.peers.scaled_learning_rate import DividedSteps
from uneven.run.replicas.server.client_copy import Values
from uneven.run.replicas.server.server_sync import ServerSync

Party = tuple[int, ...]


class PerSiteSync(ServerSync):
    """One worker's part; its own steps go only through the server of its site.

    The model to evaluate is the mean of the sites' copies, weighted by their numbers of workers.
    """

    def __init__(self, *rest: Any, parties: Sequence[Party], mean_by: VectorLine, **named: Any) -> None:
        super().__init__(*rest, **named)
        self._divided = DividedSteps(self._rank)
        self._parties = tuple(parties)
        self._mean_by = mean_by
        self._evaluated = False  # whether since the last step

    @property
    def size(self) -> int:
        """The number of parameters that are exchanged."""
        return self._replica.flat.size

    def rate(self) -> float:
        """Return the learning rate of the newest step, as a part of the first one."""
        return self._divided.rate

    def before(self, part: Portion, plan: StepPlan) -> None:
        # At the end of an epoch and before an evaluation, no worker waits for those that have stopped; from here on
        # all must wait for each other again.
        if (part.epoch != self._epoch or self._evaluated) and self.copy.begun:
            self._make_up()
            self.copy.client.through(part.epoch)
            self.copy.client.pull(self._due()).result()
            self._evaluated = False
        super().before(part, plan)

    def _take(self, plan: StepPlan) -> None:
        super()._take(replace(plan, exchanges=tuple(one for one in plan.exchanges if not one.parties)))
        self._plan = plan

    def still(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        super().still(optimizer, args, kwargs)
        self._divided.weigh(optimizer)

    def _met(self) -> Values:
        values, self._evaluated = super()._met(), True
        party = next(party for party in self._parties if self._rank in party)
        workers = sum(map(len, self._parties))
        part = torch.from_numpy(values * values.dtype.type(len(party) / workers))
        self._mean_by.total(part, RoundPlace("session.evaluated()", parties=tuple(self._parties)))
        mean: Values = part.numpy()
        return mean

    def state_dict(self, parts: Portions, unused: Portions = ()) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return numbers, and vectors of shape (size,); raises :class:`CheckpointError` while updates may be under
        way."""
        if self._shown is None and self.copy.begun:
            raise CheckpointError(
                "what other sites have to send is under way, and would be in no checkpoint: save inside "
                "session.evaluated(), where everything has arrived"
            )
        numbers, vectors = super().state_dict(parts, unused)
        return {**numbers, "rates": self._divided.state()}, vectors

    def load_state_dict(self, numbers: dict[str, Any], vectors: dict[str, Tensor]) -> None:
        """Load :meth:`state_dict`, vectors (size,): each site starts with the evaluated model, and without unsent
        updates."""
        super().load_state_dict(numbers, vectors)
        if self._loaded is not None:
            self._divided.load(numbers.get("rates", {}))
