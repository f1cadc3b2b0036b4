"""The answers of deciding code: a split of the batch, or a plan of exchanges.

A plan names no tensor and no socket. A real run turns each :class:`Exchange` into the fastest operation with the same
meaning. For example, a gradient mean over all workers becomes the bucketed all-reduce that overlaps the backward pass.
The simulator turns the same object into transfers and waits in virtual time.
"""

from dataclasses import dataclass, replace
from enum import Enum

from uneven.errors import ConfigError
from uneven.policy.merge import Add, BlockMomentum, Combined, Elastic, Mean, Merge, Payload
from uneven.policy.select import Selection, Significant, TopK
from uneven.policy.select.picked import WHOLE


@dataclass(frozen=True, slots=True)
class Split:
    """The number of samples of each worker, in the order of the view's ``members``, and the reason."""

    shares: tuple[int, ...]  #: samples of each worker
    reason: str = ""  #: for the journal and the report


class Via(Enum):
    """The topology of an exchange."""

    GROUP = "group"  #: all members with each other, at the same time
    SERVER = "server"  #: each member separately with the parameter server; servers of several parties with each other


class Moment(Enum):
    """The time at which data moves; it decides which workers wait."""

    BACKWARD = "backward"  #: piece by piece during the backward pass; the step waits for the end
    STEP = "step"  #: after the optimizer's step; the result is read when the next step starts
    BACKGROUND = "background"  #: in the background; no worker waits, at most one is in flight, local progress is kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    """The number of members whose contributions are merged; later ones are dropped.

    A member whose round is closed catches up like a newcomer: it takes state and clock of the newest round.

    Attributes:
        count: members that are enough.
        grace: time that a quorum still waits for the others, as a part of the time that its first member has waited.
    """

    count: int
    grace: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    """The cost of a background exchange, and the rule by which its outcome m enters a replica x that sent s.

    By default x becomes x + α (m − s), which keeps the updates made in between. ``lerp``: (1 − α) x + α m, which loses
    the part α of them; ShadowSync does this (recalled). In the foreground the two are equal.

    Attributes:
        load: the largest part of a worker's training time that such exchanges may cost; one that would cost more starts
            later. 1 runs them back to back.
    """

    load: float = 1.0
    alpha: float = 1.0
    lerp: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Far:
    """The way of selected entries between parties.

    Attributes:
        lead: steps that this worker may take before the selected entries of the others have arrived. The plan has a
            matching wait. 0 waits for all of them.
        hubs: groups of the first member of each party. Inside a group all send to all. The first of a group, its hub,
            exchanges sums with the other hubs. Empty: all parties send to all.
        barrier_bytes: if there is a lead: when more bytes than this are on their way to a party, it gets the positions
            of the entries immediately and reads none of them before they arrive. 0 turns this off.
        whole: ranks that send all entries unchanged, because their links are wide.
    """

    lead: int = 0
    hubs: tuple[tuple[int, ...], ...] = ()
    barrier_bytes: float = 0.0
    whole: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One exchange: payload, members, merge rule, time, and the members that may be left behind.

    Members meet in order: the k-th exchange that one member starts with the same members and payload meets the k-th of
    the others. A background exchange does not start (or count) while its predecessor is in flight.

    Attributes:
        payload, moment, via: kind, time and topology.
        members: ranks that take part, including this one.
        merge: the rule that combines their contributions.
        quorum: the members that are enough; None waits for all.
        select: the entries that travel; the others stay and accumulate. None sends all entries.
        parties: ranks that hold one replica together and contribute once. The first of each sends, and passes on the
            result. They divide ``members``. Empty: each member is a party. With servers each party has its own server,
            which sends updates when the least clock of its members advances, and adds the updates of other parties.
        background: for a background exchange.
        far: for selected entries that travel between parties.
        piece: (number of the piece, number of pieces): only this piece of the parameters is exchanged; pieces have
            nearly equal lengths. None exchanges all parameters.
        delay: for a piece, or for selected entries of movements: steps that all members take while the exchange is in
            flight. The step after these waits for it, and its outcome m enters then: x + m − s with s the replica
            that was contributed. 0 waits immediately.

    Raises:
        ConfigError: payload, moment, piece, delay, quorum, parties or senders of whole vectors do not fit each other.
    """

    payload: Payload
    members: tuple[int, ...]
    merge: Merge
    moment: Moment
    via: Via = Via.GROUP
    quorum: Quorum | None = None
    select: Selection | None = None
    parties: tuple[tuple[int, ...], ...] = ()
    background: Background = Background()
    far: Far = Far()
    piece: tuple[int, int] | None = None
    delay: int = 0

    def __post_init__(self) -> None:
        if (self.payload is Payload.GRADIENT) != (self.moment is Moment.BACKWARD):
            raise ConfigError(
                f"an exchange of {self.payload.value} does not fit the moment {self.moment.value!r}: exchange "
                "gradients in 'backward', parameters and movements after the optimizer"
            )
        if self.piece is not None and not (self.payload is Payload.PARAMETERS and 0 <= self.piece[0] < self.piece[1]):
            raise ConfigError(f"piece {self.piece} of {self.payload.value}: give pieces of parameters only, from 0")
        if self.delay and not (
            self.delay > 0 and (self.piece or self.select) and self.moment is Moment.STEP and self.via is Via.GROUP
        ):
            raise ConfigError(
                f"a delay of {self.delay} of {self.payload.value} at the moment {self.moment.value!r}: only a piece "
                "of the parameters and selected movements can be applied some steps later"
            )
        if self.quorum is not None and not 1 <= self.quorum.count <= len(self.members):
            most = len(self.members)
            raise ConfigError(f"a quorum of {self.quorum.count} does not fit {most} members: use 1 to {most}")
        hubs = self.far.hubs
        if sorted(rank for group in hubs for rank in group) != sorted(party[0] for party in self.parties if hubs):
            raise ConfigError(f"groups {hubs} do not divide the first of each of the parties {self.parties}")
        if self.parties and sorted(rank for party in self.parties for rank in party) != sorted(self.members):
            raise ConfigError(f"parties {self.parties} do not divide the members {self.members}")
        if self.far.whole and not isinstance(self.select, TopK):
            raise ConfigError(
                f"ranks {self.far.whole} send whole vectors of {self.payload.value}, and the others do not: an "
                "all-reduce and a server need one format from all. Only the largest entries, as of sparse-local, have "
                "messages with a format of each sender"
            )

    def select_of(self, rank: int) -> Selection:
        """Return the selection of the entries that the member ``rank`` sends, if the exchange has one."""
        assert self.select is not None
        if rank not in self.far.whole:
            return self.select
        assert isinstance(self.select, TopK)
        return replace(self.select, density=1.0, bits=WHOLE)

    @property
    def beside(self) -> bool:
        """True if the training continues during the exchange."""
        return self.moment is Moment.BACKGROUND or self.far.lead > 0 or self.delay > 0


def overlapping(one: Exchange) -> ConfigError:
    """Return the error for an exchange with a delay that starts before the outcome of the one before has entered."""
    return ConfigError(
        f"an exchange with a delay of {one.delay} steps overlaps the exchange before it, whose outcome would be "
        f"lost: let the policy plan exchanges at least {one.delay + 1} steps apart"
    )


def span(piece: tuple[int, int] | None, size: int) -> slice:
    """Return the slice of a piece (number, pieces) in a vector of length ``size``; the whole vector for None."""
    number, pieces = piece or (0, 1)
    return slice(size * number // pieces, size * (number + 1) // pieces)


@dataclass(frozen=True, slots=True)
class Wait:
    """The condition that each of ``members`` has finished ``clock`` steps before this step starts.

    A step is finished for others when its updates have arrived, so a worker that has waited sees them.
    """

    members: tuple[int, ...]
    clock: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """The exchanges and waits around one worker's next step.

    Attributes:
        exchanges: in the order in which they start.
        waits: all must hold before the step starts; members that have left do not count.
        divided: updates of other parties are added to this worker's, so each of K parties uses 1 / K of the learning
            rate, and K times the gradient's weight by samples.
    """

    exchanges: tuple[Exchange, ...] = ()
    waits: tuple[Wait, ...] = ()
    divided: bool = False
