"""The network of NARX: one hidden layer, trained by Levenberg and Marquardt's method. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from uneven.core.plain import Positive, as_many, read
from uneven.predict._learner import SpeedModel
from uneven.predict._past import CPU, CPU_LEVEL, LEVEL, MEMORY, SPEED, Floats, next_row

_USE = 2.0  # uses are 0 … 1; differences from their mean are taken times this
_LEAST_DAMPING, _MOST_DAMPING = 1e-6, 1e6
_DIRECT = 0.01  # price of a direct weight
_FARTHEST = 3.0  # logarithm of a speed in units of the level, further than whoever predicts would believe
_TRIES = 2  # steps of different damping in one lesson


class _NarxState(TypedDict):
    weights: list[float]
    damping: Positive
    mean_use: tuple[float, float]


@dataclass(frozen=True, slots=True, eq=False)
class NarxNet(SpeedModel):
    """ln(v̂_{r+1} / level_r) = linear + tanh layer, of d past speeds and d + 1 uses of processor and memory.

    The level is the moving average of the speeds. Inputs are the logarithms of speeds in units of their level, the
    differences of uses from theirs, and the levels of the uses; only the hidden layer sees these. So whatever the net
    has learnt, it comes back to a speed that stays, also to one that it has never seen, and the direct weights can say
    "as fast as of late, less what the use of the processor has risen by". Logarithms, because a rival takes a part of
    the speed, whatever that is: what a rise of the use means was learnt at other speeds too. All weights that lead to
    the output start at zero and are drawn to zero by a penalty: the net is the average until the data say what it gets
    wrong.

    Attributes:
        hidden: units H.
        delay: rows d that the net looks back, through F = 2 + D inputs, of which D = 2 + 3 d are differences.
        rows_per_lesson: of the past, drawn anew for each lesson.
        penalty: on the weights; 1 takes a weight of 1 for as likely as an error of the usual size.
        weights: ``(H F + H + H + D,)``: hidden weights and offsets, output weights, direct weights.
        damping: of the next step.
        mean_use: of processor and memory, which counts as 0 where they are not known.
    """

    hidden: int
    delay: int
    rows_per_lesson: int
    penalty: float
    weights: Floats
    damping: float = 1e-2
    mean_use: tuple[float, float] = field(default=(0.0, 0.0))

    @classmethod
    def blank(cls, *, hidden: int, delay: int, rows_per_lesson: int, penalty: float) -> NarxNet:
        """Knows nothing."""
        return cls(hidden, delay, rows_per_lesson, penalty, _first_weights(hidden, delay))

    def forecast(self, rows: Floats, steps: int) -> float:
        """Row by row, shape (n, 6); a predicted speed is the past of the next one, and uses stay as they are."""
        if len(rows) <= self.delay:
            return float("nan")
        newest: list[Sequence[float]] = rows[-self.delay - 1 :].tolist()
        speed = self._next(newest)
        for _ in range(steps - 1):
            last = newest[-1]
            newest = [*newest[1:], next_row(last, speed, last[CPU], last[MEMORY])]
            speed = self._next(newest)
        return speed

    def _next(self, rows: list[Sequence[float]]) -> float:
        """The speed after d + 1 rows; as ``_output(_inputs(rows))``, without an array for every number."""
        backwards = rows[::-1]
        newest = backwards[0]
        inputs = [math.log(row[SPEED] / newest[LEVEL]) for row in backwards[:-1]]
        levels = []
        for kind, mean in enumerate(self.mean_use):
            level = newest[CPU_LEVEL + kind]
            inputs += [_or_zero(row[CPU + kind] - level) for row in backwards]
            levels.append(_or_zero(level - mean))
        way = float(self._output(self.weights, np.array([inputs + levels]))[0][0])
        return newest[LEVEL] * math.exp(min(max(way, -_FARTHEST), _FARTHEST))

    def study(self, rows: Floats, number: int) -> NarxNet:
        """One damped Gauss-Newton step on some of the rows, shape (n, 6), if it lowers error and penalty together."""
        if len(rows) < self.delay + 3:
            return self
        net = replace(self, mean_use=(_mean(rows[:, CPU]), _mean(rows[:, MEMORY])))
        inputs = net._inputs(rows[:-1])
        target = np.log(rows[self.delay + 1 :, SPEED] / rows[self.delay : -1, LEVEL])
        counts = np.ones(len(target))
        if len(target) > self.rows_per_lesson:
            drawn, counts = _drawn(np.square(inputs).sum(axis=1) + target * target, self.rows_per_lesson, number)
            inputs, target = inputs[drawn], target[drawn]
        return net._step(inputs, target, np.sqrt(counts))

    def _step(self, inputs: Floats, target: Floats, roots: Floats) -> NarxNet:
        """``roots``: square root of how many rows each one stands for."""
        output, slope = self._output(self.weights, inputs)
        missed = (target - output) * roots
        strayed = self.weights - _first_weights(self.hidden, self.delay)
        usual = max(float(missed @ missed) / float(roots @ roots), 1e-8)
        price = _prices(self.hidden, self.delay) * self.penalty * usual
        matrix = self._jacobian(inputs, slope) * roots[:, None]
        square = matrix.T @ matrix
        pull = matrix.T @ missed - price * strayed
        before = float(missed @ missed) + float(price * strayed @ strayed)
        diagonal = np.diag_indices(len(pull))
        damping = self.damping
        for _ in range(_TRIES):
            damped = square.copy()
            damped[diagonal] += price + damping * (1e-3 + square[diagonal])
            weights = self.weights + np.linalg.solve(damped, pull)
            left = (target - self._output(weights, inputs)[0]) * roots
            strayed = weights - _first_weights(self.hidden, self.delay)
            if float(left @ left) + float(price * strayed @ strayed) < before:
                return replace(self, weights=weights, damping=max(damping / 5.0, _LEAST_DAMPING))
            damping = min(damping * 10.0, _MOST_DAMPING)
        return replace(self, damping=damping)

    def _inputs(self, rows: Floats) -> Floats:
        """``(n − d, F)``: of every d + 1 rows in a run the differences, newest first, and the levels of the uses."""
        n, d = len(rows) - self.delay, self.delay
        level = rows[d:, LEVEL]
        columns: list[Floats] = [np.log(rows[d - age :, SPEED][:n] / level) for age in range(d)]
        levels = []
        for kind, mean in enumerate(self.mean_use):
            level = rows[d:, CPU_LEVEL + kind]
            columns += [_USE * (rows[d - age :, CPU + kind][:n] - level) for age in range(d + 1)]
            levels.append(_USE * (level - mean))
        return np.nan_to_num(np.stack(columns + levels, axis=1))

    def _parts(self, weights: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        h, f = self.hidden, _differences(self.delay) + 2
        first, rest = weights[: h * f].reshape(h, f), weights[h * f :]
        return first, rest[:h], rest[h : 2 * h], rest[2 * h :]

    def _output(self, weights: Floats, inputs: Floats) -> tuple[Floats, Floats]:
        """Logarithm of the speed in units of the level, ``(n,)``, and the values of the hidden units, ``(n, H)``."""
        first, offsets, last, direct = self._parts(weights)
        units = np.tanh(inputs @ first.T + offsets)
        return inputs[:, : len(direct)] @ direct + units @ last, units

    def _jacobian(self, inputs: Floats, units: Floats) -> Floats:
        """``(n, weights)``: how each output changes with each weight."""
        _, _, last, direct = self._parts(self.weights)
        slope = last * (1.0 - units * units)
        first = (slope[:, :, None] * inputs[:, None, :]).reshape(len(inputs), -1)
        return np.concatenate([first, slope, units, inputs[:, : len(direct)]], axis=1)

    def state(self) -> dict[str, Any]:
        return {
            "weights": self.weights.tolist(),
            "damping": self.damping,
            "mean_use": list(self.mean_use),
        }

    def restored(self, state: dict[str, Any]) -> NarxNet:
        saved = read(_NarxState, state)
        weights = np.array(as_many(saved["weights"], len(self.weights), "weights"))
        return replace(self, weights=weights, damping=saved["damping"], mean_use=saved["mean_use"])


def _mean(uses: Floats) -> float:
    known = uses[~np.isnan(uses)]
    return float(known.mean()) if len(known) else 0.0


def _drawn(sizes: Floats, many: int, number: int) -> tuple[npt.NDArray[np.intp], Floats]:
    """Rows of a lesson and how many rows each stands for: half of them those in which most happens, for changes are
    rare and are what is to be learnt; the others by chance from the rest, each for as many as were left out."""
    order = np.argsort(sizes)
    most = many // 2
    rest, largest = order[:-most], order[-most:]
    chance = np.random.default_rng(number).choice(rest, many - most, replace=False)
    counts = np.ones(many)
    counts[most:] = len(rest) / (many - most)
    return np.concatenate([largest, chance]), counts


def _or_zero(difference: float) -> float:
    return 0.0 if math.isnan(difference) else _USE * difference


def _differences(delay: int) -> int:
    return delay + 2 * (delay + 1)


def _prices(hidden: int, delay: int) -> Floats:
    """What each weight costs; the direct ones are cheap, so that what is linear is learnt by them."""
    direct = _differences(delay)
    prices = np.full(hidden * (direct + 2) + 2 * hidden + direct, 1.0)
    prices[-direct:] = _DIRECT
    return prices


def _first_weights(hidden: int, delay: int) -> Floats:
    """Random ones from the speeds into the hidden layer, the same each time; everything else is zero."""
    direct = _differences(delay)
    inputs = direct + 2
    weights = np.zeros(hidden * inputs + 2 * hidden + direct)
    rng = np.random.default_rng(7)
    first = weights[: hidden * inputs].reshape(hidden, inputs)
    first[:, :delay] = rng.normal(0.0, 1.0 / np.sqrt(delay), (hidden, delay))
    weights[hidden * inputs : hidden * (inputs + 1)] = rng.normal(0.0, 0.5, hidden)
    return weights
