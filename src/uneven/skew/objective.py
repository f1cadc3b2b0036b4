"""What a setting of a policy costs: what it sends, and what the models lose by it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from uneven.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Objective:
    """J = λ_loss · max(0, loss − tolerance) + λ_bytes · share, to be made small.

    The form is SkewScout's (Hsieh et al. 2020) as we remember it, and so are the defaults; the units are ours: with the
    loss as a fraction and bytes as a part of what BSP would send, two points above the tolerance weigh as much as all
    of BSP's traffic.

    Args:
        tolerance: accuracy that a model may lose away from home, 0 … 1.
        loss_weight, bytes_weight: λ.

    Raises:
        ConfigError: out of range.
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
        """J of a period.

        Args:
            loss: accuracy that models lose, mean over the visits.
            share: bytes between sites, those of the visits too, as a part of what BSP sends.
        """
        return self.loss_weight * max(0.0, loss - self.tolerance) + self.bytes_weight * share
