"""OmniLearn's proportional controller for BSP.

After Tyagi and Sharma, "Taming Resource Heterogeneity in Distributed ML Training with Dynamic Batching" (arXiv
2305.12213) and "OmniLearn" (TPDS 2025, arXiv 2503.17469), and the arithmetic of the authors' released program: once an
epoch b_i ← b_i − (b_i / t_i)(t_i − mean t), with a dead band, clamps, and a correction of the sum. t is compute time,
as in the program. ``docs/ideas/rivals.md`` has our reading of open points.
"""

import math
from collections.abc import Sequence
from typing import Any

from uneven.errors import ConfigError
from uneven.policy.balance.balancer import Balancer, standing
from uneven.policy.core.actions import Split
from uneven.policy.core.apportion import proportional
from uneven.policy.core.views import BalanceView
from uneven_bench.balancers.rivals.dbs import EPOCH
from uneven_bench.balancers.rivals.epochs import Epochs

_DIGITS = 6  # digits kept before rounding up: 50.000000000000007 is 50


def omnilearn_round(
    batches: Sequence[int],
    times_s: Sequence[float],
    *,
    total: int,
    dead_band: float = 0.2,
    least: float = 16.0,
    most: float = 96.0,
) -> tuple[int, ...]:
    """Apply the controller once, to the digit: the sum drifts from X, and the bounds need not hold.

    A change smaller than ``dead_band`` of the candidate is left out. All n workers get ⌈1/n⌉ of each amount that a
    clamp cut off. Then each gives back an n-th of the excess of the sum over X, rounded up, without a further clamp.
    Specification of LB-BSP, §6.1.

    ``batches``: samples of each worker in an iteration; ``times_s``: mean compute time of each; ``total``: X;
    ``dead_band``: relative to the candidate; ``least, most``: bounds of a candidate, samples. Returns the next epoch's
    batches; their sum may differ from X by less than n.
    """
    n = len(batches)
    mean_s = math.fsum(times_s) / n
    clamped, handed = [], 0
    for b, t in zip(batches, times_s, strict=True):
        candidate = b - (b / t) * (t - mean_s)
        # A candidate of zero is the largest possible change.
        held = candidate != 0 and abs((candidate - b) / candidate) < dead_band
        wanted = float(b) if held else candidate
        bounded = min(max(wanted, least), most)
        handed += _up((wanted - bounded) / n)
        clamped.append(_up(bounded))
    shared = [b + handed for b in clamped]
    over = (sum(shared) - total) / n
    return tuple(_up(b - over) for b in shared)


def _up(value: float) -> int:
    return math.ceil(round(value, _DIGITS))


class OmniLearn(Balancer):
    """OmniLearn (2025), for comparison: its proportional controller once an epoch, with the sum repaired.

    The program lets the global batch drift, and scales gradients by it. Our comparison needs the same X, so the
    controller's batches count as proportions of X, whole by largest remainder. That moves a worker by at most one or
    two samples.

    ``epoch``: iterations of an epoch; ``dead_band``: see :func:`omnilearn_round`; ``least, most``: bounds of a
    candidate, as multiples of X / n. Raises ConfigError: an argument out of range.
    """

    predictor = "last"

    def __init__(self, *, epoch: int = EPOCH, dead_band: float = 0.2, least: float = 0.5, most: float = 3.0) -> None:
        if not (0.0 <= dead_band < math.inf and 0.0 <= least <= 1.0 <= most):
            raise ConfigError(
                f"omnilearn: dead_band = {dead_band!r} must not be negative, and the bounds {least!r} and {most!r} "
                f"must hold 1, the mean share, between them"
            )
        self._epochs = Epochs("omnilearn", epoch)
        self._dead_band = dead_band
        self._least = least
        self._most = most

    def split(self, view: BalanceView) -> Split:
        epoch = self._epochs.take(view)
        present = standing(view)
        if epoch is None:
            return Split(present, "omnilearn: in the midst of an epoch")
        mean = view.global_batch / len(view.members)
        times_s, least, most = [worker.iteration_s for worker in epoch], self._least * mean, self._most * mean
        batches = omnilearn_round(
            present, times_s, total=view.global_batch, dead_band=self._dead_band, least=least, most=most
        )
        shares = proportional([max(b, 0) for b in batches], view.global_batch, view.limits)
        drift = sum(batches) - view.global_batch
        return Split(shares, f"omnilearn: a step towards the mean time; its own sum was off by {drift:+d}")

    def state_dict(self) -> dict[str, Any]:
        return self._epochs.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._epochs.load_state_dict(state)
