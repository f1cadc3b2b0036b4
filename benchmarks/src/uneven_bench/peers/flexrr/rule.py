"""FlexRR's rules for one worker in one iteration: messages in, actions out.

After Harlap et al., "Addressing the straggler problem for iterative convergent parallel ML" (SoCC 2016), as the
specification of LB-BSP recalls it in §2. A worker near its end announces itself to its helper group. A worker more than
20 % behind offers a first small share from the end of its queue; when the helper has begun, the share is given away and
a larger one offered. If the owner reaches an offered share first, it cancels it. ``docs/ideas/rivals.md`` has our
reading of open points; the pieces here are micro-batches.
"""

from collections import deque
from dataclasses import dataclass

from uneven.errors import TrainingError
from uneven_bench.peers.flexrr.messages import (
    Action,
    Compute,
    Drop,
    FlexRRKind,
    FlexRRMessage,
    Keep,
    Rules,
    Send,
    Through,
)


@dataclass(slots=True)
class _Offer:
    to: int
    first: int
    count: int
    started: bool = False


@dataclass(slots=True)
class _Help:
    owner: int
    number: int
    pieces: deque[int]
    cancelled: bool = False


class FlexRR:
    """One worker in one iteration.

    The carrier calls :meth:`begin` once, :meth:`computed` after each piece, and *before* that :meth:`heard` with each
    message received meanwhile, or without delay while the worker is idle. It performs their actions, in order.

    ``rank``: of this worker; ``workers``: how many there are; all may help each other; ``pieces``: micro-batches of its
    own; ``iteration``: for the messages.
    """

    def __init__(self, rank: int, workers: int, pieces: int, *, iteration: int = 0, rules: Rules | None = None) -> None:
        self.rank = rank
        self.iteration = iteration
        self._group = tuple(other for other in range(workers) if other != rank)
        self._pieces = pieces
        self._rules = rules or Rules()
        self._next = 0  # own pieces neither begun nor offered
        self._end = pieces
        self._offers: dict[int, _Offer] = {}
        self._offered = 0
        self._help: deque[_Help] = deque()  # the first one is under way once it has been begun
        self._begun: _Help | None = None
        self._unsure: dict[int, int] = {}  # owner: number of the newest offer that was begun and may still be cancelled
        self._computing: Compute | None = None
        self._announced = self._finished = self._through = False
        self._others_finished: set[int] = set()

    def begin(self) -> list[Action]:
        return self._go_on([])

    def computed(self) -> list[Action]:
        """Take note that the last piece is done."""
        piece, self._computing = self._computing, None
        if piece is None:
            raise TrainingError(f"flexrr: rank {self.rank} was not asked to compute anything")
        actions: list[Action] = []
        if not piece.number:
            return self._go_on(actions)
        if self._begun is not None and self._begun.cancelled:
            actions.append(Drop(piece.owner, piece.number))
            self._begun = None
        elif self._begun is not None and not self._begun.pieces:
            self._begun = None
        return self._go_on(actions)

    def heard(self, sender: int, message: FlexRRMessage) -> list[Action]:
        """Take a message. Raises TrainingError: it is of an iteration that this worker has not reached."""
        if message.iteration > self.iteration:
            raise TrainingError(
                f"flexrr: rank {self.rank} is in iteration {self.iteration} and rank {sender} in {message.iteration}"
            )
        if message.iteration < self.iteration:
            return []  # a START that crossed its cancellation
        actions: list[Action] = []
        match message.kind:
            case FlexRRKind.PROGRESS:
                if message.first / message.count - self._progress() > self._rules.behind:
                    self._offer(sender, self._rules.first, actions)
            case FlexRRKind.OFFER:
                self._sure_of(sender, actions)
                wanted = deque(range(message.first, message.first + message.count))
                self._help.append(_Help(sender, message.number, wanted))
            case FlexRRKind.START:
                if message.number in self._offers:
                    self._offers[message.number].started = True
                    self._offer(sender, self._rules.more, actions)
            case FlexRRKind.CANCEL:
                self._cancelled(sender, message.number, actions)
            case FlexRRKind.FINISHED:
                self._others_finished.add(sender)
                self._sure_of(sender, actions)
        return actions if self._computing else self._go_on(actions)

    def _go_on(self, actions: list[Action]) -> list[Action]:
        """Continue with own pieces, then with those offered and not begun, then with those of others."""
        if self._next == self._end:
            self._take_back(actions)
        if self._next < self._end:
            self._compute(Compute(self.rank, self._next), actions)
            self._next += 1
            if self._end - self._next < self._rules.early and self._pieces > 1:
                self._announce(actions)
            return actions
        if not self._finished:
            self._finished = True
            actions += [Send(to, self._message(FlexRRKind.FINISHED)) for to in self._group]
        if self._begun is None and self._help:
            self._begun = self._help.popleft()
            self._unsure[self._begun.owner] = self._begun.number
            actions.append(Send(self._begun.owner, self._message(FlexRRKind.START, self._begun.number)))
        if self._begun is not None:
            self._compute(Compute(self._begun.owner, self._begun.pieces.popleft(), self._begun.number), actions)
        elif not self._through and self._others_finished.issuperset(self._group):
            self._through = True
            actions.append(Through())
        return actions

    def _left(self) -> int:
        """Return the number of own pieces that are not done and not offered."""
        return self._end - self._next + (self._computing is not None and not self._computing.number)

    def _progress(self) -> float:
        return 1.0 - self._left() / self._pieces if self._pieces else 1.0

    def _compute(self, what: Compute, actions: list[Action]) -> None:
        self._computing = what
        actions.append(what)

    def _announce(self, actions: list[Action]) -> None:
        if not self._announced:
            self._announced = True
            ahead = self._message(FlexRRKind.PROGRESS, first=self._pieces - self._left(), count=self._pieces)
            actions += [Send(to, ahead) for to in self._group]

    def _offer(self, to: int, part: float, actions: list[Action]) -> None:
        count = min(max(1, round(part * self._pieces)), self._end - self._next)
        if count:
            self._end -= count
            self._offered += 1
            self._offers[self._offered] = _Offer(to, self._end, count)
            actions.append(Send(to, self._message(FlexRRKind.OFFER, self._offered, self._end, count)))

    def _take_back(self, actions: list[Action]) -> None:
        """Take the newest offer that no helper has begun: its owner has reached it."""
        for number in reversed(self._offers):
            offer = self._offers[number]
            if not offer.started:
                del self._offers[number]
                self._next, self._end = offer.first, offer.first + offer.count
                actions.append(Send(offer.to, self._message(FlexRRKind.CANCEL, number)))
                return

    def _cancelled(self, owner: int, number: int, actions: list[Action]) -> None:
        self._help = deque(help for help in self._help if (help.owner, help.number) != (owner, number))
        if self._unsure.get(owner) != number:
            return
        del self._unsure[owner]
        if self._begun is not None and self._begun.owner == owner:
            self._begun.cancelled = True
            if self._computing is not None:
                return  # dropped when the piece is done
            self._begun = None
        actions.append(Drop(owner, number))

    def _sure_of(self, owner: int, actions: list[Action]) -> None:
        """Keep the work for an owner that offers more, as it knows of the start, or that has finished."""
        if owner in self._unsure:
            actions.append(Keep(owner, self._unsure.pop(owner)))

    def _message(self, kind: FlexRRKind, number: int = 0, first: int = 0, count: int = 0) -> FlexRRMessage:
        return FlexRRMessage(kind, self.iteration, number, first, count)
