"""Exchanges through a parameter server in each site; the servers exchange significant updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from uneven.errors import CheckpointError
from uneven.policy.core.actions import Exchange, StepPlan
from uneven.policy.samples.order import Portion, Portions
from uneven.policy.sync import first_plans
from uneven.run.lines.vectors import VectorCarrier
from uneven.run.replicas.peers.plans import Plans
from uneven.run.replicas.peers.scaled_learning_rate import DividedSteps
from uneven.run.replicas.server.client_copy import Values
from uneven.run.replicas.server.server_sync import ServerSync
from uneven.run.replicas.server.site_bridge import BetweenSites, OtherSite
from uneven.run.replicas.sparse.build import open_post
from uneven.run.step.context import Context

Party = tuple[int, ...]


class PerSiteSync(ServerSync):
    """One worker's part; its own steps go only through the server of its site.

    The model to evaluate is the mean of the sites' copies, weighted by their numbers of workers.
    """

    def __init__(self, *rest: Any, parties: Sequence[Party], mean_by: VectorCarrier, **named: Any) -> None:
        super().__init__(*rest, **named)
        self._divided = DividedSteps(self._rank)
        self._parties = tuple(parties)
        self._mean_by = mean_by
        self._evaluated = False  # whether since the last step

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
        self._mean_by.total(part, tuple(range(workers)), self._parties, "session.evaluated()")
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


def sites_of(context: Context) -> tuple[Party, ...]:
    """Return the workers of each site if each has a parameter server; otherwise ()."""
    far = _far(context)
    return () if far is None else far.parties


def _far(context: Context) -> Exchange | None:
    plans = first_plans(context.policy, context.members, context.sites)
    return next((one for plan in plans for one in plan.exchanges if one.parties), None)


def between_sites(
    context: Context, parties: Sequence[Party], size: int, rate: Callable[[], float]
) -> BetweenSites | None:
    """Return the exchange of this worker's site with others; None if another worker runs it. Every worker calls it.

    Raises:
        PeerError: a worker did not come.
        ConfigError: no socket could be bound.
    """
    rank, connection = context.rank, context.connection
    assert connection.roll is not None, "there are several sites"
    mine = next(party for party in parties if rank in party)
    others = [party for party in parties if party is not mine]
    speaks = rank == mine[0]
    post = open_post(context, connection.roll, [party[0] for party in others] if speaks else (), size)
    if not speaks:
        post.close(failed=False)
        return None
    names = {party: context.sites[party[0]] for party in parties}
    sites = [
        OtherSite(party[0], connection.traffic.open(f"entries {names[mine]} to {names[party]}")) for party in others
    ]
    plans = Plans(deepcopy(context.policy), rank, context.members, context.sites)
    return BetweenSites(plans, sites, post, rate)
