"""Adapt a member's batch and learning rate to its number of devices.

Data-parallel training on m devices averages m gradients, so either the global batch or each device's part changes. The
paper's members have the largest batch b that fits a device, so m · b on m devices (B.1), with no rule for the learning
rate. Then the result of a member depends on the plan. Our default keeps the global batch.
"""

from enum import Enum

from uneven.errors import ConfigError


class BatchRule(Enum):
    """The rule for the global batch and learning rate on m devices of a member made for a batch of b on one."""

    KEEP = "keep"
    """Ours, the default: b on any number of devices, with the same learning rate. The plan does not change what is
    learnt, up to rounding, unless layers use the batch (batch norm) or random numbers (dropout)."""

    LINEAR = "linear"
    """m · b and m times the learning rate; a change is spread evenly over one epoch. Linear scaling and gradual warm-up
    follow Goyal et al., *Accurate, Large Minibatch SGD* (2017); the one epoch is ours, they warm up for five, once."""

    PAPER = "paper"
    """m · b with the same learning rate: FLEET, as far as its paper says."""


def global_batch(rule: BatchRule, batch: int, workers: int) -> int:
    """Return the samples of one step, summed over a member's workers; `batch` is its batch on one device."""
    return batch if rule is BatchRule.KEEP else batch * workers


def most_workers(rule: BatchRule, batch: int, devices: int, least: int) -> int:
    """Return how many devices a member can use with at least ``least`` samples per step each; at least 1.

    Raises `ConfigError` for fewer than one sample, worker or device.
    """
    if min(batch, devices, least) < 1:
        raise ConfigError(
            f"a batch of {batch} on {devices} devices, at least {least} on each: give values of at least 1"
        )
    if rule is BatchRule.KEEP:
        return max(1, min(devices, batch // least))
    return devices if batch >= least else 1


def rate_factor(rule: BatchRule, before: int, workers: int, step: int, steps: int) -> float:
    """Return the factor of the learning rate in step `step` (from 0) of an epoch of `steps` steps.

    `before` is the number of the member's workers in its last epoch; 1 for a new member.
    """
    if rule is not BatchRule.LINEAR:
        return 1.0
    return before + (workers - before) * min(1.0, (step + 1) / steps)
