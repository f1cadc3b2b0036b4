"""A plain recurrent cell and an LSTM cell, with backpropagation through time.

They are so small that a call into a library costs more than the arithmetic.
``tests/unit/policy/predict/test_recurrent.py`` compares values and gradients with PyTorch's. Shapes: B sequences of L
steps with I inputs, H hidden units.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from uneven.policy.predict._past import Floats


class Weights(NamedTuple):
    """The weights for G gates: inputs ``(I, G H)``, hidden ``(H, G H)``, offsets ``(G H,)``, out ``(H,)``."""

    inputs: Floats
    hidden: Floats
    offsets: Floats
    out: Floats


class Cell(ABC):
    """One kind of recurrent layer."""

    gates: int

    def size(self, inputs: int, hidden: int) -> int:
        return (inputs + hidden + 1) * self.gates * hidden + hidden

    def split(self, flat: Floats, inputs: int, hidden: int) -> Weights:
        wide = self.gates * hidden
        ends = np.cumsum([inputs * wide, hidden * wide, wide]).tolist()
        first, second, third, last = np.split(flat, ends)
        return Weights(first.reshape(inputs, wide), second.reshape(hidden, wide), third, last)

    @abstractmethod
    def forward(self, weights: Weights, x: Floats) -> tuple[Floats, Sequence[Any]]:
        """Return the last hidden values (B, H) for ``x`` (B, L, I), starting from zeros, and a trail for the backward
        pass.

        The trail has one tuple per step; its first entry are the hidden values before the step.
        """

    @abstractmethod
    def backward(self, weights: Weights, trail: Sequence[Any], slope: Floats) -> Floats:
        """Return the gradient of the gates' sums (L, B, G H), given ``slope`` (B, H) of the last hidden values."""

    def gradient(self, weights: Weights, x: Floats, target: Floats) -> tuple[float, Floats]:
        """Return the mean squared error of ``hidden · out`` from ``target`` (B,) and its gradient, flat."""
        last, trail = self.forward(weights, x)
        missed = last @ weights.out - target
        scale = 2.0 / len(target)
        steps = self.backward(weights, trail, scale * missed[:, None] * weights.out)
        before = np.stack([step[0] for step in trail])  # (L, B, H), the hidden values before each step
        wide = steps.shape[2]
        flat = steps.reshape(-1, wide)
        parts = (
            np.swapaxes(x, 0, 1).reshape(-1, x.shape[2]).T @ flat,
            before.reshape(-1, before.shape[2]).T @ flat,
            flat.sum(axis=0),
            scale * (missed @ last),
        )
        return float(missed @ missed) / len(target), np.concatenate([part.ravel() for part in parts])


class PlainCell(Cell):
    """h_t = tanh(x_t W + h_{t−1} U + b) (Elman)."""

    gates = 1

    def forward(self, weights: Weights, x: Floats) -> tuple[Floats, Sequence[Any]]:
        from_inputs = x @ weights.inputs + weights.offsets
        hidden = np.zeros((len(x), len(weights.out)))
        trail = []
        for t in range(x.shape[1]):
            before, hidden = hidden, np.tanh(from_inputs[:, t] + hidden @ weights.hidden)
            trail.append((before, hidden))
        return hidden, trail

    def backward(self, weights: Weights, trail: Sequence[Any], slope: Floats) -> Floats:
        steps = []
        for _, hidden in reversed(trail):
            step = slope * (1.0 - hidden * hidden)
            steps.append(step)
            slope = step @ weights.hidden.T
        return np.stack(steps[::-1])


class LongCell(Cell):
    """The LSTM of Hochreiter and Schmidhuber (1997) with the forget gate of Gers et al. (2000).

    c_t = f c_{t−1} + i g and h_t = o tanh(c_t), with the gates in the order i, f, g, o, as in PyTorch.
    """

    gates = 4

    def forward(self, weights: Weights, x: Floats) -> tuple[Floats, Sequence[Any]]:
        n = len(weights.out)
        from_inputs = x @ weights.inputs + weights.offsets
        hidden, kept = np.zeros((len(x), n)), np.zeros((len(x), n))
        # σ(z) = (tanh(z / 2) + 1) / 2, so one call of tanh computes all four gates; g is tanh itself (half = 1)
        half = np.full(4 * n, 0.5)
        half[2 * n : 3 * n] = 1.0
        trail = []
        for t in range(x.shape[1]):
            values = np.tanh((from_inputs[:, t] + hidden @ weights.hidden) * half)
            gate = values * half + (1.0 - half)
            i, f, g, o = gate[:, :n], gate[:, n : 2 * n], gate[:, 2 * n : 3 * n], gate[:, 3 * n :]
            kept_before, kept = kept, f * kept + i * g
            bent = np.tanh(kept)
            before, hidden = hidden, o * bent
            trail.append((before, kept_before, bent, i, f, g, o))
        return hidden, trail

    def backward(self, weights: Weights, trail: Sequence[Any], slope: Floats) -> Floats:
        steps = []
        kept_slope = np.zeros_like(slope)
        for _, kept_before, bent, i, f, g, o in reversed(trail):
            kept_slope = kept_slope + slope * o * (1.0 - bent * bent)
            step = np.concatenate(
                [
                    kept_slope * g * i * (1.0 - i),
                    kept_slope * kept_before * f * (1.0 - f),
                    kept_slope * i * (1.0 - g * g),
                    slope * bent * o * (1.0 - o),
                ],
                axis=1,
            )
            steps.append(step)
            slope = step @ weights.hidden.T
            kept_slope = kept_slope * f
        return np.stack(steps[::-1])
