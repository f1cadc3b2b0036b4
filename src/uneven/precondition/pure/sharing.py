"""The settings that all preconditioners share: how their work is divided among workers and steps."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uneven.errors import ConfigError
from uneven.policy.ownership.placement import RULES
from uneven.precondition.pure.schedule import Schedule, Value

if TYPE_CHECKING:
    import torch

REFRESHES = ("now", "shadow", "auto")
_FRACTIONS = {"comm-opt": 1.0, "hybrid-opt": 0.5, "mem-opt": 1e-9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """The schedule of a preconditioner, and the owners of its work; see :class:`uneven.KFAC`.

    Names and enumerations are kfac-pytorch's. Raises ConfigError if a value is out of range.
    """

    factor_update_steps: Value = 1
    inv_update_steps: Value = 10
    grad_worker_fraction: float | str = "auto"
    assignment_strategy: str = "speed"
    colocate_factors: bool = True
    refresh: str = "now"
    factor_dtype: "torch.dtype | None" = None

    def __post_init__(self) -> None:
        Schedule(self.factor_update_steps, self.inv_update_steps)
        fraction = self.grad_worker_fraction
        if not isinstance(fraction, int | float):
            fraction = _FRACTIONS.get(plain(fraction), fraction)
            object.__setattr__(self, "grad_worker_fraction", fraction)
        if fraction != "auto" and (isinstance(fraction, str) or not 0.0 < fraction <= 1.0):
            raise ConfigError(f"grad_worker_fraction = {fraction!r}: give 'auto', or a number above 0 up to 1")
        object.__setattr__(self, "assignment_strategy", plain(self.assignment_strategy))
        one_of(assignment_strategy=(self.assignment_strategy, RULES), refresh=(self.refresh, REFRESHES))


def plain(given: Any) -> str:
    """Return a name in lower case with hyphens: of kfac-pytorch's enumerations, ``MEM_OPT`` → "mem-opt"."""
    return str(getattr(given, "name", given)).lower().replace("_", "-")


def one_of(**given: tuple[str, tuple[str, ...]]) -> None:
    """Raise :class:`ConfigError` unless each argument is one of its values."""
    for name, (what, those) in given.items():
        if what not in those:
            raise ConfigError(f"{name} = {what!r} is none of {', '.join(map(repr, those))}")
