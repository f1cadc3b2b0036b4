"""The settings that all preconditioners share: how their work is divided among workers and steps."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

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


_OURS = {"method", *(one.name for one in fields(Sharing))}
_SHARES = {"COMM_OPT": 1.0, "HYBRID_OPT": 0.5, "MEM_OPT": 1e-9}
_METHODS = {"EIGEN": "eigen", "INVERSE": "inverse"}
_RULES = {"COMPUTE": "compute", "MEMORY": "memory"}

_NO_MATTER = {
    "allreduce_bucket_cap_mb": "all factors travel in one exchange",
    "compute_eigenvalue_outer_product": "it is made where it is used",
    "symmetry_aware": "one half of a symmetric factor travels always",
    "update_factors_in_hook": "factors are summed up in the hooks always",
    "inv_dtype": "decompositions are made in the factors' dtype",
    "loglevel": "the journal has it",
}
"""Arguments that have no effect on results here, and why."""

_ELSEWHERE = {
    "lr": "the learning rate is read from the optimizer, group by group",
    "model": "the model is the session's",
}


def translated(given: dict[str, Any]) -> dict[str, Any]:
    """Return the method and sharing options by our names; raise :class:`ConfigError` for unknown ones."""
    found = {name: it for name, it in given.items() if name in _OURS}
    for name, it in given.items():
        if name in ("factor_update_steps", "inv_update_steps"):
            often, seldom = found.get("periods", PERIODS)
            found["periods"] = (it, seldom) if name == "factor_update_steps" else (often, it)
        elif name == "grad_worker_fraction":
            found["share"] = it if isinstance(it, int | float) else _one_of(name, it, _SHARES)
        elif name == "compute_method":
            found["method"] = _one_of(name, it, _METHODS)
        elif name == "assignment_strategy":
            found["place"] = _one_of(name, it, _RULES)
        elif name == "colocate_factors":
            found["colocate"] = bool(it)
        elif name in _ELSEWHERE:
            raise ConfigError(f"{name} = {it!r}: leave it out, {_ELSEWHERE[name]}")
        elif name not in _OURS and name not in _NO_MATTER:
            raise ConfigError(f"KFAC has no argument {name!r}; see the reference for those that it has")
    return found


def _one_of(name: str, given: Any, known: dict[str, Any]) -> Any:
    """Look up an enumeration member, or its name."""
    text = str(getattr(given, "name", given)).upper().replace("-", "_")
    if text not in known:
        raise ConfigError(f"{name} = {given!r} is none of {', '.join(known)}")
    return known[text]
