"""The settings that all preconditioners share: how their work is divided among workers and steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from uneven.errors import ConfigError
from uneven.policy.ownership.placement import RULES
from uneven.precondition.pure.schedule import Schedule, Value

if TYPE_CHECKING:
    import torch

REFRESHES = ("now", "shadow", "auto")

PERIODS = (1, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """The schedule of a preconditioner, and the owners of its work.

    Args:
        periods: steps between factor updates, and between refreshes; numbers, or callables of the step.
        share: f, the share of the workers that hold an item's basis and precondition it: 1 sends least in a plain step,
            1 / P computes least; "auto" measures both at the start.
        place: "speed", "compute", "memory" or "round-robin"; see :func:`uneven.policy.ownership.placement.place`.
        colocate: whether one worker refreshes all squares of an item.
        refresh: "now", "shadow" (in the background, used half a period later), or "auto": in the background while every
            worker's machine has half a core idle.
        factor_dtype: of factors and bases; None for float32, or float64 if the whole model has it.

    Raises:
        ConfigError: a value is out of range.
    """

    periods: tuple[Value, Value] = PERIODS
    share: float | str = "auto"
    place: str = "speed"
    colocate: bool = True
    refresh: str = "now"
    factor_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.periods, tuple | list) or len(self.periods) != 2:
            raise ConfigError(f"periods = {self.periods!r}: give two, of factors and of bases, for instance (10, 100)")
        Schedule(*self.periods)
        if self.share != "auto" and (isinstance(self.share, str) or not 0.0 < self.share <= 1.0):
            raise ConfigError(f"share = {self.share!r}: give 'auto', or a number above 0 up to 1")
        one_of(place=(self.place, RULES), refresh=(self.refresh, REFRESHES))


def one_of(**given: tuple[str, tuple[str, ...]]) -> None:
    """Raise :class:`ConfigError` unless each argument is one of its values."""
    for name, (what, those) in given.items():
        if what not in those:
            raise ConfigError(f"{name} = {what!r} is none of {', '.join(map(repr, those))}")
