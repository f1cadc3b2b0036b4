"""Define what a scheduler gets and decides about a trial."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from uneven.search.pure.space import Params


class Move(Enum):
    """The next move of a trial."""

    CONTINUE = "continue"
    PAUSE = "pause"
    """It saves its state and frees its device; it may be resumed."""
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Progress:
    """A trial's report."""

    trial: int  # its number
    t: float  # its training so far, in the unit of the search: reports, epochs or samples, never seconds
    score: float  # the metric, higher is better; may be NaN
    waiting: int = 0  # number of trials that wait for a device


@dataclass(frozen=True, slots=True)
class Clone:
    """A trial's change to another trial's checkpoint with new settings."""

    source: int  # the other trial
    t: float  # of that checkpoint
    params: Params


@dataclass(frozen=True, slots=True)
class Ruling:
    """A scheduler's decision on a report."""

    move: Move = Move.CONTINUE  # of the reporting trial
    why: str = ""  # the reason, in words
    save: bool = False  # the trial saves its state now, for clones
    clone: Clone | None = None  # the state and settings that it changes to
    others: "Mapping[int, Ruling]" = field(default_factory=dict)  # decisions on paused trials


GO_ON = Ruling()
