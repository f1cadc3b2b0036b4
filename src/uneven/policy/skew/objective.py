"""The cost of a policy setting: bytes sent, and accuracy lost."""

from __future__ import annotations

from dataclasses import dataclass

from uneven.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Objective:
    """J = λ_loss · max(0, loss − tolerance) + λ_bytes · share, to be minimized.

    The form and the defaults are SkewScout's (Hsieh et al. 2020) [recalled]; the units are ours: with the loss and the
    bytes as fractions, of 1 and of BSP's traffic, two points above the tolerance weigh as much as all of BSP's traffic.

    Args:
        tolerance: accuracy that a model may lose at other sites, 0 to 1.
        loss_weight, bytes_weight: λ.

    Raises:
        ConfigError: a value is out of range.
    """

    tolerance: float = 0.05
    loss_weight: float = 50.0
    bytes_weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < 1:
            raise ConfigError(f"tolerance = {self.tolerance!r}: a part of the accuracy, at least 0 and below 1")
        for key in ("loss_weight", "bytes_weight"):
            if not 0 <= getattr(self, key) < 1e12:
                raise ConfigError(f"{key} = {getattr(self, key)!r} must be at least 0")

    def of(self, loss: float, share: float) -> float:
        """Return J of a period from the mean accuracy lost, and the bytes between sites over those of BSP."""
        return self.loss_weight * max(0.0, loss - self.tolerance) + self.bytes_weight * share
