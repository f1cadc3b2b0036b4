"""Lines of parts in an elastic run: their sums survive the loss of a member.

All lines share the group of the generation and the order of its exchanges (:mod:`uneven.run.lines.recovery`), so one
exchange must finish before the next starts. If a worker is lost, all members have the same sum, with or without its
tensor; a gather and an all-to-all have zeros in its place. ``Handle.wait`` returns whose tensors are in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from torch import Tensor

from uneven.errors import ConfigError, PeerError
from uneven.policy.core.membership import Members
from uneven.run.lines.contribution import Weight, unscaled
from uneven.run.lines.line import Carrier, Line, Lines, Waiting, Work
from uneven.run.lines.recovery import ExchangePlace, Recovery
from uneven.run.lines.traffic import TrafficBook


class RecoveredLines(Lines):
    """Lines over an elastic exchange. Members need not open one together."""

    changing = True

    def __init__(
        self, rank: int, recovery: Recovery, waiting: Waiting, book: TrafficBook | None = None, refusal: str = ""
    ) -> None:
        super().__init__(rank, recovery.membership.members, waiting, book)
        self._refusal = refusal
        self._recovery = recovery

    def open(self, name: str, members: Sequence[int] | None = None) -> Line:
        """Open a line of all members. Raises ConfigError for some members only, or if members take different numbers
        of steps."""
        if self._refusal:
            raise ConfigError(f"line {name!r}: {self._refusal}")
        if members is not None and set(members) != set(self.members):
            raise ConfigError(
                f"line {name!r} for ranks {tuple(members)}: in an elastic run a line is for all, as members come and go"
            )
        return super().open(name)

    def _texts(self, mine: str) -> Sequence[str]:
        return (mine,)

    def _carrier(self, members: Members) -> Carrier:
        return _RecoveredCarrier(self._recovery, lambda: self.members)


class _RecoveredCarrier:
    def __init__(self, recovery: Recovery, members: Callable[[], Members]) -> None:
        self._recovery = recovery
        self._members = members  # as the parts know them: perhaps not the newest

    def sum(self, tensor: Tensor) -> Work:
        return _SumUnderWay(self._recovery, "a sum on a line", tensor)

    def broadcast(self, tensor: Tensor, source: int) -> Work:
        # A sum in which only the source has weight 1, because a sum can be repeated after a loss.
        return _SumUnderWay(self._recovery, "a broadcast on a line", tensor, partial(self._from, source))

    def _from(self, source: int) -> float:
        if source not in self._recovery.membership.members:
            raise PeerError(f"worker {source} is gone, which was to give what a broadcast on a line gives to all")
        return float(source == self._recovery.membership.worker)

    def gather(self, tensor: Tensor, into: list[Tensor]) -> Work:
        # A sum cannot gather exactly: all-to-all with the same piece for each member instead.
        return _SwapUnderWay(self._recovery, "a gather on a line", self._members(), [tensor] * len(into), into)

    def all_to_all(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> Work:
        return _SwapUnderWay(self._recovery, "an all-to-all on a line", self._members(), outgoing, incoming)

    def send(self, tensor: Tensor, peer: int) -> NoReturn:
        raise _refused("send")

    def receive(self, tensor: Tensor, peer: int) -> NoReturn:
        raise _refused("receive")

    def close(self) -> None:
        """Do nothing: the group belongs to the generation."""


class _SumUnderWay:
    def __init__(self, recovery: Recovery, what: str, tensor: Tensor, weight: Weight = unscaled) -> None:
        recovery.enter(ExchangePlace(what))
        recovery.begin(tensor.view(-1), weight)
        self._recovery = recovery

    def wait(self) -> Members:
        contributors = self._recovery.land()
        (it,) = self._recovery.complete(contributors)
        it.take()
        return contributors


class _SwapUnderWay:
    def __init__(
        self, recovery: Recovery, what: str, members: Members, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]
    ) -> None:
        recovery.enter(ExchangePlace(what))
        recovery.swap(dict(zip(members, outgoing, strict=True)), dict(zip(members, incoming, strict=True)))
        self._recovery = recovery

    def wait(self) -> Members:
        contributors = self._recovery.land()
        self._recovery.complete(contributors)
        return contributors


def _refused(kind: str) -> ConfigError:
    return ConfigError(
        f"{kind} on a line in an elastic run: all members make the same exchanges, so that they can make one again "
        f"when a worker is lost in it; use all_to_all, with empty tensors for the others, or leave --elastic out"
    )
