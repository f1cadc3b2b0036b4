"""The nonlinear autoregressive network with external inputs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from uneven.errors import ConfigError
from uneven.policy.core.plain import Positive, as_many, read
from uneven.policy.predict._learner import Learner, SpeedModel, whole
from uneven.policy.predict._past import CPU, CPU_LEVEL, LEVEL, MEMORY, SPEED, Floats, next_row

_USE = 2.0  # scale of differences of uses, which are 0 … 1
_LEAST_DAMPING, _MOST_DAMPING = 1e-6, 1e6
_DIRECT = 0.01  # penalty of a direct weight
_FARTHEST = 3.0  # logarithm of a speed relative to the level, far beyond any plausible one
_TRIES = 2  # steps of different damping in one lesson


class _NarxState(TypedDict):
    weights: list[float]
    damping: Positive
    mean_use: tuple[float, float]


@dataclass(frozen=True, slots=True, eq=False)
class NarxNet(SpeedModel):
    """ln(v̂_{r+1} / level_r) = linear + tanh layer, of d past speeds and d + 1 uses of processor and memory.

    The level is the moving average of the speeds. Inputs are log speeds relative to their level, differences of uses
    from theirs, and the levels of the uses; only the hidden layer reads the latter. So the net returns to any constant
    speed, and the direct weights can express "the recent speed, less the rise of the processor's use".
    """

    hidden: int  # units H
    delay: int  # rows d that it reads, through F = 2 + D inputs; D = 2 + 3 d of them are differences
    rows_per_lesson: int  # of the past, drawn again for each lesson
    penalty: float  # 1 makes a weight of 1 as likely as an error of the usual size
    weights: Floats  # (H F + H + H + D,): hidden weights and offsets, output weights, direct weights
    damping: float = 1e-2  # of the next step
    mean_use: tuple[float, float] = field(default=(0.0, 0.0))  # of processor and memory; 0 if unknown

    @classmethod
    def blank(cls, *, hidden: int, delay: int, rows_per_lesson: int, penalty: float) -> "NarxNet":
        return cls(hidden, delay, rows_per_lesson, penalty, _first_weights(hidden, delay))

    def forecast(self, rows: Floats, steps: int) -> float:
        """Return the speed ``steps`` rows after ``rows`` (n, 6); predictions serve as the past, uses stay constant."""
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
        # Equal to ``_output(_inputs(rows))``, without an array for every number.
        backwards = rows[::-1]
        newest = backwards[0]
        # Logarithms, because a rival takes a fraction of the speed: what a rise of the use means then holds at any
        # speed.
        inputs = [math.log(row[SPEED] / newest[LEVEL]) for row in backwards[:-1]]
        levels = []
        for kind, mean in enumerate(self.mean_use):
            level = newest[CPU_LEVEL + kind]
            inputs += [_or_zero(row[CPU + kind] - level) for row in backwards]
            levels.append(_or_zero(level - mean))
        way = float(self._output(self.weights, np.array([inputs + levels]))[0][0])
        return newest[LEVEL] * math.exp(min(max(way, -_FARTHEST), _FARTHEST))

    def study(self, rows: Floats, number: int) -> "NarxNet":
        """Return the net after one damped Gauss-Newton step on some of ``rows`` (n, 6), if it lowers error plus
        penalty."""
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

    def _step(self, inputs: Floats, target: Floats, roots: Floats) -> "NarxNet":
        # ``roots`` are the square roots of the numbers of rows that each row represents.
        output, slope = self._output(self.weights, inputs)
        missed = (target - output) * roots
        strayed = self.weights - _first_weights(self.hidden, self.delay)
        usual = max(float(missed @ missed) / float(roots @ roots), 1e-8)
        # Weights are drawn to their first values: the net is the moving average until the data show an error.
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
        # (n − d, F): for each run of d + 1 rows the differences, newest first, then the levels of the uses.
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
        """Return the log speed relative to the level, (n,), and the hidden units, (n, H)."""
        first, offsets, last, direct = self._parts(weights)
        units = np.tanh(inputs @ first.T + offsets)
        return inputs[:, : len(direct)] @ direct + units @ last, units

    def _jacobian(self, inputs: Floats, units: Floats) -> Floats:
        """Return the derivative of each output by each weight, (n, weights)."""
        _, _, last, direct = self._parts(self.weights)
        slope = last * (1.0 - units * units)
        first = (slope[:, :, None] * inputs[:, None, :]).reshape(len(inputs), -1)
        return np.concatenate([first, slope, units, inputs[:, : len(direct)]], axis=1)

    def state(self) -> dict[str, Any]:
        return {"weights": self.weights.tolist(), "damping": self.damping, "mean_use": list(self.mean_use)}

    def restored(self, state: dict[str, Any]) -> "NarxNet":
        saved = read(_NarxState, state)
        weights = np.array(as_many(saved["weights"], len(self.weights), "weights"))
        return replace(self, weights=weights, damping=saved["damping"], mean_use=saved["mean_use"])


def _mean(uses: Floats) -> float:
    known = uses[~np.isnan(uses)]
    return float(known.mean()) if len(known) else 0.0


def _drawn(sizes: Floats, many: int, number: int) -> tuple[npt.NDArray[np.intp], Floats]:
    """Return the rows of a lesson, and the number of rows that each one represents."""
    # Changes are rare but important. So half of the lesson are the rows with the largest differences; the rest is a
    # sample of all others, weighted for those left out.
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
    # Direct weights are cheap, so that they learn what is linear.
    direct = _differences(delay)
    prices = np.full(hidden * (direct + 2) + 2 * hidden + direct, 1.0)
    prices[-direct:] = _DIRECT
    return prices


def _first_weights(hidden: int, delay: int) -> Floats:
    """Return random weights from the speeds into the hidden layer, equal each time, and zeros elsewhere."""
    direct = _differences(delay)
    inputs = direct + 2
    weights = np.zeros(hidden * inputs + 2 * hidden + direct)
    rng = np.random.default_rng(7)
    first = weights[: hidden * inputs].reshape(hidden, inputs)
    first[:, :delay] = rng.normal(0.0, 1.0 / np.sqrt(delay), (hidden, delay))
    weights[hidden * inputs : hidden * (inputs + 1)] = rng.normal(0.0, 0.5, hidden)
    return weights


class NARX(Learner):
    """Predicts v̂ᵏ = F(vᵏ⁻¹ … vᵏ⁻ᵈ; cᵏ … cᵏ⁻ᵈ⁺¹; mᵏ … mᵏ⁻ᵈ⁺¹) with a small network (LB-BSP, specification §1.6).

    c and m are the use of the node's processors by others and of its memory at the time of the prediction. It follows a
    slowdown immediately if they announce it, and ignores a spike that they do not announce. If they are unknown, it is
    a NAR.

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
