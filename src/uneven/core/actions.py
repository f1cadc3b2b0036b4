"""What deciding code answers: a split of the batch, or a plan of who exchanges what with whom and when. Pure.

A plan names no tensor and no socket. A carrier turns each :class:`Exchange` into the fastest thing that has
the same meaning (a gradient mean over everybody becomes the bucketed all-reduce that overlaps the backward
pass); the simulator turns the same object into transfers and waits in virtual time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from uneven.entries import Selection, Significant, TopK
from uneven.errors import ConfigError
from uneven.merge import Add, BlockMomentum, Combined, Elastic, Mean, Merge, Payload

__all__ = [
    "Add",
    "BlockMomentum",
    "Combined",
    "Elastic",
    "Exchange",
    "Mean",
    "Merge",
    "Moment",
    "Payload",
    "Selection",
    "Significant",
    "Split",
    "StepPlan",
    "TopK",
    "Via",
    "Wait",
    "WriteBack",
    "span",
]


@dataclass(frozen=True, slots=True)
class Split:
    """How many samples each worker takes, in the order of the view's ``members``, and why."""

    shares: tuple[int, ...]
    reason: str = ""


class Via(Enum):
    """The shape of the conversation."""

    GROUP = "group"  # the members among themselves, all of them at once
    SERVER = "server"  # each member on its own with the members' parameter server; parties' servers with each other


class Moment(Enum):
    """When it moves, and so who waits."""

    BACKWARD = "backward"  # piece by piece while the backward pass runs; the step waits for the end
    STEP = "step"  # after the optimizer's step; what comes back is read when the next step starts
    BACKGROUND = "background"  # beside the training; nobody waits, at most one in flight, progress is kept


@dataclass(frozen=True, slots=True)
class WriteBack:
    """How the outcome m of a background exchange enters a replica x that has moved on since it contributed s.

    ``delta``, the default: x + α (m − s), which keeps what was learnt meanwhile. ``lerp``: (1 − α) x + α m, which
    loses α of it and is what ShadowSync does (recalled). In the foreground nothing is learnt meanwhile.
    """

    alpha: float = 1.0
    lerp: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One conversation: what, with whom, how it is merged, when, and who may be left behind.

    Members meet in order: the k-th exchange that one of them starts with the same members and payload meets
    the k-th of the others. In the background an exchange whose predecessor is still in flight is not started
    (and not counted), so nothing piles up.

    Attributes:
        members: ranks that take part, this one among them.
        quorum: go on when so many have contributed and drop what comes later; None waits for all. A member
            that finds its round closed catches up like a newcomer: state and clock of the newest round.
        grace: how much longer a quorum waits for the others, as a part of the time that its first has waited.
        select: which entries travel; the rest stays and adds up. None sends everything.
        parties: ranks that hold one replica together and so contribute once; the first of each speaks and
            hands on what it hears. They divide ``members``. Empty: every member speaks for itself. Over servers each
            party has one of its own: what its copy has moved is told when the least of its members' clocks advances,
            and what others tell is added to it.
        write_back: how the outcome enters the replica, in the background.
        lead: steps for which what others have sent of picked entries may be under way, while this worker goes on. The
            plan has a wait that says the same. 0 waits for all of it.
        barrier_bytes: of picked entries with a lead: a party to which more is under way, with those of this step, is
            told their places at once, and reads none of them before they are there. 0 tells nobody.
        piece: number of a piece of the parameters and into how many they are cut, of nearly equal length; only it is
            exchanged. None exchanges all of them.
        groups: of picked entries that are added up, the first of each party, by groups: inside one everybody tells
            everybody, and the first, its hub, tells the other hubs what it has heard and sent, and its group what they
            have told it. Empty: all parties tell all.
        delay: of a piece, or of entries picked of movements: steps that members, all in step, take while it is under
            way. The step after these waits for it, and its outcome m enters then: x + m − s, where s is the replica
            as it contributed. 0 waits at once.
        load: in the background, the part of its time that these exchanges may cost a worker's training; one that would
            cost more is not started yet. 1 is back to back.
    """

    payload: Payload
    members: tuple[int, ...]
    merge: Merge
    moment: Moment
    via: Via = Via.GROUP
    quorum: int | None = None
    grace: float = 0.0
    select: Selection | None = None
    parties: tuple[tuple[int, ...], ...] = ()
    write_back: WriteBack = WriteBack()
    lead: int = 0
    groups: tuple[tuple[int, ...], ...] = ()
    barrier_bytes: float = 0.0
    piece: tuple[int, int] | None = None
    delay: int = 0
    load: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what no carrier can give a meaning to.

        Raises:
            ConfigError: naming the exchange and the contradiction.
        """
        if (self.payload is Payload.GRADIENT) != (self.moment is Moment.BACKWARD):
            raise ConfigError(
                f"an exchange of {self.payload.value} cannot take place at the moment {self.moment.value!r}: "
                f"gradients belong to 'backward', before the optimizer; parameters and deltas come after it"
            )
        if self.piece is not None and not (self.payload is Payload.PARAMETERS and 0 <= self.piece[0] < self.piece[1]):
            raise ConfigError(f"piece {self.piece} of {self.payload.value}: only parameters are cut, from piece 0 on")
        if self.delay and not (
            self.delay > 0 and (self.piece or self.select) and self.moment is Moment.STEP and self.via is Via.GROUP
        ):
            raise ConfigError(
                f"a delay of {self.delay} of {self.payload.value} at the moment {self.moment.value!r}: what a piece "
                f"of the parameters, or what was picked of movements, comes to among the workers can enter some steps "
                f"later, and nothing else"
            )
        if self.quorum is not None and not 1 <= self.quorum <= len(self.members):
            most = len(self.members)
            raise ConfigError(f"a quorum of {self.quorum} does not fit {most} members: use 1 to {most}")
        if sorted(rank for group in self.groups for rank in group) != sorted(
            party[0] for party in self.parties if self.groups
        ):
            raise ConfigError(f"groups {self.groups} do not divide the first of each of the parties {self.parties}")
        if self.parties and sorted(rank for party in self.parties for rank in party) != sorted(self.members):
            raise ConfigError(f"parties {self.parties} do not divide the members {self.members}")

    @property
    def beside(self) -> bool:
        """Whether workers go on while it is under way."""
        return self.moment is Moment.BACKGROUND or self.lead > 0 or self.delay > 0


def overlapping(one: Exchange) -> ConfigError:
    """What is raised where an exchange with a delay begins while another one's outcome is still to enter."""
    return ConfigError(
        f"an exchange with a delay of {one.delay} steps begins before the outcome of the one before has entered, which "
        f"would be lost: let the policy plan the next one at least {one.delay + 1} steps later"
    )


def span(piece: tuple[int, int] | None, size: int) -> slice:
    """Where a piece lies in a vector of this length; all of it for None."""
    number, pieces = piece or (0, 1)
    return slice(size * number // pieces, size * (number + 1) // pieces)


@dataclass(frozen=True, slots=True)
class Wait:
    """Do not start the step before each of ``members`` has finished ``clock`` steps.

    A step is finished for others when what it sent to the parameter server, or in the background, has arrived: who
    has waited sees the updates that it waited for.
    """

    members: tuple[int, ...]
    clock: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What one worker does around its next step.

    Attributes:
        exchanges: in the order in which they are started.
        waits: all of them hold before the step starts; a member that has left is waited for no more.
        divided: what others move is added to what this worker does, so of K parties each steps with 1 / K of the
            learning rate, and with its gradient K times as much as the part of all samples that it is the mean over.
    """

    exchanges: tuple[Exchange, ...] = ()
    waits: tuple[Wait, ...] = ()
    divided: bool = False
