"""What a scheduler hears of a trial, and what it answers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from uneven.search.space import Params


class Move(Enum):
    """What becomes of a trial."""

    CONTINUE = "continue"
    PAUSE = "pause"
    """Its state is kept, its device is free; it may be resumed."""
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Progress:
    """A trial has reported.

    Attributes:
        trial: its number.
        t: how much it has been trained, in the unit of the search: reports, epochs or samples, never seconds.
        score: the metric, the higher the better; may be no number.
        waiting: trials that wait for a device.
    """

    trial: int
    t: float
    score: float
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Clone:
    """A trial goes on from another one's checkpoint, with other settings.

    Attributes:
        source: whose.
        t: of that checkpoint.
    """

    source: int
    t: float
    params: Params


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a scheduler answers.

    Attributes:
        move: of the trial that has reported.
        why: in words, for those who look.
        save: its state is to be kept now, for others to clone.
        clone: what it is to become.
        others: the same for trials that are paused.
    """

    move: Move = Move.CONTINUE
    why: str = ""
    save: bool = False
    clone: Clone | None = None
    others: Mapping[int, Ruling] = field(default_factory=dict)


GO_ON = Ruling()
