"""The plain recurrent network and the LSTM."""

from __future__ import annotations

import math

from uneven.errors import ConfigError
from uneven.policy.predict._cells import LongCell, PlainCell
from uneven.policy.predict._learner import Learner, whole
from uneven.policy.predict._recurrent_net import RecurrentNet


class _Recurrent(Learner):
    cell: type[PlainCell] | type[LongCell]

    def __init__(
        self,
        *,
        hidden: int = 8,
        length: int = 4,
        warm_up: int = 60,
        every: int = 5,
        memory: int = 1000,
        batch: int = 32,
        rate: float = 0.03,
        uses: bool = False,
        hold: float = 4.0,
    ) -> None:
        whole("hidden", hidden, 1, 64)
        whole("length", length, 2, 64)
        whole("batch", batch, 1, 1024)
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0.0 < rate < math.inf:
            raise ConfigError(f"rate = {rate!r} must be above 0, for instance 0.03")
        if not isinstance(uses, bool):
            raise ConfigError(f"uses = {uses!r} must be true or false")
        net = RecurrentNet.blank(self.cell(), hidden=hidden, length=length, batch=batch, rate=float(rate), uses=uses)
        super().__init__(net, warm_up=warm_up, every=every, memory=memory, hold=hold)


class RNN(_Recurrent):
    """A plain recurrent network (Elman) over past speeds, trained online.

    Choose it with ``"lb-bsp:predictor=rnn"``. It exists because the paper compares with it: it costs about as much as
    ARIMA (86 µs an iteration; an LSTM 124 µs) and was never the best here. docs/reference.md compares all predictors.
    The paper's network is unknown; the defaults are ours, see docs/ideas/predictors.md.

    Args:
        hidden: units, 1 … 64.
        length: iterations that it reads, 2 … 64.
        warm_up: iterations until it predicts, at least 4; before, the moving average.
        every: iterations between two lessons, at least 1.
        memory: iterations to learn from, at least 16.
        batch: sequences of one lesson, 1 … 1024.
        rate: Adam's step.
        uses: whether the uses of processor and memory are inputs too.
        hold: see :class:`~uneven.policy.predict._learner.Learner`.
    """

    cell = PlainCell


class LSTM(_Recurrent):
    """A network of one LSTM layer over past speeds, trained online; for its options see :class:`RNN`."""

    cell = LongCell
