"""The plain recurrent network and the LSTM."""

import math
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np

from uneven.errors import ConfigError
from uneven.policy.core.plain import Amount, Count, as_many, read
from uneven.policy.predict._cells import Cell, LongCell, PlainCell
from uneven.policy.predict._learner import Learner, SpeedModel, whole
from uneven.policy.predict._past import CPU, CPU_LEVEL, LEVEL, MEMORY, MEMORY_LEVEL, SPEED, Floats, next_row

_USE = 2.0  # scale of differences of uses, which are 0 … 1
_MOST = 4.0  # limit of inputs and targets, in usual differences
_LEAST_SPREAD = 0.01  # relative
_FIRST, _SECOND, _TINY = 0.9, 0.999, 1e-8  # Adam's


class _RecurrentState(TypedDict):
    weights: list[float]
    moments: tuple[list[float], list[float]]
    steps: Count
    spread: Amount


@dataclass(frozen=True, slots=True, eq=False)
class RecurrentNet(SpeedModel):
    """v̂_{r+1} = level_r · (1 + spread · out · h), where h reads the last L speeds as differences from level_r.

    The level is the moving average. ``out`` starts at zero, so the net is the average until it has learned more. The
    worker's speed and noise are scaled out.
    """

    cell: Cell
    hidden: int  # units
    length: int  # rows L that it reads
    batch: int  # sequences per step of training
    rate: float  # Adam's step
    uses: bool  # whether the uses of processor and memory are inputs too
    weights: Floats  # flat, see :class:`~uneven.policy.predict._cells.Cell`
    moments: Floats  # Adam's, (2, weights)
    steps: int = 0  # of training taken
    spread: float = 0.1  # usual relative difference of a speed from the level

    @classmethod
    def blank(cls, cell: Cell, *, hidden: int, length: int, batch: int, rate: float, uses: bool) -> "RecurrentNet":
        inputs = 3 if uses else 1
        size = cell.size(inputs, hidden)
        weights = np.random.default_rng(11).normal(0.0, 1.0 / np.sqrt(hidden), size)
        weights[-hidden:] = 0.0
        return cls(cell, hidden, length, batch, rate, uses, weights, np.zeros((2, size)))

    def forecast(self, rows: Floats, steps: int) -> float:
        """Return the speed ``steps`` rows after ``rows`` (n, 6); predictions serve as the past, uses stay constant."""
        if len(rows) < self.length:
            return float("nan")
        rows = rows[-self.length :]
        split = self._split(self.weights)
        for _ in range(steps):
            last, _ = self.cell.forward(split, self._inputs(rows[None]))
            level = float(rows[-1, LEVEL])
            speed = level * (1.0 + self.spread * float(last[0] @ split.out))
            if steps > 1:
                newest = rows[-1].tolist()
                rows = np.vstack([rows[1:], next_row(newest, speed, newest[CPU], newest[MEMORY])])
        return speed

    def study(self, rows: Floats, number: int) -> "RecurrentNet":
        """Return the net after one step of Adam on sequences drawn from ``rows`` (n, 6)."""
        n = len(rows) - self.length
        if n < 2:
            return self
        away = rows[1:, SPEED] / rows[:-1, LEVEL] - 1.0
        net = replace(self, spread=max(_LEAST_SPREAD, float(np.sqrt(np.mean(np.minimum(away * away, 1.0))))))
        first = np.random.default_rng(number).integers(0, n, min(self.batch, n))
        window = rows[first[:, None] + np.arange(self.length)]
        after = first + self.length
        target = (rows[after, SPEED] / rows[after - 1, LEVEL] - 1.0) / net.spread
        _, slope = self.cell.gradient(self._split(self.weights), net._inputs(window), _bounded(target))
        return net._stepped(slope)

    def _stepped(self, slope: Floats) -> "RecurrentNet":
        """Return the net after a step of Adam (Kingma and Ba, ICLR 2015, algorithm 1)."""
        steps = self.steps + 1
        mean = _FIRST * self.moments[0] + (1.0 - _FIRST) * slope
        square = _SECOND * self.moments[1] + (1.0 - _SECOND) * slope * slope
        move = mean / (1.0 - _FIRST**steps) / (np.sqrt(square / (1.0 - _SECOND**steps)) + _TINY)
        return replace(self, weights=self.weights - self.rate * move, moments=np.stack([mean, square]), steps=steps)

    def _inputs(self, windows: Floats) -> Floats:
        """Return the inputs (B, L, I) of B runs of L rows: differences from the level at the end of the run."""
        speeds = (windows[:, :, SPEED] / windows[:, -1:, LEVEL] - 1.0) / self.spread
        columns = [_bounded(speeds)]
        if self.uses:
            for use, level in ((CPU, CPU_LEVEL), (MEMORY, MEMORY_LEVEL)):
                away = _USE / self.spread * (windows[:, :, use] - windows[:, -1:, level])
                columns.append(_bounded(np.nan_to_num(away)))
        return np.stack(columns, axis=2)

    def _split(self, flat: Floats) -> Any:
        return self.cell.split(flat, 3 if self.uses else 1, self.hidden)

    def state(self) -> dict[str, Any]:
        return {
            "weights": self.weights.tolist(),
            "moments": self.moments.tolist(),
            "steps": self.steps,
            "spread": self.spread,
        }

    def restored(self, state: dict[str, Any]) -> "RecurrentNet":
        saved, size = read(_RecurrentState, state), len(self.weights)
        weights = np.array(as_many(saved["weights"], size, "weights"))
        moments = np.array([as_many(one, size, "moments") for one in saved["moments"]])
        return replace(self, weights=weights, moments=moments, steps=saved["steps"], spread=saved["spread"])


def _bounded(values: Floats) -> Floats:
    bounded: Floats = np.minimum(np.maximum(values, -_MOST), _MOST)  # np.clip takes three times as long
    return bounded


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

    Choose it with ``"lb-bsp:predictor=rnn"``. It exists because the paper compares with it. It costs about as much as
    ARIMA (86 µs an iteration; an LSTM 124 µs), and was never the best here. docs/reference.md compares all predictors.
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
