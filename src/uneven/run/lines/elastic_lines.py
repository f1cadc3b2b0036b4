"""Lines of callbacks in an elastic run: their sums survive the loss of a member.

All lines share one communicator (:mod:`uneven.run.lines.elastic_communicator`), so one exchange must finish before the
next starts. If a worker is lost, all members have the same sum, with or without its tensor; a gather and an all-to-all
have zeros in its place. ``Handle.wait`` returns whose tensors are in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from torch import Tensor

from uneven.errors import ConfigError, PeerError
from uneven.policy.core.membership import Members
from uneven.run.lines.communicator import Contribution, RoundPlace, Weight, unscaled
from uneven.run.lines.elastic_communicator import ElasticCommunicator
from uneven.run.lines.line import Carrier, Line, Lines, Waiting, Work
from uneven.run.lines.staging import HostCarrier, may_stage
from uneven.run.lines.traffic import TrafficBook


class ElasticLines(Lines):
    """Lines over an elastic exchange. Members need not open one together."""

    changing = True

    def __init__(
        self,
        rank: int,
        rounds: ElasticCommunicator,
        waiting: Waiting,
        book: TrafficBook | None = None,
        refusal: str = "",
    ) -> None:
        super().__init__(rank, rounds.membership.members, waiting, book)
        self._refusal = refusal
        self._rounds = rounds

    def open(self, name: str, members: Sequence[int] | None = None) -> Line:
        """Open a line of all members. Raises ConfigError for some members only, or if members take different numbers
        of steps."""
        if self._refusal:
            raise ConfigError(f"line {name!r}: {self._refusal}")
        if members is not None and set(members) != set(self.members):
            raise ConfigError(
                f"line {name!r} for ranks {tuple(members)}: give all members, because elastic runs change them"
            )
        return super().open(name)

    def _texts(self, mine: str) -> Sequence[str]:
        return (mine,)

    def _carrier(self, members: Members) -> Carrier:
        carrier = _ElasticCarrier(self._rounds, lambda: self.members)
        return HostCarrier(carrier) if may_stage() else carrier


class _ElasticCarrier:
    def __init__(self, rounds: ElasticCommunicator, members: Callable[[], Members]) -> None:
        self._rounds = rounds
        self._members = members  # as the callbacks know them: perhaps not the newest

    def sum(self, tensor: Tensor) -> Work:
        return self._sum("a sum on a line", tensor)

    def broadcast(self, tensor: Tensor, source: int) -> Work:
        # A sum in which only the source has weight 1, because a sum can be repeated after a loss.
        return self._sum("a broadcast on a line", tensor, partial(self._from, source))

    def _sum(self, what: str, tensor: Tensor, weight: Weight = unscaled) -> Work:
        self._rounds.begin(RoundPlace(what))
        return _UnderWay(self._rounds, self._rounds.add(tensor.view(-1), weight))

    def _from(self, source: int) -> float:
        if source not in self._rounds.membership.members:
            raise PeerError(
                f"worker {source}, the source of a broadcast on a line, is gone: repeat it from another worker"
            )
        return float(source == self._rounds.membership.worker)

    def gather(self, tensor: Tensor, into: list[Tensor]) -> Work:
        # A sum cannot gather exactly: all-to-all with the same piece for each member instead.
        return self._swap("a gather on a line", [tensor] * len(into), into)

    def all_to_all(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> Work:
        return self._swap("an all-to-all on a line", outgoing, incoming)

    def _swap(self, what: str, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> Work:
        there = self._members()  # before the round begins: it may begin with other members than the callbacks have
        self._rounds.begin(RoundPlace(what))
        pieces = dict(zip(there, outgoing, strict=True)), dict(zip(there, incoming, strict=True))
        self._rounds.swap(lambda members: pieces)
        return _UnderWay(self._rounds)

    def send(self, tensor: Tensor, peer: int) -> NoReturn:
        raise _refused("send")

    def receive(self, tensor: Tensor, peer: int) -> NoReturn:
        raise _refused("receive")

    def close(self) -> None:
        """Do nothing: the group belongs to the generation."""


@dataclass(slots=True)
class _UnderWay:
    rounds: ElasticCommunicator
    piece: Contribution | None = None

    def wait(self) -> Members:
        contributors = self.rounds.land()
        if self.piece is not None:
            self.piece.take()
        return contributors


def _refused(kind: str) -> ConfigError:
    return ConfigError(
        f"{kind} on a line in an elastic run: members must make the same exchanges, to repeat one after a loss; use "
        "all_to_all with empty tensors for the others, or leave --elastic out"
    )
