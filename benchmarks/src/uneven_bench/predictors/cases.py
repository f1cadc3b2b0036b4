"""The cases of ``uneven bench predictors``: made-up workers with a known truth, and the common form."""

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

WORKERS = 4
ITERATIONS = 800
BASE_PER_S = (120.0, 100.0, 80.0, 60.0)  # samples per second of the made-up workers, undisturbed
NOISE = 0.03  # noise of a made-up iteration's speed, as relative standard deviation
READING_NOISE = 0.02  # noise of a reading of the processor's use, 0 … 1
SPIKE = 0.2  # a lone spike is an iteration at this part of the usual speed


@dataclass(frozen=True, slots=True, eq=False)
class PredictorCase:
    """Some workers, iteration by iteration."""

    name: str  # in tables
    kind: str  # "real", "recorded" or "synthetic"
    speeds_per_s: Floats  # ``(workers, iterations)``, measured
    # ``(workers, iterations)``, part of the node's processors that others took right after the iteration, so that it
    # is current for the next one; NaN if unknown
    cpu: Floats
    memory: Floats  # the same of the node's memory in use
    scored_from: int  # first iteration that counts. Earlier ones are for training and the choice of options.
    levels_per_s: Floats | None = None  # the speeds without noise; None if unknown
    # ``(workers, iterations)``, each worker's batch; None if all are equal
    samples: npt.NDArray[np.int64] | None = None

    @property
    def workers(self) -> int:
        return len(self.speeds_per_s)

    @property
    def iterations(self) -> int:
        return int(self.speeds_per_s.shape[1])


def case_of(
    name: str, kind: str, speeds_per_s: Floats, cpu: Floats | None = None, memory: Floats | None = None
) -> PredictorCase:
    """Return a case with its second half scored; arrays are (workers, iterations)."""
    unknown = np.full(speeds_per_s.shape, math.nan)
    read, held = (unknown if one is None else one for one in (cpu, memory))
    return PredictorCase(name, kind, speeds_per_s, read, held, scored_from=speeds_per_s.shape[1] // 2)


def synthetic(iterations: int = ITERATIONS, seed: int = 0) -> dict[str, PredictorCase]:
    made = spikes(iterations, seed), steps(iterations, seed), announced(iterations, seed), drift(iterations, seed)
    return {case.name: case for case in made}


def calm(iterations: int = ITERATIONS, seed: int = 0) -> PredictorCase:
    """Make noise only; others take a tenth of the processors all the time."""
    return _made("calm", np.ones((WORKERS, iterations)), np.full((WORKERS, iterations), 0.1), seed)


def spikes(iterations: int = ITERATIONS, seed: int = 0, every: int = 40) -> PredictorCase:
    """Make lone slow iterations, one of 40, without any announcement or effect on the next one."""
    rng = np.random.default_rng([seed, 1])
    factors = np.ones((WORKERS, iterations))
    for worker in range(WORKERS):
        for start in range(20, iterations - every, every):
            factors[worker, start + rng.integers(0, every - 3)] = SPIKE
    return _made("spikes", factors, np.full((WORKERS, iterations), 0.1), seed)


def steps(iterations: int = ITERATIONS, seed: int = 0) -> PredictorCase:
    """Make lasting changes to other speeds, every 60 … 120 iterations, without any announcement."""
    return _made("steps", _blocks(iterations, seed, (1.0, 0.7, 0.5, 0.35)), None, seed)


def announced(iterations: int = ITERATIONS, seed: int = 0) -> PredictorCase:
    """Make loads that come and go; the reading before the first slow iteration shows them."""
    free = _blocks(iterations + 1, seed, (1.0, 0.7, 0.5, 0.35))
    return _made("announced", free[:, :-1], 1.0 - free[:, 1:], seed)


def drift(iterations: int = ITERATIONS, seed: int = 0) -> PredictorCase:
    """Make slow waves, up and down by a quarter in some 300 iterations."""
    rng = np.random.default_rng([seed, 2])
    phase, period = rng.uniform(0.0, 2 * np.pi, (WORKERS, 1)), rng.uniform(250, 400, (WORKERS, 1))
    return _made("drift", 1.0 + 0.25 * np.sin(phase + 2 * np.pi * np.arange(iterations) / period), None, seed)


def _blocks(iterations: int, seed: int, levels: tuple[float, ...]) -> Floats:
    rng = np.random.default_rng([seed, 3])
    factors = np.ones((WORKERS, iterations))
    for worker in range(WORKERS):
        start = 0
        while start < iterations:
            end = start + int(rng.integers(60, 120))
            before = factors[worker, start - 1] if start else math.nan
            factors[worker, start:end] = rng.choice([level for level in levels if level != before])
            start = end
    return factors


def _made(name: str, factors: Floats, use: Floats | None, seed: int) -> PredictorCase:
    rng = np.random.default_rng([seed, 4])
    levels = factors * np.array(BASE_PER_S)[:, None]
    measured = levels * np.exp(rng.normal(0.0, NOISE, levels.shape))
    read = None if use is None else np.clip(use + rng.normal(0.0, READING_NOISE, use.shape), 0.0, 1.0)
    return replace(case_of(name, "synthetic", measured, read), levels_per_s=levels)
