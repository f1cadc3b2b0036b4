"""Translate arguments of kfac-pytorch's ``KFACPreconditioner``."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from uneven.errors import ConfigError
from uneven.precondition.pure.sharing import PERIODS, Sharing

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
