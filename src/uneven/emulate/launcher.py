"""What a launcher does in an emulation: it keeps the store, and where workers come and go it says who has died."""

from __future__ import annotations

from typing import Any

from uneven.board import WORKERS, Board
from uneven.emulate.machines import Machines
from uneven.jobs import Ending
from uneven.launch.others import THROUGH, settled
from uneven.world import ELASTIC_VARIABLE, Elastic


def meeting_store(machines: Machines) -> Any:
    """The store in which workers meet, on the link of the description's first node, whoever runs there.

    As under ``uneven run`` it is the launcher's: what others ask it does not wait until the first worker, which may be
    stopped most of the time, is let go on.
    """
    from uneven.launch.here import keep_store  # it imports torch

    return machines.meet(lambda host, port: keep_store(host, port)[0])


class EmulatedLauncher:
    """See the module.

    Args:
        elastic: how many workers may take part at a time.
        founders: how many the run begins with.

    Attributes:
        store: in which they meet.
        ended: workers that have come to their end, or have left when they were told to → which of them.
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
        """Whether somebody has come to the end of the script."""
        return THROUGH in self.ended.values()

    def variables(self, node: int) -> dict[str, str]:
        """What a worker finds in its environment beside the rest."""
        bounds = f"{self._elastic.least}:{self._elastic.most}:{self._elastic.silence_s:g}"
        address = self._machines.address(node)
        return {ELASTIC_VARIABLE: bounds if address is None else f"{bounds}:{address}"}

    def next_worker(self) -> int:
        """The number of one more worker."""
        return self._board.count(WORKERS, 1) - 1

    def settle(self, worker: int, ending: Ending) -> bool:
        """Let the others know that a worker has ended; whether it has ended well."""
        if end := settled(self._board, worker, ending):
            self.ended[worker] = end
        return bool(end)
