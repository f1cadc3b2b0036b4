"""How rates are taken, how many are taken, and what they would be on more devices. Pure.

The paper runs every member on 1 … M_t devices for at most 48 batches, takes the rate from the last 20, and extrapolates
beyond M_t (section 6.1). Who runs the batches is not here: what is measured goes in,
:class:`~uneven.fleet.planning.rates.Rates` come out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from uneven.core.exact import Floats
from uneven.errors import ConfigError

MOST_BATCHES = 48
"""Batches of a profile at most (section 6.1)."""

LAST_BATCHES = 20
"""Batches at its end that the rate is taken from; what comes before warms up (section 6.1)."""


def rate_per_s(batch_s: Sequence[float], batch: int, *, median: bool = False) -> float:
    """Samples/s over the last 20 batches of a profile.

    Args:
        batch_s: seconds that each batch took, at most 48 of them.
        batch: samples in each, of all devices of the member together.
        median: of the batch in the middle, not of all 20 together. Ours, for CPU slots: one batch in which the
            processor did something else counts for one.

    Raises:
        ConfigError: no batches, more than a profile has, or times that are not positive.
    """
    if not 1 <= len(batch_s) <= MOST_BATCHES:
        raise ConfigError(f"a profile has 1 … {MOST_BATCHES} batches, not {len(batch_s)}")
    last = batch_s[-LAST_BATCHES:]
    took_s = len(last) * statistics.median(last) if median else math.fsum(last)
    if not (batch > 0 and min(last) >= 0.0 and 0.0 < took_s < math.inf):
        raise ConfigError(f"{len(last)} batches of {batch} samples in {took_s} s have no rate")
    return len(last) * batch / took_s


def most_profiled(alone_per_s: Mapping[str, float], per_node: int, devices: int) -> int:
    """M_t: up to how many devices each member is profiled (section 6.1).

    M_a = ⌈max r(1) / min r(1)⌉ is what the slowest would need to match the fastest if it scaled linearly;
    M_b = 2 · G reaches over a node's edge; M_t = max(M_a, M_b), here at most M, which the paper expects to be larger.

    Args:
        alone_per_s: member → samples/s on one device.
        per_node: G, devices on a node.
        devices: M, devices of all nodes.

    Raises:
        ConfigError: no members, a rate that is not positive, or no devices.
    """
    if not alone_per_s or not all(0.0 < rate < math.inf for rate in alone_per_s.values()):
        raise ConfigError("rates on one device must be positive, of at least one member")
    if per_node < 1 or devices < 1:
        raise ConfigError(f"{devices} devices, {per_node} on a node: give at least one of each")
    reach = math.ceil(max(alone_per_s.values()) / min(alone_per_s.values()))
    return min(devices, max(reach, 2 * per_node))


def extrapolated(measured: Sequence[float], devices: int, *, anchor: int | None = None) -> Floats:
    """Rates on 1 … ``devices``, from measured ones (Eq. 5): beyond the anchor b, efficiency decays as it last did.

    ::

        r(m) = m · r(b)/b · e^(m − b)        e = r(b)/r(b−1) · (b−1)/b

    The paper anchors at b = M_b. Where M_t > M_b the curve then jumps between M_t and M_t + 1, so ours anchors at the
    last measured number unless told otherwise. Ours too: e is at most 1, since noise in two measurements can make it
    larger, and the curve would then grow without bound. With e < 1 it turns down in the end.

    Args:
        measured: samples/s on 1, 2, 3, … devices; zero where the member does not fit on so few.
        devices: how long the row shall be; measured ones beyond are left out.
        anchor: b; the number of measured ones by default.

    Returns:
        Samples/s on 1 … ``devices``, shape (devices,).

    Raises:
        ConfigError: more devices than measured, and no two rates before the anchor to go on from.
    """
    known = np.array(measured[:devices], dtype=np.float64)
    if devices <= len(known):
        return known
    b = len(known) if anchor is None else anchor
    if not (2 <= b <= len(known) and known[b - 1] > 0.0 and known[b - 2] > 0.0):
        raise ConfigError(
            f"rates on {len(known)} devices cannot be continued to {devices}: measure on two numbers of devices, the "
            f"anchor {b} and the one before it"
        )
    efficiency = min(1.0, float(known[b - 1] / known[b - 2]) * (b - 1) / b)
    beyond = np.arange(len(known) + 1, devices + 1)
    return np.concatenate([known, beyond * (known[b - 1] / b) * efficiency ** (beyond - b)])
