"""What FlexRR's workers tell each other, and what a worker's rules ask its carrier to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from uneven.errors import ConfigError


class FlexRRKind(IntEnum):
    """The kind of a message. One word on each: what the receiver may conclude."""

    PROGRESS = 1  # the sender is nearly through and could help: ``first`` of ``count`` pieces done
    OFFER = 2  # these pieces of the sender's, from the end of its queue, may be done by the receiver
    START = 3  # the sender has begun with the offer: the receiver need not do it any more
    CANCEL = 4  # the sender does the offered pieces itself after all
    FINISHED = 5  # the sender's own pieces are done or given away for good: no more offers


@dataclass(frozen=True, slots=True)
class FlexRRMessage:
    """Five whole numbers on the wire.

    Attributes:
        iteration: that it belongs to; older ones are of no use any more.
        number: of the offer, counted by the one who offers.
        first: first piece of the offer.
        count: how many pieces.
    """

    kind: FlexRRKind
    iteration: int
    number: int = 0
    first: int = 0
    count: int = 0

    def numbers(self) -> tuple[int, ...]:
        """As whole numbers."""
        return (int(self.kind), self.iteration, self.number, self.first, self.count)

    @classmethod
    def of(cls, numbers: tuple[int, ...]) -> FlexRRMessage:
        """Inverse of :meth:`numbers`."""
        return cls(FlexRRKind(numbers[0]), *numbers[1:])


@dataclass(frozen=True, slots=True)
class Send:
    """Tell another worker something; messages between two workers keep their order."""

    to: int
    message: FlexRRMessage


@dataclass(frozen=True, slots=True)
class Compute:
    """Do one micro-batch, and say so with ``computed``.

    Attributes:
        owner: whose batch it is cut from.
        piece: its place in that batch.
        number: of the owner's offer; 0 for an own piece. What is done for others is kept apart until it is certain.
    """

    owner: int
    piece: int
    number: int = 0


@dataclass(frozen=True, slots=True)
class Keep:
    """What was computed for this offer counts."""

    owner: int
    number: int


@dataclass(frozen=True, slots=True)
class Drop:
    """What was computed for this offer, if anything, does not count: its owner does it itself."""

    owner: int
    number: int


@dataclass(frozen=True, slots=True)
class Through:
    """Nothing is left to do or to help with: on to the exchange of the gradients."""


Action = Send | Compute | Keep | Drop | Through


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """FlexRR's constants, as recalled in the specification of LB-BSP, §2.

    Attributes:
        behind: lag, as a part of an iteration, from which a worker accepts help.
        first: part of its iteration's pieces that it offers first; at least one piece.
        more: part that it offers each time that a helper has begun with the last offer.
        early: pieces before its end at which a worker announces itself (ours: "or nearly").
    """

    behind: float = 0.20
    first: float = 0.025
    more: float = 0.05
    early: int = 1


def pieces(share: int, grain: int) -> tuple[int, ...]:
    """The sizes of the micro-batches of a share: ``grain`` samples each, the last one what is left.

    Raises:
        ConfigError: a micro-batch without samples.
    """
    if grain < 1:
        raise ConfigError(f"flexrr: a micro-batch of {grain} samples: it must have at least one")
    full, rest = divmod(share, grain)
    return (grain,) * full + ((rest,) if rest else ())
