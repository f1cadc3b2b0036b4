"""Workers with known costs, in virtual time, for ``uneven bench balancers``."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from uneven.policy.core.views import Limits

SPIKE = 4.0  # the factor of a lone spike, which slows one iteration of one worker
SPIKES = 0.01  # the probability of a spike


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device with Γ(x) = max(floor, overhead + x · per_sample + x² · bend), and an exchange partly hidden by the
    backward pass.

    Buckets begin to move when ``ready`` of the computing is done and need ``link_s`` in all; the last one needs
    ``tail_s`` after the computing::

        seconds(x) = max(Γ(x) + tail_s, ready · Γ(x) + link_s)
    """

    per_sample_s: float
    overhead_s: float = 0.0
    floor_s: float = 0.0
    bend_s: float = 0.0
    link_s: float = 0.0
    tail_s: float = 0.0
    ready: float = 0.5
    tile: int = 1  # the device computes whole tiles of this number of samples
    most: int | None = None  # samples that fit into its memory

    def local_s(self, samples: int) -> float:
        samples += -samples % self.tile
        return max(self.floor_s, self.overhead_s + (self.per_sample_s + self.bend_s * samples) * samples)

    def whole_s(self, local_s: float) -> float:
        """Return the seconds of computing and of the communication that it does not hide."""
        return max(local_s + self.tail_s, self.ready * local_s + self.link_s)

    def seconds(self, samples: int) -> float:
        """Return the seconds of an iteration, without the wait for other workers."""
        return self.whole_s(self.local_s(samples))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCase:
    """The workers of a case, and the changes of their speeds."""

    name: str
    about: str
    devices: tuple[Device, ...]
    global_batch: int
    noise: float  # relative standard deviation of an iteration's computing, log-normal
    changes: Mapping[int, tuple[Device, ...]] = field(default_factory=dict)  # iteration → the devices from then on

    def at(self, iteration: int) -> tuple[Device, ...]:
        begun = [first for first in self.changes if first <= iteration]
        return self.changes[max(begun)] if begun else self.devices

    @property
    def limits(self) -> Limits:
        """The limits: at least one sample each, at most the number that fits into memory."""
        most = (min(self.global_batch, device.most or self.global_batch) for device in self.devices)
        return Limits(lower=(1,) * len(self.devices), upper=tuple(most))


def slowest_s(devices: Sequence[Device], shares: Sequence[int]) -> float:
    """Return the seconds of an iteration without noise."""
    return max(device.seconds(x) for device, x in zip(devices, shares, strict=True))


def noisy_s(local_s: float, noise: float, rng: random.Random) -> float:
    factor = math.exp(rng.gauss(0.0, noise))
    return local_s * factor * (SPIKE if rng.random() < SPIKES else 1.0)


def _slower(one: Device, factor: float) -> Device:
    return replace(
        one, per_sample_s=factor * one.per_sample_s, overhead_s=factor * one.overhead_s, floor_s=factor * one.floor_s
    )


# The cards of docs and clusters/lb_bsp_gpu16.toml, by peak arithmetic; 5 ms of fixed work, 10 ms at least.
_V100 = Device(per_sample_s=0.000087, overhead_s=0.005, floor_s=0.010)
_M60 = replace(_V100, per_sample_s=0.000283)
_K80 = replace(_V100, per_sample_s=0.000313)
_K520 = replace(_V100, per_sample_s=0.000556)
_FOUR = _V100, _M60, _K80, _K520
_LINKED = tuple(replace(card, link_s=0.012, tail_s=0.002) for card in _FOUR)
_CUT = (_LINKED[0], replace(_LINKED[1], link_s=0.024, tail_s=0.004), *_LINKED[2:])
_CORES = tuple(
    Device(overhead_s=a, per_sample_s=b)
    for a, b in ((0.0057, 0.0006), (0.0079, 0.00084), (0.0141, 0.00208), (0.042, 0.00425))
)
_LAUNCHES = (
    Device(per_sample_s=0.0001, overhead_s=0.002, floor_s=0.030),
    Device(per_sample_s=0.0001, overhead_s=0.002, floor_s=0.020),
    Device(per_sample_s=0.0004, overhead_s=0.004, floor_s=0.012),
    Device(per_sample_s=0.0010, overhead_s=0.010, floor_s=0.026),
)

CASES = (
    DeviceCase(name="equal", about="four equal workers", devices=(_K80,) * 4, global_batch=512, noise=0.1),
    DeviceCase(
        name="linear", about="time in proportion to the batch, speeds 1 : 2 : 4 : 8",
        devices=tuple(Device(per_sample_s=0.001 / speed) for speed in (1, 2, 4, 8)), global_batch=512, noise=0.05,
    ),
    DeviceCase(
        name="linear, noisy", about="the same with 20 % noise",
        devices=tuple(Device(per_sample_s=0.001 / speed) for speed in (1, 2, 4, 8)), global_batch=512, noise=0.2,
    ),
    DeviceCase(
        name="affine", about="0.6, 0.4, 0.2 and 0.1 of a core as measured, up to a half of the time constant",
        devices=_CORES, global_batch=256, noise=0.12,
    ),
    DeviceCase(
        name="constant", about="nine tenths of the time of two workers are constant",
        devices=(
            Device(overhead_s=0.09, per_sample_s=0.0001), Device(overhead_s=0.05, per_sample_s=0.0001),
            Device(per_sample_s=0.0012), Device(per_sample_s=0.0006),
        ), global_batch=512, noise=0.05,
    ),
    DeviceCase(
        name="saturating", about="small batches: two cards are below their saturation points",
        devices=_LAUNCHES, global_batch=256, noise=0.05,
    ),
    DeviceCase(
        name="memory", about="the two fastest cards hold 150 and 90 samples",
        devices=(replace(_V100, most=150), replace(_M60, most=90), _K80, _K520), global_batch=512, noise=0.05,
    ),
    DeviceCase(
        name="curved", about="time grows with the square of the batch, as where a cache is too small",
        devices=(
            Device(per_sample_s=0.0002, bend_s=2e-6), Device(per_sample_s=0.0001, overhead_s=0.02, bend_s=4e-6),
            Device(per_sample_s=0.0008), Device(per_sample_s=0.0001, bend_s=1e-5),
        ), global_batch=512, noise=0.03,
    ),
    DeviceCase(
        name="tiles", about="the four cards compute tiles of 16 samples",
        devices=tuple(replace(card, tile=16) for card in _FOUR), global_batch=500, noise=0.02,
    ),
    DeviceCase(name="16 cards", about="four of each card", devices=tuple(card for card in _FOUR for _ in range(4)),
         global_batch=2048, noise=0.03),
    DeviceCase(
        name="overlap", about="half of a long exchange is hidden by the backward pass",
        devices=tuple(replace(card, link_s=link, tail_s=0.004) for card, link in zip(_FOUR, (0.05, 0.02, 0.02, 0.03),
                                                                                    strict=True)),
        global_batch=512, noise=0.05,
    ),
    DeviceCase(
        name="bandwidth cut", about="four cards; at iteration 150 the second one's link has half of its bandwidth left",
        devices=_LINKED, changes={150: _CUT}, global_batch=512, noise=0.03,
    ),
    DeviceCase(
        name="cut, noisy", about="the same with 20 % noise",
        devices=_LINKED, changes={150: _CUT}, global_batch=512, noise=0.2,
    ),
    DeviceCase(
        name="slow-down", about="four cards; at iteration 150 the fastest is halved",
        devices=_FOUR, changes={150: (_slower(_V100, 2.0), *_FOUR[1:])}, global_batch=512, noise=0.05,
    ),
    DeviceCase(
        name="shared", about="the affine workers; every 40 iterations another one has half or all of its speed",
        devices=_CORES, global_batch=256, noise=0.08,
        changes={
            first: tuple(_slower(one, 2.0) if first // 40 >> place & 1 else one for place, one in enumerate(_CORES))
            for first in range(0, 400, 40)
        },
    ),
)  # fmt: skip
