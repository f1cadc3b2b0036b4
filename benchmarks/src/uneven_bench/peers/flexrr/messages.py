"""Messages between FlexRR's workers, and the actions that a worker's rules ask of its carrier."""

from dataclasses import dataclass
from enum import IntEnum

from uneven.errors import ConfigError


class FlexRRKind(IntEnum):
    """The kind of a message, with the receiver's conclusion."""

    PROGRESS = 1  # the sender is nearly through and could help: ``first`` of ``count`` pieces done
    OFFER = 2  # these pieces of the sender's, from the end of its queue, may be done by the receiver
    START = 3  # the sender has begun with the offer: the receiver must not do it
    CANCEL = 4  # the sender does the offered pieces itself after all
    FINISHED = 5  # the sender's own pieces are done or given away for good: no more offers


@dataclass(frozen=True, slots=True)
class FlexRRMessage:
    """Five whole numbers on the wire."""

    kind: FlexRRKind
    iteration: int  # that it belongs to; older ones are useless
    number: int = 0  # of the offer, counted by its sender
    first: int = 0  # first piece of the offer
    count: int = 0  # number of pieces

    def numbers(self) -> tuple[int, ...]:
        return (int(self.kind), self.iteration, self.number, self.first, self.count)

    @classmethod
    def of(cls, numbers: tuple[int, ...]) -> "FlexRRMessage":
        return cls(FlexRRKind(numbers[0]), *numbers[1:])


@dataclass(frozen=True, slots=True)
class Send:
    """A message to another worker; messages between two workers keep their order."""

    to: int
    message: FlexRRMessage


@dataclass(frozen=True, slots=True)
class Compute:
    """One micro-batch to do; the carrier then calls ``computed``."""

    owner: int  # the rank whose batch it is cut from
    piece: int  # its place in that batch
    number: int = 0  # of the owner's offer; 0 for an own piece. Work for others is kept apart until it is certain.


@dataclass(frozen=True, slots=True)
class Keep:
    """The work for this offer counts."""

    owner: int
    number: int


@dataclass(frozen=True, slots=True)
class Drop:
    """The work for this offer, if any, does not count: its owner does it."""

    owner: int
    number: int


@dataclass(frozen=True, slots=True)
class Through:
    """No work and no help is left: the exchange of the gradients follows."""


Action = Send | Compute | Keep | Drop | Through


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """FlexRR's constants, as recalled in the specification of LB-BSP, §2."""

    behind: float = 0.20  # lag, as a part of an iteration, from which a worker accepts help
    first: float = 0.025  # part of its iteration's pieces in its first offer; at least one piece
    more: float = 0.05  # part in each further offer, after a helper has begun with the last one
    early: int = 1  # pieces before its end at which a worker announces itself (ours: "or nearly")


def pieces(share: int, grain: int) -> tuple[int, ...]:
    """Return the sizes of a share's micro-batches: ``grain`` samples each, and a smaller last one. Raises ConfigError:
    a micro-batch without samples."""
    if grain < 1:
        raise ConfigError(f"flexrr: a micro-batch of {grain} samples: it must have at least one")
    full, rest = divmod(share, grain)
    return (grain,) * full + ((rest,) if rest else ())
