"""Sites with a parameter server each: when a site's clock advances, its copy sends to the others."""

from __future__ import annotations

from uneven.cluster.pure.simulate.site_messages import Party, SiteMessages
from uneven.cluster.pure.simulate.stage import Stage
from uneven.cluster.pure.simulate.virtual_worker import Worker
from uneven.policy.core.actions import Exchange


class SiteClocks:
    """The clock of each site, the least of its workers', as its parameter server sees it."""

    def __init__(self, stage: Stage, letters: SiteMessages) -> None:
        self._stage = stage
        self._letters = letters
        self._pushed: dict[int, tuple[int, Exchange]] = {}  # rank → its steps in the copy, and its last exchange
        self._told: dict[int, int] = {}  # rank → its site's clock at the last message

    def pushed(self, worker: Worker, one: Exchange) -> None:
        self._pushed[worker.rank] = worker.clock + 1, one
        self._advance(worker.rank, one)

    def leave(self, worker: Worker) -> None:
        if worker.rank in self._pushed:
            self._advance(worker.rank, self._pushed.pop(worker.rank)[1])

    def _advance(self, rank: int, one: Exchange) -> None:
        party, workers = next(party for party in one.parties if rank in party), self._stage.workers
        clocks = [self._clock(rank) for rank in party if not workers[rank].gone]
        if clocks and min(clocks) > max(self._told.get(rank, 0) for rank in party):
            self._told.update(dict.fromkeys(party, min(clocks)))
            others = [self._here(other) for other in one.parties if other is not party]
            writer = workers[self._here(party)[0]]
            self._letters.write(writer, one, [other for other in others if other], min(clocks))

    def _clock(self, rank: int) -> int:
        return self._pushed[rank][0] if rank in self._pushed else self._stage.workers[rank].clock

    def _here(self, party: Party) -> list[int]:
        return [rank for rank in party if not self._stage.workers[rank].dead]
