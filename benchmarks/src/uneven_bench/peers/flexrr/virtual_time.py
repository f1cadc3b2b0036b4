"""FlexRR in virtual time: the rules of every worker, with delays of messages and costs of micro-batches."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from uneven.errors import TrainingError
from uneven_bench.peers.flexrr.messages import Action, Compute, Drop, FlexRRMessage, Rules, Send, Through
from uneven_bench.peers.flexrr.rule import FlexRR

Seconds = Callable[[int, int, int], float]
"""(worker, owner, piece) → the time of a piece of an owner's batch."""


@dataclass(frozen=True, slots=True)
class PlayedIteration:
    """The result of one iteration."""

    ends_s: tuple[float, ...]  # end of each worker's last piece
    busy_s: tuple[float, ...]  # each worker's computing
    done_by: tuple[tuple[int, ...], ...]  # owner → piece → the worker whose result counts
    dropped: int  # computed pieces that did not count
    messages: int  # their number


class _IterationPlay:
    """The events of one iteration."""

    def __init__(self, workers: Sequence[FlexRR], seconds: Seconds, message_s: float, attentive: bool) -> None:
        self._workers = workers
        self._seconds = seconds
        self._message_s = message_s
        self._attentive = attentive
        self._events: list[tuple[float, int, int, tuple[int, FlexRRMessage] | None]] = []
        self._count = 0
        self._computing: list[Compute | None] = [None] * len(workers)
        self._letters: list[list[tuple[int, FlexRRMessage]]] = [[] for _ in workers]
        self._done: list[dict[tuple[int, int], list[int]]] = [{} for _ in workers]
        self._through = [False] * len(workers)
        self.ends_s = [0.0] * len(workers)
        self.busy_s = [0.0] * len(workers)
        self.dropped = self.messages = 0

    def run(self) -> None:
        for rank, worker in enumerate(self._workers):
            self._act(rank, worker.begin(), 0.0)
        while self._events:
            now_s, _, rank, letter = heapq.heappop(self._events)
            if letter is None:
                self._piece_done(rank, now_s)
            elif self._attentive or self._computing[rank] is None:
                self._act(rank, self._workers[rank].heard(*letter), now_s)
            else:
                self._letters[rank].append(letter)
        if not all(self._through):
            raise TrainingError("flexrr: nothing happens any more and not all workers are through")

    def _piece_done(self, rank: int, now_s: float) -> None:
        done, self._computing[rank] = self._computing[rank], None
        if done is not None:
            self._done[rank].setdefault((done.owner, done.number), []).append(done.piece)
        self.ends_s[rank] = now_s
        letters, self._letters[rank] = self._letters[rank], []
        for letter in letters:
            self._act(rank, self._workers[rank].heard(*letter), now_s)
        self._act(rank, self._workers[rank].computed(), now_s)

    def _act(self, rank: int, actions: list[Action], now_s: float) -> None:
        for action in actions:
            match action:
                case Send(to, message):
                    self.messages += 1
                    self._at(now_s + self._message_s, to, (rank, message))
                case Compute(owner, piece):
                    took_s = self._seconds(rank, owner, piece)
                    self._computing[rank] = action
                    self.busy_s[rank] += took_s
                    self._at(now_s + took_s, rank, None)
                case Drop(owner, number):
                    self.dropped += len(self._done[rank].pop((owner, number), ()))
                case Through():
                    self._through[rank] = True

    def _at(self, when_s: float, rank: int, letter: tuple[int, FlexRRMessage] | None) -> None:
        self._count += 1
        heapq.heappush(self._events, (when_s, self._count, rank, letter))

    def done_by(self, pieces: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Return the worker of each piece. Raises TrainingError unless each piece counts exactly once."""
        found: list[list[list[int]]] = [[[] for _ in range(count)] for count in pieces]
        for rank, rows in enumerate(self._done):
            for (owner, _), done in rows.items():
                for piece in done:
                    found[owner][piece].append(rank)
        for owner, row in enumerate(found):
            for piece, ranks in enumerate(row):
                if len(ranks) != 1:
                    raise TrainingError(f"flexrr: piece {piece} of rank {owner} was done by {ranks}")
        return tuple(tuple(ranks[0] for ranks in row) for row in found)


def play(
    pieces: Sequence[int], seconds: Seconds, *, message_s: float, attentive: bool = False, rules: Rules | None = None
) -> PlayedIteration:
    """Play one iteration. ``pieces``: micro-batches of each worker; ``message_s``: delay of a message; ``attentive``: a
    worker receives messages by a thread while it computes; else after the current piece. Raises TrainingError: the
    rules let a piece be done twice or never; a fault of theirs."""
    workers = [FlexRR(rank, len(pieces), count, rules=rules) for rank, count in enumerate(pieces)]
    events = _IterationPlay(workers, seconds, message_s, attentive)
    events.run()
    done_by = events.done_by(pieces)
    return PlayedIteration(tuple(events.ends_s), tuple(events.busy_s), done_by, events.dropped, events.messages)
