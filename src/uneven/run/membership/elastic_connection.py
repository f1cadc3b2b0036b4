"""The connection of an elastic run: all messages except tensors pass the store, which needs no process group that could
break."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from uneven.errors import PeerError
from uneven.run.lines import Lines
from uneven.run.lines.elastic_communicator import ElasticCommunicator
from uneven.run.lines.elastic_lines import ElasticLines
from uneven.run.lines.transport import Rows
from uneven.run.measure.meter import Meter
from uneven.run.membership.generations import Membership
from uneven.run.start.connect import Connection
from uneven.runtime.tcp_store import reach
from uneven.runtime.world import Elastic, World

_LOOK_EVERY_S = 0.002


class BoardTransport:
    """Implements :class:`uneven.run.lines.transport.Transport` for the founders at the start of a run."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._calls = 0
        self.rank = membership.worker
        self.size = membership.founders

    def gather(self, row: Sequence[float]) -> "_Gathering":
        return _Gathering(self._give(json.dumps([str(one) for one in row])), self._rows)

    def gather_text(self, text: str) -> tuple[str, ...]:
        """Return the texts of all founders; a worker that joins later appends its own."""
        # A worker that joins later makes the same calls, and finds the founders' messages in the store.
        texts = self._hear(self._give(text))
        return (*texts, text) if self._membership.joins_later else texts

    def close(self) -> None:
        """Do nothing: the store's connection belongs to the membership."""

    def _give(self, text: str) -> int:
        self._calls += 1
        self._membership.board.write(f"talk/{self._calls}/{self.rank}", text)
        return self._calls

    def _rows(self, call: int) -> Rows:
        return np.array([[float(one) for one in json.loads(text)] for text in self._hear(call)])

    def _hear(self, call: int) -> tuple[str, ...]:
        board, until_s = self._membership.board, time.monotonic() + self._membership.timeout_s
        found: dict[int, str] = {}
        while len(found) < self.size:
            absent = [one for one in range(self.size) if one not in found]
            for one in absent:
                if (text := board.look(f"talk/{call}/{one}")) is not None:
                    found[one] = text
            if len(found) == self.size:
                break
            gone = {one: why for one, why in board.dead(absent).items() if one not in found}
            if gone:
                said = "; ".join(f"worker {one}: {why}" for one, why in gone.items())
                raise PeerError(f"a worker was gone before the training began ({said})")
            if time.monotonic() > until_s:
                raise PeerError(
                    f"start of the run: worker {', '.join(map(str, absent))} did not join within "
                    f"{self._membership.timeout_s:g} s; a slow start needs a larger timeout_s"
                )
            time.sleep(_LOOK_EVERY_S)
        return tuple(found[one] for one in range(self.size))


@dataclass
class _Gathering:
    call: int
    rows: Callable[[int], Rows]

    def result(self) -> Rows:
        return self.rows(self.call)


@dataclass(slots=True)
class ElasticConnection(Connection):
    membership: Membership = field(kw_only=True)  # of this worker
    rounds: ElasticCommunicator | None = None  # makes the exchanges, once there is one

    def lines(self, meter: Meter, refusal: str = "") -> Lines:
        assert self.rounds is not None
        return ElasticLines(self.world.rank, self.rounds, lambda what: meter.waiting(), self.traffic, refusal)


def connect_elastic(world: World, elastic: Elastic, timeout_s: float) -> ElasticConnection:
    """Connect to the store of the run. Raises PeerError if it cannot be reached within ``timeout_s``."""
    try:
        membership = Membership(
            world.rank,
            world.size,
            (elastic.least, elastic.most),
            partial(reach, world.meeting, world.port, timeout_s, elastic.silence_s),
            silence_s=elastic.silence_s,
            timeout_s=timeout_s,
            interface=elastic.address,
            site=world.site,
        )
    except RuntimeError as error:
        raise PeerError(
            f"worker {world.rank} cannot reach the store of the run at {world.meeting}:{world.port} within "
            f"{timeout_s:g} s ({str(error).strip().splitlines()[0][:200]}): does its process still run?"
        ) from error
    return ElasticConnection(BoardTransport(membership), None, None, world, timeout_s, membership=membership)
