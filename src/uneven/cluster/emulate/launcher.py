"""The launcher's part in an emulation: it has the store and, in elastic runs, reports deaths of workers."""

from __future__ import annotations

from typing import Any

from uneven.cluster.emulate.machines import Machines
from uneven.runtime.jobs import Ending
from uneven.runtime.launch.remote_workers import THROUGH, settled
from uneven.runtime.membership_board import WORKERS, Board
from uneven.runtime.world import ELASTIC_VARIABLE, Elastic


def meeting_store(machines: Machines) -> Any:
    """Return the rendezvous store, on the link of the description's first node. The launcher has it, as under ``uneven
    run``: the first worker may be stopped most of the time, and would delay requests."""
    from uneven.runtime.launch.local_rendezvous import keep_store  # it imports torch

    return machines.meet(lambda host, port: keep_store(host, port)[0])


class EmulatedLauncher:
    """The launcher of an elastic run that starts with ``founders`` workers.

    Attributes:
        store: for rendezvous.
        ended: workers that have finished, or left on request → which of the two.
    """

    def __init__(self, machines: Machines, elastic: Elastic, founders: int) -> None:
        self.store = meeting_store(machines)
        self.store.add(WORKERS, founders)
        self.ended: dict[int, str] = {}
        self._machines = machines
        self._elastic = elastic
        self._board = Board(self.store)

    @property
    def through(self) -> bool:
        """True if a worker has finished the script."""
        return THROUGH in self.ended.values()

    def variables(self, node: int) -> dict[str, str]:
        """Return the additional environment variables of a worker."""
        bounds = f"{self._elastic.least}:{self._elastic.most}:{self._elastic.silence_s:g}"
        address = self._machines.address(node)
        return {ELASTIC_VARIABLE: bounds if address is None else f"{bounds}:{address}"}

    def next_worker(self) -> int:
        """Return the number of a new worker."""
        return self._board.count(WORKERS, 1) - 1

    def settle(self, worker: int, ending: Ending) -> bool:
        """Report to the others that a worker has ended; return whether it has ended well."""
        if end := settled(self._board, worker, ending):
            self.ended[worker] = end
        return bool(end)
