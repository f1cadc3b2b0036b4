"""The nonlinear autoregressive network with external inputs."""

from __future__ import annotations

import math

from uneven.errors import ConfigError
from uneven.policy.predict._learner import Learner, whole
from uneven.policy.predict._narx_net import NarxNet


class NARX(Learner):
    """Predicts v̂ᵏ = F(vᵏ⁻¹ … vᵏ⁻ᵈ; cᵏ … cᵏ⁻ᵈ⁺¹; mᵏ … mᵏ⁻ᵈ⁺¹) with a small network (LB-BSP, specification §1.6).

    c and m are the use of the node's processors by others and of its memory at the time of the prediction: it follows a
    slowdown that they announce immediately, and ignores a spike without one. If they are unknown, it is a NAR.

    Choose it with ``"lb-bsp:predictor=narx"``. Measuring and deciding then took 0.7 to 0.8 % of iterations of about 100
    ms, more than the default budget. Try it if iterations take a quarter of a second or more and other jobs come and
    go. docs/reference.md compares all predictors.

    It learns online from this worker's past, with measured speeds as inputs (series-parallel, or open loop). The
    paper's network is unknown; the defaults are ours, see docs/ideas/predictors.md.

    Args:
        hidden: units of the hidden layer, 1 … 64.
        delay: iterations d that it reads, 1 … 16.
        warm_up: iterations until it predicts, at least 4; before, the moving average.
        every: iterations between two lessons, at least 1.
        memory: iterations to learn from, at least 16.
        rows: of them, drawn for one lesson, at least 16.
        penalty: on the weights, above 0; more keeps it closer to the moving average.
        hold: see :class:`~uneven.policy.predict._learner.Learner`.
    """

    def __init__(
        self,
        *,
        hidden: int = 6,
        delay: int = 2,
        warm_up: int = 60,
        every: int = 10,
        memory: int = 1000,
        rows: int = 256,
        penalty: float = 30.0,
        hold: float = 4.0,
    ) -> None:
        whole("hidden", hidden, 1, 64)
        whole("delay", delay, 1, 16)
        whole("rows", rows, 16)
        if isinstance(penalty, bool) or not isinstance(penalty, (int, float)) or not 0.0 < penalty < math.inf:
            raise ConfigError(f"narx: penalty = {penalty!r} must be above 0, for instance 30")
        net = NarxNet.blank(hidden=hidden, delay=delay, rows_per_lesson=rows, penalty=float(penalty))
        super().__init__(net, warm_up=warm_up, every=every, memory=memory, hold=hold)
