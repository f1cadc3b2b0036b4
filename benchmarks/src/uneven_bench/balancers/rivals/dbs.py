"""DBS/DLB: the batch follows the speed of the last epoch.

After "DBS: Dynamic Batch Size for Distributed Deep Neural Network Training" (arXiv 2007.11831; DLB, IEEE TETCI 2022):
x_i ← X · (x_i / t_i) / Σ_j (x_j / t_j) once an epoch, t_i the epoch's compute time of worker i.

The description is open; our reading: t is compute time without the exchange; one shared order of samples replaces newly
cut parts of the data set; largest remainder gives whole numbers; nothing is damped.
"""

from collections.abc import Sequence
from typing import Any

from uneven.policy.balance.balancer import Balancer, standing
from uneven.policy.core.actions import Split
from uneven.policy.core.apportion import proportional
from uneven.policy.core.views import BalanceView, Limits
from uneven_bench.balancers.rivals.epochs import Epochs

EPOCH = 40  # iterations, our choice


def dbs_shares(
    shares: Sequence[int], times_s: Sequence[float], total: int, limits: Limits | None = None
) -> tuple[int, ...]:
    """Apply the rule once. Raises ConfigError: limits that cannot be met, or a speed that is not a number. ``shares``:
    samples of each worker in an iteration; ``times_s``: seconds that each needed for them; ``total``: X; ``limits``:
    least and greatest share of each worker. Returns the next epoch's shares, which add up to ``total``."""
    return proportional([x / t for x, t in zip(shares, times_s, strict=True)], total, limits)


class Dbs(Balancer):
    """DBS (2020), for comparison: once an epoch, shares in proportion to the speeds of the last one. ``epoch``:
    iterations of an epoch. Raises ConfigError: an epoch without iterations."""

    predictor = "last"

    def __init__(self, *, epoch: int = EPOCH) -> None:
        self._epochs = Epochs("dbs", epoch)

    def split(self, view: BalanceView) -> Split:
        epoch = self._epochs.take(view)
        if epoch is None:
            return Split(standing(view), "dbs: in the midst of an epoch")
        each_s = [1.0 / worker.speed_per_s for worker in epoch]
        return Split(
            dbs_shares([1] * len(epoch), each_s, view.global_batch, view.limits),
            "dbs: in proportion to the speeds of the last epoch",
        )

    def state_dict(self) -> dict[str, Any]:
        return self._epochs.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._epochs.load_state_dict(state)
