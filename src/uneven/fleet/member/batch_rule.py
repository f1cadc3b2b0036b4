"""What becomes of a member's batch and learning rate when its number of devices changes. Pure.

Data-parallel training on m devices averages m gradients, so something has to give: the global batch or the part of each
device. The paper's members have the largest batch b that fits a device and so m · b on m of them (B.1), and it gives no
rule for the learning rate; what a member learns then depends on the plan. Ours keeps the batch.
"""

from __future__ import annotations

from enum import Enum

from uneven.errors import ConfigError


class BatchRule(Enum):
    """The global batch and the learning rate of a member on m devices, made for a batch of b on one."""

    KEEP = "keep"
    """Ours, the default: b on any number of devices, the learning rate as it is. The plan does not change what is
    learnt, up to rounding, unless layers look at the batch (batch norm) or draw random numbers (dropout)."""

    LINEAR = "linear"
    """m · b, and m times the learning rate; a changed number is approached evenly over one epoch. Linear scaling and
    gradual warm-up are those of Goyal et al., *Accurate, Large Minibatch SGD* (2017); one epoch is ours, they warm up
    for five, once."""

    PAPER = "paper"
    """m · b, the learning rate as it is: FLEET, as far as it says."""


def global_batch(rule: BatchRule, batch: int, workers: int) -> int:
    """Samples of one step, of all workers of a member together.

    Args:
        batch: of the member on one device.
    """
    return batch if rule is BatchRule.KEEP else batch * workers


def most_workers(rule: BatchRule, batch: int, devices: int, least: int) -> int:
    """How many of its devices a member can use, if each worker is to have ``least`` samples of a step; at least one.

    Raises:
        ConfigError: less than one sample, worker or device.
    """
    if min(batch, devices, least) < 1:
        raise ConfigError(f"a batch of {batch} on {devices} devices, at least {least} on each: none may be below 1")
    if rule is BatchRule.KEEP:
        return max(1, min(devices, batch // least))
    return devices if batch >= least else 1


def rate_factor(rule: BatchRule, before: int, workers: int, step: int, steps: int) -> float:
    """What the learning rate is multiplied with in one step of an epoch.

    Args:
        before: workers that the member had in its last epoch; 1 for a member that begins.
        step: of this epoch, counted from 0.
        steps: of the whole epoch.
    """
    if rule is not BatchRule.LINEAR:
        return 1.0
    return before + (workers - before) * min(1.0, (step + 1) / steps)
