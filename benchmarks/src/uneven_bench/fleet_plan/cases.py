"""Ensembles for ``uneven bench fleet-plan``: 100 members like those of FLEET's experiments, and small ones.

The paper gives few facts of its 100 members: rates on one device between 21 and 176 images/s, about 60 of the 100 below
60; near-linear rates up to 8 devices, the highest about 1030, the lowest about 150 images/s there; roughly 10 to 25
epochs at any size; 30 606 images; 4 devices on a node. Everything else here is ours and marked so.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from uneven.errors import ConfigError
from uneven.fleet.pure.planning.rates import Rates, most_profiled
from uneven.policy.core.exact import Floats
from uneven_bench.fleet_plan.simulate import EnsembleWork

DEVICES = (20, 40, 60, 80, 100, 120, 140, 160)
PER_NODE = 4
SAMPLES = 30_606
MEMBERS = 100
SLOWEST_PER_S, MIDDLE_PER_S, FASTEST_PER_S = 21.0, 60.0, 176.0
BELOW_MIDDLE = 0.6
OF_LINEAR = 150.0 / (8 * SLOWEST_PER_S), 1030.0 / (8 * FASTEST_PER_S)
"""Share of linear scaling that the slowest and the fastest reach on eight devices."""
EPOCHS = 10, 25
PROFILED = 9  # M_t of these members: ⌈176 / 21⌉, if there are as many devices
CHECKPOINT_S = 34.0  # the overhead of one round; computed from the paper's table of overheads, not stated there
LONGEST_S = 22_700.0
"""The longest training on one device; computed from the paper's speed-ups and times, not stated there."""

PAPER = {
    "homogeneous": (0.66, 0.61, 0.66, 0.53, 1.00, 1.00, 1.00, 1.00),
    "fleet-l": (1.16, 1.09, 1.04, 0.89, 0.96, 1.11, 1.58, 1.67),
    "fleet-g": (1.13, 1.20, 1.14, 1.04, 1.24, 1.48, 1.70, 1.92),
}
"""Speed-up over Baseline on 20 … 160 devices, read off the paper's Figure 5, ± 0.01."""
PAPER_ROUNDS = (44, 34, 29, 24, 23, 20, 20, 22)
"""FLEET-G's flotillas there, computed from the time of the checkpoints; two of the eight are stated."""


@dataclass(frozen=True)
class EnsembleKind:
    """A kind of ensemble."""

    about: str  # a short description
    longest_s: float = math.inf  # bound of a training on one device, for the drawn epochs; infinite for none
    prepared_per_s: float = math.inf  # images/s that the processors of one device prepare


KINDS = {
    "paper": EnsembleKind("epochs as far as the paper's longest training on one device allows", longest_s=LONGEST_S),
    "long": EnsembleKind("10 … 25 epochs for slow members too"),
    "preprocessing": EnsembleKind(
        "as the first, and a device's processors prepare 30 images/s", longest_s=LONGEST_S, prepared_per_s=30.0
    ),
}


def ensemble(kind: EnsembleKind, devices: int, seed: int, members: int = MEMBERS) -> tuple[EnsembleWork, Rates]:
    """Return the work, and the rates that the planner believes after a profile. ``devices``: M, in nodes of four; the
    last may have fewer; ``seed``: of the epochs; ``members``: fewer than 100 are drawn among them."""
    rng = random.Random(seed)
    alone = single_rates(MEMBERS)
    chosen = range(MEMBERS) if members == MEMBERS else sorted(rng.sample(range(MEMBERS), members))
    true = {f"m{place:02d}": curve(alone[place], devices) for place in chosen}
    epochs = {}
    for name, row in true.items():
        most = int(min(EPOCHS[1], max(EPOCHS[0], kind.longest_s * row[0] / SAMPLES)))
        epochs[name] = rng.randint(EPOCHS[0], most)
    nodes = [range(start, min(start + PER_NODE, devices)) for start in range(0, devices, PER_NODE)]
    work = EnsembleWork(Rates(true), epochs, SAMPLES, nodes, kind.prepared_per_s, CHECKPOINT_S)
    return work, believed(true, devices)


def believed(true: dict[str, tuple[float, ...]], devices: int) -> Rates:
    """Return the rates that a profile without noise and the extrapolation give the planner."""
    reach = most_profiled({name: row[0] for name, row in true.items()}, PER_NODE, devices)
    return profiled_rates({name: row[:reach] for name, row in true.items()}, devices)


def mistaken(rates: Rates, error: float, seed: int) -> Rates:
    """Return the rates of a wrong profile: each member's are off by one factor, log-normal with deviation ``error``."""
    rng = random.Random(seed)
    rows = zip(rates.members, rates.table, strict=True)
    return Rates({name: row * math.exp(rng.gauss(0.0, error)) for name, row in rows})


def single_rates(members: int) -> list[float]:
    """Return rates on one device, slowest first: 60 % between 21 and 60, the rest up to 176, each part evenly in
    logarithm."""
    low = round(BELOW_MIDDLE * members)
    high = members - low
    slow = [_between(SLOWEST_PER_S, MIDDLE_PER_S, place / low) for place in range(low)]
    return slow + [_between(MIDDLE_PER_S, FASTEST_PER_S, (place + 1) / high) for place in range(high)]


def curve(alone_per_s: float, devices: int) -> tuple[float, ...]:
    """Return the true rates on 1 … ``devices``: m r / (1 + c (m − 1)), which meets the paper's rates on eight devices.
    c is between those of the slowest and the fastest, evenly in the logarithm of the rate. Rates beyond eight devices
    are unknown; this curve never turns down, the planner's extrapolation does."""
    place = math.log(alone_per_s / SLOWEST_PER_S) / math.log(FASTEST_PER_S / SLOWEST_PER_S)
    share = OF_LINEAR[0] + (OF_LINEAR[1] - OF_LINEAR[0]) * place
    cost = (1 / share - 1) / 7
    return tuple(alone_per_s * count / (1 + cost * (count - 1)) for count in range(1, devices + 1))


def _between(low: float, high: float, share: float) -> float:
    return low * math.pow(high / low, share)


def extrapolated(measured: Sequence[float], devices: int) -> Floats:
    """Return rates on 1 … ``devices`` (Eq. 5), shape (devices,): beyond the anchor b, efficiency decays as it last did.

    ::

        r(m) = m · r(b)/b · e^(m − b)        e = r(b)/r(b−1) · (b−1)/b

    The paper anchors at b = M_b. If M_t > M_b the curve jumps between M_t and M_t + 1, so ours anchors at the last
    measured number. Ours too: e is at most 1, because noise can make it larger, and the curve would grow without bound.
    With e < 1 it turns down in the end.

    ``measured``: samples/s on 1, 2, 3, … devices; zero if the member does not fit on so few; ``devices``: length of the
    row; measured ones beyond are left out. Raises ConfigError: more devices than measured, and no two rates to
    extrapolate from.
    """
    known = np.array(measured[:devices], dtype=np.float64)
    if devices <= len(known):
        return known
    b = len(known)
    if b < 2 or not (known[b - 1] > 0.0 and known[b - 2] > 0.0):
        raise ConfigError(
            f"rates on {b} devices cannot be continued to {devices}: measure on two numbers of devices in a row"
        )
    efficiency = min(1.0, float(known[b - 1] / known[b - 2]) * (b - 1) / b)
    beyond = np.arange(len(known) + 1, devices + 1)
    return np.concatenate([known, beyond * (known[b - 1] / b) * efficiency ** (beyond - b)])


def profiled_rates(measured: Mapping[str, Sequence[float]], devices: int) -> Rates:
    """Return the planner's rates on 1 … ``devices`` from each member's measured ones; see :func:`extrapolated`."""
    return Rates({name: extrapolated(row, devices) for name, row in measured.items()})
