"""The bench of threads, on very few samples."""

from __future__ import annotations

import math

import pytest

from uneven_bench import threads
from uneven_bench.threads import MODELS, PLAIN, WAYS


def test_every_model_is_trained_in_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_QUICK", 128)
    few = {name: MODELS[name] for name in ("small layers",)}  # convolutions on two cores wait long on a busy machine
    monkeypatch.setattr(threads, "MODELS", few)
    monkeypatch.setattr(threads, "_QUICK_ROUNDS", 2)
    said: list[float] = []
    result = threads.run(True, "digits", lambda phase, state, done: said.append(done))
    assert said == sorted(said)
    assert said[-1] == 1.0
    assert list(result["cases"]) == list(few)
    for ways in result["cases"].values():
        assert list(ways) == list(WAYS)
        assert ways[PLAIN]["of_plain"] == [1.0, 1.0, 1.0]
        assert all(row["samples_per_s"] > 0 and math.isfinite(row["loss"]) for row in ways.values())
        # two seeds, and torch's own threads change no more than the order of sums
        assert ways["1 thread, 2 cores"]["loss"] == pytest.approx(ways[PLAIN]["loss"], rel=1e-3)


def test_a_delay_of_one_step_narrows_the_room_for_the_learning_rate_with_momentum() -> None:
    """The largest stable ηh, as docs/measurements/sync.md gives it."""
    assert room(0.9, delay=0) == pytest.approx(3.8, abs=0.01)
    assert room(0.9, delay=1) == pytest.approx(0.1, abs=0.001)
    assert room(0.0, delay=0) == pytest.approx(2.0, abs=0.01)
    assert room(0.0, delay=1) == pytest.approx(1.0, abs=0.01)


def room(momentum: float, delay: int) -> float:
    """By bisection over how far the greatest root of the recurrence's polynomial lies from 0."""
    import numpy as np

    def stable(step: float) -> bool:
        polynomial = [1.0, -(1.0 + momentum), momentum, 0.0]
        polynomial[1 + delay] += step
        return bool(np.abs(np.roots(polynomial)).max() < 1.0)

    low, high = 0.0, 8.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if stable(middle) else (low, middle)
    return low
