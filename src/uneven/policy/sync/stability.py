"""The learning rates that are stable if sites receive each other's movements late.

On a quadratic of curvature λ, K equal sites step with v = μ v − (η / K) λ x and receive each other's v after a lead of
L steps: x' = x + v' + (K − 1) v₋ₗ. This settles if no root of the characteristic polynomial is outside of the unit
circle. The derivation is ours.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from uneven.errors import ConfigError

WORTH = 0.25  # [default] least stable rate, relative to no lead: below it a learning rate chosen for BSP does not train

_HALVINGS = 40


@lru_cache
def stable_rate(momentum: float, sites: int, lead: int) -> float:
    """Return the largest η λ that settles."""
    # Without a lead, momentum is stable up to η λ = 2 (1 + μ); twice that is a safe upper end.
    low, high = 0.0, 4.0 * (1.0 + momentum)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _radius(momentum, sites, lead, middle) <= 1.0 + 1e-9 else (low, middle)
    return low


def _radius(momentum: float, sites: int, lead: int, rate: float) -> float:
    """Return the largest modulus of the eigenvalues of the map of (x, v, v₋₁, …, v₋ₗ) from step to step."""
    size = lead + 2
    step = np.zeros((size, size))
    step[1, :2] = -rate / sites, momentum
    for age in range(lead):
        step[2 + age, 1 + age] = 1.0
    # Row 0 is the position, rows 1 to L + 1 the velocities, newest first.
    step[0] = step[1]  # x' = x + v' + (K − 1) v', where the others' is as old as the lead
    step[0] += (sites - 1) * (step[1] if lead == 0 else np.eye(size)[lead])
    step[0, 0] += 1.0
    return float(np.abs(np.linalg.eigvals(step)).max())


def check_lead(lead: int, momentum: float, sites: int) -> None:
    """Raise ``ConfigError`` if the learning rate of BSP does not settle with this lead."""
    if not lead or sites < 2:
        return
    part = stable_rate(momentum, sites, lead) / stable_rate(momentum, sites, 0)
    if part >= WORTH:
        return
    most = max((one / 20 for one in range(20) if _worth(one / 20, sites, lead)), default=None)
    way = "without a lead" if most is None else f"with a momentum of {most:g} at most, or without a lead"
    raise ConfigError(
        f"geo: lead = {lead} with momentum {momentum:g} at {sites} sites settles only at {part:.1%} of the learning "
        f"rate that does without a lead, as sites then step against each other's old movements: train {way}"
    )


def _worth(momentum: float, sites: int, lead: int) -> bool:
    return stable_rate(momentum, sites, lead) >= WORTH * stable_rate(momentum, sites, 0)
